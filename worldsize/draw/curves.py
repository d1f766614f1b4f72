"""Curves: numbers by step, one line per label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes

from worldsize.draw._line_end_labels import label_ends
from worldsize.draw.picture import Picture, finish
from worldsize.palette import line_styles


def curves(
    series: Mapping[str, Sequence[float]],
    y_label: str = "loss",
    x_label: str = "step",
    title: str = "",
    difference_from: str | None = None,
    x: Sequence[float] | None = None,
) -> Picture:
    """Draw a line per label, labelled at its end; with `difference_from`, a second panel shows the distances from it.

    `x` has the position of each value; the default is 1, 2, ...

    Raises:
        ValueError: there are no curves, one has no values or more than `x`, or none is called `difference_from`.
    """
    if not series or not all(len(values) for values in series.values()):
        raise ValueError("There is no curve to draw: give {label: [value, value, ...]}, no list empty.")
    if difference_from is not None and difference_from not in series:
        raise ValueError(f"No curve is called {difference_from!r}: choose one of {', '.join(series)}.")
    longest = max(len(values) for values in series.values())
    if x is not None and len(x) < longest:
        raise ValueError(f"The longest curve has {longest} values, but x has only {len(x)}.")
    places = x or range(1, longest + 1)
    picture = Picture(9, 5.0 if difference_from else 3.4)
    panels = picture.subplots(2 if difference_from else 1, sharex=True, squeeze=False)[:, 0]
    # curves that should agree are drawn from thick to thin, so that each can be seen under the next
    widths = [max(1.6, 6.5 - 2.2 * index) if difference_from else 2.0 for index in range(len(series))]
    for (label, values), style, width in zip(series.items(), cycle(line_styles()), widths, strict=False):
        panels[0].plot(places[: len(values)], values, label=label, linewidth=width, **style)
    panels[0].set_ylabel(y_label)
    finish(panels[0], title)
    panels[-1].set_xlabel(x_label)
    ranges = [f"{label} from {values[0]:.3g} to {values[-1]:.3g}" for label, values in series.items()]
    picture.alt = f"Line chart{f' ({title})' if title else ''} of {y_label} against {x_label}: {'; '.join(ranges)}."
    if difference_from:
        gap = _draw_differences(panels[1], series, difference_from, places)
        picture.alt += f" The largest difference from {difference_from} is {gap:.1e}."
    label_ends(picture)
    return picture


def _draw_differences(
    axes: Axes, series: Mapping[str, Sequence[float]], reference: str, places: Sequence[float]
) -> float:
    """Draw the distance of each curve from the reference; return the largest."""
    largest = 0.0
    for (label, values), style in zip(series.items(), cycle(line_styles()), strict=False):
        if label != reference:
            distances = [abs(a - b) for a, b in zip(values, series[reference], strict=False)]
            axes.plot(places[: len(distances)], distances, linewidth=1.8, label=label, markevery=4, **style)
            largest = max(largest, *distances)
    axes.set_ylabel(f"distance from\n{reference}")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    finish(axes, "")
    return largest
