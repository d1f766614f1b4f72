"""Late penalties computed from the gradebook as it is, without grading anything again.

nbgrader computes a penalty while it grades. It is out of date once the due date, an extension, the policy, the
collectors' record, or points given by hand have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties

from autograder.course import settings_of
from autograder.grading.term.due_dates import due_date, extension_of, keep_extension, known_assignment
from autograder.submissions.lateness import submitted_at
from autograder.tables.collected import COLLECTED, read_collected
from autograder.tables.teams import team_extensions

_SAME = 1e-9  # points


@dataclass(frozen=True)
class Penalty:
    """The late penalty of one submission: as the gradebook has it, and as it should be now."""

    assignment: str
    student: str
    late: timedelta
    score: float
    before: float
    now: float

    @property
    def is_outdated(self) -> bool:
        """True if the penalty in the gradebook is not the one that applies now."""
        return abs(self.before - self.now) > _SAME


def renew(coursedir: CourseDirectory, assignment: str, student: str | None = None) -> list[Penalty]:
    """Write the penalties of everybody, or of one student, to the gradebook; return those of work that is or was late.

    Raises:
        ValueError: the gradebook has no such assignment, or a record of times or extensions cannot be read.
    """
    extensions = team_extensions(Path(coursedir.root))
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        penalties = []
        for submission, penalty, of_notebooks in _computed(coursedir, gradebook, assignment):
            if student not in (None, penalty.student):
                continue
            keep_extension(submission, extensions)
            submission.timestamp = _time_of(coursedir, submission)
            for notebook, points in of_notebooks:
                notebook.late_submission_penalty = points
            if penalty.late or penalty.is_outdated:
                penalties.append(penalty)
        gradebook.db.commit()
    return sorted(penalties, key=lambda penalty: penalty.student)


def unmatched(coursedir: CourseDirectory, assignment: str) -> list[str]:
    """The students in the collectors' record for this assignment who are not in the gradebook: perhaps mistyped names.

    Raises:
        ValueError: the gradebook has no such assignment, or a record of times or extensions cannot be read.
    """
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        graded = {submission.student.id for submission, *_ in _computed(coursedir, gradebook, assignment)}
    recorded = {student for name, student in read_collected(Path(coursedir.root)) if name == assignment}
    return sorted(recorded - graded)


def outdated(coursedir: CourseDirectory, gradebook: Gradebook, assignments: Sequence[str] = ()) -> list[Penalty]:
    """The penalties of these assignments, or of all, whose stored value is out of date. Read-only.

    Raises:
        ValueError: the gradebook has no such assignment, or a record of times or extensions cannot be read.
    """
    names = assignments or [str(one.name) for one in gradebook.assignments]
    computed = (penalty for name in names for _, penalty, _ in _computed(coursedir, gradebook, name))
    return [penalty for penalty in computed if penalty.is_outdated]


def warning(penalties: Sequence[Penalty]) -> str:
    """A sentence on penalties that are out of date, with the commands that renew them."""
    students = ", ".join(sorted({penalty.student for penalty in penalties}))
    commands = " and ".join(
        f"`autograder late {name}`" for name in sorted({penalty.assignment for penalty in penalties})
    )
    return f"Late penalties are out of date for {students}: {commands} computes them again."


def _computed(
    coursedir: CourseDirectory, gradebook: Gradebook, assignment: str
) -> Iterator[tuple[Any, Penalty, list[tuple[Any, float | None]]]]:
    """Every submission with what it loses, in all and by notebook."""
    known_assignment(gradebook, assignment)
    submissions: Any = gradebook.assignment_submissions(assignment)
    step: Any = AssignLatePenalties(config=settings_of(coursedir))
    step.init_plugin()
    extensions = team_extensions(Path(coursedir.root))
    for submission in submissions:
        due = due_date(submission.assignment, extension_of(submission, extensions))
        late = _lateness(_time_of(coursedir, submission), due)
        of_notebooks = [
            (notebook, _points(step.plugin_inst, submission.student.id, notebook.score, late))
            for notebook in submission.notebooks
        ]
        penalty = Penalty(
            assignment=assignment,
            student=submission.student.id,
            late=late,
            score=submission.score,
            before=submission.late_submission_penalty,
            now=sum(points or 0 for _, points in of_notebooks),
        )
        yield submission, penalty, of_notebooks


def _time_of(coursedir: CourseDirectory, submission: Any) -> datetime | None:
    """When a submission was handed in; what the gradebook says counts only in a course without a record of times."""
    folder = coursedir.format_path(coursedir.submitted_directory, submission.student.id, submission.assignment.name)
    has_record = Path(coursedir.root, COLLECTED).exists()  # a row that was deleted from it no longer counts
    return submitted_at(coursedir, folder) or (None if has_record else submission.timestamp)


def _lateness(submitted: datetime | None, due: datetime | None) -> timedelta:
    return max(timedelta(0), submitted - due) if submitted and due else timedelta(0)


def _points(policy: Any, student: str, score: float, late: timedelta) -> float | None:
    """The points to subtract, never more than there are; None if the policy names none."""
    points = policy.late_submission_penalty(student, score, late.total_seconds()) if late else None
    return points and min(max(points, 0.0), score)
