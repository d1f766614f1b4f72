"""Texts of a key, once per question: the right answers, the wrong ones, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autograder.quiz.formats.markdown import escaped
from autograder.quiz.forms import Form
from autograder.quiz.key import letter, printed
from autograder.tables.roster import Student
from worldsize.quiz import Variant
from worldsize.quiz.variant import Amount, Gaps, Options, Order, Phrase, Prose, RubricLine


@dataclass(frozen=True)
class Remark:
    """A possible answer and the feedback on it, both in Markdown."""

    answer: str
    is_right: bool
    feedback: str
    misconception: str = ""


@dataclass(frozen=True)
class Explained:
    """A question, in the variant of the first student who was asked it."""

    variant: Variant
    student: Student
    number: int
    num_forms: int
    remarks: tuple[Remark, ...]

    @property
    def has_other_numbers(self) -> bool:
        """Whether other students have the question with different numbers."""
        return bool(self.variant.parameters) and self.num_forms > 1

    @property
    def in_order(self) -> bool:
        """Whether the question asks for an order."""
        return isinstance(self.variant.answer, Order)

    @property
    def rubric(self) -> tuple[RubricLine, ...]:
        """What earns the points of an essay; empty for other kinds."""
        return self.variant.answer.rubric if isinstance(self.variant.answer, Prose) else ()


def explained(forms: Iterable[Form]) -> list[Explained]:
    """Every question of the forms, ordered by week and id."""
    first: dict[str, tuple[Variant, Student, int]] = {}
    counts: dict[str, int] = {}
    for form in forms:
        for number, variant in enumerate(form.variants, start=1):
            id = variant.question.id
            first.setdefault(id, (variant, form.student, number))
            counts[id] = counts.get(id, 0) + 1
    found = [Explained(*given, counts[id], tuple(_remarks(given[0]))) for id, given in first.items()]
    return sorted(found, key=lambda one: (one.variant.question.week, one.variant.question.id))


def _remarks(variant: Variant) -> Iterator[Remark]:
    answer = variant.answer
    if isinstance(answer, Prose):
        yield Remark("an answer such as this one", True, variant.feedback)
    elif not isinstance(answer, Options):
        yield Remark(escaped(printed(answer)), True, variant.feedback)
    parts = enumerate(answer.gaps.values(), start=1) if isinstance(answer, Gaps) else [(0, answer)]
    for place, part in parts:
        begin = f"({place}) " if place else ""
        match part:
            case Options(options=options):
                for number, option in enumerate(options):
                    given = f"{begin}**{letter(number)}** {option.text}"
                    yield Remark(given, option.correct, option.feedback, option.misconception or "")
            case Amount(mistakes=mistakes):
                for mistake in mistakes:
                    given = f"{begin}{mistake.value:.4g} {part.unit}".strip()
                    yield Remark(given, False, mistake.feedback, mistake.misconception)
            case Phrase(mistakes=mistakes):
                for mistake in mistakes:
                    yield Remark(f"{begin}{escaped(mistake.text)}", False, mistake.feedback, mistake.misconception)
