"""Named points in a plane, each with its label beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from textwrap import fill
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from worldsize import units
from worldsize.draw._label_places import Box, LabelPlace, place_labels
from worldsize.draw._outlined_text import POINTS_PER_INCH
from worldsize.draw._table import head
from worldsize.draw.picture import Picture, finish
from worldsize.palette import BLACK, BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILLION

Named = Mapping[str, tuple[float, float]]
_STYLES = [(BLUE, "o"), (VERMILLION, "s"), (GREEN, "^"), (ORANGE, "D"), (BLACK, "v"), (PURPLE, "P")]
_WIDTH_IN, _HEIGHT_IN, _MOST_HEIGHT_IN = 9.0, 4.6, 9.2
_RADIUS = 4.5  # of a mark, in points
_FONT_SIZE = 9
_LONGEST = 26  # characters of a label on one line
_MOST_LISTED = 20  # points that the alt text lists one by one
_MOST = 48  # points
_FEW_DECADES = 3  # up to this many, a logarithmic axis has marks between powers of ten


class _Point(NamedTuple):
    name: str
    x: float
    y: float
    family: str


def scatter(
    points: Named | Mapping[str, Named] | Sequence[Sequence[str | float]],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    log: str = "",
) -> Picture:
    """Draw a mark and a name for every point: no name covers another or a mark, and far ones have a leader.

    `points` is `{name: (x, y)}`, or `{family: {name: (x, y)}}`, or rows `(name, x, y)` or `(name, x, y, family)`; each
    family has a colour and a shape. A label such as "step_s" or "held_bytes" ends in the unit of its axis, as a column
    of `draw.table` does. `log` is "x", "y" or "xy".

    Raises:
        ValueError: there are no points, one cannot be drawn, or there is no room for the names.
    """
    named = _named(points)
    _check(named, log)
    families = list(dict.fromkeys(point.family for point in named))
    styles = dict(zip(families, cycle(_STYLES), strict=False))
    height_in = _HEIGHT_IN
    while True:
        picture = Picture(_WIDTH_IN, height_in)
        axes = picture.subplots()
        for family, (colour, marker) in styles.items():
            xs, ys = zip(*[(point.x, point.y) for point in named if point.family == family], strict=True)
            axes.plot(xs, ys, color=colour, marker=marker, markersize=2 * _RADIUS - 1, linestyle="none", label=family)
        axes.margins(0.09, 0.12)
        _label_axis(axes, "x", x_label, "x" in log)
        _label_axis(axes, "y", y_label, "y" in log)
        if len(families) > 1:
            picture.legend_below(ncols=min(6, len(families)))
        finish(axes, title)
        if _write_names(picture, axes, named):
            break
        height_in *= 1.25
        if height_in > _MOST_HEIGHT_IN:
            raise ValueError(
                f"There is no room for the names of {len(named)} points: draw fewer points or give shorter names."
            )
    picture.alt = _describe(named, families, x_label, y_label, title, log)
    return picture


def _named(points: Named | Mapping[str, Named] | Sequence[Sequence[str | float]]) -> list[_Point]:
    if not isinstance(points, Mapping):
        return [
            _Point(str(row[0]), float(row[1]), float(row[2]), str(row[3]) if len(row) > 3 else "") for row in points
        ]
    named = []
    for key, value in points.items():
        within = (
            {(key, name): point for name, point in value.items()} if isinstance(value, Mapping) else {("", key): value}
        )
        named += [_Point(name, float(x), float(y), family) for (family, name), (x, y) in within.items()]
    return named


def _check(named: Sequence[_Point], log: str) -> None:
    if not named:
        raise ValueError("There is no point to draw: give {name: (x, y), ...}.")
    if len(named) > _MOST:
        raise ValueError(f"There is no room for the names of {len(named)} points: draw {_MOST} or fewer.")
    if set(log) - {"x", "y"}:
        raise ValueError(f'log is {log!r}; give "x", "y" or "xy" for logarithmic axes.')
    for point in named:
        if not math.isfinite(point.x) or not math.isfinite(point.y):
            raise ValueError(f"{point.name} is at ({point.x:g}, {point.y:g}): give finite numbers.")
        if any(value <= 0 for axis, value in zip("xy", (point.x, point.y), strict=True) if axis in log):
            raise ValueError(
                f"{point.name} is at ({point.x:g}, {point.y:g}): a logarithmic axis has only values above 0."
            )


def _label_axis(axes: Axes, side: Literal["x", "y"], label: str, is_log: bool) -> None:
    axis = axes.xaxis if side == "x" else axes.yaxis
    if is_log:
        axes.set(**{f"{side}scale": "log"})
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 10**_FEW_DECADES else (1,)))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: units.format_as(label, value)))
    axis.set_label_text(head(label))


def _write_names(picture: Picture, axes: Axes, named: Sequence[_Point]) -> bool:
    """Write every name where it has room; return False if one has none."""
    picture.draw_without_rendering()  # which decides where the panel lies
    picture.set_layout_engine("none")
    scale = POINTS_PER_INCH / picture.dpi
    box = axes.get_window_extent()
    frame = Box(box.x0 * scale, box.y0 * scale, box.x1 * scale, box.y1 * scale).grown(-2)
    places = axes.transData.transform([(point.x, point.y) for point in named]) * scale
    centres = [(float(x), float(y)) for x, y in places]
    texts = [axes.text(0, 0, fill(point.name, _LONGEST), fontsize=_FONT_SIZE, color=INK, zorder=4) for point in named]
    extents = [text.get_window_extent() for text in texts]
    sizes = [(extent.width * scale + 1, extent.height * scale + 1) for extent in extents]
    found = place_labels(centres, sizes, frame, _RADIUS)
    if found is None:
        return False
    for text, place in zip(texts, found, strict=True):
        _put(picture, axes, text, place)
    return True


def _put(picture: Picture, axes: Axes, text: Text, place: LabelPlace) -> None:
    left, bottom, right, top = (edge / POINTS_PER_INCH for edge in place.box)
    text.set(x=(left + right) / 2, y=(bottom + top) / 2, ha="center", va="center", transform=picture.dpi_scale_trans)
    if place.leader:
        xs, ys = zip(*[(x / POINTS_PER_INCH, y / POINTS_PER_INCH) for x, y in place.leader], strict=True)
        axes.add_artist(Line2D(xs, ys, transform=picture.dpi_scale_trans, color=GREY, linewidth=0.8, zorder=1.5))


def _describe(
    named: Sequence[_Point], families: Sequence[str], x_label: str, y_label: str, title: str, log: str
) -> str:
    def listed(family: str) -> str:
        members = [point for point in named if point.family == family]
        shown = [
            f"{point.name} at {units.format_as(x_label, point.x)} and {units.format_as(y_label, point.y)}"
            for point in members[: max(1, _MOST_LISTED // len(families))]
        ]
        more = [f"and {len(members) - len(shown)} more"] if len(members) > len(shown) else []
        return (f"{family}: " if family else "") + ", ".join([*shown, *more])

    scales = {2: ", both axes logarithmic", 1: f", {log} axis logarithmic", 0: ""}[len(set(log))]
    what = f"{head(y_label)} against {head(x_label)}, {len(named)} point{'s' if len(named) > 1 else ''}{scales}"
    return f"Scatter chart{f' ({title})' if title else ''} of {what}: {'; '.join(map(listed, families))}."
