"""Points on a circle by their angles, and arrows between them: what turns, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from worldsize.draw.picture import Picture, finish
from worldsize.palette import BLUE, FAINT, VERMILLION

_SIZE_IN, _REACH, _NAME_AT = (4.6, 4.4), 1.35, 1.17  # the circle's radius is 1
CENTRE = ""  # as the end of an arrow


def circle(angles: Mapping[str, float], arrows: Iterable[tuple[str, str]] = (), title: str = "") -> Picture:
    """Draw a point for each name, at its angle in radians, and arrows from name to name; "" is the circle's centre.

    Raises:
        ValueError: there are no points, or an arrow begins or ends at an unknown name, or ends where it begins.
    """
    if not angles:
        raise ValueError("There is no point to draw: give {name: angle in radians, ...}.")
    places = {name: (math.cos(angle), math.sin(angle)) for name, angle in angles.items()} | {CENTRE: (0.0, 0.0)}
    picture = Picture(*_SIZE_IN)
    axes = picture.subplots()
    turns = [2 * math.pi * part / 120 for part in range(121)]
    axes.plot([*map(math.cos, turns)], [*map(math.sin, turns)], color=FAINT, linewidth=1)
    for name, (x, y) in places.items():
        if name != CENTRE:
            axes.scatter(x, y, color=BLUE)
            axes.text(_NAME_AT * x, _NAME_AT * y, name, ha="center", va="center", fontsize=11)
    said = [f"{_plain(name)} at {math.degrees(angle):.0f}°" for name, angle in angles.items()]
    for start, end in arrows:
        said.append(f"an arrow from {_plain(start)} to {_plain(end)} points to {_direction(places, start, end):.0f}°")
        style = {"arrowstyle": "->", "color": VERMILLION, "linewidth": 2}
        axes.annotate("", places[end], places[start], arrowprops=style)
    axes.set(aspect="equal", xlim=(-_REACH, _REACH), ylim=(-_REACH, _REACH), xticks=[], yticks=[])
    finish(axes, title, frame=())
    picture.alt = f"Points on a circle{f' ({title})' if title else ''}: {'; '.join(said)}."
    return picture


def _direction(places: Mapping[str, tuple[float, float]], start: str, end: str) -> float:
    """Return the direction of an arrow in degrees, from 0 to 360."""
    if odd := [name for name in (start, end) if name not in places]:
        raise ValueError(f"No point is called {odd[0]!r}: choose among {', '.join(filter(None, places))}.")
    across, up = (places[end][axis] - places[start][axis] for axis in (0, 1))
    if math.hypot(across, up) < 1e-9:
        raise ValueError(f"An arrow from {_plain(start)} to {_plain(end)} has no length.")
    return math.degrees(math.atan2(up, across)) % 360


def _plain(name: str) -> str:
    """Write a name as plain text: x_t+1 for $x_{t+1}$."""
    return "the centre" if name == CENTRE else name.translate(str.maketrans("", "", "${}"))
