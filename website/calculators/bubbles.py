"""How much of a pipeline's step is idle?

Each GPU has a stage: some consecutive layers of the model. It waits for the first micro-batch to arrive and for the
last gradients to return. With p stages and m micro-batches, each GPU works for the time of m micro-batches and waits
for that of p − 1. The idle fraction, or bubble, is (p − 1)/(m + p − 1). With v smaller stages on each GPU, called
chunks, it is (p − 1)/(vm + p − 1).

The page simulates the schedule: a backward takes twice as long as a forward, stages are equal, and messages take no
time. All three schedules follow one rule. A GPU does a forward if it holds fewer micro-batches than its limit,
otherwise a backward. GPipe's limit is m. The limit of 1F1B is p on the first stage and one less on each stage after it.
Interleaved 1F1B counts chunks: its limit is (v + 1)p − 1 on the first stage and two less on each stage after it.

- Choose 4 stages and 32 micro-batches. GPipe and 1F1B are both idle for 8.6% of the step, but the first GPU holds 32
  micro-batches with GPipe and 4 with 1F1B.
- GPipe's paper calls the bubble negligible from m = 4p on. Choose 8 stages and 32 micro-batches: 17.9% of the step is
  idle. Interleaving with 4 chunks makes it 5.2%. The price is 4.4 times as many messages, and 9.75 micro-batches on the
  first GPU instead of 8.
- GPipe's paper divides the idle time by the whole step; Megatron-LM's divides it by the ideal time, without the idle
  time. The table has both.

[Week 9](../weeks/week09_pipeline_parallelism.ipynb) writes these schedules, and one that splits the backward to fill
the bubble: zero bubble.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from calculators import charts
from calculators.calculator import Answer, Question
from worldsize import hardware
from worldsize.event import Event
from worldsize.intervals import working
from worldsize.models import shapes
from worldsize.palette import BLUE
from worldsize.planning.layout import Plan
from worldsize.planning.memory_estimate import num_in_flight
from worldsize.timeline import Timeline

GPIPE, ONE_F_ONE_B, INTERLEAVED = "GPipe", "1F1B", "interleaved 1F1B"
LENGTHS = {"forward": 1, "backward": 2}
BUSY = "forward or backward"  # where single blocks would be narrower than a pixel
_MOST_BLOCKS = 4200

QUESTION = Question(
    "GPipe runs 8 micro-batches through 4 equal stages. For what percentage of the step is a stage idle?",
    "%",
    "A step takes as long as 8 + 3 micro-batches take on one stage. The stage is idle for 3 of them: 3/11.",
)
LABELS = {"num_stages": "stages", "num_batches": "micro-batches", "num_chunks": "chunks per GPU, if interleaved"}
RANGES = {
    "schedule": [GPIPE, ONE_F_ONE_B, INTERLEAVED],
    "num_stages": (2, 16, 1),
    "num_batches": (1, 64, 1),
    "num_chunks": [2, 4, 8],
}


def answer(schedule: str = GPIPE, num_stages: int = 4, num_batches: int = 8, num_chunks: int = 2) -> Answer:
    """The idle share of all three schedules, and the timeline of the chosen one."""
    rest = num_batches % num_stages
    if rest and schedule == INTERLEAVED:
        near = [one for one in (num_batches - rest, num_batches - rest + num_stages) if 0 < one <= 64]
        raise ValueError(
            f"With {num_stages} stages, interleaving takes micro-batches in rounds of {num_stages}: "
            f"choose {' or '.join(map(str, near))} micro-batches instead of {num_batches}"
        )
    rows, chosen, idle = [], Timeline(), 0.0
    for name in (GPIPE, ONE_F_ONE_B, INTERLEAVED):
        chunks = num_chunks if name == INTERLEAVED else 1
        title = f"{name}, {chunks} chunks" if chunks > 1 else name
        if chunks > 1 and rest:
            rows.append([title, f"m must be a multiple of {num_stages}", *["–"] * 4])
            continue
        played = play(name, num_stages, num_batches, chunks)
        share = played.bubble_fraction()
        rows.append(
            [
                title,
                f"{share:.1%}",
                f"{(num_stages - 1) / (chunks * num_batches + num_stages - 1):.1%}",
                f"{share / (1 - share):.1%}",
                f"{most_held(played, 0, chunks):g}",
                f"{2 * num_batches * (num_stages * chunks - 1):,}",
            ]
        )
        if name == schedule:
            chosen, idle = played, share
    batches = "1 micro-batch" if num_batches == 1 else f"{num_batches} micro-batches"
    return Answer(
        f"With {schedule}, {num_stages} stages and {batches}, each GPU is idle for {idle:.1%} of the step: "
        f"the speed-up of {num_stages} GPUs over one is {num_stages * (1 - idle):.2f}.",
        100 * idle,
        (
            "schedule",
            "idle, simulated",
            "idle, formula",
            "idle time over ideal time",
            "micro-batches held by the first GPU",
            "messages in a step",
        ),
        rows,
        _chart(chosen),
    )


def play(schedule: str, num_stages: int, num_batches: int, num_chunks: int) -> Timeline:
    """The timeline of a step, whose unit of time is a forward through all layers of a GPU."""
    forwards = list(_in_rounds(num_stages, num_batches, range(num_chunks)))
    backwards = list(_in_rounds(num_stages, num_batches, range(num_chunks)[::-1]))
    limits = [_limit(schedule, rank, num_stages, num_batches, num_chunks) for rank in range(num_stages)]
    num_begun = [{"forward": 0, "backward": 0} for _ in range(num_stages)]
    free, events = [0] * num_stages, list[Event]()
    done: dict[tuple[str, int, int] | None, int] = {None: 0}
    for tick in range(sum(LENGTHS.values()) * (len(forwards) + num_stages)):  # no step takes longer
        for rank, begun in enumerate(num_begun):
            if free[rank] > tick or begun["backward"] == len(backwards):
                continue
            has_room = begun["forward"] - begun["backward"] < limits[rank]
            kind = "forward" if has_room and begun["forward"] < len(forwards) else "backward"
            chunk, number = (forwards if kind == "forward" else backwards)[begun[kind]]
            place = chunk * num_stages + rank
            ready = done.get(_needed(kind, place, number, num_stages * num_chunks - 1))
            if ready is None or ready > tick:
                continue
            begun[kind] += 1
            end = done[kind, place, number] = free[rank] = tick + LENGTHS[kind]
            name = f"{kind} of micro-batch {number}" + (f", chunk {chunk}" if num_chunks > 1 else "")
            events.append(Event(rank, "main", kind, name, tick / num_chunks, end / num_chunks))
    return Timeline.of_events(events)


def most_held(timeline: Timeline, rank: int, num_chunks: int) -> float:
    """The most micro-batches between forward and backward at a time, in activations of all the rank's chunks."""
    held = most = 0
    for event in timeline.of(rank):
        held += 1 if event.kind == "forward" else -1
        most = max(most, held)
    return most / num_chunks


