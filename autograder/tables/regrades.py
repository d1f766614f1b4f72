"""What was answered to requests for a regrade: `regrades.csv` at the root of the course, which no student can write.

`autograder regrade` adds to it. The last row for a request counts, and only for the words that it answered.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TypeAlias

from autograder.files import write_whole
from autograder.tables.csv_table import read_table

REGRADES = "regrades.csv"
_COLUMNS = ("assignment", "student", "cell", "request", "answer")
Answers: TypeAlias = dict[tuple[str, str, str, str], str]  # by all other columns


def read_answers(root: Path) -> Answers:
    """The answers in the course's record; none without one. Raises: ValueError, where it cannot be read."""
    path = root / REGRADES
    if not path.exists():
        return {}
    table = read_table(path)
    if missing := [name for name in _COLUMNS if name not in table.head]:
        raise ValueError(f"{path} has no column {missing[0]!r}: its head is {','.join(_COLUMNS)}.")
    found: Answers = {}
    for _, row in table.rows:
        assignment, student, cell, request = (row[name].strip() for name in _COLUMNS[:4])
        found[assignment, student, cell, request] = row["answer"].strip()
    return found


def note_answer(root: Path, assignment: str, student: str, cell: str, request: str, answer: str) -> None:
    """Add a row to the course's record."""
    path, row = root / REGRADES, io.StringIO(newline="")
    before = path.read_text(encoding="utf-8-sig") if path.exists() else ",".join(_COLUMNS)
    csv.writer(row, lineterminator="\n").writerow([assignment, student, cell, request, answer])
    write_whole(path, f"{before.rstrip()}\n{row.getvalue()}")
