"""One run in one panel: bubbles hatched, blocks on their lanes, exposed communication underlined, names where they fit.

Thousands of blocks are drawn as few artists, because a slider redraws them at every move.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.transforms import blended_transform_factory

from worldsize.draw._block_styles import Style, blocks, rectangles, style_of
from worldsize.draw._outlined_text import OutlinedText, width_in
from worldsize.draw._timeline_content import TimelineContent
from worldsize.draw.picture import SCREEN_DPI
from worldsize.event import COMMUNICATION, WAIT, Event
from worldsize.intervals import Intervals
from worldsize.palette import IDLE, INK

BUBBLE = {"facecolor": IDLE, "edgecolor": "#CBCBCB", "hatch": "////", "linewidth": 0}
UNDERLINE_PX = 2
_GROUND, _LANE_INK = Style("#F6F6F6"), "#767676"
_GAP = 0.16  # of a row, between it and the next
_THIN = 0.7  # the height of a lane without work, relative to one with work
_TEXT_PX = 10  # the height of a line of text
_NAME_SIZE, _LANE_SIZE = 8, 7
_PAD, _ROOM = 0.07, 0.035  # inches beside names of rows, and around a text in its block

Place = tuple[int, int, float, float]  # row, lane, from, until


class TimelinePanel:
    """A run drawn into axes in which time is in units of `factor` seconds.

    `row_in` is a row's height and `names_in` the width of the lanes' names, 0 without names, both in inches.
    """

    def __init__(
        self, axes: Axes, busy: TimelineContent, factor: float, row_in: float, inches_per_s: float, names_in: float
    ) -> None:
        self.axes, self.busy, self.factor = axes, busy, factor
        self.row_in, self.inches_per_s, self.names_in = row_in, inches_per_s, names_in
        self.row_of = {rank: number for number, rank in enumerate(busy.of_rank)}
        self.edges = np.array(lane_edges(busy))

    def draw(self) -> None:
        """Draw the whole run."""
        self.axes.set(ylim=(len(self.row_of), 0), yticks=[])
        self._draw_ground()
        for kind in self.busy.kinds:
            self._draw_kind(kind)
        self._underline_exposed()
        self._label_blocks()
        self._name_rows()

    def _boxes(self, places: Collection[Place]) -> np.ndarray:
        """Return the left, right, top and bottom of each place."""
        table = np.array(list(places), float).reshape(-1, 4)
        rows, lanes = table[:, 0], table[:, 1].astype(int)
        left, right = (table[:, 2:].T - self.busy.start_s) / self.factor
        return np.stack([left, right, rows + self.edges[lanes], rows + self.edges[lanes + 1]], axis=1)

    def _place(self, event: Event) -> Place:
        return self.row_of[event.rank], self.busy.lane_of[event.stream], event.start_s, event.end_s

    def _places(self, stretches: Mapping[int, Intervals], lanes: Iterable[int]) -> list[Place]:
        lanes = list(lanes)
        return [(self.row_of[rank], lane, *one) for rank, found in stretches.items() for lane in lanes for one in found]

    def _add(self, style: Style, boxes: np.ndarray, edge: float = 0.0) -> None:
        for artist in blocks(style, boxes, self.axes.transData, edge):
            self.axes.add_artist(artist)

    def _draw_ground(self) -> None:
        whole = {rank: [(self.busy.start_s, self.busy.end_s)] for rank in self.row_of}
        self._add(_GROUND, self._boxes(self._places(whole, range(len(self.busy.lanes)))))
        empty = self._boxes(self._places(self.busy.bubbles, self.busy.empty_lanes))
        if len(empty):
            self.axes.add_artist(PathPatch(rectangles(empty), **BUBBLE))

    def _draw_kind(self, kind: str) -> None:
        boxes = self._boxes([self._place(event) for event in self.busy.events if event.kind == kind])
        width_px = np.median(boxes[:, 1] - boxes[:, 0]) * self.factor * self.inches_per_s * SCREEN_DPI
        self._add(style_of(kind), boxes, edge=0.7 if width_px > 8 and kind != WAIT else 0)

    def _underline_exposed(self) -> None:
        lanes = {self.busy.lane_of[event.stream] for event in self.busy.events if event.kind == COMMUNICATION}
        boxes = self._boxes(self._places(self.busy.exposed, sorted(lanes)))
        boxes[:, 2] = boxes[:, 3] - UNDERLINE_PX / (self.row_in * SCREEN_DPI)
        self._add(Style(INK), boxes)

    def _label_blocks(self) -> None:
        """Write its name on each block, or only the number at its end, or nothing, depending on the room."""
        names: dict[Place, list[Event]] = {}
        for event in self.busy.events:
            if event.kind != WAIT and event.duration_s * self.inches_per_s > width_in("1") + _ROOM:
                names.setdefault(self._place(event), []).append(event)
        texts, places, colours = [], [], []
        until_s: dict[tuple[int, int], float] = {}
        for (row, lane, start_s, end_s), events in sorted(names.items(), key=lambda item: item[0]):
            text = _fitting(events, (end_s - start_s) * self.inches_per_s - _ROOM)
            half_s = width_in(text) / 2 / self.inches_per_s
            middle_s = (start_s + end_s) / 2
            if (
                text
                and self._lane_px(lane) >= _TEXT_PX
                and middle_s - half_s >= until_s.get((row, lane), middle_s - half_s)
            ):
                until_s[row, lane] = middle_s + half_s + _ROOM / self.inches_per_s
                style = style_of(events[0].kind)
                top, bottom = self.edges[lane], self.edges[lane + 1]
                y = row + top + (bottom - top) * (style.top + style.bottom) / 2
                texts.append(text)
                places.append(((middle_s - self.busy.start_s) / self.factor, y))
                colours.append(style.ink)
        self._write(texts, places, self.axes.transData, colours=colours)

    def _lane_px(self, lane: int) -> float:
        return (self.edges[lane + 1] - self.edges[lane]) * self.row_in * SCREEN_DPI

    def _name_rows(self) -> None:
        """Name the ranks, and the lanes where there is more than one: all of them, or as many as have room."""
        beside = blended_transform_factory(self.axes.transAxes, self.axes.transData)
        unit = self.axes.bbox.width / self.axes.figure.dpi  # inches of the axes' width
        step = int(np.ceil(_TEXT_PX / (self.row_in * SCREEN_DPI)))
        ranks = [(self.busy.name_of[rank], row + 0.5) for rank, row in self.row_of.items() if row % step == 0]
        is_named = self.names_in > 0 and len(self.busy.lanes) > 1
        left = -(_PAD + (self.names_in if is_named else 0)) / unit
        self._write([text for text, _ in ranks], [(left, y) for _, y in ranks], beside, align="right")
        if is_named:
            middles = (self.edges[:-1] + self.edges[1:]) / 2
            lanes = [
                (name, row + y)
                for row in self.row_of.values()
                for name, y in zip(self.busy.lanes, middles, strict=True)
            ]
            places = [(-_PAD / unit, y) for _, y in lanes]
            self._write([text for text, _ in lanes], places, beside, align="right", size=_LANE_SIZE, colours=_LANE_INK)

    def _write(self, texts: Sequence[str], places: Sequence[tuple[float, float]], within, **style) -> None:
        if texts:
            self.axes.add_artist(OutlinedText(self.axes.figure, texts, places, within, **style))


def lane_edges(busy: TimelineContent) -> list[float]:
    """The start of each lane in a row of height 1, and the end of the last one."""
    heights = [1.0 if lane in busy.empty_lanes or not busy.empty_lanes else _THIN for lane in range(len(busy.lanes))]
    scale = (1 - _GAP) / sum(heights)
    return [_GAP / 2 + scale * sum(heights[:lane]) for lane in range(len(heights) + 1)]


def rank_names_in(busy: TimelineContent) -> float:
    """Return the inches that the names of ranks need."""
    return max(width_in(name, _NAME_SIZE) for name in busy.name_of.values()) + 2 * _PAD


def lane_names_in(busy: TimelineContent, row: float) -> float:
    """Return the inches that the names of lanes need; 0 if there is one lane, or no room for names."""
    edges = lane_edges(busy)
    has_room = min(np.diff(edges)) * row * SCREEN_DPI >= _TEXT_PX
    return (
        max(width_in(name, _LANE_SIZE) for name in busy.lanes) + 2 * _PAD if has_room and len(busy.lanes) > 1 else 0.0
    )


def _fitting(events: Sequence[Event], room_in: float) -> str:
    """The name of these events at one place; empty if there is no room."""
    names = list(dict.fromkeys(event.name or event.kind for event in events))
    number = re.search(r"\d+$", names[0])
    choices = [" + ".join(names), *([number[0]] if number and len(names) == 1 else [])]
    return next((text for text in choices if width_in(text) <= room_in), "")
