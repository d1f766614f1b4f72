"""Grades for other systems, from nbgrader's gradebook: a table, Canvas, Moodle, Blackboard, Gradescope.

Scores are nbgrader's: manual points replace automatic ones, extra credit is added, the late penalty is
subtracted. A number is given only where it is final: never for a submission on which the grader broke, nor for one that
still needs manual grading, nor for one that was handed in and waits to be graded. Work that is absent is 0 once it is
due.

Sources, all read in November 2026: Canvas, `lib/gradebook_importer.rb` of instructure/canvas-lms (columns, and which of
them identify a student; a blank cell is no grade); Moodle, `grade/import/csv/classes/load_data.php` of moodle/moodle (a
blank cell is no grade; anything else that is not a number ends the import); Blackboard Learn, "Upload or Download Grade
Center Items for Working Offline" (the user name and the column's number identify; every cell in quotes); Gradescope,
gradescope-autograders.readthedocs.io/en/latest/specs (results.json).
"""

from __future__ import annotations

import csv
import glob
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import ExportPlugin
from pydantic import BaseModel, ConfigDict

from autograder.files import neutral
from autograder.grading import audit_log
from autograder.grading.term import penalties
from autograder.grading.term.due_dates import due_date, extension_of
from autograder.submissions.team_work import counting
from autograder.tables.extensions import Extensions
from autograder.tables.roster import ROSTER, class_roster
from autograder.tables.teams import granted


class Standing(StrEnum):
    """What is known about one student's work on one assignment."""

    GRADED = "graded"
    MANUAL = "needs manual grading"
    BROKE = "not graded: the grader broke"
    WAITING = "waiting to be graded"
    MISSING = "not submitted"
    NOT_DUE = "not submitted, and not due yet"


_COUNTED = (Standing.GRADED, Standing.MANUAL, Standing.MISSING)  # points are known, if not always all of them


class Points(BaseModel):
    """One graded cell of a submission; `score` is None until somebody has graded it by hand."""

    model_config = ConfigDict(frozen=True)

    cell: str
    score: float | None
    max_score: float


@dataclass(frozen=True)
class Row:
    """One student's work on one assignment; `raw_score` and `penalty` are in points, as far as graded."""

    assignment: str
    student: str
    last_name: str
    first_name: str
    email: str
    lms_user_id: str
    standing: Standing
    max_score: float
    due: str = ""
    submitted: str = ""
    raw_score: float = 0.0
    penalty: float = 0.0
    cells: list[Points] = field(default_factory=list)
    section: str = ""
    extension: timedelta | None = None
    author: str = ""  # whose work counts, where it is another's of the team

    @property
    def score(self) -> float | None:
        """The points that count, which are 0 for work that is absent and due; None where none do."""
        if self.standing not in (Standing.GRADED, Standing.MISSING):
            return None
        return max(0.0, self.raw_score - self.penalty)

    @property
    def name(self) -> str:
        """The student's name as a gradebook sorts it, or the id where no name is known."""
        return ", ".join(part for part in (self.last_name, self.first_name) if part) or self.student


def rows(
    coursedir: CourseDirectory,
    gradebook: Gradebook,
    entries: Sequence[audit_log.Entry],
    assignments: Sequence[str] = (),
    students: Sequence[str] = (),
) -> list[Row]:
    """Every student's row for each of these assignments, or for all; `entries` are the audit log's.

    Raises:
        ValueError: the gradebook holds no assignment, or none of a given name; or the course's roster or its record of
            extensions cannot be read.
    """
    every: list[Any] = list(gradebook.assignments)  # sqlalchemy's columns are typed as columns
    known = [assignment.name for assignment in every]
    if unknown := set(assignments) - set(known):
        raise ValueError(
            f"The gradebook holds no assignment {', '.join(sorted(unknown))}: it has {', '.join(known) or 'none'}."
        )
    if not known:
        raise ValueError(
            "The gradebook holds no assignment yet: run `nbgrader generate_assignment` and autograde first."
        )
    last = {key[:2]: entry for key, entry in audit_log.latest(list(entries)).items()}
    sections = {one.id: one.section for one in class_roster(Path(coursedir.root))}
    extensions = granted(Path(coursedir.root))
    found: list[Row] = []
    people: list[Any] = list(gradebook.students)
    for assignment in every:
        if not assignments or assignment.name in assignments:
            of_team = counting(coursedir, assignment.name)
            for student in people:
                author = str(of_team.get(student.id, student.id))
                entry = last.get((assignment.name, author))
                row = _row(coursedir, gradebook, assignment, student, author, entry, extensions)
                found.append(replace(row, author=author if author != student.id else ""))
            found += _rows_of_strangers(coursedir, gradebook, assignment)
    wanted = [row for row in found if not students or row.student in students]
    return [replace(row, section=sections.get(row.student, "")) for row in wanted]


