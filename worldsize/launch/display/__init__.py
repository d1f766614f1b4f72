"""The display of a run while it lasts."""
