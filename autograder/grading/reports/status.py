"""How a class stands: who handed in, who waits to be graded, what failed, and what is to be graded by hand.

Everything is read from the gradebook, the audit log and `submitted/`, by the same rules as exports and checklists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory

from autograder.files import templates, write_whole
from autograder.grading import audit_log
from autograder.grading.standing import Standing, State, standings
from autograder.submissions import regrade_requests
from autograder.submissions.team_work import handed_in_by
from autograder.tables.collected import COLLECTED
from autograder.tables.extensions import read_extensions
from autograder.tables.roster import class_roster

_MOST_NAMES = 12  # in a line of the terminal


@dataclass(frozen=True)
class AssignmentStatus:
    """How everybody stands in an assignment; `due` is the class's date."""

    name: str
    due: str
    standings: Sequence[Standing]

    def count(self, *states: State) -> int:
        """Count the students whose work is in one of these states."""
        return sum(standing.state in states for standing in self.standings)

    @property
    def num_handed_in(self) -> int:
        return sum(standing.state.is_handed_in for standing in self.standings)

    @property
    def num_late(self) -> int:
        return sum(standing.penalty > 0 for standing in self.standings)

    @property
    def num_answers_to_read(self) -> int:
        return sum(standing.num_answers_to_read for standing in self.standings)

    @property
    def to_do(self) -> list[str]:
        """A sentence for each thing that waits for the instructor, with the students' names."""
        said = []
        for state in State:
            words, advice = state.to_do
            names = [standing.student for standing in self.standings if standing.state is state]
            if words and names:
                said.append(f"{self.name}, {words}: {_listed(names)}; {advice.format(self.name)}.")
        if names := [standing.student for standing in self.standings if standing.num_regrades]:
            said.append(f"{self.name}, regrade requests: {_listed(names)}; `autograder regrade {self.name}`.")
        return said

    @property
    def figures(self) -> dict[str, str]:
        """The columns of a table of assignments."""
        num_read = self.count(State.BY_HAND)
        by_hand = f"{num_read} ({self.num_answers_to_read} answers)" if num_read else "0"
        return {
            "due (UTC)": self.due[:16],
            "handed in": f"{self.num_handed_in} of {len(self.standings)}",
            "done": str(self.count(State.DONE)),
            "to be graded": str(self.count(State.WAITING)),
            "to be read": by_hand,
            "failed": str(self.count(State.BROKE)),
            "damaged": str(self.count(State.DAMAGED)),
            "late": str(self.num_late),
            "missing": str(self.count(State.MISSING)),
            "regrades": str(sum(standing.num_regrades for standing in self.standings)),
        }


@dataclass(frozen=True)
class ClassStatus:
    """How the class stands in these assignments; `remarks` are about the records."""

    assignments: Sequence[AssignmentStatus]
    remarks: Sequence[str]

    @property
    def students(self) -> list[tuple[Standing, list[Standing | None]]]:
        """Everybody by section and name: a standing that says who it is, and the standing in each assignment."""
        by_student: dict[str, dict[str, Standing]] = {}
        for assignment in self.assignments:
            for standing in assignment.standings:
                by_student.setdefault(standing.student, {})[assignment.name] = standing
        names = [assignment.name for assignment in self.assignments]
        rows = [(next(iter(mine.values())), [mine.get(name) for name in names]) for mine in by_student.values()]
        return sorted(rows, key=lambda row: (row[0].section, row[0].name.casefold(), row[0].student))


def read(coursedir: CourseDirectory, assignments: Sequence[str] = ()) -> ClassStatus:
    """How everybody stands in these assignments, or in all.

    Raises:
        ValueError: the gradebook holds no assignment, or none of a given name; a table at the root cannot be read.
    """
    root = Path(coursedir.root)
    entries, _ = audit_log.read(root / audit_log.LOG)
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        every_one = standings(coursedir, gradebook, entries, assignments)
        dues = {str(assignment.name): str(assignment.duedate or "") for assignment in gradebook.assignments}
    every_one = [_with_regrades(coursedir, standing) for standing in every_one]
    names = [name for name in dues if not assignments or name in assignments]
    remarks = [*_remarks(root, every_one), *(line for name in names for line in _handed_in_twice(coursedir, name))]
    return ClassStatus(
        [
            AssignmentStatus(name, dues[name], [standing for standing in every_one if standing.assignment == name])
            for name in names
        ],
        remarks,
    )


def _with_regrades(coursedir: CourseDirectory, standing: Standing) -> Standing:
    requests = regrade_requests.requests(coursedir, standing.assignment, standing.student)
    return replace(standing, num_regrades=sum(not request.answer for request in requests))


def _listed(names: Sequence[str]) -> str:
    """Join names; of a long list, only the first."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def _remarks(root: Path, every_one: Sequence[Standing]) -> list[str]:
    """A sentence on extensions of unknown students, and one on students who are not on the roster."""
    students = {standing.student for standing in every_one}
    listed = {student.id for student in class_roster(root)}
    unknown = sorted({student for _, student in read_extensions(root)} - students)
    said = [f"extensions.csv names students whom the gradebook does not know: {', '.join(unknown)}."] if unknown else []
    strangers = sorted(students - listed) if listed else []
    return said + ([f"Not on the roster: {', '.join(strangers)}."] if strangers else [])


def _handed_in_twice(coursedir: CourseDirectory, assignment: str) -> list[str]:
    """Return a sentence for each team with submissions from several members."""
    teams = handed_in_by(coursedir, assignment).values()
    return [
        f"{assignment}, handed in by several members of a team: {', '.join(handed)}; {handed[0]}'s counts: the last "
        f"one in {COLLECTED} or, without times there, the first on the roster."
        for handed in teams
        if len(handed) > 1
    ]


def write_page(status: ClassStatus, to: Path) -> None:
    """Write a page that loads nothing: what is to be done, the assignments, and everybody's work."""
    environment = templates()
    write_whole(to, environment.get_template("status.html.j2").render(status=status, states=[*State]))
