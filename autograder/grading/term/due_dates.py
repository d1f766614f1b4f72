"""A student's own due date: the class's, and the extension in the course's record.

nbgrader keeps an extension only where it has a submission already. Here the record decides, and nbgrader's copy follows
it, so that its formgrader and its own commands say the same. An extension that only nbgrader has stays.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader import preprocessors
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.coursedir import CourseDirectory

from autograder.course import coursedir_of
from autograder.tables.extensions import Extensions, note_extension
from autograder.tables.teams import team_extensions, teams


class AssignLatePenalties(preprocessors.AssignLatePenalties):
    """nbgrader's own `AssignLatePenalties`, using each student's own due date."""

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        names = resources["nbgrader"]
        extensions = team_extensions(Path(coursedir_of(self).root))
        with Gradebook(names["db_url"]) as gradebook:
            keep_extension(gradebook.find_submission(names["assignment"], names["student"]), extensions)
            gradebook.db.commit()
        return super().preprocess(nb, resources)


def extension_of(submission: Any, extensions: Extensions) -> timedelta | None:
    """Return a submission's extension: the record's or, if it has none, nbgrader's."""
    return extensions.get((submission.assignment.name, submission.student.id), submission.extension) or None


def keep_extension(submission: Any, extensions: Extensions) -> None:
    """Let nbgrader's copy of an extension follow the record; to be committed by the caller."""
    # nbgrader cannot add an extension to a due date that is not there
    has_date = submission.assignment.duedate is not None
    submission.extension = extension_of(submission, extensions) if has_date else None


def due_date(assignment: Any, extension: timedelta | None) -> datetime | None:
    """When a student's work is due, in UTC; None without a due date."""
    return assignment.duedate and assignment.duedate + (extension or timedelta(0))


def extend(coursedir: CourseDirectory, student: str, assignment: str, days: float) -> str:
    """Give a student this many days after the class's due date; return a sentence on when the work is due.

    Raises:
        ValueError: the gradebook knows no such student or assignment, the days are out of bounds, or the roster or the
            record cannot be read; nothing was granted.
    """
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        known: Any = _known(gradebook, student, assignment)
        team = teams(Path(coursedir.root), assignment).get(student, (student,))
        note_extension(Path(coursedir.root), assignment, student, days)  # once nothing else can be wrong
        extensions = team_extensions(Path(coursedir.root))
        for member in team:
            with contextlib.suppress(MissingEntry):  # nothing is graded yet
                keep_extension(gradebook.find_submission(assignment, member), extensions)
        gradebook.db.commit()
        days = extensions[assignment, student] / timedelta(days=1)  # another member may have more
        due = due_date(known, timedelta(days=days))
    who = " and ".join([", ".join(team[:-1]), team[-1]]) + ", as a team," if len(team) > 1 else student
    if due is None:
        return (
            f"{assignment} has no due date yet. Once it has one, {who} has {_days(days)} more: "
            f'`nbgrader db assignment add {assignment} --duedate="2026-11-30 23:59:00 UTC"` sets it.'
        )
    more = f"{_days(days)} after the class" if days else "like the class"
    return f"{who} may hand in {assignment} until {due:%Y-%m-%d %H:%M} UTC, {more}."


def _days(days: float) -> str:
    return "1 day" if days == 1 else f"{days:g} days"


def _known(gradebook: Gradebook, student: str, assignment: str) -> Any:
    """The gradebook's record of an assignment. Raises: ValueError, if it has none or does not know the student."""
    found = known_assignment(gradebook, assignment)
    try:
        gradebook.find_student(student)
    except MissingEntry:
        raise ValueError(
            f"The gradebook does not know the student {student}: `autograder roster import` enters a class."
        ) from None
    return found


def known_assignment(gradebook: Gradebook, assignment: str) -> Any:
    """The gradebook's record of an assignment. Raises: ValueError, if it has none."""
    try:
        return gradebook.find_assignment(assignment)
    except MissingEntry:
        names = ", ".join(str(one.name) for one in gradebook.assignments) or "none"
        raise ValueError(f"The gradebook holds no assignment {assignment}: it has {names}.") from None
