"""A student's program on paper: the process that ran it only claims a record, which other evidence must confirm.

The record is made in a process that runs student code, so it may be forged. It counts together with a small run of the
same program with data, whose calls and bytes are the conductor's word, and whose memory is the kernel's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autograder.judging.checks.check import StudentFailed
from autograder.judging.checks.witnessed import expect_grown
from worldsize.check import CheckFailed
from worldsize.event import COMMUNICATION
from worldsize.hardware import Cluster
from worldsize.paper.record import RankRecord
from worldsize.paper.result import PaperRun
from worldsize.paper.runner import records_of
from worldsize.timeline import Timeline

if TYPE_CHECKING:
    from worldsize.launch import Run

_MAX_BYTES = 32 << 20  # of a record
_FRAMEWORK_BYTES = 96 << 20  # that torch and the emulator fill while a small program runs with data
_HINT = "Run the same program whatever the number of ranks, and leave torch and worldsize themselves as they are."


def claimed(values_of: Callable[[Sequence[int]], Sequence[Any]], world_size: int, cluster: Cluster) -> PaperRun:
    """Collect the run on paper that student processes claim; `values_of(ranks)` runs them, as for `records_of`.

    Raises:
        CheckFailed: what came back is not a record of this job.
        StudentFailed: a process returned no values.
    """
    try:
        run = PaperRun(records_of(lambda ranks: _short(values_of(ranks)), None, world_size), cluster)
        is_sound = all(_is_sound(one, world_size) for one in run.records) and math.isfinite(run.step_s + _peak(run))
    except StudentFailed:
        raise
    except Exception:  # a forged record may break any line that reads it
        is_sound = False
    if not is_sound:
        raise CheckFailed("a record of the run on paper", "something else in its place", _HINT)
    return run


def _short(values: Sequence[Any]) -> Sequence[Any]:
    if any(type(value) is not bytes or len(value) > _MAX_BYTES for value in values):
        raise ValueError("not a record, or one that is too long")
    return values


def _is_sound(record: RankRecord, world_size: int) -> bool:
    is_of_job = record.world_size == world_size and 0 <= record.rank < world_size
    return is_of_job and all(0 <= step.duration_s < math.inf for step in record.steps)


def _peak(run: PaperRun) -> int:
    return max(one.most_bytes for one in run.memory)


def expect_agreement(paper: PaperRun, run: Run) -> None:
    """Raise CheckFailed unless the emulated run of a program confirms its run on paper.

    Each recorded rank must have the calls in their order, with the bytes that the conductor saw. Its memory may not
    have grown by more than what its tensors held on paper and what torch fills by itself, as the kernel counts.
    """
    for record in paper.records:
        said, seen = _calls(paper.timeline, record.rank), _calls(run.timeline, record.rank)
        if said != seen:
            both = enumerate(zip(said, seen, strict=False), 1)
            where = next((f"call {number}" for number, (one, other) in both if one != other), "their number")
            expected = f"rank {record.rank} to make the same calls on paper and with data"
            actual = f"{len(said)} on paper and {len(seen)} with data, which differ in {where}"
            raise CheckFailed(expected, actual, _HINT)
    expect_grown(run, _peak(paper) + _FRAMEWORK_BYTES, "what its tensors hold on paper, and for torch itself", _HINT)


def _calls(timeline: Timeline, rank: int) -> list[tuple[str, int | None, Any]]:
    """Return a rank's communication in the order in which it starts."""
    return [(one.name, one.size_bytes, one.peers) for one in timeline.of(rank) if one.kind == COMMUNICATION]
