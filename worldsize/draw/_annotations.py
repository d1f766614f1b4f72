"""Annotations that several pictures share: text on white, and the line that marks the capacity of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes

from worldsize import units
from worldsize.palette import BLACK


def white_box(pad: float = 1.0, alpha: float = 1.0) -> dict[str, Any]:
    """The background of a text that must stay legible on hatches and lines, as matplotlib's `bbox`."""
    return {"facecolor": "white", "linewidth": 0, "pad": pad, "alpha": alpha}


def label_point(
    axes: Axes, text: str, point: tuple[float, float], offset: tuple[float, float], fontsize: float = 9, **style: Any
) -> None:
    """Write text beside a data point, at an `offset` in points."""
    axes.annotate(text, point, xytext=offset, textcoords="offset points", fontsize=fontsize, **style)


def mark_capacity(draw_line: Callable[..., Any], capacity_bytes: float, factor: float, label: str) -> None:
    """Mark where memory is full, with `axes.axvline` or `axes.axhline`, on an axis in units of `factor` bytes."""
    text = f"{label}, {units.format_bytes(capacity_bytes)}"
    draw_line(capacity_bytes / factor, color=BLACK, linestyle="--", linewidth=1.5, label=text)
