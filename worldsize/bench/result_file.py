"""The file that holds a measurement's result; `schema()` describes it for other programs."""

from __future__ import annotations

import statistics
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from worldsize.bench.machine import Machine, busy_limit_cores
from worldsize.bench.task import Task

Scaling = Literal["strong", "weak"]
Kind = Literal["real", "emulated"]


class _ResultModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Timing(_ResultModel):
    """One training that was timed: `window_s` from the first sample of the first timed step to the weights.

    The times of an emulated training are the cluster's virtual time. `weights_error` is the distance from the weights
    of one process on the same batches, relative to how far those moved.
    """

    scaling: Scaling
    world_size: int
    repeat: int
    is_synchronised: bool
    kind: Kind
    backend: str
    batch_size: int
    num_timed_steps: int
    window_s: float
    step_times_s: list[float] = []
    weights_error: float | None = None
    claimed_bytes_per_step: float | None = None  # sent by rank 0, as the program counted
    wire_bytes_per_step: float | None = None  # sent by rank 0, as the conductor counted
    busy_cores: float | None = None  # by other work just before, for real ranks; None if unknown
    failure: str = ""

    @property
    def step_s(self) -> float:
        """Seconds per step, on average."""
        return self.window_s / self.num_timed_steps


class Point(_ResultModel):
    """One point of a scaling curve: medians over repeats, and the spread between the fastest and the slowest."""

    scaling: Scaling
    world_size: int
    kind: Kind
    step_s: float
    spread_fraction: float
    samples_per_s: float
    samples_per_s_per_rank: float
    efficiency: float  # speed per rank over that of one rank of the same kind
    communication_fraction: float | None  # of a step, from a second run without exchanging gradients
    num_repeats: int


class Result(_ResultModel):
    """A program's measurement: the machine, the task, every timing, and the curves that follow from them."""

    format: Literal["worldsize-benchmark-1"] = "worldsize-benchmark-1"
    program_sha256: str
    measured_at: str  # UTC, ISO 8601
    machine: Machine
    task: Task
    num_warmup_steps: int
    num_threads: int
    cluster: str  # where ranks were emulated
    timings: list[Timing]
    points: list[Point] = Field(default=[])

    @property
    def most_busy_cores(self) -> float | None:
        """The most cores that other work kept busy before any timing; None if unknown."""
        return max((timing.busy_cores for timing in self.timings if timing.busy_cores is not None), default=None)

    @property
    def is_disturbed(self) -> bool:
        """True if other work may have slowed a timing of real ranks."""
        num_cores, per_rank = self.machine.num_cores, self.num_threads
        return any(
            timing.busy_cores is not None
            and timing.busy_cores > busy_limit_cores(num_cores, per_rank * timing.world_size)
            for timing in self.timings
        )


def schema() -> dict[str, Any]:
    """The JSON Schema of a result file."""
    return Result.model_json_schema()


def points(timings: list[Timing]) -> list[Point]:
    """The scaling curves of these timings, without those that failed; a kind without a one-rank timing has no curve."""
    good = [timing for timing in timings if not timing.failure]
    has_base = {timing.kind for timing in good if timing.world_size == 1 and timing.is_synchronised}
    curve = []
    for scaling, kind, world_size in sorted({(timing.scaling, timing.kind, timing.world_size) for timing in good}):
        same = [
            timing for timing in good if (timing.scaling, timing.kind, timing.world_size) == (scaling, kind, world_size)
        ]
        synchronised = [timing for timing in same if timing.is_synchronised]
        if synchronised and kind in has_base:
            curve.append(_point(synchronised, [timing for timing in same if not timing.is_synchronised], good))
    return curve


def _point(timings: list[Timing], without: list[Timing], everything: list[Timing]) -> Point:
    first = timings[0]
    steps_s = [timing.step_s for timing in timings]
    step_s = statistics.median(steps_s)
    speed = first.batch_size / step_s / first.world_size
    alone = [
        timing.batch_size / timing.step_s
        for timing in everything
        if timing.world_size == 1
        and timing.kind == first.kind
        and timing.is_synchronised
        and timing.scaling == "strong"
    ]
    silent_s = statistics.median([timing.step_s for timing in without]) if without else None
    return Point(
        scaling=first.scaling,
        world_size=first.world_size,
        kind=first.kind,
        step_s=step_s,
        spread_fraction=(max(steps_s) - min(steps_s)) / step_s,
        samples_per_s=first.batch_size / step_s,
        samples_per_s_per_rank=speed,
        efficiency=speed / statistics.median(alone),
        communication_fraction=None if silent_s is None else max(0.0, 1 - silent_s / step_s),
        num_repeats=len(timings),
    )
