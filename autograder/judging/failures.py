"""How a run of student code ended when it gave no values: the outcome, and the words for the student.

What a rank says of its own end may be forged; every such outcome gives nothing.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from autograder.judging.report import Outcome
from worldsize.launch import RankFailed, RunError, RunTimeout
from worldsize.launch.protocol.failure import Failure
from worldsize.launch.protocol.quota import EXCEEDED
from worldsize.launch.protocol.source import is_cell, quote
from worldsize.launch.reports.text import describe_hang

PROGRAMS = "/tmp/home/program"  # where a program that was handed in stands in its sandbox

# what Python, torch and the C library say when an allocation, or a write, is refused
_NO_MEMORY = ("MemoryError", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc")
_NO_SPACE = ("No space left on device", "File too large", "Disk quota exceeded", signal.SIGXFSZ.name)


class StudentFailed(Exception):
    """The student's code did not come back with values; `outcome` says how, the text says why."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def of_failure(error: RankFailed) -> StudentFailed:
    """The first culprit's words and its lines in the student's own cells; never a line of the checks."""
    culprit = error.failures[0]
    lines = [line for line in culprit.lines if is_cell(line.filename) or os.path.dirname(line.filename) == PROGRAMS]
    words = "\n".join([f"Rank {culprit.rank}: {culprit.headline}", *quote(lines)])
    return StudentFailed(_outcome_of(culprit), words)


def of_timeout(error: RunTimeout) -> StudentFailed:
    """Who waits for whom, and where each rank stood in the student's own cells."""
    outcome = Outcome.HUNG if any(one.waits_in for one in error.standings) else Outcome.TIME_LIMIT
    return StudentFailed(outcome, describe_hang([one.in_cells for one in error.standings], error.ending.reason))


def tell(error: RunError) -> dict[str, Any]:
    """A run's failure as data, for runs that are launched inside a sandbox; it travels there without this file."""
    if isinstance(error, RunTimeout):
        told = describe_hang([one.in_cells for one in error.standings], error.ending.reason)
        return {"hang": told, "waits": any(one.waits_in for one in error.standings)}
    return {
        "failures": json.dumps([[one.rank, one.to_fields()] for one in error.failures]),
        "words": str(error)[-2000:],
    }


def raise_told(told: dict[str, Any]) -> None:
    """Nothing where no failure was told.

    Raises:
        StudentFailed: as for the same run outside.
    """
    if "failures" in told:
        failures = [Failure.from_fields(int(rank), fields) for rank, fields in json.loads(told["failures"])]
        raise of_failure(RankFailed("", failures)) if failures else StudentFailed(Outcome.CRASHED, str(told["words"]))
    if "hang" in told:
        raise StudentFailed(Outcome.HUNG if told.get("waits") else Outcome.TIME_LIMIT, str(told["hang"]))


def _outcome_of(failure: Failure) -> Outcome:
    if failure.kind == "Forbidden":
        return Outcome.FORBIDDEN
    if failure.kind == signal.SIGXCPU.name:
        return Outcome.TIME_LIMIT
    if failure.kind == EXCEEDED or any(sign in failure.headline for sign in _NO_SPACE):
        return Outcome.OUTPUT_LIMIT
    if any(sign.lower() in failure.headline.lower() for sign in _NO_MEMORY):
        return Outcome.MEMORY_LIMIT
    return Outcome.CRASHED
