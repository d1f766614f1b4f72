"""Many designs at once: all combinations of some values, and their Pareto front in days and dollars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from worldsize import draw
from worldsize.capstone.design import Design, changed
from worldsize.capstone.figures import SPAN_S, Figures, run
from worldsize.capstone.impossible import check
from worldsize.draw import Picture
from worldsize.planning.search import Cost

_MOST_NAMED = 30  # points of a picture


class Tried(NamedTuple):
    """One design of a sweep: its values, and its figures or why it has none."""

    values: Mapping[str, Any]
    figures: Figures | None
    problems: list[str]


def sweep(design: Design, cost_of: Callable[[Design], Cost], choices: Mapping[str, Sequence[Any]]) -> Iterator[Tried]:
    """Check and price every combination of values for keys such as `plan__dp`, one after the other.

    Only the budget may be exceeded, because a sweep is meant to find out by how much. Goodput is that of 30 days.
    """
    unlimited = changed(design, budget__days=1e9, budget__usd=1e18)
    for values in product(*choices.values()):
        named = dict(zip(choices, values, strict=True))
        try:
            one = changed(unlimited, **named)
        except ValueError as error:
            yield Tried(named, None, [str(error)])
            continue
        problems = check(one)
        yield Tried(named, None if problems else run(one, cost_of(one), span_s=SPAN_S), problems)


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of the points on the Pareto front, from left to right."""
    best, found = float("inf"), []
    for name, (_, y) in sorted(points.items(), key=lambda one: one[1]):
        if y < best:
            best = y
            found.append(name)
    return found


def days_against_dollars(of: Mapping[str, Figures], title: str = "Days against cost") -> Picture:
    """Draw each design as a point; the Pareto front, which no design beats in both, stands out.

    Designs with the same figures share a point. If there are too many names, only the front and the quickest others are
    shown.

    Raises:
        ValueError: there are no designs.
    """
    points = _at_one_place({name: (one.days, one.usd / 1e6) for name, one in of.items()})
    best = front(points)
    others = sorted(points.keys() - {*best}, key=points.__getitem__)
    shown = {"no design is both quicker and cheaper": {name: points[name] for name in best[:_MOST_NAMED]}}
    if room := others[: max(0, _MOST_NAMED - len(best))]:
        shown["others"] = {name: points[name] for name in room}
    return draw.scatter(shown, x_label="days", y_label="million dollars", title=title)


def _at_one_place(points: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Merge points at the same place under one name."""
    names: dict[tuple[float, float], list[str]] = {}
    for name, place in points.items():
        names.setdefault(place, []).append(name)
    return {first + (f" and {len(others)} more" if others else ""): place for place, (first, *others) in names.items()}
