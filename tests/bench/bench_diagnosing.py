"""Week 11's ten bottlenecks on drawn programs and machines: is each named by its own step, and does its fix pay?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from figures import Figure, scaled
from symptoms import NAMES, PICTURES, Seen, seen

_SAVED_OF_PREDICTED = 0.5


def diagnosing(scale: float) -> Iterator[Figure]:
    """Of each bottleneck, how many draws make its picture, are named by their own step, and are fixed by its fix."""
    num_draws = scaled(50, scale)
    for name in NAMES:
        found = [seen(name, number) for number in range(num_draws)]
        num_right = sum(is_right(name, one) for one in found)
        ratio = statistics.median((one.slow_s - one.fixed_s) / one.predicted_s for one in found)
        longer = statistics.median(one.slow_s / one.fixed_s for one in found)
        how = f"of {num_draws} draws; step {longer:.2f} times as long, its fix saves {ratio:.2f} of what was predicted"
        yield Figure(f"week 11, {name} named and fixed", num_right, "", "all", num_right == num_draws, how)


def is_right(name: str, one: Seen) -> bool:
    """True where the picture, the name and the saving are those of this bottleneck."""
    saved_s = one.slow_s - one.fixed_s
    is_named = PICTURES[name](one) and one.diagnosis == name
    return is_named and saved_s > max(0.03 * one.slow_s, _SAVED_OF_PREDICTED * one.predicted_s)
