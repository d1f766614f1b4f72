"""The marks of a class: what each student answered, what each answer is worth, who passed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autograder.quiz.forms import Asked, Form
from autograder.quiz.responses import Response, Responses
from worldsize.quiz import Marked, Variant, mark
from worldsize.quiz.marking import UNANSWERED


@dataclass(frozen=True)
class MarkedAnswer:
    """One question of a form, and what came of it; `given` is None where nothing was written."""

    number: int
    asked: Asked
    given: Response | None
    marked: Marked

    @property
    def variant(self) -> Variant:
        """What was asked."""
        return self.asked.variant

    @property
    def is_empty(self) -> bool:
        """True where there is no answer that could be read."""
        return self.given is None or self.given.response is None


@dataclass(frozen=True)
class MarkedForm:
    """One student's form with its marks: a point per question, or a part of one."""

    form: Form
    answered: tuple[MarkedAnswer, ...]
    is_handed_in: bool
    minutes: float | None = None

    @property
    def points(self) -> float:
        """The points, without the rounding errors of floating point."""
        return round(sum(one.marked.share for one in self.answered), 9)

    @property
    def out_of(self) -> int:
        """The points that could be earned."""
        return len(self.answered)

    @property
    def fraction(self) -> float:
        """The fraction of the points that was earned."""
        return self.points / self.out_of

    @property
    def is_passed(self) -> bool:
        """True when that fraction is at least the blueprint's."""
        return self.fraction >= self.form.blueprint.pass_fraction - 1e-9


def mark_forms(forms: Sequence[Form], responses: Responses) -> list[MarkedForm]:
    """The marks of all, in the order of the key; a response that could not be read counts as none."""
    return [_mark_form(form, responses) for form in forms]


def _mark_form(form: Form, responses: Responses) -> MarkedForm:
    given = responses.given.get(form.student.id, {})
    answered = []
    for number, one in enumerate(form.asked, start=1):
        found = given.get(number)
        marked = UNANSWERED if found is None else mark(one.variant, found.response)
        assert math.isfinite(marked.share)
        answered.append(MarkedAnswer(number, one, found, marked))
    is_handed_in = form.student.id in responses.given
    return MarkedForm(form, tuple(answered), is_handed_in, responses.minutes.get(form.student.id))
