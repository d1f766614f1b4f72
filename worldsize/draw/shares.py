"""Shares of a whole: a bar for each, with its name and its percentage."""

from __future__ import annotations

from collections.abc import Mapping

from worldsize import units
from worldsize.draw.picture import Picture, finish
from worldsize.palette import BLUE, INK

_WIDTH_IN, _BAR_IN, _AROUND_IN = 9.0, 0.3, 0.6
_ROOM = 1.12  # to the right of the longest bar, for its percentage


def shares(fractions: Mapping[str, float], title: str = "") -> Picture:
    """Draw a horizontal bar for each name, in the given order from the top down.

    Raises:
        ValueError: there are no shares, or one is not a number from 0 to 1.
    """
    if not fractions:
        raise ValueError("There is no share to draw: give {name: fraction, ...}.")
    for name, fraction in fractions.items():
        if not 0 <= fraction <= 1:
            raise ValueError(f"{name} is {fraction:g} of the whole: a share is a number from 0 to 1.")
    picture = Picture(_WIDTH_IN, _AROUND_IN + _BAR_IN * len(fractions))
    axes = picture.subplots()
    bars = axes.barh([*fractions], [*fractions.values()], color=BLUE, height=0.62)
    texts = [units.format_as("fraction", fraction) for fraction in fractions.values()]
    axes.bar_label(bars, texts, padding=4, color=INK, fontsize=9)
    axes.set_xlim(0, (max(fractions.values()) or 1) * _ROOM)
    axes.set_xticks([])
    axes.invert_yaxis()
    finish(axes, title, frame=("left",))
    listed = "; ".join(f"{name} {text}" for name, text in zip(fractions, texts, strict=True))
    picture.alt = f"Bar chart{f' ({title})' if title else ''} of shares: {listed}."
    return picture
