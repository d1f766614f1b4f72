"""Positions for labels next to points: no label covers a label, a point or a leader. Uses no drawing library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Point = tuple[float, float]
Size = tuple[float, float]

_CLEARANCE = 2.0  # kept free around every label; the unit of all lengths here is the point in a picture
_SIDES = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)]  # of a point, best first
_DISTANCES = (10, 16, 24, 34, 46, 60, 80, 105, 135, 170, 210)  # of a label with a leader
_NUM_DIRECTIONS = 24
_AMBIGUOUS = 9.0  # the cost of being as near to another point as to the label's own
_CROSSED = 60.0  # the cost of a leader that crosses another point's mark, and of each time that a label is pushed away
_TOUCH = 0.2  # lines nearer than this meet
_MOST_TURNS = 6  # turns per label on average before giving up


class Box(NamedTuple):
    """A rectangle; y grows upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def grown(self, by: float) -> Box:
        """The rectangle with this margin on every side."""
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)

    def overlaps(self, other: Box) -> bool:
        """True if the two share an area."""
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )

    def holds(self, other: Box) -> bool:
        """True if the other lies in this one."""
        is_wide = self.left <= other.left and other.right <= self.right
        return is_wide and self.bottom <= other.bottom and other.top <= self.top

    def nearest(self, point: Point) -> Point:
        """The nearest point of the rectangle to a point."""
        return min(max(point[0], self.left), self.right), min(max(point[1], self.bottom), self.top)


class Leader(NamedTuple):
    """A line from a point to its label."""

    start: Point
    end: Point


class LabelPlace(NamedTuple):
    """The position of a label, and the leader to it; None if it is next to its point."""

    box: Box
    leader: Leader | None
    cost: float


def place_labels(points: Sequence[Point], sizes: Sequence[Size], frame: Box, radius: float) -> list[LabelPlace] | None:
    """Find a position for the label of each point, whose mark has this radius; None if there is no room for all.

    Labels choose the nearest free position in turn; of several orders, the one with the shortest leaders wins.
    """
    for is_anywhere in (False, True):  # positions all over the frame are many, and take time
        choices = [_choices(number, points, size, frame, radius, is_anywhere) for number, size in enumerate(sizes)]
        orders = _orders(points, choices)
        found = [_place_in_order(order, choices) for order in orders]
        if placed := [places for places in found if places is not None]:
            return min(placed, key=lambda places: sum(place.cost for place in places))
        if places := _place_in_turn(orders[0], choices):
            return places
    for distance in _DISTANCES[::3]:  # labels near a point block the leaders of others that lie on it
        farther = [[place for place in own if place.leader and place.cost >= distance] for own in choices]
        if places := _place_in_order(orders[0], farther) or _place_in_turn(orders[0], farther):
            return places
    return None


def _orders(points: Sequence[Point], choices: Sequence[Sequence[LabelPlace]]) -> list[list[int]]:
    numbers = list(range(len(points)))
    return [
        sorted(numbers, key=lambda number: len(choices[number])),
        sorted(numbers, key=lambda number: -_crowd(number, points)),
        sorted(numbers, key=lambda number: points[number]),
        sorted(numbers, key=lambda number: (-points[number][0], points[number][1])),
    ]


def _crowd(number: int, points: Sequence[Point]) -> float:
    """Measure how crowded the neighbourhood of a point is."""
    return sum(1 / (10 + math.dist(points[number], other)) for other in points)


def _place_in_order(order: Sequence[int], choices: Sequence[Sequence[LabelPlace]]) -> list[LabelPlace] | None:
    placed: dict[int, LabelPlace] = {}
    for number in order:
        free = (place for place in choices[number] if not any(_collide(place, other) for other in placed.values()))
        place = next(free, None)
        if place is None:
            return None
        placed[number] = place
    return [placed[number] for number in range(len(choices))]


def _place_in_turn(order: Sequence[int], choices: Sequence[Sequence[LabelPlace]]) -> list[LabelPlace] | None:
    """Place labels in turn, each of which may push away others; a label that is pushed often becomes harder to push."""
    placed: dict[int, LabelPlace] = {}
    weights = [_CROSSED] * len(choices)
    waiting = list(order)
    for _ in range(_MOST_TURNS * len(choices)):
        if not waiting:
            return [placed[number] for number in range(len(choices))]
        number = waiting.pop(0)
        best: tuple[float, LabelPlace, list[int]] | None = None
        for place in choices[number]:
            if best and place.cost >= best[0]:
                break
            pushed = [other for other, where in placed.items() if _collide(place, where)]
            cost = place.cost + sum(weights[other] for other in pushed)
            if best is None or cost < best[0]:
                best = cost, place, pushed
        if best is None:
            return None
        for other in best[2]:
            weights[other] += _CROSSED
            del placed[other]
        placed[number] = best[1]
        waiting += best[2]
    return None


def _collide(one: LabelPlace, other: LabelPlace) -> bool:
    """Whether a label or its leader is in the way of the other label or its leader."""
    if one.box.grown(_CLEARANCE).overlaps(other.box) or (
        one.leader and _meets(one.leader, other.box.grown(_CLEARANCE))
    ):
        return True
    if other.leader and _meets(other.leader, one.box.grown(_CLEARANCE)):
        return True
    return one.leader is not None and other.leader is not None and _cross(one.leader, other.leader)


