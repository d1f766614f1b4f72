"""How a class stands: who handed in, who waits to be graded, what failed, and what is to be graded by hand.

Everything is read from the gradebook, the audit log and `submitted/`, by the same rules as exports and checklists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory

from autograder.files import write_whole
from autograder.grading import audit_log
from autograder.grading.reports import exports
from autograder.grading.reports.exports import Row, Standing
from autograder.submissions import regrade_requests
from autograder.submissions.team_work import handed_in_by
from autograder.tables.collected import COLLECTED
from autograder.tables.extensions import read_extensions
from autograder.tables.roster import class_roster

_MOST_NAMES = 12  # in a line of the terminal


class State(StrEnum):
    """Where one student's work on one assignment stands, in the order in which something is to be done about it."""

    FAILED = "the grader broke"
    DAMAGED = "damaged file, 0 points"
    WAITING = "to be graded"
    BY_HAND = "to be read"
    DONE = "done"
    MISSING = "missing"
    NOT_DUE = "not due yet"

    @property
    def sign(self) -> str:
        """A sign that says the same without colour."""
        return _SIGNS[self]

    @property
    def is_handed_in(self) -> bool:
        return self not in (State.MISSING, State.NOT_DUE)


_SIGNS = {
    State.FAILED: "✗",
    State.DAMAGED: "!",
    State.WAITING: "…",
    State.BY_HAND: "✎",
    State.DONE: "✓",
    State.MISSING: "–",
    State.NOT_DUE: "·",
}
_OF_STANDING = {
    Standing.GRADED: State.DONE,
    Standing.MANUAL: State.BY_HAND,
    Standing.BROKE: State.FAILED,
    Standing.WAITING: State.WAITING,
    Standing.MISSING: State.MISSING,
    Standing.NOT_DUE: State.NOT_DUE,
}
# what to do about whose work, by the command that does it
_TO_DO = {
    State.FAILED: ("the grader broke on", "`autograder grade {} --again` tries again"),
    State.WAITING: ("to be graded", "`autograder grade {}`"),
    State.BY_HAND: ("answers to be read", "in the Formgrader"),
    State.DAMAGED: ("damaged files", "ask for them again, or leave 0 points"),
    State.MISSING: ("not handed in", "0 points in `autograder export csv`, `autograder extend` gives more time"),
}


@dataclass(frozen=True)
class Work:
    """One student's work on one assignment."""

    row: Row
    state: State
    num_regrades: int = 0  # requests without an answer

    @property
    def num_answers_to_read(self) -> int:
        return sum(points.score is None for points in self.row.cells) if self.state is State.BY_HAND else 0

    @property
    def score_text(self) -> str:
        """The score that counts, as far as it is final, of the most that there is."""
        return f"{'–' if self.row.score is None else f'{self.row.score:g}'} / {self.row.max_score:g}"

    @property
    def remarks(self) -> str:
        """What else there is to know: answers to read, a penalty, an extension."""
        said = [f"{self.num_answers_to_read} answers to read"] if self.num_answers_to_read > 1 else []
        said += [f"handed in by {self.row.author}"] if self.row.author else []
        said += [f"late, {self.row.penalty:g} points taken"] if self.row.penalty else []
        said += ["asks for a regrade"] if self.num_regrades else []
        said += [f"extended to {self.row.due[:16]} UTC"] if self.row.extension and self.row.due else []
        return "; ".join(said)


@dataclass(frozen=True)
class Assignment:
    """An assignment and everybody's work on it; `due` is the class's date."""

    name: str
    due: str
    works: Sequence[Work]

    def count(self, *states: State) -> int:
        """How many students stand so."""
        return sum(work.state in states for work in self.works)

    @property
    def num_handed_in(self) -> int:
        return sum(work.state.is_handed_in for work in self.works)

    @property
    def num_late(self) -> int:
        return sum(work.row.penalty > 0 for work in self.works)

    @property
    def num_answers_to_read(self) -> int:
        return sum(work.num_answers_to_read for work in self.works)

    @property
    def to_do(self) -> list[str]:
        """A sentence for each thing that waits for the instructor, with whose work it is."""
        said = []
        for state, (words, advice) in _TO_DO.items():
            if names := [work.row.student for work in self.works if work.state is state]:
                said.append(f"{self.name}, {words}: {_listed(names)}; {advice.format(self.name)}.")
        if names := [work.row.student for work in self.works if work.num_regrades]:
            said.append(f"{self.name}, regrade requests: {_listed(names)}; `autograder regrade {self.name}`.")
        return said

    @property
    def figures(self) -> dict[str, str]:
        """The columns of a table of assignments."""
        num_read = self.count(State.BY_HAND)
        by_hand = f"{num_read} ({self.num_answers_to_read} answers)" if num_read else "0"
        return {
            "due (UTC)": self.due[:16],
            "handed in": f"{self.num_handed_in} of {len(self.works)}",
            "done": str(self.count(State.DONE)),
            "to be graded": str(self.count(State.WAITING)),
            "to be read": by_hand,
            "failed": str(self.count(State.FAILED)),
            "damaged": str(self.count(State.DAMAGED)),
            "late": str(self.num_late),
            "missing": str(self.count(State.MISSING)),
            "regrades": str(sum(work.num_regrades for work in self.works)),
        }


