"""Week 11's ten bottlenecks on programs and machines drawn anew, by the functions of the lesson's own cells."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from repository import ROOT

from autograder.authoring.scripts import read_week
from worldsize.faults import SlowLink, SlowRank
from worldsize.timeline import Timeline

_CELLS = (
    *(
        "setup",
        "setup_torch",
        "setup_course",
        "small_nodes",
        "small_network",
        "job",
        "load",
        "batches",
        "model",
        "gradients",
    ),
    *("kernels", "train_step", "measured", "bounds", "work", "suspects", "calls", "signs", "symptoms"),
)
NAMES = (
    *("input", "storage", "launch", "precision", "straggler"),
    *("buckets", "overlap", "accumulation", "link", "axis"),
)
_HOPS = ("node0 nic0 out", "node0 nic0 in", "node1 nic0 out", "node1 nic0 in")


@dataclass(frozen=True)
class Seen:
    """A slow step beside the same step after its fix, and what the lesson's diagnosis says of the slow one."""

    slow: Timeline
    fixed: Timeline
    suspects: dict[str, float]
    signs: dict[str, float]
    slow_rank: int
    num_kernels: tuple[int, int]  # of the slow step, and of the fixed one
    slow_s: float
    fixed_s: float

    @property
    def first_suspect(self) -> str:
        """The suspect that the diagnosis gives the most seconds."""
        return max(self.suspects, key=lambda name: self.suspects[name])

    @property
    def predicted_s(self) -> float:
        """What the diagnosis says that putting the first suspect right would save."""
        return self.suspects[self.first_suspect]

    @property
    def diagnosis(self) -> str:
        """The first suspect, or where that is messages the first reason whose sign is there."""
        if self.first_suspect != "messages":
            return self.first_suspect
        return next((name for name, is_there in SIGNS.items() if is_there(self.signs[name])), "none")


@cache
def lesson() -> dict[str, Any]:
    """The names that the lesson's cells define, without its runs and pictures."""
    cells = {cell.id: cell.source for cell in read_week(ROOT / "weeks" / "week11_find_the_bottleneck.py").cells}
    names: dict[str, Any] = {"__name__": "__main__", "seed": 0}  # as in a notebook: by value to ranks
    for name in _CELLS:
        exec(compile(cells[name], name, "exec"), names)
    return names


def seen(name: str, number: int) -> Seen:
    """A bottleneck on the `number`-th machine and program that are drawn for it."""
    names, drawn = lesson(), random.Random(f"{name} {number}")
    _draw_machine(names, drawn)
    base, changes, faults = names["SYMPTOMS"][name]
    num_sequences = drawn.choice((4, 6))
    healthy = replace(
        base,
        num_batches=drawn.choice((2, 3)),
        num_sequences=num_sequences,
        num_together=num_sequences,
        bucket_bytes=drawn.choice((300_000, 400_000, 500_000)),
        decode_s=drawn.uniform(1.2e-3, 2.2e-3),
    )
    slow_rank = drawn.randrange(4)
    if name == "straggler":
        faults = [SlowRank(slow_rank, factor=drawn.uniform(1.3, 3))]
    elif name == "link":
        faults = [SlowLink(drawn.choice(_HOPS), factor=drawn.uniform(3, 8))]
    elif name == "storage":
        changes = {**changes, "num_files": drawn.randrange(4, 9)}
    elif name == "buckets":
        changes = {"bucket_bytes": drawn.choice((1, 2_000, 10_000))}
    cluster, slow = names["SMALL_NODES"], replace(healthy, **changes)
    slow_run, slow_step = names["measured"](slow, faults, cluster)
    run, step = names["measured"](healthy, [], cluster)
    kernels = slow_run.values[0][2], run.values[0][2]
    times = names["length_s"](slow_step), names["length_s"](step)
    diagnosis = names["suspects"](slow, slow_run, slow_step), names["signs"](slow_step)
    return Seen(slow_step, step, *diagnosis, slow_rank, kernels, *times)


def _draw_machine(names: dict[str, Any], drawn: random.Random) -> None:
    """Draw the lesson's small GPU and network anew."""
    gpu = replace(names["SMALL_GPU"], launch_s=drawn.uniform(2e-6, 4e-6))
    network = replace(
        names["SMALL_NETWORK"],
        latency_s=drawn.uniform(60e-6, 120e-6),
        bandwidth_bytes_per_s=drawn.uniform(0.4e9, 0.6e9),
    )
    names["SMALL_GPU"], names["seed"] = gpu, drawn.randrange(1000)
    names["SMALL_NODES"] = replace(names["SMALL_NODES"], gpu=gpu, inter=network)


def _calls(timeline: Timeline) -> int:
    return sum(event.kind == "communication" for event in timeline.of(0))


def _share_s(timeline: Timeline, kind: str) -> float:
    return timeline.time_s(0, kind)


def _loads_without_pause(one: Seen) -> bool:
    return _share_s(one.slow, "data") > 0.85 * one.slow_s and all(
        event.stream == "loader" for event in one.slow.of(0) if event.kind == "data"
    )


SIGNS: dict[str, Callable[[float], bool]] = {  # what the lesson says of them, in the order in which they are read
    "axis": lambda ratio: ratio > 1.2,
    "link": lambda ratio: ratio > 1.5,
    "accumulation": lambda times: times > 1.5,
    "overlap": lambda share: share < 0.01,
    "buckets": lambda calls: calls > 6,
}
PICTURES: dict[str, Callable[[Seen], bool]] = {  # what the lesson's text says of each picture
    "input": lambda one: {e.stream for e in one.slow.of(0) if e.kind == "data"} == {"compute"},
    "storage": _loads_without_pause,
    "launch": lambda one: one.num_kernels[0] > 2 * one.num_kernels[1],
    "precision": lambda one: (
        one.num_kernels[0] <= one.num_kernels[1] and _share_s(one.slow, "forward") > 3 * _share_s(one.fixed, "forward")
    ),
    "straggler": lambda one: one.slow_rank == min(range(4), key=lambda rank: one.slow.time_s(rank, "wait")),
    "buckets": lambda one: _calls(one.slow) > 3 * _calls(one.fixed),
    "overlap": lambda one: one.slow.overlap_fraction() < 0.01 < one.fixed.overlap_fraction(),
    "accumulation": lambda one: one.slow.bytes_sent(0) > 1.9 * one.fixed.bytes_sent(0),
    "link": lambda one: (
        _calls(one.slow) == _calls(one.fixed)
        and _share_s(one.slow, "communication") > 2 * _share_s(one.fixed, "communication")
    ),
    "axis": lambda one: (
        {len({rank // 2 for rank in event.peers}) for event in one.slow.of(0) if event.axis == "tp"} == {2}
    ),
}
