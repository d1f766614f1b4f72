"""Measured times of operators on one machine, and interpolation between the measured sizes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import NamedTuple

_NUM_NEAREST = 4  # measured matmuls from which a rate is interpolated
_STEEPNESS = 3.0  # exponent with which their weight falls with the distance


class Timed(NamedTuple):
    """One measured operator: its name in torch, its flops, the bytes that it moves, and its seconds."""

    name: str
    flops: float
    size_bytes: float
    time_s: float


@dataclass(frozen=True)
class Timings:
    """The times of measured operators, and a program's overhead per operator by the phase of training.

    A measured operator's time is interpolated between its measured sizes: a pass over memory by its bytes, linearly in
    the logarithms of bytes and time; a matmul or attention using the rates of the measured ones closest in flops and
    arithmetic intensity. An operator that was not measured takes the median of those that were. All take `slowdown`
    times as long in a program, where tensors are less often in a cache.
    """

    operators: tuple[Timed, ...]
    overhead_s: Mapping[str, float] = field(hash=False)
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        if not any(not one.flops for one in self.operators):
            raise ValueError("the timings have no pass over memory; give at least one Timed whose flops are 0")
        for one in self.operators:
            is_finite = all(math.isfinite(value) for value in one[1:])
            if not is_finite or one.flops < 0 or one.size_bytes < 0 or one.time_s <= 0:
                raise ValueError(
                    f"the timing of {one.name} is {one}; its time must be above 0 and its other numbers 0 or more, "
                    "all finite"
                )

    def time_s(self, name: str, flops: float, size_bytes: float, phase: str = "", speed: float = 1.0) -> float:
        """Return the seconds of an operator, including the program's overhead.

        A matmul runs `speed` times as fast as the measured ones.
        """
        around_s = self.overhead_s.get(phase, self.overhead_s.get("", 0.0))
        alone_s = self._product_s(name, flops, size_bytes) / speed if flops else self._pass_s(name, size_bytes)
        return around_s + self.slowdown * alone_s

    def flops_per_s(self, name: str, flops: float, size_bytes: float) -> float:
        """Interpolate the rate of a matmul between the measured ones."""
        near = self._products.get(name) or self._products[""]
        at = _place(flops, size_bytes)
        nearest = sorted((math.dist(at, place), rate) for place, rate in near)[:_NUM_NEAREST]
        if nearest[0][0] < 1e-9:
            return math.exp(fmean(rate for distance, rate in nearest if distance < 1e-9))
        weights = [distance**-_STEEPNESS for distance, _ in nearest]
        return math.exp(sum(w * rate for w, (_, rate) in zip(weights, nearest, strict=True)) / sum(weights))

    def _product_s(self, name: str, flops: float, size_bytes: float) -> float:
        if not self._products:
            raise ValueError(f"no matmul was measured, so {name or 'a matmul'} cannot be priced")
        return flops / self.flops_per_s(name, flops, size_bytes)

    def _pass_s(self, name: str, size_bytes: float) -> float:
        if name in self._passes:
            return _between(self._passes[name], size_bytes)
        return median(_between(curve, size_bytes) for curve in self._passes.values())

    @cached_property
    def _passes(self) -> dict[str, list[tuple[float, float]]]:
        """The bytes and seconds of each pass over memory, ascending."""
        named = _by_name(timed for timed in self.operators if not timed.flops)
        return {name: sorted((timed.size_bytes, timed.time_s) for timed in of_name) for name, of_name in named.items()}

    @cached_property
    def _products(self) -> dict[str, list[tuple[tuple[float, float], float]]]:
        """The coordinates of each matmul and the logarithm of its rate, by name; all of them under the empty name."""
        named = _by_name(one for one in self.operators if one.flops)
        places = {
            name: [(_place(one.flops, one.size_bytes), math.log(one.flops / one.time_s)) for one in of_name]
            for name, of_name in named.items()
        }
        return places | {"": [one for of_name in places.values() for one in of_name]} if places else {}


def _by_name(timed: Iterable[Timed]) -> dict[str, list[Timed]]:
    found: dict[str, list[Timed]] = {}
    for one in timed:
        found.setdefault(one.name, []).append(one)
    return found


def _place(flops: float, size_bytes: float) -> tuple[float, float]:
    """Return coordinates in which matmuls with similar rates are close to each other."""
    return math.log(flops), 2 * math.log(flops / max(size_bytes, 1.0))


def _between(curve: Sequence[tuple[float, float]], size_bytes: float) -> float:
    """Interpolate the seconds at a size: constant below the smallest, proportional to the bytes above the largest."""
    place = bisect_left(curve, (size_bytes, 0.0))
    if place == 0:
        return curve[0][1]
    if place == len(curve):
        return curve[-1][1] * size_bytes / curve[-1][0]
    (low, low_s), (high, high_s) = curve[place - 1], curve[place]
    share = math.log(size_bytes / low) / math.log(high / low) if low else 1.0
    return low_s * (high_s / low_s) ** share