def _rows_of_strangers(coursedir: CourseDirectory, gradebook: Gradebook, assignment: Any) -> list[Row]:
    """A row for everybody who handed in and whom the gradebook does not know yet."""
    known = {student.id for student in gradebook.students}
    folders = glob.glob(coursedir.format_path(coursedir.submitted_directory, "*", glob.escape(assignment.name)))
    names = sorted({Path(folder).parent.name for folder in folders} - known)
    # the name of a folder may be no text, which no file of ours could hold
    written = [os.fsencode(name).decode(errors="backslashreplace") for name in names]
    due = str(assignment.duedate or "")
    return [Row(assignment.name, name, "", "", "", "", Standing.WAITING, assignment.max_score, due) for name in written]


def _row(
    coursedir: CourseDirectory,
    gradebook: Gradebook,
    assignment: Any,
    student: Any,
    author: str,
    last: audit_log.Entry | None,
    extensions: Extensions,
) -> Row:
    """A student's row, by the work of its author: the student, or another of the team."""
    try:
        submission: Any = gradebook.find_submission(assignment.name, author)
        extension = extension_of(submission, extensions)
    except MissingEntry:
        submission, extension = None, extensions.get((assignment.name, student.id))
    due = due_date(assignment, extension)
    about = {
        "assignment": assignment.name,
        "student": student.id,
        "last_name": student.last_name or "",
        "first_name": student.first_name or "",
        "email": student.email or "",
        "lms_user_id": student.lms_user_id or "",
        "max_score": assignment.max_score,
        "due": str(due or ""),
        "extension": extension,
    }
    if submission is None:
        return Row(**about, standing=_standing_of_absent(coursedir, assignment, author, due))
    return Row(
        **about,
        standing=_standing(coursedir, submission, last),
        submitted=str(submission.timestamp or ""),
        raw_score=submission.score,
        penalty=submission.late_submission_penalty,
        cells=[
            Points(cell=grade.name, score=None if grade.needs_manual_grade else grade.score, max_score=grade.max_score)
            for notebook in submission.notebooks
            for grade in notebook.grades
        ],
    )


def _standing_of_absent(coursedir: CourseDirectory, assignment: Any, student: str, due: datetime | None) -> Standing:
    """How a student stands of whom the gradebook has no submission."""
    if Path(coursedir.format_path(coursedir.submitted_directory, student, assignment.name)).exists():
        return Standing.WAITING
    is_due = due is not None and due < datetime.now(UTC).replace(tzinfo=None)
    return Standing.MISSING if is_due else Standing.NOT_DUE


def _standing(coursedir: CourseDirectory, submission: Any, last: audit_log.Entry | None) -> Standing:
    changed = audit_log.changed_inputs(coursedir, last) if last else []
    if any(kind == "submission" or kind.startswith("submitted/") for kind in changed):
        return Standing.WAITING  # it was handed in again after it was graded
    if last and last.verdict is audit_log.Verdict.FAULT:
        return Standing.BROKE
    if any(_has_no_score(notebook) for notebook in submission.notebooks):
        return Standing.BROKE if last else Standing.WAITING
    return Standing.MANUAL if submission.needs_manual_grade else Standing.GRADED


def _has_no_score(notebook: Any) -> bool:
    """True when a cell that the autograder grades has no score, as after a grading that was cut short."""
    by_hand = {cell.name for cell in (*notebook.notebook.solution_cells, *notebook.notebook.task_cells)}
    return any(
        grade.name not in by_hand and grade.auto_score is None and grade.manual_score is None
        for grade in notebook.grades
    )