@dataclass(frozen=True)
class Status:
    """How the class stands in these assignments; `remarks` are about the records."""

    assignments: Sequence[Assignment]
    remarks: Sequence[str]

    @property
    def students(self) -> list[tuple[Row, list[Work | None]]]:
        """Everybody by section and name: a row of theirs, and their work on each assignment."""
        found: dict[str, dict[str, Work]] = {}
        for assignment in self.assignments:
            for work in assignment.works:
                found.setdefault(work.row.student, {})[assignment.name] = work
        names = [assignment.name for assignment in self.assignments]
        rows = [(next(iter(works.values())).row, [works.get(name) for name in names]) for works in found.values()]
        return sorted(rows, key=lambda one: (one[0].section, one[0].name.casefold(), one[0].student))


def read(coursedir: CourseDirectory, assignments: Sequence[str] = ()) -> Status:
    """How everybody stands in these assignments, or in all.

    Raises:
        ValueError: the gradebook holds no assignment, or none of a given name; a table at the root cannot be read.
    """
    root = Path(coursedir.root)
    entries, _ = audit_log.read(root / audit_log.LOG)
    damaged = {
        key[:2] for key, entry in audit_log.latest(entries).items() if entry.verdict is audit_log.Verdict.MALFORMED
    }
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        rows = exports.rows(coursedir, gradebook, entries, assignments)
        dues = {str(one.name): str(one.duedate or "") for one in gradebook.assignments}
    names = [name for name in dues if not assignments or name in assignments]
    works = [_work(coursedir, row, (row.assignment, row.author or row.student) in damaged) for row in rows]
    found = [Assignment(name, dues[name], [work for work in works if work.row.assignment == name]) for name in names]
    return Status(found, [*_remarks(root, rows), *(one for name in names for one in _handed_in_twice(coursedir, name))])


def _work(coursedir: CourseDirectory, row: Row, is_damaged: bool) -> Work:
    asked = regrade_requests.requests(coursedir, row.assignment, row.student)
    return Work(row, _state(row, is_damaged), sum(not one.answer for one in asked))


def _listed(names: Sequence[str]) -> str:
    """The names, of a long list the first."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def _state(row: Row, is_damaged: bool) -> State:
    state = _OF_STANDING[row.standing]
    return State.DAMAGED if is_damaged and state in (State.DONE, State.BY_HAND) else state


def _remarks(root: Path, rows: Sequence[Row]) -> list[str]:
    """What in the tables at the root is about nobody, and who is on no roster."""
    students = {row.student for row in rows}
    listed = {one.id for one in class_roster(root)}
    unknown = sorted({student for _, student in read_extensions(root)} - students)
    said = [f"extensions.csv names students whom the gradebook does not know: {', '.join(unknown)}."] if unknown else []
    strangers = sorted(students - listed) if listed else []
    return said + ([f"Not on the roster: {', '.join(strangers)}."] if strangers else [])


def _handed_in_twice(coursedir: CourseDirectory, assignment: str) -> list[str]:
    """A sentence for each team of which several members handed in."""
    teams = handed_in_by(coursedir, assignment).values()
    return [
        f"{assignment}, handed in by several of one team: {', '.join(handed)}; {handed[0]}'s counts, as the last by "
        f"{COLLECTED}, or without times there as the first on the roster."
        for handed in teams
        if len(handed) > 1
    ]


def write_page(status: Status, to: Path) -> None:
    """Write a page that loads nothing: what is to be done, the assignments, and everybody's work."""
    environment = Environment(
        loader=PackageLoader("autograder"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    write_whole(to, environment.get_template("status.html.j2").render(status=status, states=[*State]))
