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