class Grades(ExportPlugin):
    """`nbgrader export`: nbgrader's own columns, quoted as CSV requires, and one that says what a row stands for."""

    def export(self, gradebook: Gradebook) -> None:
        """Write `grades.csv`, or the file that `--to` names."""
        app: Any = self.parent
        entries, _ = audit_log.read(Path(app.coursedir.root, audit_log.LOG))
        path = Path(self.to or "grades.csv")
        assignments, students = [str(name) for name in self.assignment], [str(one) for one in self.student]
        found = rows(app.coursedir, gradebook, entries, assignments, students)
        write_table(found, path)
        if outdated := penalties.outdated(app.coursedir, gradebook, assignments):
            self.log.warning(penalties.warning(outdated))
        self.log.info("Exported %d rows to %s", len(found), path)
        for row in found:
            if row.score is None:
                self.log.warning("%s has no score for %s: %s", row.student, row.assignment, row.standing)


def write_table(rows: Iterable[Row], to: Path) -> None:
    """Write a CSV with nbgrader's columns and `status`; where there is no final score, the cell is empty."""
    columns = ["assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email"]
    columns += ["raw_score", "late_submission_penalty", "score", "max_score", "status"]
    lines = [
        [row.assignment, row.due, row.submitted, row.student, row.last_name, row.first_name, row.email]
        + ([row.raw_score, row.penalty] if row.standing in _COUNTED else [None, None])
        + [row.score, row.max_score, row.standing.value]
        for row in rows
    ]
    _write_csv(to, [columns, *lines])


def write_canvas(rows: Iterable[Row], to: Path, names: Mapping[str, str] | None = None) -> None:
    """Write Canvas's gradebook import: a line per student, a column per assignment, and their points possible.

    A student is found by `ID`, which is nbgrader's `lms_user_id`, otherwise by `SIS Login ID`, which is nbgrader's id.
    `names` gives an assignment the name that it has in Canvas, with its id there: `{"lab01": "Lab 1 (4711)"}`; Canvas
    creates an assignment for a name that it does not know. Only final scores of submissions are given.
    """
    table = _by_student(rows)
    header = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    assignments = table.max_scores
    possible = ["    Points Possible", None, None, None, None, *assignments.values()]
    lines = [
        [one.name, one.lms_user_id, None, one.student, one.section or None, *(scores.get(name) for name in assignments)]
        for one, scores in table.students
    ]
    _write_csv(to, [[*header, *((names or {}).get(name, name) for name in assignments)], possible, *lines])


def write_moodle(rows: Iterable[Row], to: Path, names: Mapping[str, str] | None = None) -> None:
    """Write a CSV for Moodle's Grades, Import: a line per student, a column per assignment.

    There, identify the user by `Username` (nbgrader's id), `ID number` (its `lms_user_id`) or `Email address`, and map
    the other columns to grade items. Only final scores of submissions are given.
    """
    table = _by_student(rows)
    header = ["First name", "Last name", "Username", "ID number", "Email address"]
    lines = [
        [one.first_name, one.last_name, one.student, one.lms_user_id, one.email]
        + [scores.get(name) for name in table.max_scores]
        for one, scores in table.students
    ]
    _write_csv(to, [[*header, *((names or {}).get(name, name) for name in table.max_scores)], *lines])


def write_blackboard(rows: Iterable[Row], to: Path, names: Mapping[str, str] | None = None) -> None:
    """Write a CSV for Blackboard's Grade Center, Work Offline, Upload: a line per student, a column per assignment.

    A student is found by `Username` (nbgrader's id), an assignment by the number at the end of its column's name, which
    `names` gives as Blackboard writes it: `{"lab01": "Lab 1 [Total Pts: 25 Score] |4711"}`. Without one Blackboard
    makes a column of text. Only final scores of submissions are given.
    """
    table = _by_student(rows)
    header = ["Last Name", "First Name", "Username", "Student ID"]
    lines = [
        [one.last_name, one.first_name, one.student, one.lms_user_id] + [scores.get(name) for name in table.max_scores]
        for one, scores in table.students
    ]
    _write_csv(
        to, [[*header, *((names or {}).get(name, name) for name in table.max_scores)], *lines], are_all_quoted=True
    )


