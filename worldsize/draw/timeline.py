"""The timeline of ranks: a row per rank with a lane per stream; one run, or several on one time axis."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from worldsize import units
from worldsize.draw._annotations import white_box
from worldsize.draw._outlined_text import width_in
from worldsize.draw._timeline_content import TimelineContent
from worldsize.draw._timeline_legend import TimelineLegend
from worldsize.draw._timeline_panel import TimelinePanel, lane_names_in, rank_names_in
from worldsize.draw.picture import SCREEN_DPI, Picture, finish
from worldsize.intervals import length_s
from worldsize.palette import INK
from worldsize.timeline import Timeline

_WIDTH, _RIGHT = 9.0, 0.15  # inches, as all sizes here
_TITLE, _SUBTITLE, _AXIS, _BETWEEN, _FOOT = 0.34, 0.2, 0.52, 0.1, 0.18
_TITLE_PT, _LARGE_PT, _TITLE_LINE = 11, 12, 0.19  # points, and the height of each further line in inches
_LANE_PX, _MORE_LANE_PX = 30, 20  # a row's height, and what each further lane adds
_ROWS_PX, _PANELS_PX = 500, 380  # the most height for all rows, in one panel and in several
_SAME = 0.0005  # a relative difference too small to count
_LONG_ARROW = 0.15  # of the axis: has room for a number


class _TimelinePart(NamedTuple):
    busy: TimelineContent
    title: str
    subtitle: str = ""


def timeline(
    run: Timeline, title: str = "", streams: Collection[str] | None = None, *, shows_shares: bool = True
) -> Picture:
    """Draw what each rank did: a row per rank, a lane per stream; bubbles hatched, exposed communication underlined.

    A *bubble* is time in which a rank does not work; communication in it is *exposed* (see `Timeline`), and the rest is
    idle. Shares are means over the ranks that have an event; where two streams overlap, each moment counts once.
    `streams` selects what is drawn. By default that is everything, except that a real run shows only its spans if all
    else is recorded calls inside them. Waiting has no lane of its own beside work. `shows_shares=False` leaves the
    shares for the reader to find.

    Raises:
        ValueError: there is nothing to draw.
    """
    busy = TimelineContent(run, streams)
    about = f"Timeline ({title})" if title else "Timeline"
    over = f"{units.number_of(len(busy.of_rank), 'rank')} over {units.format_time_s(busy.length_s)}"
    if not shows_shares:
        picture, _ = _draw([_TimelinePart(busy, title)], shows_shares=False)
        picture.alt = f"{about} of {over}."
        return picture
    shares_text = busy.describe()
    picture, _ = _draw([_TimelinePart(busy, f"{title}: {shares_text}" if title else shares_text)])
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in busy.shares().items())
    picture.alt = f"{about} of {over}; share of the ranks' time: {shares}; {shares_text}."
    return picture


def timelines(runs: Mapping[str, Timeline], title: str = "", streams: Collection[str] | None = None) -> Picture:
    """Draw several runs, one below the other on one time axis, each described by how it differs from the first.

    Each begins at 0, with its first event. A dashed line marks where the first run ends; an arrow from it shows how
    much earlier or later another one ends.

    Raises:
        ValueError: there are fewer than two runs, or there is nothing to draw in one.
    """
    if len(runs) < 2:
        raise ValueError(
            "A comparison takes two runs: give {label: timeline, label: timeline, ...}, the reference first."
        )
    all_busy = {label: TimelineContent(run, streams) for label, run in runs.items()}
    (first_label, first), *others = all_busy.items()
    parts = [_TimelinePart(first, f"{first_label}: {units.format_time_s(first.length_s)}", first.describe())]
    for label, busy in others:
        than = f"{label}: {units.format_time_s(busy.length_s)}, {_longer(first, busy)} {first_label}"
        parts.append(_TimelinePart(busy, than, ": ".join([busy.describe(), *_more_exposed(first, busy)])))
    picture, panels = _draw(parts, title)
    for panel in panels:
        _mark_end(panel, first.length_s)
    about = f"Timelines ({title})" if title else "Timelines"
    picture.alt = f"{about} on one axis. " + " ".join(f"{part.title}; {part.subtitle}." for part in parts)
    return picture


class _TimelineLayout:
    """Where the parts of a picture are, in inches: one below the other, on one time axis."""

    def __init__(self, parts: Sequence[_TimelinePart], title: str, shows_shares: bool) -> None:
        runs = [part.busy for part in parts]
        num_rows = sum(len(busy.of_rank) for busy in runs)
        most_px = (_PANELS_PX if len(parts) > 1 else _ROWS_PX) // num_rows
        wanted_px = _LANE_PX + _MORE_LANE_PX * (max(len(busy.lanes) for busy in runs) - 1)
        self.row_in = max(2, min(wanted_px, most_px)) / SCREEN_DPI
        self.names_in = max(lane_names_in(busy, self.row_in) for busy in runs)
        self.left = self.names_in + max(rank_names_in(busy) for busy in runs)
        self.width = _WIDTH - self.left - _RIGHT
        sizes_pt = [_LARGE_PT if part.subtitle else _TITLE_PT for part in parts]
        wrapped = [_wrapped(part.title, self.width, size_pt) for part, size_pt in zip(parts, sizes_pt, strict=True)]
        self.parts = [part._replace(title=lines) for part, lines in zip(parts, wrapped, strict=True)]
        self.heading = _wrapped(title, self.width, _LARGE_PT)
        self.length_s = max(busy.length_s for busy in runs)
        self.legend = TimelineLegend(runs, self.left, self.width, shows_shares)
        self.foot = _FOOT if len(parts) > 1 else 0.0
        self.title = _height(self.heading) if title else 0.0
        below = _BETWEEN * (len(parts) - 1) + _AXIS + self.legend.height
        self.total = self.title + sum(map(self.head, self.parts)) + sum(map(self.panel, self.parts)) + below

    def head(self, part: _TimelinePart) -> float:
        """Return the height of what is above a part's rows."""
        return _height(part.title) + (_SUBTITLE if part.subtitle else 0)

    def panel(self, part: _TimelinePart) -> float:
        """Return the height of a part's rows, and of the arrow below them."""
        return self.row_in * len(part.busy.of_rank) + self.foot


