r"""GIFT (https://docs.moodle.org/en/GIFT_format): one text file.

Texts are HTML with formulas between `\(` and `\)`; figures are in them as data. What GIFT lacks becomes the nearest
that it has: things to put in order are matched with their places; each gap of a cloze text is a question of its own,
whose title says which part of a question it is worth (`part 1 of 3`); words to type cannot hold `->`, which becomes an
arrow; an essay is worth one point there and has no rubric, which stands in the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from autograder.markdown.platform_markup import html
from autograder.quiz.formats.platform_text import (
    decimal,
    distinct,
    gap_text,
    gaps_of,
    mistake_tolerance,
    names_of,
    text_of,
    title_of,
)
from autograder.quiz.forms import Form
from worldsize.quiz import Variant
from worldsize.quiz.question_text import picture_html
from worldsize.quiz.variant import Amount, Gaps, Options, Order, Phrase, Prose

_Asked: TypeAlias = Options | Amount | Phrase | Order | Prose


def render(form: Form) -> bytes:
    """The form as GIFT."""
    category = "/".join(" ".join(part.split()).replace("/", "//") for part in (form.blueprint.title, form.student.id))
    parts = [f"// {' '.join(title_of(form).split())}", f"$CATEGORY: $course$/top/{category}"]
    for name, variant in zip(names_of(form), form.variants, strict=True):
        parts += _questions(name, variant)
    return ("\n\n".join(parts) + "\n").encode()


def _questions(name: str, variant: Variant) -> Iterator[str]:
    figure = picture_html(variant.picture)
    if isinstance(variant.answer, Gaps):
        gaps = gaps_of(variant)
        for place, gap in enumerate(gaps):
            title = f"{name} part {place + 1} of {len(gaps)}"
            yield _question(title, html(gap_text(variant, place)) + figure, variant.answer.gaps[gap], variant.feedback)
    else:
        yield _question(name, html(text_of(variant)) + figure, variant.answer, variant.feedback)


def _question(title: str, text: str, answer: _Asked, feedback: str) -> str:
    if isinstance(answer, Prose):
        return f"::{_escaped(title)}::{_html(text)}{{}}"
    lines = list(_answers(answer))
    if feedback:
        lines.append(f"####{_html(html(feedback))}")
    start = "{#" if isinstance(answer, Amount) else "{"
    listed = "\n".join(lines)
    return f"::{_escaped(title)}::{_html(text)}{start}\n{listed}\n}}"


def _answers(answer: Options | Amount | Phrase | Order) -> Iterator[str]:
    match answer:
        case Options(options=options, single=single):
            share = 100 / len(answer.right)
            for option in options:
                start = ("=" if option.correct else "~") if single else f"~%{share if option.correct else -share:.5f}%"
                yield f"{start}{_html(html(option.text))}#{_html(html(option.feedback))}"
        case Amount():
            yield f"=%100%{decimal(answer.value)}:{decimal(answer.tolerance)}"
            for mistake in answer.mistakes:
                tolerance = decimal(mistake_tolerance(answer, mistake))
                yield f"=%0%{decimal(mistake.value)}:{tolerance}#{_html(html(mistake.feedback))}"
        case Phrase():
            yield from (f"=%100%{_words(text)}" for text in distinct(answer))
            yield from (f"=%0%{_words(m.text)}#{_html(html(m.feedback))}" for m in answer.mistakes)
        case Order(shown=shown, places=places):
            for place, text in enumerate(shown):
                yield f"={_html(html(text))} -> {places.index(place) + 1}"


def _html(text: str) -> str:
    # an arrow outside of a tag would separate a pair
    return f"[html]{_escaped(text.replace('->', '-&gt;'))}"


def _words(text: str) -> str:
    """Words to type; a star would stand for any words, and an arrow would make a pair of them."""
    return _escaped(" ".join(text.split()).replace("*", r"\*").replace("->", "\N{RIGHTWARDS ARROW}"))


def _escaped(text: str) -> str:
    text = re.sub(r"[\\:#={}~]", lambda found: "\\" + found[0], text)
    return re.sub(r"\r\n|[\r\n]", r"\\n", text)
