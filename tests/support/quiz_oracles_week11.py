"""The answers of week 11's templates by other ways: workers in a queue, rings step by step, switches cable by cable."""

from __future__ import annotations

import heapq
from fractions import Fraction
from itertools import count
from typing import Any

from quiz_oracles import oracle


def _loaded_step(load: int, work: int, num_workers: int, num_steps: int = 400) -> Fraction:
    """The mean step, late in a run, of a program whose workers each take the next batch when they are free."""
    free = [Fraction(0)] * num_workers
    heapq.heapify(free)
    now, ends = Fraction(0), []
    for _ in range(num_steps):
        ready = heapq.heappop(free) + load
        heapq.heappush(free, ready)
        now = max(now, ready) + work
        ends.append(now)
    return (ends[-1] - ends[num_steps // 2 - 1]) / (num_steps - num_steps // 2)


@oracle("w11-loader-workers")
def _(load: int, work: int) -> int:
    return next(number for number in count(1) if _loaded_step(load, work, number) <= work * Fraction(1001, 1000))


@oracle("w11-ridge")
def _(inputs: int, operations: int, tflops: int, tenths: int) -> float:
    """A million numbers, by their seconds at the memory's rate and at the peak."""
    numbers = 1_000_000
    moved_bytes = sum(2 * numbers for _ in range(inputs)) + 2 * numbers
    moving = Fraction(moved_bytes * 10, tenths * 10**12)
    computing = Fraction(numbers * operations, tflops * 10**12)
    return float(100 * computing / max(moving, computing))


@oracle("w11-who-is-late")
def _(num_ranks: int, rank: int, short: int, long: int) -> dict[str, Any]:
    """The ranks come at their times; the call ends for all when the last has come and the bytes have moved."""
    comes = [long - short if one == rank else 0 for one in range(num_ranks)]
    last = max(range(num_ranks), key=comes.__getitem__)
    end, faster_end = (max(comes) + moving for moving in (Fraction(short), Fraction(short, 2)))
    return {"rank": last, "saved": float(end - faster_end)}


@oracle("w11-ring-latency")
def _(nodes: int, per_node: int, base_tenths: int, across_tenths: int) -> float:
    """Twice round the ring for all but one chunk, a step to each hop: those from node to node are the slow ones."""
    total = Fraction(base_tenths, 10)
    for _ in ("reduce-scatter", "all-gather"):
        for hop in range(1, nodes * per_node):
            total += Fraction(across_tenths, 10) if hop % per_node == 0 else 1
    return float(total)


@oracle("w11-fixed-time")
def _(small: int, times: int, fixed: int, moving: int) -> float:
    """The line through both measurements, followed down to a piece of no bytes."""
    points = [(small, fixed + moving), (small * times, fixed + times * moving)]
    slope = Fraction(points[1][1] - points[0][1], points[1][0] - points[0][0])
    return float(points[0][1] - slope * points[0][0])


@oracle("w11-many-files")
def _(thousands: int, gigabytes: int, latency: float, rate: float, readers: int) -> float:
    """The readers in turn; the store's own rate below which nothing can be."""
    free = [Fraction(0)] * readers
    for number in range(thousands * 1000):
        free[number % readers] += Fraction(str(latency)) / 1000
    return max(float(max(free)), gigabytes / rate)


@oracle("w11-two-fixes")
def _(load: int, work: int, waits: int) -> dict[str, Any]:
    return {"ahead": float(_loaded_step(load, work + waits, 1)), "both": float(_loaded_step(load, work, 1))}


@oracle("w11-launch-bound")
def _(kernels: int, launch: int, each: int) -> int:
    """The CPU launches a step's kernels one by one; the GPU runs each when it is launched and the last is done."""
    for sequences in count(1):
        launched = done = waited = Fraction(0)
        for number in range(2 * kernels):
            launched += launch
            if number >= kernels and launched > done:
                waited += launched - done
            done = max(done, launched) + Fraction(each * sequences, kernels)
        if not waited:
            return sequences
    raise AssertionError("there is always a batch that is large enough")


@oracle("w11-saving")
def _(gpus: int, cents: int, days: int, before: int, gained: int) -> float:
    """Operations in units of a percent of a GPU's day, done at either rate."""
    operations = gpus * days * before
    days_after = Fraction(operations, gpus * (before + gained))
    return float((days - days_after) * 24 * gpus * cents / 100 / 1000)


@oracle("w11-leaf-switches")
def _(nodes: int, nics: int, ports: int) -> int:
    """Cable after cable, a new switch whenever the last has no port down left."""
    switches = left = 0
    for _ in range(nodes * nics):
        if not left:
            switches, left = switches + 1, ports // 2
        left -= 1
    return switches


@oracle("exam-follow-the-bottleneck")
def _(work: int, messages: int, load: int, workers: int) -> dict[str, Any]:
    """A step with a backward pass beside which messages go, and the loader's queue; then a worker more at a time."""
    backward_end = Fraction(work)
    sent = Fraction(work, 3) + messages
    own = max(backward_end, sent)
    step = max(own, _loaded_step(load, 1, workers, 600)) if load > workers else own
    enough = next(number for number in count(workers) if Fraction(load, number) <= own)
    return {"step": float(step), "workers": enough}


@oracle("exam-switches-add")
def _(num_gpus: int, gigabytes: int, tenths: int) -> dict[str, Any]:
    """What nccl-tests prints, and what a GPU's link carried where a switch adds: its tensor, out, once."""
    seconds = Fraction(tenths, 10_000)
    by_ring = sum(2 * Fraction(gigabytes, num_gpus) for _ in range(num_gpus - 1))
    return {"bus": float(by_ring / seconds), "link": float(gigabytes / seconds)}


@oracle("exam-energy-of-a-run")
def _(nodes: int, watts: int, days: int, pue: int, percent: int) -> dict[str, Any]:
    """Hour by hour, node after node."""
    hours_kwh = [nodes * Fraction(watts, 1000) * Fraction(pue, 100) for _ in range(24 * days)]
    total = sum(hours_kwh) / 1000
    return {"total": float(total), "saved": float(total - total * Fraction(100 - percent, 100))}
