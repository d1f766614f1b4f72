"""The cost of a message: time against size for several algorithms, and the sizes at which another becomes fastest."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise
from statistics import median

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from worldsize import units
from worldsize.draw._annotations import white_box
from worldsize.draw.picture import Picture, finish
from worldsize.palette import BLACK, BLUE, FAINT, GREEN, INK, ORANGE, VERMILLION

Cost = Callable[[float], float] | Mapping[float, float]
Crossover = tuple[float, str, str]
_STYLES = [
    (BLUE, "-", "o"),
    (VERMILLION, "--", "s"),
    (GREEN, "-.", "^"),
    (BLACK, ":", "D"),
    (ORANGE, (0, (8, 2, 1, 2, 1, 2)), "v"),
]
_SIZES_BYTES = (units.KB, units.GB)
_NUM_POINTS = 120
_EQUAL = 1 + 1e-9  # two ways of writing the same formula differ by less
_HALVINGS = 40  # of the interval between two points; a crossover is then exact to every digit shown


def cost(
    algorithms: Mapping[str, Cost],
    sizes_bytes: tuple[float, float] | None = None,
    measured: Mapping[str, Mapping[float, float | Sequence[float]]] | None = None,
    title: str = "Time against message size",
    x_label: str = "message size",
) -> Picture:
    """Draw one line per algorithm on logarithmic axes, with a mark wherever a different one becomes the fastest.

    An algorithm is a function from bytes to seconds, or `{size_bytes: time_s}`. `sizes_bytes` is the range to draw; by
    default that of the series, or 1 kB to 1 GB. `measured` adds points: `{label: {size_bytes: time_s or [time_s]}}`,
    in the style of the algorithm of that name. `x_label` says what the bytes count.

    Raises:
        ValueError: there is nothing to draw, the range is empty, or a time is not above 0.
    """
    low, high = _range(algorithms, sizes_bytes)
    costs = {label: _function(label, algorithm) for label, algorithm in algorithms.items()}
    crossings = crossovers(algorithms, (low, high))

    picture = Picture(9, 4.2)
    axes = picture.subplots()
    names = list(dict.fromkeys([*costs, *(measured or {})]))
    styles = dict(zip(names, cycle(_STYLES), strict=False))
    for label, time_s in costs.items():
        colour, dashes, _ = styles[label]
        times_s = {size: time_s(size) for size in _sizes(algorithms[label], low, high)}
        known = {size: value for size, value in times_s.items() if not math.isnan(value)}
        axes.plot(list(known), list(known.values()), color=colour, linestyle=dashes, linewidth=2, label=label)
    for label, points in (measured or {}).items():
        _draw_points(axes, label, points, *styles[label])
    axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel="time")
    for index, (size, _, new) in enumerate(crossings):
        _mark(axes, size, costs[new](size), new, index)
    axes.set_xlim(low / 1.15, high * 1.15)
    _label_units(axes)
    picture.legend_below(ncols=min(4, len(axes.get_legend_handles_labels()[1])), handlelength=3.2)
    finish(axes, title)
    fastest = _describe_fastest(costs, (low, high), _shared(algorithms, low, high), crossings)
    picture.alt = f"{title}, from {_size(low)} to {_size(high)}: {fastest}. {_ends(costs, low, high)}."
    if measured:
        picture.alt += f" Points show measurements of {', '.join(measured)}."
    return picture


def crossovers(
    algorithms: Mapping[str, Cost], sizes_bytes: tuple[float, float] = _SIZES_BYTES
) -> list[tuple[float, str, str]]:
    """Find the sizes in bytes at which a different algorithm becomes the fastest, with both algorithms' names.

    Only sizes for which every algorithm has a time are compared.
    """
    costs = {label: _function(label, algorithm) for label, algorithm in algorithms.items()}
    low, high = _shared(algorithms, *sizes_bytes)
    crossings: list[Crossover] = []
    grid = _spaced(low, high) if low < high else []
    for left, right in pairwise(grid):
        while (old := _fastest(costs, left)) != _fastest(costs, right):
            below, above = left, right
            for _ in range(_HALVINGS):
                middle = math.sqrt(below * above)
                below, above = (middle, above) if _fastest(costs, middle) == old else (below, middle)
            crossings.append((above, old, _fastest(costs, above)))
            left = above
    return crossings


def _range(algorithms: Mapping[str, Cost], sizes_bytes: tuple[float, float] | None) -> tuple[float, float]:
    if not algorithms:
        raise ValueError("There is no cost to draw: give {name: function from bytes to seconds}.")
    given = [size for algorithm in algorithms.values() if isinstance(algorithm, Mapping) for size in algorithm]
    low, high = sizes_bytes or ((min(given), max(given)) if given else _SIZES_BYTES)
    if not 0 < low < high < math.inf:
        raise ValueError(
            f"Sizes go from a number of bytes above 0 to a larger one, such as (1e3, 1e9); got {low, high}."
        )
    return low, high


def _shared(algorithms: Mapping[str, Cost], low: float, high: float) -> tuple[float, float]:
    """Return the part of a range of sizes that every series covers."""
    series = [algorithm for algorithm in algorithms.values() if isinstance(algorithm, Mapping)]
    return max([low, *map(min, series)]), min([high, *map(max, series)])


def _function(label: str, algorithm: Cost) -> Callable[[float], float]:
    """Return a checked function from size to seconds; for a series, it interpolates, and gives NaN beyond it."""
    time_s = _between(algorithm) if isinstance(algorithm, Mapping) else algorithm

    def checked(size_bytes: float) -> float:
        value = float(time_s(size_bytes))
        if value <= 0 or math.isinf(value):
            raise ValueError(f"{label} takes {value:g} s for {units.format_bytes(size_bytes)}: give a time above 0.")
        return value

    return checked


def _between(series: Mapping[float, float]) -> Callable[[float], float]:
    sizes = sorted(series)

    def time_s(size_bytes: float) -> float:
        index = bisect_left(sizes, size_bytes)
        if index < len(sizes) and math.isclose(sizes[index], size_bytes):
            return series[sizes[index]]
        if index in (0, len(sizes)):
            return math.nan
        low, high = sizes[index - 1], sizes[index]
        share = math.log(size_bytes / low) / math.log(high / low)
        return series[low] ** (1 - share) * series[high] ** share

    return time_s


def _fastest(costs: Mapping[str, Callable[[float], float]], size_bytes: float) -> str:
    """Return the name of the fastest algorithm, the first of a tie; empty if none has a time."""
    times_s = {label: time_s(size_bytes) for label, time_s in costs.items()}
    known = {label: time_s for label, time_s in times_s.items() if not math.isnan(time_s)}
    least_s = min(known.values(), default=0)
    return next((label for label, time_s in known.items() if time_s <= least_s * _EQUAL), "")


def _spaced(low: float, high: float) -> list[float]:
    """Return sizes from low to high, spaced by a constant factor."""
    inner = [low * (high / low) ** (i / (_NUM_POINTS - 1)) for i in range(1, _NUM_POINTS - 1)]
    return [low, *inner, high]


def _sizes(algorithm: Cost, low: float, high: float) -> list[float]:
    """Return the sizes at which a line is drawn: closely spaced ones, and a series' own points."""
    own = [size for size in algorithm if low <= size <= high] if isinstance(algorithm, Mapping) else []
    return sorted({*_spaced(low, high), *own})


