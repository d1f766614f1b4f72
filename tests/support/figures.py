"""A measured figure, and the timer used for most figures."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A measured figure; `met` is None if it has no goal."""

    name: str
    value: float
    unit: str
    goal: str
    met: bool | None
    how: str


def median_s(do: Callable[[], object], num_times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The median time of this many calls, in seconds of this clock."""
    times_s = []
    for _ in range(num_times):
        start_s = clock()
        do()
        times_s.append(clock() - start_s)
    return statistics.median(times_s)


def scaled(num: int, scale: float, least: int = 1) -> int:
    """This number at full scale, fewer at a smaller scale, but never fewer than `least`."""
    return max(least, round(num * scale))
