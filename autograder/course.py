"""The course folder as nbgrader sees it, for commands that are not nbgrader's own."""

from __future__ import annotations

import os
from pathlib import Path

from nbgrader.apps.baseapp import NbGrader
from nbgrader.coursedir import CourseDirectory


def open_course(root: Path) -> CourseDirectory:
    """The folders and the gradebook that nbgrader_config.py in `root` names."""
    app, here = NbGrader(), os.getcwd()
    try:
        os.chdir(root)  # nbgrader reads its configuration from where it stands
        app.initialize([])
    finally:
        os.chdir(here)
    return CourseDirectory(parent=app, root=str(root))  # nbgrader makes its own before it has read the configuration