def write_gradescope(rows: Iterable[Row], to: Path, entries: Sequence[audit_log.Entry] = ()) -> None:
    """Write `ASSIGNMENT/STUDENT/results.json` below a folder, for every submission whose score is final.

    Gradescope's format cannot express a submission without a score, so the rest get no file, and an earlier one goes.
    Points of the cells are as graded; the score at the top is after extra credit and late penalty. Students see it once
    it is published.
    """
    durations = {key[:2]: entry.duration_s for key, entry in audit_log.latest(list(entries)).items()}
    for row in rows:
        folder = to / _folder(row.assignment) / _folder(row.student)
        if row.score is None or row.standing is Standing.MISSING:
            (folder / "results.json").unlink(missing_ok=True)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        results = {
            "score": row.score,
            "execution_time": durations.get((row.assignment, row.author or row.student)),
            "output": f"Late: {row.penalty:g} points taken." if row.penalty else "",
            "output_format": "text",
            "visibility": "after_published",
            "stdout_visibility": "hidden",
            "tests": [_test(points) for points in row.cells],
        }
        kept = {name: value for name, value in results.items() if value is not None}
        (folder / "results.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False), encoding="utf-8")


_CLASS_LISTS = ("canvas", "moodle", "blackboard")  # whose import stumbles over a line of somebody who has left
FORMATS: dict[str, Callable[..., None]] = {
    "csv": write_table,
    "canvas": write_canvas,
    "moodle": write_moodle,
    "blackboard": write_blackboard,
    "gradescope": write_gradescope,
}


def export(
    coursedir: CourseDirectory,
    format: str,
    to: Path,
    assignments: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> list[tuple[Row, str]]:
    """The rows for which the file gives no score, each with the reason, after writing the grades in one of `FORMATS`.

    A class list of another system has nobody who is not on the course's roster, where there is one.

    Raises:
        ValueError: there is no such format or assignment, also among `names`.
    """
    if format not in FORMATS:
        raise ValueError(f"There is no format {format!r}: choose one of {', '.join(FORMATS)}.")
    entries, _ = audit_log.read(Path(coursedir.root, audit_log.LOG))
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        found = rows(coursedir, gradebook, entries, assignments)
        known = [str(one.name) for one in gradebook.assignments]
    if unknown := sorted((names or {}).keys() - set(known)):
        raise ValueError(
            f"There is no assignment {', '.join(unknown)} to rename: the gradebook has {', '.join(known)}."
        )
    listed = {one.id for one in class_roster(Path(coursedir.root))} if format in _CLASS_LISTS else set()
    absent = [row for row in found if listed and row.student not in listed]
    found = [row for row in found if not listed or row.student in listed]
    more = {"csv": {}, "gradescope": {"entries": entries}}.get(format, {"names": names})
    FORMATS[format](found, to, **more)
    without = [row for row in found if row.score is None or (format != "csv" and row.standing is Standing.MISSING)]
    return [*((row, row.standing.value) for row in without), *((row, f"not in {ROSTER}") for row in absent)]


def renamed(text: str) -> tuple[str, str]:
    """An assignment's name here and elsewhere, from `lab01=Lab 1 (4711)`. Raises: ValueError."""
    here, equals, elsewhere = text.partition("=")
    if not (here and equals and elsewhere):
        raise ValueError(f"{text!r} renames nothing: write an assignment's name here, = and its name there.")
    return here, elsewhere


@dataclass(frozen=True)
class _Table:
    """A line per student: one of the student's rows, and the final score by assignment."""

    max_scores: dict[str, float]
    students: list[tuple[Row, dict[str, float | None]]]


def _by_student(rows: Iterable[Row]) -> _Table:
    students: dict[str, tuple[Row, dict[str, float | None]]] = {}
    max_scores: dict[str, float] = {}
    for row in rows:
        max_scores[row.assignment] = row.max_score
        _, scores = students.setdefault(row.student, (row, {}))
        # the other system decides whether a missing submission is a zero: it knows the dates and who is excused
        scores[row.assignment] = None if row.standing is Standing.MISSING else row.score
    return _Table(max_scores, list(students.values()))


def _test(points: Points) -> dict[str, object]:
    score = points.score or 0.0
    return {
        "name": points.cell,
        "score": score,
        "max_score": points.max_score,
        "status": "passed" if score >= points.max_score else "failed",
        "output": f"{score:g} of {points.max_score:g} points.",
        "output_format": "text",
        "visibility": "after_published",
    }


def _folder(name: str) -> str:
    """The name as that of a single folder, whatever characters it has."""
    return quote(name, safe=" @+,") if name.strip(".") else name.replace(".", "%2E")


def _write_csv(to: Path, lines: Iterable[Sequence[object]], are_all_quoted: bool = False) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with open(to, "w", newline="", encoding="utf-8") as file:
        quoting = csv.QUOTE_ALL if are_all_quoted else csv.QUOTE_MINIMAL
        csv.writer(file, quoting=quoting).writerows([map(neutral, line) for line in lines])
