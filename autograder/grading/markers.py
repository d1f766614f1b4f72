"""Assignments that are marked without running code, such as quizzes: each kind registers its marker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nbformat import NotebookNode

from autograder.judging.report import Report

# called with the file that decides, the course's folder, the student, and the submission
Marker = Callable[[Path, Path, str, NotebookNode], Report]

_markers: dict[str, Marker] = {}


def register(file_name: str, marker: Marker) -> None:
    """Have `marker` mark the assignments whose source has a file of this name in place of hidden checks."""
    _markers[file_name] = marker


def marker_for(decides: Path) -> Marker | None:
    """The marker for this file; None for hidden checks, which the judge runs. Raises: ValueError."""
    if decides.suffix == ".py":
        return None
    if decides.name not in _markers:
        raise ValueError(
            f"No marker is registered for {decides.name}: nbgrader_config.py must call autograder.nbgrader.install()."
        )
    return _markers[decides.name]
