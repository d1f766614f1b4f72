"""Text in CSV files that people open in a spreadsheet."""

from __future__ import annotations

# what a spreadsheet takes for a formula, or for the start of one after it has skipped white space
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def neutral(value: object) -> object:
    """A value as a CSV cell that no spreadsheet takes for a formula."""
    # an apostrophe is what spreadsheets themselves put before text that only looks like a formula
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) else value
