"""The bank's texts for self-contained pages: Markdown as HTML, formulas as MathML, pictures inline."""

from __future__ import annotations

from threading import Lock

from markupsafe import Markup

from autograder.files import templates
from autograder.judging.report import format_points
from autograder.markdown import bank_text
from autograder.quiz.key import letter, printed
from worldsize.quiz import question_text
from worldsize.quiz.variant import Amount, Answer, Gaps, Options, Order, Phrase, Prose, TimelinePicture, Variant

_drawing = Lock()  # matplotlib draws one picture at a time


def shown(markdown: str) -> Markup:
    """A text as HTML."""
    return Markup(bank_text.html(markdown))


def asked(variant: Variant) -> Markup:
    """The text of a question, with numbered blanks for its gaps."""
    return Markup(bank_text.html(variant.text, _blank))


def inline(markdown: str) -> Markup:
    """A short text as HTML, without an enclosing paragraph."""
    return Markup(bank_text.inline_html(markdown))


def picture(one: TimelinePicture | None) -> Markup:
    """The picture of a question; empty without one."""
    if one is None:
        return Markup("")
    with _drawing:
        return Markup(question_text.picture_html(one))


def kind(answer: Answer) -> str:
    """The kind of answer, for a template."""
    match answer:
        case Options():
            return "single" if answer.single else "multiple"
        case Amount():
            return "numeric"
        case Order():
            return "ordering"
        case Gaps():
            return "cloze"
        case Prose():
            return "essay"
        case _:
            return "text"


def solution(answer: Answer) -> str:
    """The right answer in Markdown, with the texts of its letters."""
    match answer:
        case Options():
            return "; ".join(f"{letter(place)}: {answer.options[place].text}" for place in sorted(answer.right))
        case Order():
            return "; ".join(f"{letter(place)}: {answer.shown[place]}" for place in answer.places)
        case Gaps():
            return "; ".join(f"({place}) {solution(gap)}" for place, gap in enumerate(answer.gaps.values(), start=1))
        case Phrase():
            return " or ".join(answer.accepted)
        case _:
            return printed(answer)


def _blank(number: int) -> str:
    return f'<span class="gap" role="img" aria-label="gap {number}">({number})</span>'


environment = templates()
environment.filters |= {
    "asked": asked,
    "inline": inline,
    "kind": kind,
    "letter": letter,
    "picture": picture,
    "points": format_points,
    "shown": shown,
    "solution": solution,
}
