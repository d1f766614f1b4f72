"""Reading a submission strictly: a file from a stranger becomes named pieces of source, or a sentence about why not."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from nbgrader.utils import is_grade, is_solution

from autograder.course import other_notebooks
from autograder.files import MAX_BYTES, shown
from autograder.submissions import bounded_process, notebook_json
from autograder.submissions.malformed import Malformed
from autograder.submissions.notebook_json import first_line

MAX_SOURCE_CHARS = 1 << 20  # of all cells together; parsing costs hundreds of bytes for each
MAX_CELLS = 2000
_VERSION = 4  # of a notebook's form, since 2015; nbformat reads older ones without bounds
_SMALL_BYTES = 1 << 20  # JSON of this size never takes more than some forty megabytes
_NEW_CELL = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}


def read_submission(path: Path, release: NotebookNode, student: str | None = None) -> NotebookNode:
    """The text of a submitted file in a fresh notebook, whose metadata and grade cells are the release's.

    Raises:
        Malformed: like `read_notebook`; it is not a notebook of this assignment, or another student's form of a quiz.
    """
    submitted = read_notebook(path)
    quiz = submitted.metadata.get("quiz")
    made_for = quiz.get("student") if isinstance(quiz, dict) else None
    if student and made_for and str(made_for).casefold() != student.casefold():
        raise Malformed(
            f"This form was made for {str(made_for)[:100]!r}. Answer in your own notebook, and hand that in."
        )
    return _rebuilt(submitted, release)


def read_notebook(path: Path) -> NotebookNode:
    """A stranger's file as a valid notebook, without its outputs and ids.

    Raises:
        Malformed: it is not a plain file, is too large, not JSON, nested too deep, of too many values, with unknown
            cells, or not in Unicode.
    """
    if not os.path.lexists(path):
        raise Malformed(_absent(path))
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
        nbformat.validate(notebook)  # reading only logs what is wrong
    except Exception as error:  # nbformat raises anything that a stranger's file provokes
        raise Malformed(f"The file is not a valid notebook: {first_line(error)}.") from None
    # nbformat allows any type in a minor version that it does not know yet
    if unknown := [cell.cell_type for cell in notebook.cells if cell.cell_type not in [*_NEW_CELL]]:
        raise Malformed(f"The notebook has a cell of a type that is none of Jupyter's: {repr(unknown[0])[:40]}.")
    try:
        "".join(cell.source for cell in notebook.cells).encode()
    except UnicodeEncodeError:
        raise Malformed("The file holds text that is not valid Unicode.") from None
    if len(notebook.cells) > MAX_CELLS:
        raise Malformed(f"The notebook has {len(notebook.cells)} cells; at most {MAX_CELLS} are read.")
    if (size := sum(len(cell.source) for cell in notebook.cells)) > MAX_SOURCE_CHARS:
        raise Malformed(f"The cells hold {size} characters of text; at most {MAX_SOURCE_CHARS} are read.")
    return notebook


def _content(path: Path, size: int) -> Any:
    if size <= _SMALL_BYTES:
        return notebook_json.content_of(path.read_bytes())
    with open(path, "rb") as file:
        return bounded_process.content_of(file)


def _absent(path: Path) -> str:
    """Why there is nothing to grade, for the student."""
    if others := other_notebooks(path.parent, path.name):
        names = ", ".join(shown(other.name) for other in others[:3]) + (", ..." if len(others) > 3 else "")
        return (
            f"The submission holds no {path.name} but {len(others)} other notebooks ({names[:200]}), so that it is "
            "not clear which one counts. Hand in one notebook, under its own name."
        )
    return f"The submission holds no {path.name}. Hand the notebook in as {path.name}."


def _rebuilt(submitted: NotebookNode, release: NotebookNode) -> NotebookNode:
    """The submitted cells with the release's metadata; of cells that share a grade id, the last counts."""
    known = {grade_id(cell): cell for cell in release.cells if grade_id(cell)}
    cells: list[NotebookNode] = []
    for number, cell in reversed(list(enumerate(submitted.cells, start=1))):
        same = known.pop(grade_id(cell), None)
        cells.insert(0, _like(same, cell) if same else _added(cell, number))
    if not any(is_solution(cell) for cell in cells):
        raise Malformed("The notebook has no cell of this assignment; was another file submitted?")
    before = ""
    for cell in release.cells:
        if grade_id(cell) in known and is_grade(cell):
            follows = (place for place, one in enumerate(cells, start=1) if before and grade_id(one) == before)
            cells.insert(next(follows, len(cells)), deepcopy(cell))
        before = grade_id(cell)
    return new_notebook(cells=cells, metadata=deepcopy(release.metadata))


def _like(given: NotebookNode, cell: NotebookNode) -> NotebookNode:
    """The released cell with the text of a submitted one."""
    like = deepcopy(given)
    like.source = cell.source
    return _with_pictures(like, cell)


def _added(cell: NotebookNode, number: int) -> NotebookNode:
    return _with_pictures(_NEW_CELL[cell.cell_type](cell.source, id=f"added-{number}"), cell)


def _with_pictures(cell: NotebookNode, source: NotebookNode) -> NotebookNode:
    if cell.cell_type == "markdown" and "attachments" in source:
        cell.attachments = source.attachments
    return cell


def grade_id(cell: NotebookNode) -> str:
    """The id by which the gradebook knows a cell; empty for one that it does not know."""
    marks = cell.metadata.get("nbgrader")
    name = marks.get("grade_id") if isinstance(marks, dict) else None
    return name if isinstance(name, str) else ""
