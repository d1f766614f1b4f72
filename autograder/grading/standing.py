"""How a student stands in an assignment: the state of the work, its points, and the words for both.

Scores are nbgrader's: manual points replace automatic ones, extra credit is added, the late penalty is subtracted. A
score is final, and given, only for graded work and for work that is missing once it is due: never where the grader
broke, where answers are still to be read, or where a submission waits to be graded. Every report, export and checklist
takes its figures and words from here.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.coursedir import CourseDirectory
from pydantic import BaseModel, ConfigDict

from autograder.grading import audit_log
from autograder.grading.term.due_dates import due_date, extension_of
from autograder.submissions.class_folders import course_glob
from autograder.submissions.team_work import submitter_of
from autograder.tables.extensions import Extensions
from autograder.tables.roster import class_roster
from autograder.tables.teams import team_extensions


class State(StrEnum):
    """The state of one student's work on one assignment, in the order in which an instructor has to act."""

    BROKE = "the grader broke"
    WAITING = "to be graded"
    BY_HAND = "to be read"
    DAMAGED = "damaged file, 0 points"
    DONE = "done"
    MISSING = "missing"
    NOT_DUE = "not due yet"

    @property
    def sign(self) -> str:
        """A sign that says the same without colour."""
        return _WORDS[self].sign

    @property
    def exported(self) -> str:
        """The words in exported grades."""
        return _WORDS[self].exported

    @property
    def in_checklist(self) -> str:
        """The words in a student's checklist."""
        return _WORDS[self].in_checklist

    @property
    def to_do(self) -> tuple[str, str]:
        """What waits for the instructor, and advice with {} in place of the assignment; both empty if nothing does."""
        return _WORDS[self].to_do

    @property
    def is_handed_in(self) -> bool:
        return self not in (State.MISSING, State.NOT_DUE)

    @property
    def is_graded(self) -> bool:
        """True if every point is known."""
        return self in (State.DONE, State.DAMAGED)

    @property
    def is_final(self) -> bool:
        """True if the score counts; missing work scores 0."""
        return self.is_graded or self is State.MISSING


class _Words(NamedTuple):
    sign: str
    exported: str
    in_checklist: str
    to_do: tuple[str, str] = ("", "")


_WORDS = {
    State.BROKE: _Words(
        "✗",
        "not graded: the grader broke",
        "not graded: the grader broke",
        ("the grader broke on", "`autograder grade {} --again` tries again"),
    ),
    State.DAMAGED: _Words("!", "graded", "done", ("damaged files", "ask for them again, or leave 0 points")),
    State.WAITING: _Words("…", "waiting to be graded", "waits to be graded", ("to be graded", "`autograder grade {}`")),
    State.BY_HAND: _Words(
        "✎", "needs manual grading", "waits for points by hand", ("answers to be read", "in the Formgrader")
    ),
    State.DONE: _Words("✓", "graded", "done"),
    State.MISSING: _Words(
        "–",
        "not submitted",
        "missing",
        ("not handed in", "0 points in `autograder export csv`, `autograder extend` gives more time"),
    ),
    State.NOT_DUE: _Words("·", "not submitted, and not due yet", "not handed in yet"),
}


class Points(BaseModel):
    """One graded cell of a submission; `score` is None until somebody has graded it by hand."""

    model_config = ConfigDict(frozen=True)

    cell: str
    score: float | None
    max_score: float


@dataclass(frozen=True)
class Standing:
    """How one student stands in one assignment; `raw_score` and `penalty` are in points, as far as graded."""

    assignment: str
    student: str
    last_name: str
    first_name: str
    email: str
    lms_user_id: str
    state: State
    max_score: float
    due: str = ""
    submitted: str = ""
    raw_score: float = 0.0
    penalty: float = 0.0
    cells: list[Points] = field(default_factory=list)
    section: str = ""
    extension: timedelta | None = None
    author: str = ""  # the teammate whose submission counts
    num_regrades: int = 0  # unanswered requests, if a report has asked for them

    @property
    def score(self) -> float | None:
        """The score that counts; None if it is not final."""
        return max(0.0, self.raw_score - self.penalty) if self.state.is_final else None

    @property
    def submitted_score(self) -> float | None:
        """The score for another system, which decides itself whether missing work is a zero."""
        return self.score if self.state.is_graded else None

    @property
    def score_text(self) -> str:
        """The score, as far as it is final, out of the points that can be earned."""
        return f"{'–' if self.score is None else f'{self.score:g}'} / {self.max_score:g}"

    @property
    def num_answers_to_read(self) -> int:
        """The number of answers awaiting manual grading."""
        return sum(points.score is None for points in self.cells) if self.state is State.BY_HAND else 0

    @property
    def name(self) -> str:
        """The student's name as a gradebook sorts it, or the ID if no name is known."""
        return ", ".join(part for part in (self.last_name, self.first_name) if part) or self.student

    @property
    def remarks(self) -> str:
        """Further facts for the instructor: answers to read, a penalty, an extension."""
        said = [f"{self.num_answers_to_read} answers to read"] if self.num_answers_to_read > 1 else []
        said += [f"handed in by {self.author}"] if self.author else []
        said += [f"late, {self.penalty:g} points taken"] if self.penalty else []
        said += ["asks for a regrade"] if self.num_regrades else []
        said += [f"extended to {self.due[:16]} UTC"] if self.extension and self.due else []
        return "; ".join(said)


