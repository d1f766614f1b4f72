"""The colours of all pictures, by Okabe and Ito; each is paired with a hatch, marker or line style."""

from __future__ import annotations

from typing import Any

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
IDLE, INK, GREY, FAINT = "#EDEDED", "#333333", "#808080", "#BBBBBB"
PART_STYLES = [(BLUE, ""), (SKY, "//"), (ORANGE, ".."), (GREEN, "\\\\"), (PURPLE, "xx"), (YELLOW, "++")]
LINE_STYLES = [(SKY, "-", ""), (BLACK, "--", ""), (VERMILLION, ":", ""), (BLUE, "-.", ""), (GREEN, "-", "s")]


def line_styles() -> list[dict[str, Any]]:
    """Return styles that distinguish lines even without colour, as matplotlib's arguments."""
    return [{"color": colour, "linestyle": dashes, "marker": marker} for colour, dashes, marker in LINE_STYLES]
