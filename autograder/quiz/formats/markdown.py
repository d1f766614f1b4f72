"""A form as one Markdown file, with its pictures inline."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autograder.quiz.formats.form_text import data_uri, gap_hints, instruction, lettered, num_lines, terms, who
from autograder.quiz.formats.format import Format
from autograder.quiz.forms import Form
from worldsize.quiz import Variant
from worldsize.quiz.question_text import with_blanks
from worldsize.quiz.variant import Amount, Gaps, Options, Prose

_LINE, _RULE = r"\_" * 12, r"\_" * 72
_SPECIAL = re.compile(r"([\\`*_\[\]<>#$|])")


def render(form: Form) -> bytes:
    """The form as a Markdown file."""
    head = [f"# {escaped(form.blueprint.title)}", f"**{escaped(who(form))}**", terms(form)]
    pictures: list[str] = []
    blocks = [*head, *(block for place, one in enumerate(form.variants, 1) for block in _question(place, one))]
    for place, variant in enumerate(form.variants, start=1):
        if variant.picture:
            pictures.append(f"[figure-{place}]: {data_uri(variant.picture)}")
    return ("\n\n".join([*blocks, *pictures]) + "\n").encode()


def escaped(text: str) -> str:
    """Escape text so that Markdown shows it unchanged."""
    return _SPECIAL.sub(r"\\\1", text)


def text_of(variant: Variant) -> str:
    """The text of a question, with numbered blanks for its gaps."""
    return with_blanks(variant.text) if isinstance(variant.answer, Gaps) else variant.text


def choices(offered: list[tuple[str, str]], begin: str = "-") -> str:
    """The options as a list."""
    return "\n".join(f"{begin} **{letter}.** {_hanging(text)}" for letter, text in offered)


def hints(variant: Variant) -> Iterator[str]:
    """A line for each gap that says what to fill in."""
    for place, what, offered in gap_hints(variant):
        yield f"({place}) {what}" + (f"\n\n{choices(offered)}" if offered else "")


def _question(place: int, variant: Variant) -> Iterator[str]:
    yield f"## {place}"
    yield text_of(variant)
    if variant.picture:
        yield f"![{escaped(' '.join(variant.picture.alt.split()))}][figure-{place}]"
    yield f"*{instruction(variant.answer)}*"
    yield from hints(variant)
    if offered := lettered(variant.answer):
        yield choices(offered, "- [ ]" if isinstance(variant.answer, Options) else "-")
    if isinstance(variant.answer, Prose):
        yield "\n\n".join([_RULE] * num_lines(variant.answer))
    elif not isinstance(variant.answer, Options | Gaps):
        unit = f" {escaped(variant.answer.unit)}" if isinstance(variant.answer, Amount) and variant.answer.unit else ""
        yield f"Answer: {_LINE}{unit}"


def _hanging(text: str) -> str:
    return text.replace("\n", "\n  ")


FORMAT = Format("md", ".md", render)