def _choices(
    number: int, points: Sequence[Point], size: Size, frame: Box, radius: float, is_anywhere: bool
) -> list[LabelPlace]:
    """List the positions where this label is inside the frame and covers no point, best first."""
    point = points[number]
    marks = [Box(x, y, x, y).grown(radius) for x, y in points]
    others = [other for other in points if math.dist(other, point) > 2 * radius]
    boxes = [*_beside(point, size, radius), *_apart(point, size, radius)]
    places = []
    for box, cost in [*boxes, *(_anywhere(point, size, frame) if is_anywhere else [])]:
        if not frame.holds(box) or any(box.grown(_CLEARANCE / 2).overlaps(mark) for mark in marks):
            continue
        leader = None if cost < len(_SIDES) else _leader(point, box, radius)
        num_crossed = sum(_distance(leader, other) < radius + _CLEARANCE / 2 for other in others) if leader else 0
        is_ambiguous = not leader and any(math.dist(box.nearest(other), other) < 2.5 * radius for other in others)
        places.append(LabelPlace(box, leader, cost + _AMBIGUOUS * is_ambiguous + _CROSSED * num_crossed))
    return sorted(places, key=lambda place: place.cost)


def _beside(point: Point, size: Size, radius: float) -> list[tuple[Box, float]]:
    """List the eight positions that touch a point's mark; each costs less than `len(_SIDES)`."""
    away = radius + _CLEARANCE
    near = [(away if x and not y else 0.7 * away if x else 0, away if y and not x else 0.7 * away) for x, y in _SIDES]
    return [
        (_box(point[0] + x * (dx + size[0] / 2), point[1] + y * (dy + size[1] / 2), size), cost)
        for cost, ((x, y), (dx, dy)) in enumerate(zip(_SIDES, near, strict=True))
    ]


def _apart(point: Point, size: Size, radius: float) -> list[tuple[Box, float]]:
    """List positions on ovals around a point, ever farther away."""
    places = []
    for distance in _DISTANCES:
        for turn in range(_NUM_DIRECTIONS):
            angle = 2 * math.pi * turn / _NUM_DIRECTIONS
            x = point[0] + math.cos(angle) * (radius + distance + size[0] / 2)
            y = point[1] + math.sin(angle) * (radius + distance + size[1] / 2)
            box = _box(x, y, size)
            places.append((box, len(_SIDES) + math.dist(box.nearest(point), point)))
    return places


def _anywhere(point: Point, size: Size, frame: Box) -> list[tuple[Box, float]]:
    """List positions all over the frame, for a label that finds none nearby."""
    places = []
    columns = max(1, int((frame.right - frame.left) // (0.5 * size[0] + 20)))
    rows = max(1, int((frame.top - frame.bottom) // (size[1] + 2 * _CLEARANCE)))
    for column in range(columns + 1):
        for row in range(rows + 1):
            x = frame.left + size[0] / 2 + (frame.right - frame.left - size[0]) * column / columns
            y = frame.bottom + size[1] / 2 + (frame.top - frame.bottom - size[1]) * row / rows
            box = _box(x, y, size)
            places.append((box, 2 * len(_SIDES) + math.dist(box.nearest(point), point)))
    return places


def _box(x: float, y: float, size: Size) -> Box:
    return Box(x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2)


def _leader(point: Point, box: Box, radius: float) -> Leader:
    end = box.nearest(point)
    away = math.dist(point, end) or 1.0
    start = point[0] + (end[0] - point[0]) * radius / away, point[1] + (end[1] - point[1]) * radius / away
    return Leader(start, end)


def _distance(leader: Leader, point: Point) -> float:
    """Return the distance of a point from a line."""
    (x0, y0), (x1, y1) = leader
    length = (x1 - x0) ** 2 + (y1 - y0) ** 2
    along = ((point[0] - x0) * (x1 - x0) + (point[1] - y0) * (y1 - y0)) / length if length else 0.0
    along = min(1.0, max(0.0, along))
    return math.dist(point, (x0 + along * (x1 - x0), y0 + along * (y1 - y0)))


def _cross(one: Leader, other: Leader) -> bool:
    """Whether two lines meet or overlap."""
    a, b, c, d = *one, *other
    turns = _turn(a, b, c), _turn(a, b, d), _turn(c, d, a), _turn(c, d, b)
    if turns[0] * turns[1] < 0 and turns[2] * turns[3] < 0:
        return True
    return min(_distance(one, c), _distance(one, d), _distance(other, a), _distance(other, b)) < _TOUCH


def _turn(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _meets(leader: Leader, box: Box) -> bool:
    """Whether a line passes through a rectangle."""
    low, high = 0.0, 1.0
    (x0, y0), (x1, y1) = leader
    for start, delta, least, most in ((x0, x1 - x0, box.left, box.right), (y0, y1 - y0, box.bottom, box.top)):
        if not delta:
            if not least < start < most:
                return False
            continue
        enter, leave = sorted(((least - start) / delta, (most - start) / delta))
        low, high = max(low, enter), min(high, leave)
    return low < high
