"""The judge's report on a submission, as data."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

RECORD = "worldsize"  # metadata of a graded notebook: the report, or why the file is malformed
NO_CODE = "no code was run"  # the tier of a report for which none had to be run


class Outcome(StrEnum):
    """How one check ended."""

    PASSED = "passed"
    PARTLY = "partly"
    WRONG = "wrong"
    WRONG_ANSWER = "not right"
    NO_ANSWER = "no answer"
    BY_HAND = "graded by hand"
    CRASHED = "crashed"
    NOT_WRITTEN = "not written yet"
    HUNG = "hung"
    TIME_LIMIT = "time limit"
    OUTPUT_LIMIT = "output limit"
    FORBIDDEN = "forbidden call"
    SKIPPED = "skipped"
    MALFORMED = "malformed submission"
    FAULT = "grader fault"

    @property
    def holds(self) -> bool:
        """True if checks that need this one can be tried."""
        return self in (Outcome.PASSED, Outcome.PARTLY)

    @property
    def sentence(self) -> str:
        """What it means, for the student."""
        return _SENTENCES[self]


_SENTENCES = {
    Outcome.PASSED: "This holds.",
    Outcome.PARTLY: "Part of this holds and earns part of the points.",
    Outcome.WRONG: "The code ran but gave a wrong result.",
    Outcome.WRONG_ANSWER: "The answer is wrong.",
    Outcome.NO_ANSWER: "There is no answer that could be read.",
    Outcome.BY_HAND: "Your instructor reads this answer and gives its points.",
    Outcome.CRASHED: "The code raised an error or ended its process.",
    Outcome.NOT_WRITTEN: "The function that this is about is not written yet.",
    Outcome.HUNG: "The code hung: a rank waited for another one.",
    Outcome.TIME_LIMIT: "The code did not finish in time; no rank was waiting for another one.",
    Outcome.OUTPUT_LIMIT: "The code printed, wrote or returned more than a submission may.",
    Outcome.FORBIDDEN: "The code called an operation that is not allowed in this task.",
    Outcome.SKIPPED: "Not tried, because a check that it builds on did not hold.",
    Outcome.MALFORMED: "The file could not be read as a notebook of this assignment.",
    Outcome.FAULT: "The grader broke; this is not your fault. No score was recorded. Your instructor can see what went "
    "wrong and will grade your submission again.",
}


class Drawing(BaseModel):
    """A picture for the student, drawn by the judge: a PNG file in base64, and the same in words."""

    model_config = ConfigDict(extra="forbid")

    png: str = Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")
    alt: str


class CheckResult(BaseModel):
    """One check: what it promises, what it is worth, how it ended, and why."""

    model_config = ConfigDict(extra="forbid")

    name: str
    cell: str
    promise: str
    points: float
    outcome: Outcome
    message: str = ""
    blocked_by: str = ""  # of a skipped check: the name of the one to fix first
    stopped_by: str = ""  # the check's own error on what the ranks returned: a forged value, or a mistake in the check
    may_be_external: bool = False  # True if another process of the machine may have caused how it ended
    explanation: str = ""  # of a quiz: Markdown of its bank
    share: float | None = Field(default=None, gt=0, lt=1)  # of the points, where it holds in part
    picture: Drawing | None = None

    @property
    def earned(self) -> float:
        """The points that it earns."""
        if self.outcome is Outcome.PARTLY:
            return self.points * (self.share or 0)
        return self.points if self.outcome is Outcome.PASSED else 0.0


class Report(BaseModel):
    """All checks of one submission and the conditions under which they ran; `notes` are sentences about its files."""

    model_config = ConfigDict(extra="forbid")

    checks: list[CheckResult]
    tier: str
    seed: int
    duration_s: float
    notes: list[str] = []

    @property
    def ran_code(self) -> bool:
        """True if checks ran the student's code."""
        return self.tier != NO_CODE

    @property
    def score(self) -> float:
        """The points of the submission."""
        return sum(check.earned for check in self.checks)

    @property
    def max_score(self) -> float:
        """The points that could be earned."""
        return sum(check.points for check in self.checks)

    @property
    def is_fault(self) -> bool:
        """True if the grader itself broke, so that no score may be recorded."""
        return not self.checks or any(check.outcome is Outcome.FAULT for check in self.checks)

    @property
    def fault(self) -> str:
        """What broke in the grader, as a sentence; empty when nothing did."""
        broken = [f"{check.name}: {check.message}" for check in self.checks if check.outcome is Outcome.FAULT]
        return "; ".join(broken) or ("" if self.checks else "No check ran.")

    def with_unwritten(self, cells: Collection[str]) -> Self:
        """The same report, in which crashes in these grade cells mean that the function is not written yet."""
        checks = [
            check.model_copy(update={"outcome": Outcome.NOT_WRITTEN})
            if check.outcome is Outcome.CRASHED and check.cell in cells
            else check
            for check in self.checks
        ]
        return self.model_copy(update={"checks": checks})

    def of(self, cell: str) -> list[CheckResult]:
        """The checks that make up the points of one grade cell."""
        return [check for check in self.checks if check.cell == cell]


def format_points(number: float) -> str:
    """A number of points as people write it: at most two digits after the point."""
    return f"{round(number, 2):g}"
