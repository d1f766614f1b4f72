"""The texts of a form around its questions, in every format that people read."""

from __future__ import annotations

import base64

from autograder.quiz.forms import Form
from autograder.quiz.key import letter
from worldsize.quiz import Variant
from worldsize.quiz.question_text import png
from worldsize.quiz.variant import Amount, Answer, Gaps, Options, Order, Phrase, Prose, TimelinePicture

_WORDS_PER_LINE = 10  # in handwriting
_SPARE_LINES = 2


def who(form: Form) -> str:
    """The student's name as printed on a form."""
    return f"{form.student.name} ({form.student.id})" if form.student.name else form.student.id


def terms(form: Form) -> str:
    """The number of questions, the time limit, and the points needed to pass."""
    share = f"{form.blueprint.pass_fraction:.0%}"
    asked = f"{len(form.asked)} questions, {form.allowed_minutes:g} minutes. You pass with {share} of the points;"
    worth = [one.question.points for one in form.variants if isinstance(one.answer, Prose)]
    if not worth:
        return f"{asked} every question counts the same."
    others = "" if len(worth) == len(form.asked) else ", every other question 1"
    if len(worth) == 1:
        return f"{asked} the last one, answered in your own words, counts {worth[0]:g}{others}."
    return f"{asked} the last {len(worth)}, answered in your own words, count {worth[0]:g} each{others}."


def instruction(answer: Answer) -> str:
    """The instruction for a kind of answer."""
    match answer:
        case Options(single=True):
            return "Choose one."
        case Options():
            return "Choose all that apply."
        case Amount(unit=unit):
            return f"Give a number, in {unit}." if unit else "Give a number."
        case Phrase():
            return "Answer in a word or two."
        case Order():
            return "Put in order: write the letters, from the first to the last."
        case Gaps():
            return "Fill in each gap."
        case Prose(num_words=num_words):
            return f"Answer in your own words, about {num_words} of them ({answer.points:g} points)."


def num_lines(answer: Prose) -> int:
    """The lines of paper needed to write an answer."""
    return -(-answer.num_words // _WORDS_PER_LINE) + _SPARE_LINES


def lettered(answer: Answer) -> list[tuple[str, str]]:
    """The options to choose from or items to order: letter and Markdown."""
    match answer:
        case Options(options=options):
            texts = [option.text for option in options]
        case Order(shown=shown):
            texts = list(shown)
        case _:
            texts = []
    return [(letter(place), text) for place, text in enumerate(texts)]


def gap_hints(variant: Variant) -> list[tuple[int, str, list[tuple[str, str]]]]:
    """For each gap, its number, its instruction, and its options."""
    if not isinstance(variant.answer, Gaps):
        return []
    gaps = enumerate(variant.answer.gaps.values(), start=1)
    return [(place, instruction(gap), lettered(gap)) for place, gap in gaps]


def data_uri(picture: TimelinePicture) -> str:
    """The picture as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(png(picture)).decode()}"
