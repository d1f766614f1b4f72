"""Texts that all formats for learning platforms share: a question with its unit, plain decimals, safe names."""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from autograder.markdown.platform_markup import mark_gaps
from autograder.quiz.formats.form_text import instruction
from autograder.quiz.forms import Form
from worldsize.quiz import Variant
from worldsize.quiz.bank import gap_names
from worldsize.quiz.marking import plain
from worldsize.quiz.variant import Amount, Gaps, Phrase, Prose, WrongNumber

_MOST_SPELLINGS = 60


def text_of(variant: Variant) -> str:
    """The question in Markdown, with gaps marked for `platform_markup.put_in`.

    It names a number's unit and the length of an essay.
    """
    answer = variant.answer
    if isinstance(answer, Prose):
        return f"{variant.text}\n\n({instruction(answer)})"
    if isinstance(answer, Amount) and answer.unit:
        return f"{variant.text}\n\n(Give a number, in {answer.unit}.)"
    if isinstance(answer, Gaps):
        text = variant.text
        for name, gap in answer.gaps.items():
            before, after = text.split(f"[[{name}]]", 1)
            if isinstance(gap, Amount) and gap.unit and not after.lstrip().startswith(gap.unit):
                text = f"{before}[[{name}]] {gap.unit}{after}"
        return mark_gaps(text, gaps_of(variant))
    return variant.text


def rubric_text(answer: Prose) -> str:
    """The rubric of an essay in Markdown, for those who grade it."""
    lines = "\n".join(f"- **{line.points:g}**: {line.text}" for line in answer.rubric)
    return f"Rubric, {answer.points:g} points:\n\n{lines}"


def gaps_of(variant: Variant) -> list[str]:
    """The names of the gaps in the order of the text."""
    return [
        name for name in gap_names(variant.text) if isinstance(variant.answer, Gaps) and name in variant.answer.gaps
    ]


def names_of(form: Form) -> list[str]:
    """A name for each question: its number in the form, so that lists are in order, and its variant."""
    return [f"{place:02d} {variant.id}" for place, variant in enumerate(form.variants, start=1)]


def title_of(form: Form) -> str:
    """The title of the quiz and the name of the student."""
    return f"{form.blueprint.title} ({form.student.id})"


def identifier(text: str) -> str:
    """The text as an XML identifier; other characters become codes, so that distinct texts stay distinct."""
    safe = re.sub(r"[^A-Za-z0-9.-]", lambda found: f"_{ord(found[0]):x}_", text)
    return safe if safe[0].isalpha() else f"id-{safe}"


def decimal(value: float) -> str:
    """The number in plain decimals; parsing it gives exactly the same number."""
    return format(Decimal(repr(value)), "f")


def mistake_tolerance(answer: Amount, mistake: WrongNumber) -> float:
    """The tolerance around a mistake, relative to it the same as the answer's own tolerance."""
    return abs(mistake.value) * answer.tolerance / max(abs(answer.value), 1e-300)


def bounds(value: float, tolerance: float) -> tuple[float, float]:
    """The lowest and the highest number that are accepted."""
    return value - tolerance, value + tolerance


def distinct(answer: Phrase) -> list[str]:
    """The accepted texts, without duplicates that differ only in case or spaces."""
    return list({plain(text): " ".join(text.split()) for text in reversed(answer.accepted)}.values())[::-1]


def spellings(answer: Amount) -> list[str]:
    """Right numbers as texts, for platforms that only compare texts: up to three digits, within the tolerance.

    The first is the one in the key. If there would be more than 60, fewer digits are used.
    """
    value = Decimal(repr(answer.value))
    low, high = value - Decimal(repr(answer.tolerance)), value + Decimal(repr(answer.tolerance))
    found = {answer.text.removesuffix(answer.unit).strip(): None, answer.text: None}
    found |= {text.replace(",", ""): None for text in found}
    for digits in (1, 2, 3) if value else ():
        step = Decimal(1).scaleb(math.floor(math.log10(abs(answer.value))) - digits + 1)
        first = int((low / step).to_integral_value(ROUND_CEILING))
        last = int((high / step).to_integral_value(ROUND_FLOOR))
        if last - first >= _MOST_SPELLINGS:
            break
        found |= {format(count * step, "f"): None for count in range(first, last + 1)}
    return list(found)
