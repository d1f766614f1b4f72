"""The answers of week 12's templates by other ways: failures one by one, intervals by search, saves piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import count
from typing import Any

from quiz_oracles import oracle

_HOUR_S, _DAY_S = 3600, 86400


def _least(cost: Callable[[float], float], low: float, high: float) -> float:
    """Where a convex cost is least, by cutting the range."""
    for _ in range(200):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if cost(left) < cost(right) else (left, high)
    return (low + high) / 2


def _lost(interval_s: float, stall_s: float, start_s: float, mean_s: float) -> float:
    """What a long time of so many intervals loses, as a share: all saves, and all failures with half an interval."""
    span_s = 1e9
    saving_s = span_s / interval_s * stall_s
    return (saving_s + span_s / mean_s * (start_s + interval_s / 2)) / span_s


@oracle("w12-mean-time")
def _(rate: float, gpus: int) -> float:
    """A thousand days of all nodes, in hours, over the failures that they have."""
    failures = sum(Fraction(str(rate)) for _ in range(gpus // 8))
    return float(Fraction(1000 * 24) / failures)


@oracle("w12-young")
def _(hours: int, stall: int) -> float:
    return _least(lambda one_s: _lost(one_s, stall, 0, hours * _HOUR_S), 1, 1e5) / 60


@oracle("w12-lost")
def _(minutes_between: int, stall: int, hours: int, start: int) -> float:
    return 100 * _lost(60 * minutes_between, stall, 60 * start, hours * _HOUR_S)


@oracle("w12-second-resume")
def _(num: int, first: int, second: int) -> dict[str, Any]:
    """Two loaders over the numbers of an epoch; the second saves what it has itself given."""
    epoch = list(range(num))
    skipped = len(epoch[:first])
    given = len(epoch[skipped : skipped + second])
    return {"skipped": epoch[given], "right": epoch[skipped + given]}


@oracle("w12-sharded-save")
def _(billions: int, nodes: int, each: int, total: int) -> float:
    """Every node's part at its share of whichever limit is lower."""
    share = min(Fraction(each), Fraction(total, nodes))
    return float(Fraction(14 * billions, nodes) / share)


@oracle("w12-budget")
def _(days: int, count: int, percent: int) -> float:
    useful_s = Fraction(days * _DAY_S * percent, 100)
    return float((days * _DAY_S - useful_s) / count / 60)


@oracle("w12-accumulate")
def _(ranks: int, each: int, left: int) -> int:
    """The fewest rounds in which those that are left have gone through the batch."""
    return next(rounds for rounds in count(1) if rounds * left * each >= ranks * each)


@oracle("exam-saves-that-fit")
def _(tenths: int, nodes: int, stall: int, start: int) -> dict[str, Any]:
    mean_s = 1000 * _DAY_S / (tenths / 10 * nodes)
    interval_s = _least(lambda one_s: _lost(one_s, stall, 60 * start, mean_s), 1, 1e5)
    return {"interval": interval_s / 60, "lost": 100 * _lost(interval_s, stall, 60 * start, mean_s)}


@oracle("exam-write-behind")
def _(gpus: int, part: int, copy: int, total: int) -> dict[str, Any]:
    """The copies end together; then all files share the storage, a GB of each at a time."""
    copied_s = Fraction(part, copy)
    whole_s = copied_s
    for _ in range(part):
        whole_s += gpus / Fraction(total)
    return {"stall": float(1000 * copied_s), "whole": float(whole_s)}


@oracle("exam-cost-of-a-hang")
def _(hangs: int, gpus: int, minutes_before: int, seconds: int) -> dict[str, Any]:
    def hours(waited_s: int) -> Fraction:
        return sum((Fraction(gpus * waited_s, _HOUR_S) for _ in range(hangs)), Fraction(0))

    before = hours(60 * minutes_before)
    return {"hours": float(before), "saved": float(before - hours(seconds))}
