"""What fills memory: a stacked bar each."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

from worldsize import units
from worldsize.draw.picture import BLACK, LEGEND, PART_STYLES, Picture, finish

_MOST_TOLD = 8  # bars that are told one by one


def memory(
    parts: Mapping[str, Mapping[str, float]],
    capacity_bytes: float | None = None,
    title: str = "What fills memory",
    capacity_label: str = "capacity",
) -> Picture:
    """One stacked bar for each label (a rank, a model, a batch size): bytes by part, and what fits.

    Raises:
        ValueError: no part has a size above 0.
    """
    totals = {label: sum(sizes.values()) for label, sizes in parts.items()}
    largest = max([*totals.values(), capacity_bytes or 0], default=0)
    if largest <= 0:
        raise ValueError("There is no memory to draw: give {label: {part: bytes}} with a size above 0.")
    factor, unit = units.byte_scale(largest)
    names = list(dict.fromkeys(name for sizes in parts.values() for name in sizes))

    row_in = max(0.2, min(0.48, 5 / len(parts)))  # many bars get thinner, and stay on one screen
    picture = Picture(9, 1.5 + row_in * len(parts))
    axes = picture.subplots()
    left = [0.0] * len(parts)
    for name, (colour, hatch) in zip(names, cycle(PART_STYLES), strict=False):
        widths = [sizes.get(name, 0) / factor for sizes in parts.values()]
        style = {"color": colour, "hatch": hatch, "edgecolor": "white", "height": 0.66}
        axes.barh(list(parts), widths, left=left, label=name, **style)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for row, total in enumerate(totals.values()):
        fits = not capacity_bytes or total <= capacity_bytes
        text = units.format_bytes(total) + ("" if fits else ": does not fit")
        box = {"facecolor": "white", "linewidth": 0, "pad": 1}
        style = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 9, "bbox": box}
        axes.annotate(text, (total / factor, row), **style)
    if capacity_bytes:
        limit = f"{capacity_label}, {units.format_bytes(capacity_bytes)}"
        axes.axvline(capacity_bytes / factor, color=BLACK, linestyle="--", linewidth=1.5, label=limit)
    axes.set(xlim=(0, 1.25 * largest / factor), ylim=(len(parts) - 0.5, -0.5), xlabel=f"memory ({unit})")
    picture.legend(ncols=len(names) + 1, handleheight=1.2, **LEGEND)
    finish(axes, title)

    bars = {label: f"{label} {units.format_bytes(totals[label])} ({_told(sizes)})" for label, sizes in parts.items()}
    if len(bars) > _MOST_TOLD:
        largest, smallest = max(totals, key=totals.__getitem__), min(totals, key=totals.__getitem__)
        bars = {"": f"{len(bars)} bars, the largest {bars[largest]}, the smallest {bars[smallest]}"}
    picture.alt = f"Stacked bars, {title}: {'; '.join(bars.values())}."
    if capacity_bytes:
        too_much = sum(total > capacity_bytes for total in totals.values())
        picture.alt += f" A line marks {units.format_bytes(capacity_bytes)}, {capacity_label}"
        picture.alt += f"; {too_much} of {len(totals)} do not fit." if too_much else "."
    return picture


def _told(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {units.format_bytes(size)}" for name, size in sizes.items())
