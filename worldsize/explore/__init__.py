"""Sliders around any function, so that a reader sees the effect before reading the number."""

from worldsize.explore.explorer import Explorer, explore

__all__ = ["Explorer", "explore"]