def _height(title: str) -> float:
    return _TITLE + _TITLE_LINE * title.count("\n")


def _wrapped(text: str, room: float, size_pt: float) -> str:
    """Wrap bold text to lines that fit into the room, which is in inches."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines.append("")
        for word in line.split(" "):
            longer = f"{lines[-1]} {word}".lstrip()
            if lines[-1] and width_in(longer, size_pt, "bold") > room:
                lines.append(word)
            else:
                lines[-1] = longer
    return "\n".join(lines)


def _draw(
    parts: Sequence[_TimelinePart], title: str = "", shows_shares: bool = True
) -> tuple[Picture, list[TimelinePanel]]:
    """Draw these parts, one below the other, on one time axis."""
    layout = _TimelineLayout(parts, title, shows_shares)
    factor, unit = units.time_scale(layout.length_s)
    picture = Picture(_WIDTH, layout.total, layout=None)
    top = layout.total - layout.title
    if title:
        position = layout.left / _WIDTH, (top + 0.08) / layout.total
        picture.text(*position, layout.heading, fontsize=_LARGE_PT, fontweight="bold", color=INK)
    panels = []
    for part in layout.parts:
        top -= layout.head(part) + layout.panel(part)
        panels.append(_add_panel(picture, layout, part, top, factor))
        top -= _BETWEEN
    for panel in panels[:-1]:
        panel.axes.tick_params(axis="x", length=0, labelbottom=False)
    panels[-1].axes.set_xlabel(f"time ({unit})", color=INK)
    layout.legend.draw(picture)
    return picture, panels


def _add_panel(
    picture: Picture, layout: _TimelineLayout, part: _TimelinePart, bottom: float, factor: float
) -> TimelinePanel:
    """Draw the panel of a part, `bottom` inches above the picture's lower edge."""
    total, height = layout.total, layout.panel(part)
    axes = picture.add_axes((layout.left / _WIDTH, bottom / total, layout.width / _WIDTH, height / total))
    axes.set(xlim=(0, layout.length_s / factor or 1))
    inches_per_s = layout.width / layout.length_s if layout.length_s else 0
    panel = TimelinePanel(axes, part.busy, factor, layout.row_in, inches_per_s, layout.names_in)
    panel.draw()
    axes.set_ylim(len(part.busy.of_rank) + layout.foot / layout.row_in, 0)
    _head(axes, part)
    return panel