def _label_units(axes: Axes) -> None:
    for axis, text in ((axes.xaxis, units.byte_scale), (axes.yaxis, units.time_scale)):
        axis.set_major_locator(LogLocator(numticks=12))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _, scale=text: _short(value, scale)))
    axes.grid(color=FAINT, linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)


def _draw_points(
    axes: Axes, label: str, points: Mapping[float, float | Sequence[float]], colour: str, _: object, marker: str
) -> None:
    samples = {size: [value] if isinstance(value, int | float) else sorted(value) for size, value in points.items()}
    if not all(samples.values()) or min(min(times_s) for times_s in samples.values()) <= 0:
        raise ValueError(f"{label} was measured to take no time: give seconds above 0 for every size.")
    middle = {size: median(times_s) for size, times_s in sorted(samples.items())}
    below = [time_s - samples[size][0] for size, time_s in middle.items()]
    above = [samples[size][-1] - time_s for size, time_s in middle.items()]
    style = {"color": colour, "marker": marker, "markerfacecolor": "white", "markersize": 7, "linestyle": "none"}
    name = f"{label}, measured"
    axes.errorbar(list(middle), list(middle.values()), (below, above), label=name, capsize=4, **style)


def _mark(axes: Axes, size: float, time_s: float, new: str, index: int) -> None:
    axes.axvline(size, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
    axes.plot(size, time_s, color=INK, marker="X", markersize=9, markeredgecolor="white", zorder=5)
    at = {"xycoords": ("data", "axes fraction"), "xytext": (5, -6 - 16 * index), "textcoords": "offset points"}
    text = f"from {_size(size)}: {new}"
    axes.annotate(text, (size, 1), **at, va="top", fontsize=9, color=INK, bbox=white_box(1.5))


def _describe_fastest(
    costs: Mapping[str, Callable[[float], float]],
    drawn: tuple[float, float],
    shared: tuple[float, float],
    found: Sequence[Crossover],
) -> str:
    if shared[0] > shared[1]:
        return "there is no size for which all have a time"
    where = "" if shared == drawn else f"from {_size(shared[0])} to {_size(shared[1])}, where all have a time, "
    course = [f"up to {_size(size)}, then {new}" for size, _, new in found] or ["throughout"]
    return f"{where}{_fastest(costs, shared[0])} is the fastest {' '.join(course)}"


def _ends(costs: Mapping[str, Callable[[float], float]], low: float, high: float) -> str:
    ends = []
    for size in (low, high):
        times_s = {label: time_s(size) for label, time_s in costs.items()}
        known = [
            f"{label} {units.format_time_s(time_s)}" for label, time_s in times_s.items() if not math.isnan(time_s)
        ]
        ends.append(f"{_size(size)} takes {', '.join(known)}")
    return "; ".join(ends)


def _size(size_bytes: float) -> str:
    return units.format_bytes(size_bytes)


def _short(value: float, scale: Callable[[float], tuple[float, str]]) -> str:
    factor, unit = scale(value)
    return f"{value / factor:.3g} {unit}"