def standings(
    coursedir: CourseDirectory,
    gradebook: Gradebook,
    entries: Sequence[audit_log.AuditEntry],
    assignments: Sequence[str] = (),
    students: Sequence[str] = (),
) -> list[Standing]:
    """Read how every student stands in these assignments, or in all; `entries` are the audit log's.

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
    sections = {student.id: student.section for student in class_roster(Path(coursedir.root))}
    extensions = team_extensions(Path(coursedir.root))
    every_one: list[Standing] = []
    people: list[Any] = list(gradebook.students)
    for assignment in every:
        if not assignments or assignment.name in assignments:
            of_team = submitter_of(coursedir, assignment.name)
            for student in people:
                author = str(of_team.get(student.id, student.id))
                entry = last.get((assignment.name, author))
                standing = _standing(coursedir, gradebook, assignment, student, author, entry, extensions)
                every_one.append(replace(standing, author=author if author != student.id else ""))
            every_one += _standings_of_strangers(coursedir, gradebook, assignment)
    wanted = [standing for standing in every_one if not students or standing.student in students]
    return [replace(standing, section=sections.get(standing.student, "")) for standing in wanted]


def _standings_of_strangers(coursedir: CourseDirectory, gradebook: Gradebook, assignment: Any) -> list[Standing]:
    """The standings of everybody who handed in and is not in the gradebook yet."""
    known = {student.id for student in gradebook.students}
    pattern = coursedir.format_path(coursedir.submitted_directory, "*", glob.escape(assignment.name))
    names = sorted({folder.parent.name for folder in course_glob(coursedir, pattern)} - known)
    # a folder's name may not be valid text, which our files could not hold
    written = [os.fsencode(name).decode(errors="backslashreplace") for name in names]
    due = str(assignment.duedate or "")
    return [
        Standing(assignment.name, name, "", "", "", "", State.WAITING, assignment.max_score, due) for name in written
    ]


def _standing(
    coursedir: CourseDirectory,
    gradebook: Gradebook,
    assignment: Any,
    student: Any,
    author: str,
    last: audit_log.AuditEntry | None,
    extensions: Extensions,
) -> Standing:
    """Return how a student stands; `author` of the work is the student or a teammate."""
    try:
        submission: Any = gradebook.find_submission(assignment.name, author)
        extension = extension_of(submission, extensions)
    except MissingEntry:
        submission, extension = None, extensions.get((assignment.name, student.id))
    due = due_date(assignment, extension)
    about: dict[str, Any] = {
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
        return Standing(**about, state=_state_without_submission(coursedir, assignment, author, due))
    return Standing(
        **about,
        state=_state(coursedir, submission, last),
        submitted=str(submission.timestamp or ""),
        raw_score=submission.score,
        penalty=submission.late_submission_penalty,
        cells=[
            Points(cell=grade.name, score=None if grade.needs_manual_grade else grade.score, max_score=grade.max_score)
            for notebook in submission.notebooks
            for grade in notebook.grades
        ],
    )


def _state_without_submission(coursedir: CourseDirectory, assignment: Any, student: str, due: datetime | None) -> State:
    """Return the state of work that has no submission in the gradebook."""
    if Path(coursedir.format_path(coursedir.submitted_directory, student, assignment.name)).exists():
        return State.WAITING
    is_due = due is not None and due < datetime.now(UTC).replace(tzinfo=None)
    return State.MISSING if is_due else State.NOT_DUE


def _state(coursedir: CourseDirectory, submission: Any, last: audit_log.AuditEntry | None) -> State:
    changed = audit_log.changed_inputs(coursedir, last) if last else []
    if any(kind == "submission" or kind.startswith("submitted/") for kind in changed):
        return State.WAITING  # it was handed in again after it was graded
    if last and last.verdict is audit_log.Verdict.FAULT:
        return State.BROKE
    if any(_has_no_score(notebook) for notebook in submission.notebooks):
        return State.BROKE if last else State.WAITING
    if submission.needs_manual_grade:
        return State.BY_HAND
    return State.DAMAGED if last and last.verdict is audit_log.Verdict.MALFORMED else State.DONE


def _has_no_score(notebook: Any) -> bool:
    """Whether a cell that the autograder grades has no score, as after an interrupted grading."""
    by_hand = {cell.name for cell in (*notebook.notebook.solution_cells, *notebook.notebook.task_cells)}
    return any(
        grade.name not in by_hand and grade.auto_score is None and grade.manual_score is None
        for grade in notebook.grades
    )
