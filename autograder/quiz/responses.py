"""Responses of a class, by student and question.

Nothing is guessed: whatever cannot be read becomes a `Problem` that says where it is and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autograder.quiz.forms import Form
from worldsize.quiz.variant import Answer


@dataclass(frozen=True)
class Problem:
    """Something that cannot be read: the response to question `number`, or more than one response if that is None."""

    where: str
    student: str
    number: int | None
    reason: str

    def __str__(self) -> str:
        about = f", question {self.number}" if self.number else ""
        return f"{self.where}: {self.student}{about}: {self.reason}."


@dataclass(frozen=True)
class Response:
    """A response as written, its parsed value, and its location."""

    written: str
    response: Any
    where: str


@dataclass
class Responses:
    """The responses to these forms, by student and question number, and all problems with them."""

    forms: Sequence[Form]
    given: dict[str, dict[int, Response]] = field(default_factory=dict)
    minutes: dict[str, float] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    strangers: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._by_id = {form.student.id.casefold(): form for form in self.forms}

    def form(self, student: str, where: str) -> Form | None:
        """Return a student's form and record the submission; record an unknown student, and return None."""
        found = self._by_id.get(student.strip().casefold())
        if found is None:
            self.strangers.append(Problem(where, student.strip() or "somebody", None, "has no form in this key"))
        else:
            self.given.setdefault(found.student.id, {})
        return found

    def is_known(self, student: str) -> bool:
        """Whether this is the id of a student with a form."""
        return student.strip().casefold() in self._by_id

    def once(self, form: Form, where: str) -> bool:
        """Whether this is the student's first row; record a later one as a problem."""
        if not self.given[form.student.id]:
            return True
        self.problems.append(Problem(where, form.student.id, None, "has a row already; keep only the one that counts"))
        return False

    def put(self, form: Form, number: int, written: str, where: str, read: Callable[[], Any]) -> None:
        """Record a response, or the problem if `read` cannot parse it."""
        student = form.student.id
        before = self.given[student].get(number)
        if before is not None and before.written.split() == written.split():
            return
        if before is not None:
            reason = f"{written!r} here and {before.written!r} in {before.where}: it was answered twice"
            self.problems.append(Problem(where, student, number, reason))
            return
        response = None
        try:
            response = read()
        except ValueError as error:
            self.problems.append(Problem(where, student, number, str(error)))
        self.given[student][number] = Response(written, response, where)

    def answer(self, form: Form, number: int) -> Answer:
        """The right answer to a form's question, numbered from 1."""
        return form.asked[number - 1].variant.answer