def _head(axes: Axes, part: _TimelinePart) -> None:
    finish(axes, part.title, frame=("bottom",))
    if part.subtitle:
        axes.set_title(part.title, loc="left", pad=20, fontsize=_LARGE_PT, fontweight="bold")
        style = {"xytext": (0, 5), "textcoords": "offset points", "fontsize": 9, "color": INK}
        axes.annotate(part.subtitle, (0, 1), xycoords="axes fraction", **style)


def _longer(first: TimelineContent, other: TimelineContent) -> str:
    ratio = other.length_s / first.length_s if first.length_s else 1.0
    if abs(ratio - 1) < _SAME:
        return "as long as"
    if _is_far(ratio):
        return f"{units.significant(ratio)} times as long as"
    return f"{abs(ratio - 1):.1%} {'longer' if ratio > 1 else 'shorter'} than"


def _is_far(ratio: float) -> bool:
    """Whether a percentage would be hard to read."""
    return not 0.1 < ratio < 3


def _more_exposed(first: TimelineContent, other: TimelineContent) -> list[str]:
    """Say how much more communication is exposed, and on which rank most; empty if no rank communicates."""
    if not (first.has_communication or other.has_communication):
        return []
    more_s = other.exposed_s() - first.exposed_s()
    if abs(more_s) <= _SAME * first.length_s:
        return ["as much exposed as in the first"]
    by_rank = {r: length_s(other.exposed[r]) - length_s(first.exposed[r]) for r in other.exposed if r in first.exposed}
    text = f"exposed {_more(more_s)} a rank"
    if by_rank:
        rank = max(by_rank, key=lambda r: abs(by_rank[r]))
        text += f", {_more(by_rank[rank])} on rank {rank}"
    return [text]


def _more(time_s: float) -> str:
    return f"{units.format_time_s(abs(time_s))} {'more' if time_s >= 0 else 'less'}"


def _mark_end(panel: TimelinePanel, end_s: float) -> None:
    """Draw a dashed line at the reference's end, and below the rows an arrow from there to this run's end."""
    axes, rows = panel.axes, len(panel.row_of)
    reference, own = end_s / panel.factor, panel.busy.length_s / panel.factor
    axes.axvline(reference, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
    if abs(own - reference) <= _SAME * reference:
        return
    y = rows + _FOOT / panel.row_in / 2
    axes.annotate(
        "", (own, y), (reference, y), arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0}
    )
    ratio = own / reference if reference else math.inf
    text = f"× {units.significant(ratio)}" if _is_far(ratio) else f"{ratio - 1:+.1%}".replace("-", "−")
    style = {"va": "center", "fontsize": 8.5, "color": INK}
    if abs(own - reference) > _LONG_ARROW * axes.get_xlim()[1]:
        axes.text((own + reference) / 2, y, text, ha="center", bbox=white_box(2), **style)
    else:
        beside = {"xytext": (-6, 0), "textcoords": "offset points", "ha": "right"}
        axes.annotate(text, (min(own, reference), y), **beside, **style)
