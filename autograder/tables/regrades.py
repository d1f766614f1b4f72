"""The answers to requests for a regrade in `regrades.csv` at the root of the course, which no student can write.

`autograder regrade` adds rows. The last row for a request counts, and only while the request's text does not change.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from autograder.tables.csv_table import add_row, read_table

REGRADES = "regrades.csv"
_COLUMNS = ("assignment", "student", "cell", "request", "answer")
Answers: TypeAlias = dict[tuple[str, str, str, str], str]  # keyed by all other columns


def read_answers(root: Path) -> Answers:
    """Read the answers in the course's record; empty without one. Raises: ValueError if it cannot be read."""
    path = root / REGRADES
    if not path.exists():
        return {}
    table = read_table(path)
    if missing := [name for name in _COLUMNS if name not in table.head]:
        raise ValueError(f"{path} has no column {missing[0]!r}: write the header {','.join(_COLUMNS)}.")
    found: Answers = {}
    for _, row in table.rows:
        assignment, student, cell, request = (row[name].strip() for name in _COLUMNS[:4])
        found[assignment, student, cell, request] = row["answer"].strip()
    return found


def note_answer(root: Path, assignment: str, student: str, cell: str, request: str, answer: str) -> None:
    """Add a row to the course's record. Raises: ValueError if it cannot be read."""
    read_answers(root)  # add nothing to a table that is not readable
    cells = (assignment, student, cell, request, answer)
    add_row(root / REGRADES, dict(zip(_COLUMNS, cells, strict=True)))
