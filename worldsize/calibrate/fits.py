"""Latency and rate from measured times of several sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

_NUM_TRIED = 9  # values of each quantity in a round of the search
_NUM_ROUNDS = 7


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit the seconds before the first byte and the bytes a second to (bytes, seconds), using the median of all slopes.

    Up to 29% of the points may be wrong by any amount; with more, half of the pairs contain a wrong one. Source: Sen,
    "Estimates of the Regression Coefficient Based on Kendall's Tau", Journal of the American Statistical Association
    63, 1968.
    """
    pairs = itertools.combinations(sorted(points), 2)
    slopes = [(high_s - low_s) / (high - low) for (low, low_s), (high, high_s) in pairs if high > low]
    slope = max(median(slopes), 1e-15)
    return max(0.0, median(time_s - slope * size for size, time_s in points)), 1 / slope


def latency_and_rate(
    points: Mapping[float, float], model_s: Callable[[float, float, float], float]
) -> tuple[float, float]:
    """Fit the latency and the bytes a second to times, by `model_s(size_bytes, latency_s, bytes_per_s)`.

    The distance is the sum over the sizes of the absolute differences of logarithms, so that long times do not count
    more than short ones, and a single disturbed time does not decide.
    """
    low_s, high_s = min(points.values()), max(points.values())
    largest = max(points)
    ranges = [(low_s / 1000, low_s), (largest / high_s / 4, 64 * largest / high_s)]
    best = (low_s, largest / high_s)
    for _ in range(_NUM_ROUNDS):
        tried = itertools.product(_spread(*ranges[0]), _spread(*ranges[1]))
        best = min(tried, key=lambda pair: _distance(points, lambda size: model_s(size, *pair)))
        ranges = [
            (value * (high / low) ** (-1 / (_NUM_TRIED - 1)), value * (high / low) ** (1 / (_NUM_TRIED - 1)))
            for value, (low, high) in zip(best, ranges, strict=True)
        ]
    return best


def _spread(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (step / (_NUM_TRIED - 1)) for step in range(_NUM_TRIED)]


def _distance(points: Mapping[float, float], time_s: Callable[[float], float]) -> float:
    return sum(abs(math.log(time_s(size) / measured_s)) for size, measured_s in points.items())
