"""The answers of week 13's templates by other ways: trials in a row, workers placed one at a time, bytes by message."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from quiz_oracles import oracle


@oracle("w13-starting")
def _(trials: int, trial: int, start: int) -> float:
    """All trials, one after the other."""
    starting_s = all_s = 0
    for _ in range(trials):
        starting_s += start
        all_s += start + trial
    return float(Fraction(100 * starting_s, all_s))


@oracle("w13-uneven")
def _(many: int, few: int) -> float:
    """The derivatives of the mean of two means by one sample of each."""
    by_many, by_few = Fraction(1, many) / 2, Fraction(1, few) / 2
    return float(by_few / by_many)


@oracle("w13-gang")
def _(jobs: int, workers: int, gpus: int) -> dict[str, Any]:
    """Workers placed one at a time; then whole jobs until none fits."""
    placed = [0] * jobs
    for number in range(gpus):
        placed[number % jobs] += 1
    free = gpus
    while free >= workers:
        free -= workers
    return {"held": placed[0], "useful": gpus - free}


@oracle("w13-tp-sent")
def _(layers: int, tokens: int, width: int) -> float:
    """Messages of rings of two: half of the tensor to reduce, and half of it to gather, for each all-reduce."""
    sent = 0
    for _ in range(layers):
        for _ in ("down forward", "gate backward", "up backward"):
            half = 4 * tokens * width // 2
            sent += half + half
    return sent / 1e6


@oracle("w13-fusion")
def _(cycles: int, per: int, size: int, buffer: int) -> int:
    """One gradient after the other into buffers that are sent when the next does not fit, or the cycle ends."""
    sent = 0
    for _ in range(cycles):
        filled = 0
        for _ in range(per):
            if filled + size > buffer:
                sent, filled = sent + 1, 0
            filled += size
        sent += filled > 0
    return sent


@oracle("w13-scraped")
def _(series: int, gpus: int, scrape: int, days: int, each: float) -> float:
    """Scrapes a day, one GPU's bytes of each, and all of them."""
    scrapes = Fraction(86_400, scrape) * days
    return float(scrapes * series * Fraction(str(each)) * gpus / 10**9)


@oracle("exam-gang-queue")
def _(jobs: int, workers: int, gpus: int, hours: int) -> dict[str, Any]:
    """One hour after the other: jobs that begin while there is room, and GPUs that nobody holds."""
    waiting, running, idle, now = jobs, list[int](), 0, 0
    while waiting or running:
        while waiting and gpus - workers * len(running) >= workers:
            waiting -= 1
            running.append(now + hours)
        idle += gpus - workers * len(running)
        now += 1
        running = [end for end in running if end > now]
    return {"done": now, "idle": float(Fraction(100 * idle, gpus * now))}


@oracle("exam-warm-trials")
def _(ranks: int, gpus: int, rounds: int, trial: int, start: int) -> dict[str, Any]:
    """Each trial on the place that is free first, with a start of its own or the worker's only one."""
    num_places = gpus // ranks
    cold, warm = [0] * num_places, [start] * num_places
    for _ in range(num_places * rounds):
        cold[cold.index(min(cold))] += start + trial
        warm[warm.index(min(warm))] += trial
    return {"cold": max(cold), "warm": max(warm)}


@oracle("exam-stalls-missed")
def _(stalls: int, stall: int, scrape: int) -> float:
    """A stall that begins at each tenth of a second of the interval, and the next scrape."""
    begins = range(1, 10 * scrape + 1)
    missed = sum(10 * scrape - begin >= 10 * stall for begin in begins)
    return float(Fraction(stalls * missed, len(begins)))
