"""Requests for a regrade as an instructor reads and answers them; points given with an answer are points by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.coursedir import CourseDirectory

from autograder.course import notebook_of
from autograder.grading.term import penalties
from autograder.grading.term.due_dates import known_assignment
from autograder.submissions.class_folders import class_folders
from autograder.submissions.regrade_requests import RegradeRequest, requests
from autograder.submissions.team_work import submitter_of
from autograder.tables.regrades import note_answer


def of_class(coursedir: CourseDirectory, assignment: str) -> list[RegradeRequest]:
    """Everybody's requests about an assignment.

    Raises:
        ValueError: the gradebook holds no such assignment, or the record of answers cannot be read.
    """
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        known_assignment(gradebook, assignment)
    students = {*class_folders(coursedir, assignment).students, *submitter_of(coursedir, assignment)}
    return [request for student in sorted(students) for request in requests(coursedir, assignment, student)]


def points_of(coursedir: CourseDirectory, assignment: str, student: str) -> dict[str, str]:
    """Return the points of each graded cell, such as "2 of 3"; empty before the work is graded."""
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        grades = _grades(gradebook, coursedir, assignment, student)
        return {name: f"{grade.score:g} of {grade.max_score:g}" for name, grade in grades.items()}


def answer(
    coursedir: CourseDirectory, assignment: str, student: str, cell: str, words: str, points: float | None = None
) -> str:
    """Answer a request, and enter the points where some are given; return a sentence on what was noted.

    Raises:
        ValueError: there is no such request or graded cell, or the points are out of bounds; nothing is noted.
    """
    every = requests(coursedir, assignment, student)
    if not every:
        askers = ", ".join(dict.fromkeys(request.student for request in of_class(coursedir, assignment))) or "nobody"
        raise ValueError(f"{student} has not asked for a regrade of {assignment}; these students have: {askers}.")
    asked = [request for request in every if request.cell == cell]
    if not asked:
        known = ", ".join(request.cell or '""' for request in every)
        raise ValueError(f"{student} has not asked about {cell or 'the whole'} of {assignment}, only about {known}.")
    if not words.strip():
        raise ValueError("Give an answer in words: the student reads it in the feedback.")
    said = "no points changed"
    if points is not None:
        before = _enter(coursedir, assignment, student, cell, points)
        penalties.renew(coursedir, assignment, submitter_of(coursedir, assignment).get(student, student))
        said = f"{before:g} points before, {points:g} now, given by hand"
    for request in asked:
        note_answer(Path(coursedir.root), assignment, student, cell, request.id, " ".join(words.split()))
    return f"{student}, {assignment}, {cell or 'the whole'}: answered, {said}."


def _enter(coursedir: CourseDirectory, assignment: str, student: str, cell: str, points: float) -> float:
    """Replace the points of a cell, and return the earlier ones."""
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        grades = _grades(gradebook, coursedir, assignment, student)
        if cell not in grades:
            known = ", ".join(grades) or "none: it is not graded yet"
            raise ValueError(f"{assignment} of {student} has no graded cell {cell or '(none named)'}; it has {known}.")
        grade = grades[cell]
        if not 0 <= points <= grade.max_score:
            raise ValueError(f"{points:g} points are not possible: {cell} takes 0 to {grade.max_score:g}.")
        before = grade.score
        grade.manual_score, grade.needs_manual_grade = points, False
        gradebook.db.commit()
        return before


def _grades(gradebook: Gradebook, coursedir: CourseDirectory, assignment: str, student: str) -> dict[str, Any]:
    """The gradebook's records of the graded cells of a student's or a team's work, by name; empty without such work."""
    author = submitter_of(coursedir, assignment).get(student, student)
    try:
        notebook: Any = gradebook.find_submission_notebook(notebook_of(assignment), assignment, author)
    except MissingEntry:
        return {}
    return {str(grade.name): grade for grade in notebook.grades}
