"""A student's submission: the only reader of what was handed in, for the judge and for the gradebook.

Each reads it when its turn comes; a judgement counts only for the files that it was made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from nbgrader.utils import is_grade, is_solution

from autograder.submissions import Malformed
from autograder.submissions.student_code import StudentCode, student_code
from autograder.submissions.submitted_files import grade_id, read_notebook, read_program

_NEW_CELL = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}


@dataclass(frozen=True)
class Submission:
    """A student's work for an assignment.

    `notebook` is the released notebook with the student's sources and added cells. `programs` are the sources of the
    submitted programs, by name. `code` is the code of both that hidden checks get.
    """

    path: Path
    notebook: NotebookNode
    programs: Mapping[str, str]
    code: StudentCode


def read_submission(
    path: Path, release: NotebookNode, student: str = "", programs: Mapping[str, Path] | None = None
) -> Submission:
    """Read a submitted notebook, and the programs that the assignment asks for, within limits.

    Raises:
        Malformed: a file is missing, damaged, too large or too deep to be parsed; the notebook is of a different
            assignment, or is another student's form of a quiz.
    """
    submitted = read_notebook(path)
    _refuse_form_of_another(submitted, student)
    notebook = _repaired(submitted, release)
    sources = {name: read_program(program) for name, program in (programs or {}).items()}
    return Submission(path, notebook, sources, student_code(notebook, release, sources))


def _refuse_form_of_another(notebook: NotebookNode, student: str) -> None:
    """Raise Malformed if the notebook's metadata names a different student."""
    quiz = notebook.metadata.get("quiz")
    made_for = quiz.get("student") if isinstance(quiz, dict) else None
    if student and made_for and str(made_for).casefold() != student.casefold():
        raise Malformed(
            f"This form was made for {str(made_for)[:100]!r}. Answer in your own notebook, and hand that in."
        )


def _repaired(submitted: NotebookNode, release: NotebookNode) -> NotebookNode:
    """The submitted cells with the released metadata and grade cells; of cells with the same grade id, the last."""
    known = {grade_id(cell): cell for cell in release.cells if grade_id(cell)}
    cells: list[NotebookNode] = []
    for number, cell in reversed(list(enumerate(submitted.cells, start=1))):
        given = known.pop(grade_id(cell), None)
        repaired = deepcopy(given) if given else _NEW_CELL[cell.cell_type](id=f"added-{number}")
        repaired.source = cell.source
        if repaired.cell_type == "markdown" and "attachments" in cell:
            repaired.attachments = cell.attachments
        cells.insert(0, repaired)
    if not any(is_solution(cell) for cell in cells):
        raise Malformed("The notebook has no cell of this assignment; was a different file submitted?")
    before = ""
    for cell in release.cells:
        if grade_id(cell) in known and is_grade(cell):
            follows = (index for index, other in enumerate(cells, start=1) if before and grade_id(other) == before)
            cells.insert(next(follows, len(cells)), deepcopy(cell))
        before = grade_id(cell)
    return new_notebook(cells=cells, metadata=deepcopy(release.metadata))
