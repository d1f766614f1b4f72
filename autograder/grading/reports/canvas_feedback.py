"""A zip of feedback pages that Canvas's Re-Upload Submissions attaches to the right submissions.

Source, read in November 2026: `infer_comment_context_from_filename` in `app/models/abstract_assignment.rb` of
instructure/canvas-lms. The first two numbers between underscores in a file's name are the student and a file of
theirs, which must belong to their last submission; the ending is free. The student sees the page under the name of the
file that they handed in (issue 2406 there). Not tried on a Canvas.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.course import notebook_of
from autograder.files import packed
from autograder.submissions.collecting.lms_archives import outermost_archive
from autograder.submissions.collecting.lms_names import canvas_numbers
from autograder.tables.roster import Student, class_roster
from autograder.tables.teams import teams
from worldsize.files import replace_file


def names_from_canvas(unpacked: Path, roster: Sequence[Student]) -> dict[str, str]:
    """The name that Canvas gave to each student's file: of several to the newest notebook, or else the newest file."""
    students = {student.lms_id: student.id for student in roster if student.lms_id}
    found: dict[str, tuple[bool, int, str]] = {}
    for path in sorted(unpacked.rglob("*")):
        numbers = canvas_numbers(path.name)
        is_own = not any(part.startswith((".", "__MACOSX")) for part in path.relative_to(unpacked).parts)
        if not (numbers and is_own and path.is_file()) or outermost_archive(path, unpacked):
            continue
        if student := students.get(numbers[0]):
            candidate = path.suffix == ".ipynb", numbers[1], path.name
            found[student] = max(found.get(student, candidate), candidate)
    return {student: name for student, (_, _, name) in found.items()}


def read_names(coursedir: CourseDirectory, assignment: str) -> dict[str, str]:
    """The names of the files that `nbgrader zip_collect` unpacked. Raises: ValueError if none is Canvas's."""
    root = Path(coursedir.root)
    unpacked = root / "downloaded" / assignment / "extracted"
    names = names_from_canvas(unpacked, class_roster(root))
    if not names:
        raise ValueError(
            f"{unpacked.relative_to(root)} has no file of Canvas's from a student on the roster: put what Download "
            f"Submissions gave you into downloaded/{assignment}/archive, and run `nbgrader zip_collect {assignment}`."
        )
    return names


def write_canvas_feedback(
    coursedir: CourseDirectory, assignment: str, students: Collection[str], names: dict[str, str], to: Path
) -> list[str]:
    """Write the zip with the pages of these students; return those of them who have no file, nor has their team."""
    root, page = Path(coursedir.root), f"{notebook_of(assignment)}.html"
    pages = {
        f"{Path(names[student]).stem}.html": Path(
            coursedir.format_path(coursedir.feedback_directory, student, assignment), page
        ).read_bytes()
        for student in sorted(students)
        if student in names
    }
    to.parent.mkdir(parents=True, exist_ok=True)
    replace_file(to, packed(pages))
    members = teams(root, assignment)
    return [one for one in sorted(students) if not {one, *members.get(one, ())} & names.keys()]
