"""Requests for a regrade in `regrade.md` next to a notebook: a heading for each cell in question, then the reasons.

A request counts as answered until the student changes its text.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbgrader.apps.zipcollectapp import ZipCollectApp
from nbgrader.coursedir import CourseDirectory

from autograder.files import shown
from autograder.tables.regrades import read_answers

REQUEST = "regrade.md"
MAX_BYTES = 64 << 10
MAX_REQUESTS = 100  # per file
_clear: Any = ZipCollectApp._clear_existing_files
_HEADING = re.compile(r"^#{1,6}[ \t]+`?([^\s`:]+)`?[ \t]*:?[ \t]*(.*)$")


@dataclass(frozen=True)
class RegradeRequest:
    """One request: the cell that it is about, empty for all of the work; why; and the answer, if there is one yet."""

    student: str
    cell: str
    why: str
    answer: str = ""

    @property
    def id(self) -> str:
        """A short hash of the request's text."""
        return hashlib.sha256(f"{self.cell}\n{self.why}".encode()).hexdigest()[:12]


def requests(coursedir: CourseDirectory, assignment: str, student: str) -> list[RegradeRequest]:
    """A student's requests about an assignment, in the order of the file.

    Raises:
        ValueError: the course's record of answers cannot be read.
    """
    folder = Path(coursedir.format_path(coursedir.submitted_directory, student, assignment))
    text = _text(folder / REQUEST)
    if not text:
        return []
    answers = read_answers(Path(coursedir.root))
    asked = [RegradeRequest(student, cell, why) for cell, why in _sections(text)]
    return [
        RegradeRequest(student, one.cell, one.why, answers.get((assignment, student, one.cell, one.id), ""))
        for one in asked[:MAX_REQUESTS]
    ]


def _text(path: Path) -> str:
    """The text of a student's file, or a sentence that says why it cannot be read; empty without a file."""
    if not os.path.lexists(path):
        return ""
    if path.is_symlink() or not path.is_file():
        return f"({REQUEST} is not a plain file.)"
    if path.stat().st_size > MAX_BYTES:
        return f"({REQUEST} has more than {MAX_BYTES >> 10} kB, and was not read.)"
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    return "\n".join(shown(line.expandtabs(4)) for line in text.splitlines())


def _sections(text: str) -> list[tuple[str, str]]:
    """The heading and the text of each section; text before the first heading has an empty heading."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in text.split("\n"):
        if heading := _HEADING.match(line):
            found.append((heading[1], [heading[2]]))
        else:
            found[-1][1].append(line)
    sections = [(cell, "\n".join(lines).strip()) for cell, lines in found]
    return [(cell, why) for cell, why in sections if cell or why]


def install() -> None:
    """Make `nbgrader zip_collect --force` keep requests in folders that it empties: archives do not contain them."""
    ZipCollectApp._clear_existing_files = lambda self, path: _clear_all_but_request(self, path)


def _clear_all_but_request(app: ZipCollectApp, path: str) -> None:
    request = Path(path, REQUEST)
    kept = request.read_bytes() if request.is_file() and not request.is_symlink() else None
    _clear(app, path)
    if kept is not None:
        request.write_bytes(kept)
