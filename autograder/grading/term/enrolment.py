"""Enter a class list into the gradebook and the course's roster; nobody, and no score, is ever removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory

from autograder.tables.roster import ROSTER, Student, class_roster, read_file, read_roster, updated, write_roster

BEFORE = "roster-before.csv"  # everybody as they were before somebody left the roster


@dataclass(frozen=True)
class Enrolment:
    """What an import did, by ids.

    `absent` are in the gradebook and not in the file, and keep everything there; `left` were on the roster before;
    `alone` have a team without another member; the remarks are about how the file was read.
    """

    new: Sequence[str]
    changed: Sequence[str]
    num_same: int
    absent: Sequence[str]
    left: Sequence[str]
    alone: Sequence[str]
    unused_columns: Sequence[str]
    remarks: Sequence[str] = ()

    @property
    def sentences(self) -> list[str]:
        """What an instructor should read."""
        num = len(self.new) + len(self.changed) + self.num_same
        said = [*self.remarks]
        said.append(f"{num} students: {len(self.new)} new, {len(self.changed)} changed, {self.num_same} as before.")
        if self.changed:
            said.append(f"Changed: {', '.join(self.changed)}.")
        if self.absent:
            said.append(f"In the gradebook and not in this file, kept with all grades: {', '.join(self.absent)}.")
        if self.left:
            said.append(
                f"No longer in {ROSTER}: {', '.join(self.left)}. {BEFORE} has it as it was: if your file names new "
                "students only, import one that names the whole class."
            )
        if self.alone:
            said.append(f"Alone in a team: {', '.join(self.alone)}.")
        if self.unused_columns:
            said.append(f"Columns that were not used: {', '.join(self.unused_columns)}.")
        return said


def enrol(coursedir: CourseDirectory, file: Path) -> Enrolment:
    """Enter the students of a file into the gradebook and the course's roster; return what changed.

    Raises:
        ValueError: the file, or an earlier roster of the course, cannot be read as a roster, or an ID differs
            from one in the gradebook only in case; nothing was changed.
    """
    root = Path(coursedir.root)
    new, earlier = read_file(file), class_roster(root)
    students = updated(earlier, new)
    before = {student.id: student for student in earlier}
    left_before = read_roster(root / BEFORE) if (root / BEFORE).exists() else []
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        entered = {str(student.id): _entries_of(student) for student in gradebook.students}
        _refuse_other_case(students, entered)
        added, changed = [], []
        for student in students:
            entries = _entries(student, new.fields)
            is_known = student.id in entered
            is_same = is_known and entered[student.id] == {**entered[student.id], **entries}
            if not is_same:
                gradebook.update_or_create_student(student.id, **entries)
            if not is_known:
                added.append(student.id)
            elif not is_same or before.get(student.id, student) != student:
                changed.append(student.id)
    left = sorted(before.keys() - {student.id for student in students})
    if file.resolve() != (root / ROSTER).resolve():
        if left:
            write_roster([*earlier, *(student for student in left_before if student.id not in before)], root / BEFORE)
        write_roster(students, root / ROSTER)
    absent = sorted(entered.keys() - {student.id for student in students})
    num_same = len(students) - len(added) - len(changed)
    return Enrolment(added, changed, num_same, absent, left, _alone(students), new.unused, new.remarks)


def _refuse_other_case(students: Sequence[Student], entered: Collection[str]) -> None:
    """Raise ValueError if an ID differs from the gradebook's only in case: somebody would be there twice."""
    known = {student_id.casefold(): student_id for student_id in entered}
    new = [student.id for student in students if student.id not in entered]
    if slips := [student_id for student_id in new if student_id.casefold() in known]:
        said = ", ".join(f"{one} is {known[one.casefold()]}" for one in slips)
        raise ValueError(
            f"IDs that differ from the gradebook's only in case: {said} there. Write them as the gradebook does."
        )


def _alone(students: Sequence[Student]) -> list[str]:
    """The students who are alone in their team, with its name, which may be a typing error."""
    sizes = Counter(student.team.casefold() for student in students)
    return [
        f"{student.id} ({student.team})" for student in students if student.team and sizes[student.team.casefold()] == 1
    ]


def _entries(student: Student, fields: frozenset[str]) -> dict[str, Any]:
    """The gradebook's fields of a student for which the file has columns."""
    first, last = student.first_and_last
    entries: dict[str, Any] = {"first_name": first, "last_name": last} if fields & {"name", "last_name"} else {}
    entries |= {"email": student.email} if "email" in fields else {}
    return entries | ({"lms_user_id": student.lms_id} if "lms_id" in fields else {})


def _entries_of(known: Any) -> dict[str, str]:
    return {name: getattr(known, name) or "" for name in ("first_name", "last_name", "email", "lms_user_id")}
