"""The students of a quiz: a CSV file with a column `id` and optionally `name`."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")


@dataclass(frozen=True)
class Student:
    """One student; the id becomes a part of file names."""

    id: str
    name: str = ""


def read_roster(file: Path) -> list[Student]:
    """The students of a roster, in the order of the file.

    Raises:
        ValueError: the file is not such a CSV, is empty, or has ids that are missing, odd or repeated; all are named
            with their lines.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(_rows(csv.DictReader(lines), file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} cannot be read as a roster in UTF-8: {error}.") from error
    if not rows:
        raise ValueError(f"{file} names no students: give one per line, under a header with `id` and `name`.")
    if problems := list(_problems(rows)):
        raise ValueError("\n".join(f"{file.name}, {problem}" for problem in problems))
    return [student for _, student in rows]


def _rows(reader: csv.DictReader[str], file: Path) -> Iterator[tuple[int, Student]]:
    columns = [(name or "").strip().lower() for name in reader.fieldnames or ()]
    if "id" not in columns:
        raise ValueError(f"{file} has the columns {', '.join(columns) or '(none)'}: it needs one called `id`.")
    reader.fieldnames = columns
    for row in reader:
        if any((value or "").strip() for value in row.values() if not isinstance(value, list)):
            yield reader.line_num, Student((row["id"] or "").strip(), " ".join((row.get("name") or "").split()))


def _problems(rows: list[tuple[int, Student]]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for line, student in rows:
        if not student.id:
            yield f"line {line}: {student.name or 'somebody'} has no id."
        elif not _ID.fullmatch(student.id) or ".." in student.id:
            yield f"line {line}: the id {student.id!r} cannot be a file name; use letters, digits and . _ @ + -."
        elif (folded := student.id.casefold()) in seen:
            yield f"line {line}: the id {student.id!r} is that of line {seen[folded]}."
        else:
            seen[folded] = line
