"""A completion checklist: what a student has done of the whole course, from nbgrader's gradebook.

The checklist has a line for every assignment that the gradebook knows and for each lab, project and report that the
course holds, even before it is handed out. Scores are final ones only.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory

from autograder.course import notebook_of
from autograder.files import neutral, templates, write_whole
from autograder.grading import audit_log
from autograder.grading.standing import Standing, State, standings

# kinds by how an assignment's name begins, in the order of the checklist
_BEGINNINGS = {
    "quiz": ("quiz",),
    "exam": ("exam", "midterm", "final", "practical"),
    "project": ("project",),
    "capstone": ("capstone",),
    "report": ("report",),
    "lab": ("lab",),
}
KINDS = ("lab", "project", "quiz", "exam", "capstone", "report", "other")


@dataclass(frozen=True)
class ChecklistItem:
    """A line of a checklist; `standing` is None for an assignment that was not handed out yet."""

    assignment: str
    standing: Standing | None

    @property
    def kind(self) -> str:
        return kind_of(self.assignment)

    @property
    def is_done(self) -> bool:
        return self.standing is not None and self.standing.state.is_graded

    @property
    def is_late(self) -> bool:
        """True if points were taken off for late work."""
        return self.standing is not None and self.standing.penalty > 0

    @property
    def state(self) -> str:
        """The state of the work in a few words."""
        if self.standing is None:
            return "not handed out yet"
        words = self.standing.state.in_checklist
        if num_waiting := self.standing.num_answers_to_read:
            words += f": {num_waiting} of {len(self.standing.cells)}"
        return f"{words}, late: {self.standing.penalty:g} points taken" if self.is_late else words

    @property
    def score_text(self) -> str:
        return self.standing.score_text if self.standing else ""


@dataclass(frozen=True)
class Checklist:
    """What one student has completed."""

    student: str
    name: str
    items: Sequence[ChecklistItem]

    @property
    def num_done(self) -> int:
        return sum(item.is_done for item in self.items)

    @property
    def summary(self) -> str:
        """One line: how much is done, and the points earned."""
        known = [item.standing for item in self.items if item.standing]
        final = [standing for standing in known if standing.score is not None]
        points, most = sum(standing.score or 0.0 for standing in final), sum(standing.max_score for standing in final)
        states = [standing.state for standing in known]
        return (
            f"{self.num_done} of {len(self.items)} done, {points:g} of {most:g} points that are final; "
            f"{states.count(State.BY_HAND)} to be read by hand, {states.count(State.MISSING)} missing, "
            f"{sum(item.is_late for item in self.items)} late."
        )


def kind_of(assignment: str) -> str:
    """What an assignment is, by how its name begins."""
    return next((kind for kind, names in _BEGINNINGS.items() if assignment.lower().startswith(names)), "other")


def read(coursedir: CourseDirectory, students: Sequence[str] = ()) -> list[Checklist]:
    """The checklists of these students, or of all in the gradebook or with a folder of submissions.

    Raises:
        ValueError: a student is unknown, or the gradebook holds no assignment.
    """
    entries, _ = audit_log.read(Path(coursedir.root, audit_log.LOG))
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        every_one = standings(coursedir, gradebook, entries)
    known = sorted({standing.student for standing in every_one})
    if unknown := [student for student in students if student not in known]:
        raise ValueError(
            f"Nobody in the gradebook or below {coursedir.submitted_directory}/ is called {', '.join(unknown)}: there "
            f"are {', '.join(known) or 'no students'}. `nbgrader db student add ID` adds one."
        )
    planned = _planned(Path(coursedir.root))
    return [_checklist(student, every_one, planned) for student in students or known]


def _planned(root: Path) -> set[str]:
    """The assignments that the course holds, handed out or not."""
    scripts = root.glob("solutions/*/*.py")
    return {path.parent.name for path in scripts if path.stem == notebook_of(path.parent.name)}


def _checklist(student: str, every_one: Sequence[Standing], planned: set[str]) -> Checklist:
    mine = {standing.assignment: standing for standing in every_one if standing.student == student}
    names = {standing.assignment for standing in every_one} | planned
    items = [
        ChecklistItem(name, mine.get(name))
        for name in sorted(names, key=lambda name: (KINDS.index(kind_of(name)), name))
    ]
    return Checklist(student, next((standing.name for standing in mine.values()), student), items)


def write(checklists: Sequence[Checklist], to: Path) -> None:
    """Write a page or a table, as the file's suffix says.

    Raises:
        ValueError: the suffix is neither .html nor .csv.
    """
    writers: dict[str, Callable[[Sequence[Checklist]], str]] = {".html": page, ".csv": table}
    if to.suffix not in writers:
        raise ValueError(f"{to}: the file must end in .html, for a page, or in .csv, for a table.")
    write_whole(to, writers[to.suffix](checklists))


def page(checklists: Sequence[Checklist]) -> str:
    """Make an HTML page that loads nothing: a summary of how much each student has done, then their checklists."""
    environment = templates()
    return environment.get_template("progress.html.j2").render(checklists=checklists)


def table(checklists: Sequence[Checklist]) -> str:
    """A CSV with a line for each student and assignment; without a final score, the cell is empty."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(["student", "name", "kind", "assignment", "state", "score", "max_score", "late_points"])
    for checklist in checklists:
        for item in checklist.items:
            known = item.standing
            scores = (known.score, known.max_score, known.penalty or None) if known else (None, None, None)
            words = [checklist.student, checklist.name, item.kind, item.assignment, item.state]
            writer.writerow([*map(neutral, words), *scores])
    return text.getvalue()
