"""A completion checklist: what a student has done of the whole course, from nbgrader's gradebook.

The checklist has a line for every assignment that the gradebook knows and for each lab, project and report that the
course holds, even before it is handed out. Scores are those of `exports`: final ones only.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from jinja2 import Environment, PackageLoader
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory

from autograder.course import notebook_of
from autograder.files import neutral, write_whole
from autograder.grading import audit_log
from autograder.grading.reports import exports
from autograder.grading.reports.exports import Row, Standing

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
_STATES = {
    Standing.GRADED: "done",
    Standing.MANUAL: "waits for points by hand",
    Standing.BROKE: "not graded: the grader broke",
    Standing.WAITING: "waits to be graded",
    Standing.MISSING: "missing",
    Standing.NOT_DUE: "not handed in yet",
}


@dataclass(frozen=True)
class Item:
    """A line of a checklist; `row` is None for an assignment that was not handed out yet."""

    assignment: str
    row: Row | None
    num_by_hand: int = 0

    @property
    def kind(self) -> str:
        return kind_of(self.assignment)

    @property
    def is_done(self) -> bool:
        return self.row is not None and self.row.standing is Standing.GRADED

    @property
    def is_late(self) -> bool:
        """True where points were taken for late work."""
        return self.row is not None and self.row.penalty > 0

    @property
    def state(self) -> str:
        """A few words on where the work stands."""
        if self.row is None:
            return "not handed out yet"
        words = _STATES[self.row.standing]
        if self.num_by_hand:
            words += f": {self.num_by_hand} of {len(self.row.cells)}"
        return f"{words}, late: {self.row.penalty:g} points taken" if self.is_late else words

    @property
    def score_text(self) -> str:
        """The score that counts, as far as it is known, of the most that there is."""
        if self.row is None:
            return ""
        score = "–" if self.row.score is None else f"{self.row.score:g}"
        return f"{score} / {self.row.max_score:g}"


@dataclass(frozen=True)
class Checklist:
    """What one student has completed."""

    student: str
    name: str
    items: Sequence[Item]

    @property
    def num_done(self) -> int:
        return sum(item.is_done for item in self.items)

    @property
    def summary(self) -> str:
        """One line: how much is done, and the points of it."""
        final = [item.row for item in self.items if item.row is not None and item.row.score is not None]
        points, most = sum(row.score or 0.0 for row in final), sum(row.max_score for row in final)
        missing = sum(item.row is not None and item.row.standing is Standing.MISSING for item in self.items)
        by_hand = sum(item.row is not None and item.row.standing is Standing.MANUAL for item in self.items)
        return (
            f"{self.num_done} of {len(self.items)} done, {points:g} of {most:g} points that are final; "
            f"{by_hand} to be read by hand, {missing} missing, {sum(item.is_late for item in self.items)} late."
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
        rows = exports.rows(coursedir, gradebook, entries)
    known = sorted({row.student for row in rows})
    if unknown := [student for student in students if student not in known]:
        raise ValueError(
            f"Nobody in the gradebook or below {coursedir.submitted_directory}/ is called {', '.join(unknown)}: there "
            f"are {', '.join(known) or 'no students'}. `nbgrader db student add ID` adds one."
        )
    planned = _planned(Path(coursedir.root))
    return [_checklist(student, rows, planned) for student in students or known]


def _planned(root: Path) -> set[str]:
    """The assignments that the course holds, handed out or not."""
    scripts = root.glob("solutions/*/*.py")
    return {path.parent.name for path in scripts if path.stem == notebook_of(path.parent.name)}


def _checklist(student: str, rows: Sequence[Row], planned: set[str]) -> Checklist:
    mine = {row.assignment: row for row in rows if row.student == student}
    names = sorted({row.assignment for row in rows} | planned, key=lambda name: (KINDS.index(kind_of(name)), name))
    items = [Item(name, mine.get(name), _num_by_hand(mine.get(name))) for name in names]
    return Checklist(student, next((row.name for row in mine.values()), student), items)


def _num_by_hand(row: Row | None) -> int:
    """How many answers wait for points by hand."""
    if row is None or row.standing is not Standing.MANUAL:
        return 0
    return sum(points.score is None for points in row.cells)


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
    """An HTML page that loads nothing: everybody's checklist, and above them who has done how much."""
    environment = Environment(loader=PackageLoader("autograder"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("progress.html.j2").render(checklists=checklists)


def table(checklists: Sequence[Checklist]) -> str:
    """A CSV with a line for each student and assignment; where there is no final score, the cell is empty."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(["student", "name", "kind", "assignment", "state", "score", "max_score", "late_points"])
    for checklist in checklists:
        for item in checklist.items:
            row = item.row
            scores = (row.score, row.max_score, row.penalty or None) if row else (None, None, None)
            words = [checklist.student, checklist.name, item.kind, item.assignment, item.state]
            writer.writerow([*map(neutral, words), *scores])
    return text.getvalue()
