"""Reading the roster of a class, a CSV file: `id` and optionally name, email, section, LMS id, extra time, team.

`autograder roster import` writes it to `roster.csv` at the root of the course, where quizzes, exports and the status of
a term read it. The export of Canvas's gradebook is read as well; source, read in November 2026:
`lib/gradebook_exporter.rb` of instructure/canvas-lms.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autograder.files import write_whole
from autograder.tables.csv_table import CsvTable, read_table
from worldsize.units import parse_number

ROSTER = "roster.csv"
MAX_EXTRA_TIME_PERCENT = 300
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


@dataclass(frozen=True)
class Student:
    """A student; the id becomes part of file names. Extra time is a percentage of a quiz's minutes."""

    id: str
    name: str = ""
    email: str = ""
    section: str = ""
    lms_id: str = ""
    extra_time_percent: float = 0.0
    team: str = ""
    last_name: str = ""  # if the file has the parts of the name in separate columns

    @property
    def first_and_last(self) -> tuple[str, str]:
        """The name in two parts, as gradebooks keep it: at a comma, or otherwise at the last space."""
        if self.last_name and self.name.endswith(self.last_name):
            return self.name.removesuffix(self.last_name).strip(), self.last_name
        if "," in self.name:
            last, _, first = self.name.partition(",")
            return first.strip(), last.strip()
        first, _, last = self.name.rpartition(" ")
        return first, last


def _extra_time_percent(text: str) -> float:
    """Parse a percentage such as `25` or `25%`. Raises: ValueError."""
    try:
        percent = parse_number(text, "%") if text else 0.0
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= MAX_EXTRA_TIME_PERCENT:
        raise ValueError(
            f"the extra time {text!r} is not a percentage from 0 to {MAX_EXTRA_TIME_PERCENT}: "
            "write 25 for a quarter more"
        )
    return percent


def _email(text: str) -> str:
    """Check an e-mail address, and return it. Raises: ValueError."""
    if text and not _EMAIL.fullmatch(text):
        raise ValueError(f"{text!r} is not an e-mail address")
    return text


def _team(text: str) -> str:
    """Check the name of a team, and return it. Raises: ValueError."""
    if re.search("[,;]", text):
        raise ValueError(f"the team {text!r} looks like several teams: give one, whose name has no comma")
    return text


# the fields of a student, with the names that their columns may have; the first is the one that we write
_COLUMNS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "id": ("id", str),
    "name": ("name", str),
    "email": ("email", _email),
    "section": ("section", str),
    "lms id": ("lms_id", str),
    "extra time": ("extra_time_percent", _extra_time_percent),
    "team": ("team", _team),
    "last name": ("last_name", str),
}
_TWO_NAMES = ("first name", "last name")
# in the export of Canvas's gradebook, `ID` is Canvas's own number
_CANVAS = {
    "sis login id": "id",
    "id": "lms id",
    "student": "name",
    "firstname": "first name",
    "lastname": "last name",
}
_CANVAS_TEST_STUDENT = re.compile(r"student, test|test student", re.IGNORECASE)
_CANVAS_TEST_LOGIN = re.compile(r"(?:[0-9a-f]{16,})?")


@dataclass(frozen=True)
class Roster:
    """The contents of a roster file: its fields, its unknown columns, and the students in the order of the file.

    The remarks are sentences about how the file was read.
    """

    fields: frozenset[str]
    unused: Sequence[str]
    students: Sequence[Student]
    remarks: Sequence[str] = ()


def read_roster(file: Path) -> list[Student]:
    """Read the students of a file, in its order; raises like `read_file`."""
    return [*read_file(file).students]


def class_roster(root: Path) -> list[Student]:
    """Read the students of the course's own roster; empty if none was imported yet; raises like `read_file`."""
    return read_roster(root / ROSTER) if (root / ROSTER).exists() else []


