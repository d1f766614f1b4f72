"""The folders of a class: which students submitted, and why some folders cannot be graded."""

from __future__ import annotations

import glob
import os
import unicodedata
from pathlib import Path
from typing import NamedTuple

from nbgrader.coursedir import CourseDirectory

from autograder.course import notebook_of, submitted_folder
from autograder.files import shown
from autograder.submissions.team_work import submitter_of

_GLOB = "*?["
_RENAME = "rename the folder"


class ClassFolders(NamedTuple):
    """The students who submitted an assignment, and for each other folder the reason why it cannot be graded."""

    students: list[str]
    refused: dict[str, str]


def class_folders(coursedir: CourseDirectory, assignment: str, outside: Path | None = None) -> ClassFolders:
    """List the students who submitted this assignment, by name; of a team, only the one whose work counts.

    Submissions may be in a folder `outside` the course, as STUDENT/ASSIGNMENT or STUDENT.
    """
    submitted = outside or submitted_folder(coursedir, assignment, ".").parent
    names = sorted(os.listdir(submitted)) if submitted.is_dir() else []
    found = [
        name
        for name in names
        if (submitted / name / assignment).is_dir() or (outside and name[0] != "." and (outside / name).is_dir())
    ]
    reasons = {name: _refusal(submitted / name, assignment) for name in found}
    reasons |= {name: _misplaced(submitted / name, assignment) for name in names if name not in reasons}
    others = submitter_of(coursedir, assignment, outside)
    return ClassFolders(
        [name for name in found if not reasons[name] and name not in others],
        {name: reason for name, reason in reasons.items() if reason},
    )


def course_glob(coursedir: CourseDirectory, pattern: str) -> list[Path]:
    """The paths that match a pattern below the course, whose own folder may be called `course [2026]`."""
    root = str(coursedir.root)
    return sorted(map(Path, glob.glob(glob.escape(root) + pattern.removeprefix(root))))


def pattern(student: str) -> str:
    """A pattern that matches only this student in nbgrader, which treats ids as patterns and strips blanks."""
    return "".join("[ ]" if one == " " else one for one in glob.escape(student))


def _refusal(folder: Path, assignment: str) -> str:
    """The reason why a student's folder cannot be graded; empty if it can."""
    if reason := _odd(folder.name):
        return f"this name cannot be graded: {reason}; {_RENAME}"
    if folder.is_symlink() or (folder / assignment).is_symlink():
        return "this folder is a link, perhaps to another student's work; put the student's own files in its place"
    return ""


def _misplaced(path: Path, assignment: str) -> str:
    """The reason why a file seems to be in the wrong place for this assignment; empty if it does not."""
    due = f"{assignment}/{notebook_of(assignment)}.ipynb"
    if path.suffix == ".ipynb" and path.stem.casefold() == notebook_of(assignment).casefold():
        return f"this is a file; put it into a student's folder, as {due}"
    meant = {due.rpartition("/")[2].casefold(), assignment.casefold()}
    held = sorted(os.listdir(path)) if path.is_dir() and not path.is_symlink() else []
    near = [name for name in held if name.casefold() in meant]
    return f"it holds {shown(near[0])}, but {due} is needed; move it there" if near else ""


def _odd(name: str) -> str:
    """The part of a student's name that nbgrader or the gradebook would reject; empty if there is none."""
    if any("\ud800" <= one <= "\udfff" for one in name):
        return "it is not text in UTF-8"
    if any(unicodedata.category(one) in ("Cc", "Zl", "Zp") for one in name):
        return "it holds a line break or another control character"
    if odd := [one for one in _GLOB if one in name]:
        return f"it holds {odd[0]}, which nbgrader treats as a pattern for other names"
    return "it begins with a dot, so nbgrader does not see it" if name.startswith(".") else ""
