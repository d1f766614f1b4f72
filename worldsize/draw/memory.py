"""What fills memory: one stacked bar per label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle

from matplotlib.axes import Axes

from worldsize import units
from worldsize.draw._annotations import label_point, mark_capacity, white_box
from worldsize.draw.picture import Picture, finish
from worldsize.palette import PART_STYLES

_LABEL_FRACTION = 0.12  # of the longest bar's length: enough for a label without "does not fit"
_MOST_LISTED = 8  # bars that the alt text describes one by one


@dataclass(frozen=True)
class _Bars:
    """The bytes of each part of each bar, and how many bytes fit."""

    parts: Mapping[str, Mapping[str, float]]
    capacity_bytes: float | None

    @cached_property
    def totals(self) -> dict[str, float]:
        return {label: sum(sizes.values()) for label, sizes in self.parts.items()}

    @property
    def largest(self) -> float:
        return max([*self.totals.values(), self.capacity_bytes or 0], default=0)

    @property
    def part_names(self) -> list[str]:
        return list(dict.fromkeys(name for sizes in self.parts.values() for name in sizes))

    def fits(self, label: str) -> bool:
        return not self.capacity_bytes or self.totals[label] <= self.capacity_bytes

    def describe(self, label: str) -> str:
        sizes = ", ".join(f"{name} {units.format_bytes(size)}" for name, size in self.parts[label].items())
        return f"{label} {units.format_bytes(self.totals[label])} ({sizes})"


def memory(
    parts: Mapping[str, Mapping[str, float]],
    capacity_bytes: float | None = None,
    title: str = "What fills memory",
    capacity_label: str = "capacity",
) -> Picture:
    """Draw one stacked bar per label (a rank, a model, a batch size): bytes by part, and what fits.

    Raises:
        ValueError: no part has a size above 0.
    """
    if _Bars(parts, capacity_bytes).largest <= 0:
        raise ValueError("There is no memory to draw: give {label: {part: bytes}} with a size above 0.")
    return stacked_bars(parts, "memory", title, capacity_bytes, capacity_label)


def stacked_bars(
    parts: Mapping[str, Mapping[str, float]],
    x_label: str,
    title: str,
    capacity_bytes: float | None = None,
    capacity_label: str = "",
) -> Picture:
    """Draw one stacked bar of bytes per label, and a line at the capacity; some bytes must be above 0."""
    bars = _Bars(parts, capacity_bytes)
    factor, unit = units.byte_scale(bars.largest)
    row_in = max(0.2, min(0.48, 5 / len(parts)))  # many bars are thinner, to stay on one screen
    picture = Picture(9, 1.5 + row_in * len(parts))
    axes = picture.subplots()
    _draw_bars(axes, bars, factor)
    if capacity_bytes:
        mark_capacity(axes.axvline, capacity_bytes, factor, capacity_label)
    axes.set(xlim=(0, 1.25 * bars.largest / factor), ylim=(len(parts) - 0.5, -0.5), xlabel=f"{x_label} ({unit})")
    picture.legend_below(ncols=len(bars.part_names) + 1, handleheight=1.2)
    finish(axes, title)
    picture.alt = _alt(bars, title, capacity_label)
    return picture


def _draw_bars(axes: Axes, bars: _Bars, factor: float) -> None:
    left = [0.0] * len(bars.parts)
    for name, (colour, hatch) in zip(bars.part_names, cycle(PART_STYLES), strict=False):
        widths = [sizes.get(name, 0) / factor for sizes in bars.parts.values()]
        style = {"color": colour, "hatch": hatch, "edgecolor": "white", "height": 0.66}
        axes.barh(list(bars.parts), widths, left=left, label=name, **style)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    capacity = bars.capacity_bytes or 0
    for row, (label, total) in enumerate(bars.totals.items()):
        text = units.format_bytes(total) + ("" if bars.fits(label) else ": does not fit")
        at = capacity if 0 < capacity - total < _LABEL_FRACTION * bars.largest else total  # no line through a label
        label_point(axes, text, (at / factor, row), (5, 0), va="center", bbox=white_box())


def _alt(bars: _Bars, title: str, capacity_label: str) -> str:
    totals = bars.totals
    listed = "; ".join(map(bars.describe, totals))
    if len(totals) > _MOST_LISTED:
        largest, smallest = max(totals, key=totals.__getitem__), min(totals, key=totals.__getitem__)
        listed = f"{len(totals)} bars, the largest {bars.describe(largest)}, the smallest {bars.describe(smallest)}"
    alt = f"Stacked bars, {title}: {listed}."
    if not bars.capacity_bytes:
        return alt
    num_too_large = sum(not bars.fits(label) for label in totals)
    overflow = f"; {num_too_large} of {len(totals)} do not fit" if num_too_large else ""
    return f"{alt} A line marks {units.format_bytes(bars.capacity_bytes)}, {capacity_label}{overflow}."
