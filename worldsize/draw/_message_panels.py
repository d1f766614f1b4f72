"""The first steps of a run's messages side by side, each a small circle of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from worldsize.draw._message_steps import Round
from worldsize.draw._outlined_text import OutlinedText
from worldsize.draw._rank_circle import Circle
from worldsize.palette import BLUE, INK, VERMILLION

WIDTH = 9.0  # inches, as all sizes here
_TITLE, _CAPTION, _MARGIN = 0.36, 0.42, 0.15
_GRIDS = [(8, 6, 12, 8), (24, 4, 8, 6.5), (math.inf, 2, 2, 7)]  # for up to this many ranks: columns, steps, font size
_NODE_COLOUR, _FAINT_INK = "#E4EEF5", "#666666"


class StepPanels:
    """The panels of the steps; `height` is the picture's."""

    def __init__(self, ranks: Sequence[int], steps: Sequence[Round]) -> None:
        _, columns, num_shown, self.size = next(grid for grid in _GRIDS if len(ranks) <= grid[0])
        self.ranks, self.steps = ranks, steps[:num_shown]
        self.columns = max(min(columns, len(self.steps)), min(columns, 4))
        self.cell = (WIDTH - 2 * _MARGIN) / self.columns
        self.height = _TITLE + math.ceil(len(self.steps) / self.columns) * (self.cell + _CAPTION)

    def draw(self, axes: Axes, title: str) -> None:
        """Draw the steps into axes as large as the picture."""
        axes.set(xlim=(0, WIDTH), ylim=(self.height, 0))
        axes.set_axis_off()
        style = {"fontsize": 11, "fontweight": "bold", "color": INK, "va": "center"}
        axes.text(_MARGIN, _TITLE / 2, title, **style)
        for number, step in enumerate(self.steps):
            x = _MARGIN + self.cell * (number % self.columns + 0.5)
            y = _TITLE + (self.cell + _CAPTION) * (number // self.columns) + _CAPTION + self.cell / 2
            top = y - self.cell / 2
            self._draw_round(axes, Circle(len(self.ranks), 0.36 * self.cell, x, y), step)
            self._write(axes, [f"step {number + 1}"], [(x, top - 0.27)], size=9)
            self._write(axes, [" ".join([*step.names(), step.amount()])], [(x, top - 0.1)], size=7, colours=_FAINT_INK)

    def _draw_round(self, axes: Axes, circle: Circle, step: Round) -> None:
        curves = [curve for _, curve in circle.curves(self.ranks, step.transfers)]
        line = np.tile([Path.MOVETO, Path.CURVE3, Path.CURVE3], len(curves))
        points = np.array(curves, float).reshape(-1, 2)
        axes.add_artist(PathPatch(Path(points, line), facecolor="none", edgecolor=VERMILLION, linewidth=1.4))
        messages = [transfer for transfer in step.transfers if transfer.is_message]
        heads = [curve.head(0.45 * circle.node) for _, curve in circle.curves(self.ranks, messages)]
        if heads:
            corners = np.array([[*head, head[0]] for head in heads], float).reshape(-1, 2)
            codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(heads))
            axes.add_artist(PathPatch(Path(corners, codes), facecolor=VERMILLION, edgecolor=VERMILLION, linewidth=0.8))
        if step.names():
            hub = {"facecolor": "white", "edgecolor": VERMILLION, "linewidth": 1.4}
            axes.add_artist(PathPatch(_discs([circle.centre], circle.hub), **hub))
        nodes = [circle.place(number) for number in range(len(self.ranks))]
        axes.add_artist(PathPatch(_discs(nodes, circle.node), facecolor=_NODE_COLOUR, edgecolor=BLUE, linewidth=0.9))
        names = circle.names(self.ranks)
        self._write(axes, list(names.values()), list(names), size=self.size)

    def _write(self, axes: Axes, texts: Sequence[str], places: Sequence[tuple[float, float]], **style) -> None:
        axes.add_artist(OutlinedText(axes.figure, texts, places, axes.transData, **style))


def _discs(centres: Sequence[tuple[float, float]], radius: float) -> Path:
    disc = Path.unit_circle()
    corners, codes = np.asarray(disc.vertices, float), np.asarray(disc.codes)
    return Path(np.concatenate([corners * radius + centre for centre in centres]), np.tile(codes, len(centres)))
