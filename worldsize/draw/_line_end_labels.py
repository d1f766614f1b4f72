"""Labels at the ends of lines, beside a panel: moved apart if lines end close together, so that none overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Annotation

from worldsize.draw._outlined_text import POINTS_PER_INCH
from worldsize.draw.picture import Picture
from worldsize.palette import GREY, INK

_FONT_SIZE = 9
_LONGEST = 28  # characters of a label on one line
_LABEL_GAP_PT = 2.0  # between two labels
_WAY, _SAMPLE = 16.0, 22.0  # widths of the leader from a line's end to its label, and of the sample of the line's style


def label_ends(picture: Picture) -> None:
    """Write each line's label to the right of its panel, with a sample of its style, in the order of their ends.

    The picture's layout is final afterwards; the picture grows if the labels need more height than a panel has.
    """
    texts = {axes: [_write(axes, str(line.get_label())) for line in axes.lines] for axes in picture.axes}
    picture.draw_without_rendering()  # which decides where the panels lie
    scale = POINTS_PER_INCH / picture.dpi
    heights = {
        axes: [text.get_window_extent().height * scale + _LABEL_GAP_PT for text in texts[axes]] for axes in picture.axes
    }
    lacking = max(sum(heights[axes]) - axes.get_window_extent().height * scale for axes in picture.axes)
    if lacking > 0:
        taller_in = (lacking + _LABEL_GAP_PT) * len(picture.axes) / POINTS_PER_INCH
        picture.set_figheight(picture.get_figheight() + taller_in)
        picture.draw_without_rendering()
    picture.set_layout_engine("none")
    for axes in picture.axes:
        box = axes.get_window_extent()
        ends = [_end(axes, line) for line in axes.lines]
        wanted = [(y - box.y0) * scale for _, y in ends]
        found = spread(wanted, heights[axes], (box.y1 - box.y0) * scale)
        for line, text, (x, y), height in zip(axes.lines, texts[axes], ends, found, strict=True):
            text.set_position((_WAY + _SAMPLE + 4, height))
            _join(picture, line, (x * scale, y * scale), (box.x1 * scale, box.y0 * scale + height))


def spread(centres: Sequence[float], heights: Sequence[float], most: float) -> list[float]:
    """Compute centres of labels between 0 and `most` that do not overlap, as near as possible to the given centres."""
    order = sorted(range(len(centres)), key=lambda index: (centres[index], -index))
    groups: list[tuple[float, list[int]]] = []  # lower edge and members of each stack of touching labels
    for index in order:
        groups.append((_lower_edge([index], centres, heights, most), [index]))
        while len(groups) > 1 and groups[-2][0] + sum(heights[one] for one in groups[-2][1]) > groups[-1][0]:
            (_, below), (_, above) = groups[-2:]
            members = below + above
            groups[-2:] = [(_lower_edge(members, centres, heights, most), members)]
    found = [0.0] * len(centres)
    for edge, members in groups:
        for index in members:
            found[index] = edge + heights[index] / 2
            edge += heights[index]
    return found


def _write(axes: Axes, label: str) -> Annotation:
    """Write a label at the lower right corner of a panel, from where it is moved up."""
    position: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center"}
    return axes.annotate(
        fill(label, _LONGEST), (1, 0), (_WAY + _SAMPLE + 4, 0), fontsize=_FONT_SIZE, color=INK, **position
    )


def _lower_edge(members: Sequence[int], centres: Sequence[float], heights: Sequence[float], most: float) -> float:
    """Return the lower edge that centres a stack of labels on their positions, kept between 0 and `most`."""
    before, total = 0.0, 0.0
    for index in members:
        total += centres[index] - before - heights[index] / 2
        before += heights[index]
    return max(0.0, min(total / len(members), most - before))


def _end(axes: Axes, line: Line2D) -> tuple[float, float]:
    """Return a line's last visible point in pixels; without one, the panel's lower right corner."""
    box = axes.get_window_extent()
    points = axes.transData.transform(line.get_xydata())
    shown = [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    x, y = shown[-1] if shown else (box.x1, box.y0)
    return x, min(max(y, box.y0), box.y1)


def _join(picture: Picture, line: Line2D, end: tuple[float, float], beside: tuple[float, float]) -> None:
    """Draw the leader from a line's end to its label, and a sample of the line's style in front of the label."""
    left, height = beside[0] + _WAY, beside[1]
    transform = picture.dpi_scale_trans
    way = [end, (beside[0] + 2, end[1]), (left, height)]
    style = {"transform": transform, "clip_on": False}
    xs, ys = ([point[axis] / POINTS_PER_INCH for point in way] for axis in (0, 1))
    picture.add_artist(Line2D(xs, ys, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)), **style))
    sample = Line2D([], [])
    sample.update_from(line)
    sample.set_solid_capstyle("butt")  # otherwise a thick line would reach under its label
    sample.set(transform=transform, clip_on=False, clip_path=None, markevery=[0] if line.get_marker() else None)
    sample.set_data([left / POINTS_PER_INCH, (left + _SAMPLE) / POINTS_PER_INCH], [height / POINTS_PER_INCH] * 2)
    picture.add_artist(sample)
