"""The submitted folders that `nbgrader autograde` takes: none stops the others, and an empty one gets a verdict."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import Any

from nbgrader.converters.autograde import Autograde
from nbgrader.converters.base import BaseConverter, NbGraderException

from autograder.course import notebook_of
from autograder.files import shown
from autograder.submissions.class_folders import ClassFolders, class_folders


def install() -> None:
    """Make nbgrader take the folders from `class_folders`, and only the notebook that an assignment asks for.

    nbgrader itself stops at a name with a line break, follows links, and passes over empty folders.
    """
    Autograde.init_notebooks = _init_notebooks
    Autograde.convert_notebooks = _convert_notebooks


def _init_notebooks(self: Autograde) -> None:
    coursedir: Any = self.coursedir  # traitlets types it as whatever a trait may hold
    name = coursedir.assignment_id
    students, refused = _asked_for(self)
    if not students and not refused:
        BaseConverter.init_notebooks(self)  # says what is missing
    due = f"{notebook_of(name)}.ipynb"
    folders = [self._format_source(name, student) for student in students]
    self.assignments = {folder: [os.path.join(folder, due)] for folder in folders}
    self.notebooks = []


def _convert_notebooks(self: Autograde) -> None:
    _, refused = _asked_for(self)
    for student, reason in refused.items():
        self.log.error("%s was not graded: %s", shown(student), reason)
    BaseConverter.convert_notebooks(self)
    if refused:
        raise NbGraderException(f"Not graded: {', '.join(map(shown, refused))}")


def _asked_for(converter: Autograde) -> ClassFolders:
    """Return the folders that match the student's ID, which may be a pattern; a complete ID matches only itself."""
    coursedir: Any = converter.coursedir
    wanted = coursedir.student_id
    students, refused = class_folders(coursedir, coursedir.assignment_id)
    if wanted in students:
        return ClassFolders([wanted], {})
    return ClassFolders(
        [name for name in students if fnmatchcase(name, wanted)],
        {name: reason for name, reason in refused.items() if fnmatchcase(name, wanted)},
    )
