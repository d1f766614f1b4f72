"""How each kind of work looks on a timeline: a colour, and a shape that distinguishes it without colour."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Transform

from worldsize.palette import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, VERMILLION, YELLOW

_HEAD, _FOOT = (0.0, 0.2), (0.8, 1.0)
_CLOSED = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
_WAITING, _LOST = "#8A8A8A", "#4A4A4A"
_PALE_SKY, _PALE_PURPLE, _OLIVE = "#A6D8F4", "#E6BDD5", "#C6BC3A"  # for kinds that resemble another kind


class Style(NamedTuple):
    """A block's colour, where it begins and ends in its lane (0 is the top), and its darker stripes."""

    colour: str
    top: float = 0.0
    bottom: float = 1.0
    stripes: tuple[tuple[float, float], ...] = ()
    ink: str = INK


STYLES = {  # in the order of a legend
    "data": Style(YELLOW, top=0.42),
    "compute": Style(SKY),
    "forward": Style(SKY),
    "backward": Style(GREEN, stripes=(_FOOT,), ink="white"),
    "recompute": Style(_PALE_SKY, top=0.16, stripes=((0.16, 0.3),)),
    "weight": Style(ORANGE, stripes=(_HEAD,)),
    "communication": Style(VERMILLION, top=0.1, bottom=0.82, ink="white"),
    "update": Style(PURPLE, stripes=(_HEAD, _FOOT), ink="white"),
    "offload": Style(_OLIVE, top=0.42, stripes=((0.42, 0.52),)),
    "checkpoint": Style(_PALE_PURPLE, top=0.42, stripes=((0.9, 1.0),)),
    "lost": Style(_LOST, top=0.22, bottom=0.78, ink="white"),
    "wait": Style(_WAITING, top=0.44, bottom=0.56),
}
OTHER = Style(BLUE, bottom=0.58, ink="white")


def style_of(kind: str) -> Style:
    """Return the style of this kind."""
    return STYLES.get(kind, OTHER)


def in_order(kinds: set[str]) -> list[str]:
    """Sort the kinds in the order of a legend: the known ones, then the others, waiting last."""
    known = [kind for kind in STYLES if kind in kinds and kind != "wait"]
    return [*known, *sorted(kinds - STYLES.keys()), *(["wait"] if "wait" in kinds else [])]


def blocks(style: Style, boxes: np.ndarray, within: Transform, edge: float = 0.0) -> list[PathPatch]:
    """Make one artist for all blocks of a style, and one for their stripes.

    Shapes:
        boxes: (n, 4), each left, right, top, bottom.
    """
    body = rectangles(_band(boxes, style.top, style.bottom))
    drawn = [PathPatch(body, facecolor=style.colour, edgecolor="white", linewidth=edge, transform=within)]
    if style.stripes:
        bands = np.concatenate([_band(boxes, low, high) for low, high in style.stripes])
        drawn.append(PathPatch(rectangles(bands), facecolor=darker(style.colour), linewidth=0, transform=within))
    return drawn


def rectangles(boxes: np.ndarray) -> Path:
    """Make one path of all boxes, which is drawn in a tenth of the time of separate paths."""
    left, right, top, bottom = boxes.T
    corners = np.stack([left, top, right, top, right, bottom, left, bottom, left, top], axis=1).reshape(-1, 2)
    return Path(corners, np.tile(_CLOSED, len(boxes)))


def _band(boxes: np.ndarray, low: float, high: float) -> np.ndarray:
    left, right, top, bottom = boxes.T
    return np.stack([left, right, top + low * (bottom - top), top + high * (bottom - top)], axis=1)


def darker(colour: str) -> str:
    """Return the same hue at less than half the lightness."""
    return "#" + "".join(f"{int(int(colour[at : at + 2], 16) * 0.45):02x}" for at in (1, 3, 5))
