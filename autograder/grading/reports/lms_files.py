"""Files for the gradebooks of other systems: Canvas, Moodle and Blackboard. They get only final scores of submissions.

Sources, all read in November 2026: Canvas, `lib/gradebook_importer.rb` of instructure/canvas-lms (columns, and which of
them identify a student; a blank cell is no grade); Moodle, `grade/import/csv/classes/load_data.php` of moodle/moodle (a
blank cell is no grade; anything else that is not a number ends the import); Blackboard Learn, "Upload or Download Grade
Center Items for Working Offline" (the user name and the column's number identify; every cell in quotes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autograder.files import write_csv
from autograder.grading.standing import Standing


def write_canvas(standings: Iterable[Standing], to: Path, names: Mapping[str, str] | None = None) -> None:
    """Write Canvas's gradebook import: a line per student, a column per assignment, and their points possible.

    A student is found by `ID`, which is nbgrader's `lms_user_id`, otherwise by `SIS Login ID`, which is nbgrader's id.
    `names` gives an assignment the name that it has in Canvas, with its id there: `{"lab01": "Lab 1 (4711)"}`; Canvas
    creates an assignment for a name that it does not know.
    """
    table = _by_student(standings)
    header = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    assignments = table.max_scores
    possible = ["    Points Possible", None, None, None, None, *assignments.values()]
    lines = [
        [
            standing.name,
            standing.lms_user_id,
            None,
            standing.student,
            standing.section or None,
            *(scores.get(name) for name in assignments),
        ]
        for standing, scores in table.students
    ]
    write_csv(to, [[*header, *((names or {}).get(name, name) for name in assignments)], possible, *lines])


def write_moodle(standings: Iterable[Standing], to: Path, names: Mapping[str, str] | None = None) -> None:
    """Write a CSV for Moodle's Grades, Import: a line per student, a column per assignment.

    There, identify the user by `Username` (nbgrader's id), `ID number` (its `lms_user_id`) or `Email address`, and map
    the other columns to grade items.
    """
    table = _by_student(standings)
    header = ["First name", "Last name", "Username", "ID number", "Email address"]
    lines = [
        [standing.first_name, standing.last_name, standing.student, standing.lms_user_id, standing.email]
        + [scores.get(name) for name in table.max_scores]
        for standing, scores in table.students
    ]
    write_csv(to, [[*header, *((names or {}).get(name, name) for name in table.max_scores)], *lines])


def write_blackboard(standings: Iterable[Standing], to: Path, names: Mapping[str, str] | None = None) -> None:
    """Write a CSV for Blackboard's Grade Center, Work Offline, Upload: a line per student, a column per assignment.

    A student is found by `Username` (nbgrader's id), an assignment by the number at the end of its column's name, which
    `names` gives as Blackboard writes it: `{"lab01": "Lab 1 [Total Pts: 25 Score] |4711"}`. Without one Blackboard
    makes a column of text.
    """
    table = _by_student(standings)
    header = ["Last Name", "First Name", "Username", "Student ID"]
    lines = [
        [standing.last_name, standing.first_name, standing.student, standing.lms_user_id]
        + [scores.get(name) for name in table.max_scores]
        for standing, scores in table.students
    ]
    write_csv(
        to, [[*header, *((names or {}).get(name, name) for name in table.max_scores)], *lines], are_all_quoted=True
    )


@dataclass(frozen=True)
class _Table:
    """A line per student: one of the student's standings, and the final score by assignment."""

    max_scores: dict[str, float]
    students: list[tuple[Standing, dict[str, float | None]]]


def _by_student(standings: Iterable[Standing]) -> _Table:
    students: dict[str, tuple[Standing, dict[str, float | None]]] = {}
    max_scores: dict[str, float] = {}
    for standing in standings:
        max_scores[standing.assignment] = standing.max_score
        _, scores = students.setdefault(standing.student, (standing, {}))
        scores[standing.assignment] = standing.submitted_score
    return _Table(max_scores, list(students.values()))
