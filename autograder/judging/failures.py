"""How a run of student code ended when it gave no values: the outcome, and the words for the student.

What a rank says of its own end may be forged; no such outcome earns points.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from autograder.judging.report import Outcome
from worldsize.launch import RankFailed, RunError, RunTimeout
from worldsize.launch.protocol.failure import Cause, Failure
from worldsize.launch.protocol.quota import EXCEEDED
from worldsize.launch.protocol.source import is_cell, quote
from worldsize.launch.reports.result import End
from worldsize.launch.reports.text import describe_hang

PROGRAMS = "/tmp/home/program"  # where a submitted program lies in its sandbox

# what Python, torch and the C library say when an allocation, or a write, is refused
_NO_MEMORY = ("MemoryError", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc")
_NO_SPACE = ("No space left on device", "File too large", "Disk quota exceeded", signal.SIGXFSZ.name)


class StudentFailed(Exception):
    """A run of the student's code that returned no values; `outcome` says how it ended, the text says why.

    `may_be_external` is True where another process of the machine may have caused it, by taking its time or its memory.
    """

    def __init__(self, outcome: Outcome, message: str, may_be_external: bool = False) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.may_be_external = may_be_external or outcome is Outcome.TIME_LIMIT


def of_failure(error: RankFailed) -> StudentFailed:
    """The first culprit's error and its lines in the student's own cells; never a line of the checks."""
    culprit = error.failures[0]
    lines = [line for line in culprit.lines if is_cell(line.filename) or os.path.dirname(line.filename) == PROGRAMS]
    words = "\n".join([f"Rank {culprit.rank}: {culprit.headline}", *quote(lines)])
    return StudentFailed(_outcome_of(culprit), words, _was_killed(culprit))


def of_timeout(error: RunTimeout) -> StudentFailed:
    """Which rank waits for which, and where each one stood in the student's own cells."""
    outcome = Outcome.HUNG if any(one.waits_in for one in error.standings) else Outcome.TIME_LIMIT
    hang = describe_hang([one.in_cells for one in error.standings], error.ending.reason)
    return StudentFailed(outcome, hang, _is_stalled(error))


def describe(error: RunError) -> dict[str, Any]:
    """A run's failure as data, for runs launched inside a sandbox, to which this function is sent without its file."""
    if isinstance(error, RunTimeout):
        hang = describe_hang([one.in_cells for one in error.standings], error.ending.reason)
        waits = any(one.waits_in for one in error.standings)
        return {"hang": hang, "waits": waits, "may_be_external": _is_stalled(error)}
    return {
        "failures": json.dumps([[one.rank, one.to_fields()] for one in error.failures]),
        "words": str(error)[-2000:],
        "may_be_external": bool(error.failures) and _was_killed(error.failures[0]),
    }


def raise_described(described: dict[str, Any]) -> None:
    """Raise StudentFailed where a failure is described, as for the same run outside."""
    may_be_external = described.get("may_be_external") is True
    if "failures" in described:
        failures = [Failure.from_fields(int(rank), fields) for rank, fields in json.loads(described["failures"])]
        if not failures:
            raise StudentFailed(Outcome.CRASHED, str(described["words"]))
        failed = of_failure(RankFailed("", failures))
        raise StudentFailed(failed.outcome, str(failed), may_be_external)
    if "hang" in described:
        outcome = Outcome.HUNG if described.get("waits") else Outcome.TIME_LIMIT
        raise StudentFailed(outcome, str(described["hang"]), may_be_external)


def _is_stalled(error: RunTimeout) -> bool:
    """True where there was no progress for too long, which a busy machine may cause as well."""
    return error.ending.end is End.STALLED


def _was_killed(failure: Failure) -> bool:
    """True for the signal that the kernel sends when memory is short; a rank cannot forge it."""
    return failure.cause is Cause.SIGNAL and failure.kind == signal.SIGKILL.name


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
