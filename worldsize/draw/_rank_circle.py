"""Ranks on a circle, and the arrows between them: positions and curves. Uses no drawing library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from worldsize.draw._message_steps import Transfer

_NODE, _MOST_OF_ARC = 0.19, 0.24  # a node's radius: a fraction of the circle's, and at most of the way to the next node
_BEND = 0.16  # of an arrow's length, to its left, so that arrows in opposite directions do not coincide
_HUB = 0.5  # the radius of the hub in the middle, as a fraction of the circle's
_NAMES_INSIDE, _OUTSIDE = 24, 1.1  # up to this many ranks have their number inside; else it is this far out
_ARROW_CLEARANCE = 1.15  # times a node's radius: from its middle to the end of an arrow


class Curve(NamedTuple):
    """A quadratic Bézier curve: from, control point, to; y grows downwards."""

    x0: float
    y0: float
    x1: float
    y1: float
    x2: float
    y2: float

    def at(self, t: float) -> tuple[float, float]:
        """Return the point at the fraction `t` of the curve."""
        a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t * t
        return a * self.x0 + b * self.x1 + c * self.x2, a * self.y0 + b * self.y1 + c * self.y2

    def head(self, size: float) -> list[tuple[float, float]]:
        """Return the tip and the two other corners of an arrow's head."""
        dx, dy = self.x2 - self.x1, self.y2 - self.y1
        length = math.hypot(dx, dy) or 1.0
        dx, dy = size * dx / length, size * dy / length
        back = self.x2 - dx, self.y2 - dy
        return [
            (self.x2, self.y2),
            (back[0] - 0.45 * dy, back[1] + 0.45 * dx),
            (back[0] + 0.45 * dy, back[1] - 0.45 * dx),
        ]


class Circle:
    """Nodes on a circle around (`x`, `y`), clockwise from the top."""

    def __init__(self, num_nodes: int, radius: float, x: float = 0.0, y: float = 0.0) -> None:
        self.num_nodes, self.radius, self.centre = num_nodes, radius, (x, y)
        arc = 2 * math.pi * radius / num_nodes
        self.hub = _HUB * radius
        self.node = min(_NODE * radius, _MOST_OF_ARC * arc)

    def place(self, node: int, scale: float = 1.0) -> tuple[float, float]:
        """Return the position of a node; `scale` multiplies its distance from the centre."""
        angle = 2 * math.pi * node / self.num_nodes
        away = self.radius * scale
        return self.centre[0] + away * math.sin(angle), self.centre[1] - away * math.cos(angle)

    def arrow(self, source: int, target: int) -> Curve:
        """Return the curve from the edge of one node to the edge of another."""
        (x0, y0), (x2, y2) = self.place(source), self.place(target)
        middle = (x0 + x2) / 2 + _BEND * (y2 - y0), (y0 + y2) / 2 - _BEND * (x2 - x0)
        return self._between((x0, y0), middle, (x2, y2), self.node)

    def spoke(self, node: int) -> Curve:
        """Return the curve from the edge of a node to the hub."""
        (x0, y0), (x2, y2) = self.place(node), self.place(node, _HUB)
        return self._between((x0, y0), ((x0 + x2) / 2, (y0 + y2) / 2), (x2, y2), 0.0)

    def curves(self, ranks: Sequence[int], transfers: Iterable[Transfer]) -> Iterator[tuple[Transfer, Curve]]:
        """Yield the arrow of each message, and the spokes of each collective."""
        index = {rank: number for number, rank in enumerate(ranks)}
        for transfer in transfers:
            nodes = [index[rank] for rank in transfer.ranks]
            for curve in [self.arrow(*nodes)] if transfer.is_message else map(self.spoke, nodes):
                yield transfer, curve

    def names(self, ranks: Sequence[int]) -> dict[tuple[float, float], str]:
        """Return the ranks' numbers by position: in the nodes, or if there are many, outside and only some."""
        is_inside = len(ranks) <= _NAMES_INSIDE
        step = 1 if is_inside else math.ceil(len(ranks) / 16)
        return {self.place(at, 1.0 if is_inside else _OUTSIDE): str(ranks[at]) for at in range(0, len(ranks), step)}

    def _between(
        self, start: tuple[float, float], middle: tuple[float, float], end: tuple[float, float], cut: float
    ) -> Curve:
        x0, y0 = _towards(start, middle, self.node * _ARROW_CLEARANCE)
        x2, y2 = _towards(end, middle, cut * _ARROW_CLEARANCE)
        return Curve(x0, y0, *middle, x2, y2)


def _towards(start: tuple[float, float], end: tuple[float, float], by: float) -> tuple[float, float]:
    length = math.dist(start, end) or 1.0
    return start[0] + (end[0] - start[0]) * by / length, start[1] + (end[1] - start[1]) * by / length
