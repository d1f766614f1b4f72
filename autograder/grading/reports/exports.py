"""Exported grades: `nbgrader export`, and `autograder export` in the formats of other systems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import ExportPlugin

from autograder.files import write_csv
from autograder.grading import audit_log
from autograder.grading.reports.gradescope import write_gradescope
from autograder.grading.reports.lms_files import write_blackboard, write_canvas, write_moodle
from autograder.grading.standing import Standing, State, standings
from autograder.grading.term import penalties
from autograder.tables.roster import ROSTER, class_roster


class Grades(ExportPlugin):
    """The plugin for `nbgrader export`: nbgrader's own columns, quoted as CSV requires, and a status."""

    def export(self, gradebook: Gradebook) -> None:
        """Write `grades.csv`, or the file that `--to` names."""
        app: Any = self.parent
        entries, _ = audit_log.read(Path(app.coursedir.root, audit_log.LOG))
        path = Path(self.to or "grades.csv")
        assignments, students = [str(name) for name in self.assignment], [str(student) for student in self.student]
        rows = standings(app.coursedir, gradebook, entries, assignments, students)
        write_table(rows, path)
        if outdated := penalties.outdated(app.coursedir, gradebook, assignments):
            self.log.warning(penalties.warning(outdated))
        self.log.info("Exported %d rows to %s", len(rows), path)
        for row in rows:
            if row.score is None:
                self.log.warning("%s has no score for %s: %s", row.student, row.assignment, row.state.exported)


def write_table(rows: Iterable[Standing], to: Path) -> None:
    """Write a CSV with nbgrader's columns and `status`; without a final score, the cell is empty."""
    columns = ["assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email"]
    columns += ["raw_score", "late_submission_penalty", "score", "max_score", "status"]
    lines = [
        [row.assignment, row.due, row.submitted, row.student, row.last_name, row.first_name, row.email]
        + ([row.raw_score, row.penalty] if row.state.is_final or row.state is State.BY_HAND else [None, None])
        + [row.score, row.max_score, row.state.exported]
        for row in rows
    ]
    write_csv(to, [columns, *lines])


_CLASS_LISTS = ("canvas", "moodle", "blackboard")  # whose import fails at a row for somebody who has left
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
) -> list[tuple[Standing, str]]:
    """Write the grades in one of `FORMATS`; return the rows to which the file gives no score, each with the reason.

    Files for other systems' class lists leave out everybody who is not on the course's roster, if it has one.

    Raises:
        ValueError: the format or an assignment, including one in `names`, is unknown.
    """
    if format not in FORMATS:
        raise ValueError(f"There is no format {format!r}: choose one of {', '.join(FORMATS)}.")
    entries, _ = audit_log.read(Path(coursedir.root, audit_log.LOG))
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        rows = standings(coursedir, gradebook, entries, assignments)
        known = [str(assignment.name) for assignment in gradebook.assignments]
    if unknown := sorted((names or {}).keys() - set(known)):
        raise ValueError(
            f"There is no assignment {', '.join(unknown)} to rename: the gradebook has {', '.join(known)}."
        )
    listed = {student.id for student in class_roster(Path(coursedir.root))} if format in _CLASS_LISTS else set()
    absent = [row for row in rows if listed and row.student not in listed]
    rows = [row for row in rows if not listed or row.student in listed]
    more = {"csv": {}, "gradescope": {"entries": entries}}.get(format, {"names": names})
    FORMATS[format](rows, to, **more)
    without = [row for row in rows if (row.score if format == "csv" else row.submitted_score) is None]
    return [*((row, row.state.exported) for row in without), *((row, f"not in {ROSTER}") for row in absent)]


def renamed(text: str) -> tuple[str, str]:
    """Split `lab01=Lab 1 (4711)` into an assignment's name here and elsewhere. Raises: ValueError."""
    here, equals, elsewhere = text.partition("=")
    if not (here and equals and elsewhere):
        raise ValueError(
            f"{text!r} renames nothing: write the assignment's name here, = and its name in the other system."
        )
    return here, elsewhere