def read_file(file: Path) -> Roster:
    """Read a roster from a file.

    Raises:
        ValueError: the file is not such a CSV, is empty, or has rows that cannot be used; all are named with their
            lines.
    """
    table = read_table(file)
    named = {name: name.lower().replace("_", " ").strip() for name in table.head}
    is_canvas = "sis login id" in named.values() and bool({"student", "lastname"} & {*named.values()})
    if is_canvas:
        named = {name: _CANVAS.get(column, column) for name, column in named.items()}
        table = replace(table, rows=[(line, row) for line, row in table.rows if not _is_about_columns(row)])
    if "id" not in named.values():
        raise ValueError(f"{file} has the columns {', '.join(table.head) or '(none)'}: it needs one called `id`.")
    if twice := [name for name, column in named.items() if [*named.values()].count(column) > 1]:
        raise ValueError(f"{file} has the columns {', '.join(twice)}, which mean the same: keep only one of them.")
    if not table.rows:
        raise ValueError(f"{file} names no students: give one per line, under a header with `id` and `name`.")
    problems: list[str] = []
    rows = [*_students(table, named, problems)]
    tests = {line for line, one in rows if is_canvas and _is_test_student(one)}
    problems = [problem for problem in problems if _line_of(problem) not in tests]
    rows = [(line, one) for line, one in rows if line not in tests]
    problems += _repeated(rows)
    if problems:
        raise ValueError("\n".join(f"{file.name}, {problem}" for problem in sorted(problems, key=_line_of)))
    given = {field for column, (field, _) in _COLUMNS.items() if column in named.values()}
    given |= {"name"} if set(_TWO_NAMES) & {*named.values()} else set()
    unused = [name for name, column in named.items() if column not in {*_COLUMNS, *_TWO_NAMES}]
    students = [student for _, student in rows]
    if not is_canvas:
        return Roster(frozenset(given), unused, students)
    remarks = ["Read as Canvas's gradebook: SIS Login ID is the id, ID the lms id."]
    remarks += ["Left out: Canvas's own Student, Test."] if tests else []
    return Roster(frozenset(given), [], students, remarks)  # the columns of scores are not for a roster


def _is_about_columns(row: dict[str, str]) -> bool:
    """Whether a row of Canvas's export is about its columns, such as their points, and names nobody."""
    names = [text.strip() for column, text in row.items() if column.lower() in _CANVAS]
    return not any(names) or "points possible" in [name.lower() for name in names]


def _is_test_student(student: Student) -> bool:
    """Whether this is the student whom Canvas makes for trying things out, with a login of its own making."""
    return bool(_CANVAS_TEST_STUDENT.fullmatch(student.name) and _CANVAS_TEST_LOGIN.fullmatch(student.id))


def _line_of(problem: str) -> int:
    return int(problem.split(":")[0].removeprefix("line "))


def _students(table: CsvTable, named: dict[str, str], problems: list[str]) -> Iterator[tuple[int, Student]]:
    """Each row's student with the line; what is wrong in a row is added to the problems."""
    id_title = next(name for name, column in named.items() if column == "id")
    for line, row in table.rows:
        cells = {named[name]: " ".join(value.split()) for name, value in row.items()}
        if not cells.get("name"):  # nbgrader's own file of students has separate columns
            cells["name"] = " ".join(cells[part] for part in _TWO_NAMES if cells.get(part))
        found: dict[str, Any] = {}
        for column, (field, read) in _COLUMNS.items():
            try:
                found[field] = read(cells.get(column, ""))
            except ValueError as error:
                problems.append(f"line {line}: {error}.")
        student = Student(**found)
        if not student.id:
            problems.append(f"line {line}: {student.name or 'somebody'} has no {id_title}.")
        elif not _ID.fullmatch(student.id) or ".." in student.id:
            problems.append(
                f"line {line}: the id {student.id!r} cannot be a file name; use letters, digits and . _ @ + -."
            )
        yield line, student


def _repeated(rows: Sequence[tuple[int, Student]]) -> Iterator[str]:
    """A sentence for each id, address or LMS id that an earlier line already has."""
    for field, words in (("id", "id"), ("email", "address"), ("lms_id", "LMS id")):
        seen: dict[str, int] = {}
        for line, student in rows:
            value = getattr(student, field)
            if value and seen.setdefault(value.casefold(), line) != line:
                yield f"line {line}: the {words} {value!r} is that of line {seen[value.casefold()]}."


def updated(earlier: Sequence[Student], new: Roster) -> list[Student]:
    """The new students; fields for which their file has no column are kept from the earlier roster."""
    before = {student.id: student for student in earlier}
    return [
        replace(before.get(one.id, one), **{field: getattr(one, field) for field in new.fields}) for one in new.students
    ]


def write_roster(students: Sequence[Student], to: Path) -> None:
    """Write a roster with all columns."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for one in students:
        values = [getattr(one, field) for field, _ in _COLUMNS.values()]
        rows.writerow([f"{value:g}" if isinstance(value, float) else value for value in values])
    write_whole(to, text.getvalue())
