"""Sliders round any function: see the step before you read the number."""

from worldsize.explore.explorer import Explorer, explore

__all__ = ["Explorer", "explore"]
