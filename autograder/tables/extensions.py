"""The extensions of due dates in `extensions.csv` at the root of the course, which no student can write.

`autograder extend` adds rows. If you write it yourself: a header `assignment,student,days`; days count from the class's
due date and may have decimals; the last row for a student counts, and 0 revokes an extension.
"""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

from autograder.tables.csv_table import add_row, read_table
from worldsize.units import parse_number

EXTENSIONS = "extensions.csv"
MAX_DAYS = 400.0
_COLUMNS = ("assignment", "student", "days")
Extensions: TypeAlias = dict[tuple[str, str], timedelta]  # by assignment and student


def read_extensions(root: Path) -> Extensions:
    """Read the extensions in the course's record; empty without one.

    Raises:
        ValueError: a row cannot be read; the text says which.
    """
    path = root / EXTENSIONS
    if not path.exists():
        return {}
    table = read_table(path)
    if missing := [name for name in _COLUMNS if name not in table.head]:
        raise ValueError(f"{path} has no column {missing[0]!r}: write the header {','.join(_COLUMNS)}.")
    found: Extensions = {}
    for line, row in table.rows:
        try:
            found[row["assignment"].strip(), row["student"].strip()] = timedelta(days=_days(parse_number(row["days"])))
        except ValueError:
            raise ValueError(
                f"{table.where(line)}: {row['days']!r} is not a number of days from 0 to {MAX_DAYS:g}."
            ) from None
    return found


def note_extension(root: Path, assignment: str, student: str, days: float) -> None:
    """Add a row to the course's record. Raises: ValueError if the days are out of range or it cannot be read."""
    _days(days)
    read_extensions(root)  # add nothing to a table that is not readable
    add_row(root / EXTENSIONS, {"assignment": assignment, "student": student, "days": f"{days:.10g}"})


def _days(days: float) -> float:
    if not (math.isfinite(days) and 0 <= days <= MAX_DAYS):
        raise ValueError(f"An extension of {days:g} days is not possible: give 0 to {MAX_DAYS:g}.")
    return days
