"""Marks of a class: every student's answers, their points, and who passed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autograder.quiz.forms import AskedQuestion, Form
from autograder.quiz.hand_points import ByHand, HandPoints, mark_of
from autograder.quiz.responses import Response, Responses
from worldsize.quiz import Marked, Variant, mark
from worldsize.quiz.marking import UNANSWERED, WAITING


@dataclass(frozen=True)
class MarkedAnswer:
    """A question of a form with its response and marks; `given` is None if nothing was written."""

    number: int
    asked: AskedQuestion
    given: Response | None
    marked: Marked
    comment: str = ""  # by the person who graded it

    @property
    def variant(self) -> Variant:
        """The variant that was asked."""
        return self.asked.variant

    @property
    def is_empty(self) -> bool:
        """Whether the answer is missing or could not be read."""
        return self.given is None or self.given.response is None

    @property
    def is_waiting(self) -> bool:
        """Whether this is an essay that has not been graded yet."""
        return self.marked.is_waiting

    @property
    def points(self) -> float:
        """The points earned; NaN while the answer waits to be graded."""
        return self.marked.share * self.variant.question.points


@dataclass(frozen=True)
class MarkedForm:
    """One student's marked form: up to one point for a question, and up to the rubric's points for an essay.

    `points`, `fraction` and `is_passed` are defined only once no answer waits to be graded.
    """

    form: Form
    answered: tuple[MarkedAnswer, ...]
    is_handed_in: bool
    minutes: float | None = None

    @property
    def points(self) -> float:
        """The total points, rounded to remove floating-point noise."""
        return round(sum(one.points for one in self.answered), 9)

    @property
    def num_waiting(self) -> int:
        """The number of answers that have not been graded yet."""
        return sum(one.is_waiting for one in self.answered)

    @property
    def out_of(self) -> float:
        """The points that can be earned."""
        return sum(one.variant.question.points for one in self.answered)

    @property
    def fraction(self) -> float:
        """The fraction of the points that the student earned."""
        return self.points / self.out_of

    @property
    def is_passed(self) -> bool:
        """Whether the fraction is enough to pass. Raises: ValueError while an answer waits to be graded."""
        if self.num_waiting:
            num = f"{self.num_waiting} answer{' of' if self.num_waiting == 1 else 's of'} {self.form.student.id}"
            raise ValueError(f"{num} {'is' if self.num_waiting == 1 else 'are'} still to be graded by hand.")
        return self.fraction >= self.form.blueprint.pass_fraction - 1e-9


def mark_forms(forms: Sequence[Form], responses: Responses, by_hand: ByHand | None = None) -> list[MarkedForm]:
    """Mark all forms, in the order of the key; a response that could not be read counts as empty.

    An essay waits until it has points given by hand, which count only for the answer that was graded. An empty essay
    waits too, because its answer may be on paper.
    """
    return [_mark_form(form, responses, by_hand or {}) for form in forms]


def _mark_form(form: Form, responses: Responses, by_hand: ByHand) -> MarkedForm:
    given = responses.given.get(form.student.id, {})
    answered = []
    for number, one in enumerate(form.asked, start=1):
        found = given.get(number)
        if one.variant.question.kind == "essay":
            answered.append(_by_hand(number, one, found, by_hand.get((form.student.id, number))))
            continue
        marked = UNANSWERED if found is None else mark(one.variant, found.response)
        assert math.isfinite(marked.share)
        answered.append(MarkedAnswer(number, one, found, marked))
    is_handed_in = form.student.id in responses.given
    return MarkedForm(form, tuple(answered), is_handed_in, responses.minutes.get(form.student.id))


def _by_hand(number: int, asked: AskedQuestion, found: Response | None, points: HandPoints | None) -> MarkedAnswer:
    """An essay with the points that it was given, or waiting for them."""
    if points is None or points.mark != mark_of(asked.variant, found.written if found else ""):
        return MarkedAnswer(number, asked, found, WAITING)
    marked = Marked(points.points / asked.variant.question.points, (), (asked.variant.feedback,))
    return MarkedAnswer(number, asked, found, marked, points.comment)
