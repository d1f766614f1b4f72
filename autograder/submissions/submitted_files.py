"""Strict readers of the untrusted files that a student submits: a notebook and programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.course import other_notebooks
from autograder.files import MAX_BYTES, shown
from autograder.submissions import Malformed, bounded_process, notebook_json
from autograder.submissions.notebook_json import first_line

MAX_PROGRAM_BYTES = 1 << 20
MAX_SOURCE_CHARS = 1 << 20  # in all cells together; parsing needs hundreds of bytes per character
MAX_CELLS = 2000
CELL_TYPES = ("code", "markdown", "raw")
_VERSION = 4  # the notebook format since 2015; nbformat reads older formats without limits
_SMALL_BYTES = 1 << 20  # JSON of this size never needs more than about forty megabytes


def read_notebook(path: Path) -> NotebookNode:
    """Read an untrusted file as a valid notebook, without its outputs and ids.

    Raises:
        Malformed: it is not a plain file, is too large, not JSON, nested too deep, of too many values, with unknown
            cells, or not in Unicode.
    """
    if not os.path.lexists(path):
        raise Malformed(_why_absent(path))
    if path.is_symlink() or not path.is_file():
        raise Malformed("The submission is not a plain file.")
    if (size := os.path.getsize(path)) > MAX_BYTES:
        raise Malformed(
            f"The file has {size >> 20} MB; at most {MAX_BYTES >> 20} are read. Clear its outputs and submit again."
        )
    content = _content(path, size)
    if (version := content.get("nbformat") if isinstance(content, dict) else None) != _VERSION:
        said = f"of version {version} of its form" if version in (1, 2, 3) else "not a valid notebook"
        raise Malformed(f"The file is {said}. Open it in JupyterLab, save it and submit it again.")
    try:
        notebook = nbformat.reads(json.dumps(content), as_version=_VERSION)
        nbformat.validate(notebook)  # reading only logs problems
    except Exception as error:  # an untrusted file can make nbformat raise anything
        raise Malformed(f"The file is not a valid notebook: {first_line(error)}.") from None
    _refuse_cells(notebook.cells)
    return notebook


def read_program(path: Path) -> str:
    """Read the source of a submitted program.

    Raises:
        Malformed: it is missing, not a plain file, too large, or not text.
    """
    if not os.path.lexists(path):
        raise Malformed(f"The submission holds no {path.name}. Submit it together with the notebook, under this name.")
    if path.is_symlink() or not path.is_file():
        raise Malformed(f"{path.name} is not a plain file.")
    if (size := os.path.getsize(path)) > MAX_PROGRAM_BYTES:
        raise Malformed(f"{path.name} has {size >> 10} kB; at most {MAX_PROGRAM_BYTES >> 10} are read.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except ValueError:
        raise Malformed(f"{path.name} is not a text in UTF-8.") from None


def grade_id(cell: NotebookNode) -> str:
    """The id of a cell in the gradebook; empty for a cell that is not in it."""
    marks = cell.metadata.get("nbgrader")
    name = marks.get("grade_id") if isinstance(marks, dict) else None
    return name if isinstance(name, str) else ""


def _content(path: Path, size: int) -> Any:
    if size <= _SMALL_BYTES:
        return notebook_json.content_of(path.read_bytes())
    with open(path, "rb") as file:
        return bounded_process.content_of(file)


def _refuse_cells(cells: list[NotebookNode]) -> None:
    """Raise Malformed if the cells are of an unknown type, not valid Unicode, too many or too long."""
    # nbformat allows any type in minor versions newer than it knows
    if unknown := [cell.cell_type for cell in cells if cell.cell_type not in CELL_TYPES]:
        raise Malformed(f"The notebook has a cell of a type that Jupyter does not have: {repr(unknown[0])[:40]}.")
    try:
        "".join(cell.source for cell in cells).encode()
    except UnicodeEncodeError:
        raise Malformed("The file holds text that is not valid Unicode.") from None
    if len(cells) > MAX_CELLS:
        raise Malformed(f"The notebook has {len(cells)} cells; at most {MAX_CELLS} are read.")
    if (size := sum(len(cell.source) for cell in cells)) > MAX_SOURCE_CHARS:
        raise Malformed(f"The cells hold {size} characters of text; at most {MAX_SOURCE_CHARS} are read.")


def _why_absent(path: Path) -> str:
    """The reason why there is nothing to grade, as a sentence for the student."""
    if others := other_notebooks(path.parent, path.name):
        names = ", ".join(shown(other.name) for other in others[:3]) + (", ..." if len(others) > 3 else "")
        return (
            f"The submission holds no {path.name} but {len(others)} other notebooks ({names[:200]}), so it is not "
            "clear which one counts. Hand in one notebook, under that name."
        )
    return f"The submission holds no {path.name}. Hand the notebook in as {path.name}."
