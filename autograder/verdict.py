"""What the judge says of a submission, as data."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Outcome(StrEnum):
    """How one check ended."""

    PASSED = "passed"
    WRONG = "wrong"
    CRASHED = "crashed"
    HUNG = "hung"
    OUT_OF_TIME = "out of time"
    SKIPPED = "skipped"
    MALFORMED = "malformed submission"
    FAULT = "grader fault"

    @property
    def sentence(self) -> str:
        """What it means, for the student."""
        return _SENTENCES[self]


_SENTENCES = {
    Outcome.PASSED: "This holds.",
    Outcome.WRONG: "The code ran, and gave something else than it should.",
    Outcome.CRASHED: "The code raised an error or ended its process.",
    Outcome.HUNG: "The code did not come to an end; a rank waited for another one, or looped.",
    Outcome.OUT_OF_TIME: "The time for this submission was used up by the checks before this one.",
    Outcome.SKIPPED: "Not tried, because a check that it builds on did not hold.",
    Outcome.MALFORMED: "The file could not be read as a notebook of this assignment.",
    Outcome.FAULT: "The grader broke, not you. Your instructor has been told; no points were taken.",
}


class CheckResult(BaseModel):
    """One check: what it promises, what it is worth, how it ended, and why."""

    model_config = ConfigDict(extra="forbid")

    name: str
    cell: str
    promise: str
    points: float
    outcome: Outcome
    message: str = ""

    @property
    def earned(self) -> float:
        """The points that it gives."""
        return self.points if self.outcome is Outcome.PASSED else 0.0


class Report(BaseModel):
    """All checks of one submission, and under which conditions they ran."""

    model_config = ConfigDict(extra="forbid")

    checks: list[CheckResult]
    tier: str
    seed: int
    duration_s: float

    @property
    def score(self) -> float:
        """The points of the submission."""
        return sum(check.earned for check in self.checks)

    @property
    def max_score(self) -> float:
        """The points that could be had."""
        return sum(check.points for check in self.checks)

    @property
    def is_fault(self) -> bool:
        """True when the grader itself broke, so that no score may be recorded."""
        return not self.checks or any(check.outcome is Outcome.FAULT for check in self.checks)

    def of(self, cell: str) -> list[CheckResult]:
        """The checks that make up the points of one grade cell."""
        return [check for check in self.checks if check.cell == cell]