def _needed(kind: str, place: int, number: int, last: int) -> tuple[str, int, int] | None:
    """What must be done before a forward or a backward of one micro-batch at a place in the model, if anything."""
    if kind == "forward":
        return (kind, place - 1, number) if place else None
    return (kind, place + 1, number) if place < last else ("forward", place, number)


def _in_rounds(num_stages: int, num_batches: int, chunks: range) -> Iterator[tuple[int, int]]:
    """Chunk and micro-batch, in rounds of as many micro-batches as there are stages."""
    for first in range(0, num_batches, num_stages):
        yield from product(chunks, range(first, min(first + num_stages, num_batches)))


def _limit(schedule: str, rank: int, num_stages: int, num_batches: int, num_chunks: int) -> int:
    """The forwards whose activations a rank may hold."""
    if schedule == GPIPE:
        return num_batches
    plan = Plan(
        model=shapes.shape("tiny"),
        cluster=hardware.cluster("dgx-h100"),
        global_batch=num_batches,
        length=1,
        dp=1,
        tp=1,
        pp=num_stages,
        cp=1,
        micro_batch=1,
        num_chunks=num_chunks,
        recompute="none",
        zero_stage=0,
    )
    return round(num_chunks * num_in_flight(plan, rank))


def _chart(played: Timeline) -> dict[str, Any]:
    events, colours = played.events, {kind: charts.KINDS[kind] for kind in LENGTHS}
    if len(events) > _MOST_BLOCKS:
        colours = {BUSY: BLUE}
        events = [
            Event(rank, "main", BUSY, "work", start_s, end_s)
            for rank in range(played.num_ranks)
            for start_s, end_s in working(played.of(rank))
        ]
    rows = ((f"GPU {one.rank}", one.kind, one.name, one.start_s, one.end_s) for one in events)
    return charts.spans(rows, "time, in forwards of a GPU", colours)
