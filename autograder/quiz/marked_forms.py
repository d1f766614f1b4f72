"""The marks of a class: what each student answered, what each answer is worth, who passed."""

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
    """One question of a form, and what came of it; `given` is None where nothing was written."""

    number: int
    asked: AskedQuestion
    given: Response | None
    marked: Marked
    comment: str = ""  # of the person who graded it by hand

    @property
    def variant(self) -> Variant:
        """What was asked."""
        return self.asked.variant

    @property
    def is_empty(self) -> bool:
        """True where there is no answer that could be read."""
        return self.given is None or self.given.response is None

    @property
    def is_waiting(self) -> bool:
        """True for an essay that nobody has graded."""
        return self.marked.is_waiting

    @property
    def points(self) -> float:
        """The points that it earned; not a number while it waits to be graded."""
        return self.marked.share * self.variant.question.points


@dataclass(frozen=True)
class MarkedForm:
    """One student's form with its marks: a point for each question, the rubric's points for an essay, or parts of them.

    Points, fraction and the rest are for forms of which no answer waits to be graded.
    """

    form: Form
    answered: tuple[MarkedAnswer, ...]
    is_handed_in: bool
    minutes: float | None = None

    @property
    def points(self) -> float:
        """The points, without the rounding errors of floating point."""
        return round(sum(one.points for one in self.answered), 9)

    @property
    def num_waiting(self) -> int:
        """How many of its answers nobody has graded yet."""
        return sum(one.is_waiting for one in self.answered)

    @property
    def out_of(self) -> float:
        """The points that could be earned."""
        return sum(one.variant.question.points for one in self.answered)

    @property
    def fraction(self) -> float:
        """The fraction of the points that was earned."""
        return self.points / self.out_of

    @property
    def is_passed(self) -> bool:
        """True when that fraction is at least the blueprint's. Raises: ValueError when an answer waits to be graded."""
        if self.num_waiting:
            num = f"{self.num_waiting} answer{' of' if self.num_waiting == 1 else 's of'} {self.form.student.id}"
            raise ValueError(f"{num} {'is' if self.num_waiting == 1 else 'are'} still to be graded by hand.")
        return self.fraction >= self.form.blueprint.pass_fraction - 1e-9


def mark_forms(forms: Sequence[Form], responses: Responses, by_hand: ByHand | None = None) -> list[MarkedForm]:
    """The marks of all, in the order of the key; a response that could not be read counts as none.

    An essay waits until it has points by hand, which count only for the answer that they were given to. So does an
    empty one: its answer may be on paper.
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
