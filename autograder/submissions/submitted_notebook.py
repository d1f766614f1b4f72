"""Reading a submission strictly: a file from a stranger becomes named pieces of source, or a sentence about why not."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from nbgrader.utils import is_grade, is_solution

from autograder.authoring import python_parser
from autograder.files import MAX_BYTES

MAX_SOURCE_CHARS = 1 << 20  # of all cells together; parsing costs hundreds of bytes for each
MAX_CELLS = 2000
MAX_DEPTH = 40
MAX_NODES = 200_000  # values besides outputs; each may cost a hundred times its bytes. An honest file has 1000
_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NEW_CELL = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}


class Malformed(ValueError):
    """A file that is not a notebook of this assignment; the text is a sentence for the student."""


def read_submission(path: Path, release: NotebookNode, student: str | None = None) -> NotebookNode:
    """The text of a submitted file in a fresh notebook, whose metadata and grade cells are the release's.

    Raises:
        Malformed: it is not a plain file, is too large, not JSON, nested too deep, of too many values, with unknown
            cells, or not a notebook of this assignment; or it is another student's form of a quiz.
    """
    submitted = _read(path)
    quiz = submitted.metadata.get("quiz")
    made_for = quiz.get("student") if isinstance(quiz, dict) else None
    if student and made_for and str(made_for).casefold() != student.casefold():
        raise Malformed(
            f"This form was made for {str(made_for)[:100]!r}. Answer in your own notebook, and hand that in."
        )
    notebook = _rebuilt(submitted, release)
    try:
        nbformat.writes(notebook).encode()
    except UnicodeEncodeError:
        raise Malformed("The file holds text that is not valid Unicode.") from None
    return notebook


def _read(path: Path) -> NotebookNode:
    """The file as a valid notebook, without its outputs and ids."""
    if not os.path.lexists(path):
        raise Malformed(f"The submission holds no {path.name}. Hand the notebook in as {path.name}.")
    if path.is_symlink() or not path.is_file():
        raise Malformed("The submission is not a plain file.")
    if (size := os.path.getsize(path)) > MAX_BYTES:
        raise Malformed(
            f"The file has {size >> 20} MB; at most {MAX_BYTES >> 20} are read. Clear its outputs and submit again."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Malformed(
            f"The file is damaged: it is not a whole notebook ({_first_line(error)}). "
            "Open it in JupyterLab, save it and submit it again."
        ) from None
    _forget(content)
    _refuse_shape(content, MAX_DEPTH, MAX_NODES)
    try:
        notebook = nbformat.reads(json.dumps(content), as_version=4)
        nbformat.validate(notebook)
    except Exception as error:
        raise Malformed(f"The file is not a valid notebook: {_first_line(error)}.") from None
    # nbformat allows any type in a minor version that it does not know yet
    if unknown := [cell.cell_type for cell in notebook.cells if cell.cell_type not in [*_NEW_CELL]]:
        raise Malformed(f"The notebook has a cell of a type that is none of Jupyter's: {repr(unknown[0])[:40]}.")
    if len(notebook.cells) > MAX_CELLS:
        raise Malformed(f"The notebook has {len(notebook.cells)} cells; at most {MAX_CELLS} are read.")
    if (size := sum(len(cell.source) for cell in notebook.cells)) > MAX_SOURCE_CHARS:
        raise Malformed(f"The cells hold {size} characters of text; at most {MAX_SOURCE_CHARS} are read.")
    return notebook


def _rebuilt(submitted: NotebookNode, release: NotebookNode) -> NotebookNode:
    """The submitted cells with the release's metadata; of cells that share a grade id, the last counts."""
    known = {_grade_id(cell): cell for cell in release.cells if _grade_id(cell)}
    cells: list[NotebookNode] = []
    for number, cell in reversed(list(enumerate(submitted.cells, start=1))):
        same = known.pop(_grade_id(cell), None)
        cells.insert(0, _like(same, cell) if same else _added(cell, number))
    if not any(is_solution(cell) for cell in cells):
        raise Malformed("The notebook has no cell of this assignment; was another file submitted?")
    before = ""
    for cell in release.cells:
        if _grade_id(cell) in known and is_grade(cell):
            follows = (place for place, one in enumerate(cells, start=1) if before and _grade_id(one) == before)
            cells.insert(next(follows, len(cells)), deepcopy(cell))
        before = _grade_id(cell)
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


def student_cells(submission: NotebookNode, release: NotebookNode) -> list[tuple[str, str]]:
    """The (name, source) of every cell that a hidden check may rely on, in the order of the submission.

    Answer cells are the student's, whole. Given cells are the release's. Of given cells and of those that the student
    added, only imports, definitions and literal constants are taken: such a cell may launch, draw, and never end.
    """
    given = {cell.metadata.nbgrader.grade_id: cell for cell in release.cells if _is_given_code(cell)}
    known = {_grade_id(cell) for cell in release.cells if _grade_id(cell)}
    present = {_grade_id(cell) for cell in submission.cells}
    cells = [(name, definitions(cell.source)) for name, cell in given.items() if name not in present]
    for number, cell in enumerate(submission.cells, start=1):
        name = _grade_id(cell)
        if cell.cell_type != "code" or is_grade(cell):
            continue
        if name in given:
            cells.append((name, definitions(given[name].source)))
        elif is_solution(cell):
            cells.append((name, _without_magics(cell.source)))
        elif name not in known:
            cells.append((f"number {number}", definitions(cell.source)))
    return [(name, source) for name, source in cells if source.strip()]


def given_imports(release: NotebookNode) -> list[str]:
    """The modules that the given cells of a lab import: the instructor's, so safe to import ahead of time."""
    trees = [python_parser.parse(_without_magics(cell.source)) for cell in release.cells if _is_given_code(cell)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return sorted(names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module})


def definitions(source: str) -> str:
    """The imports, functions, classes and literal constants of a cell; nothing when it does not parse."""
    try:
        tree = python_parser.parse(_without_magics(source))
        return "\n".join(ast.unparse(node) for node in tree.body if _defines(node))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # so the parser reports "nested too deep"
        return ""


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
        try:
            ast.literal_eval(node.value)
        except (ValueError, TypeError, ArithmeticError):  # such as a sum that no float can hold
            return False
        return True
    return isinstance(node, _DEFINITIONS)


def _is_given_code(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(_grade_id(cell)) and not is_solution(cell) and not is_grade(cell)


def _grade_id(cell: NotebookNode) -> str:
    marks = cell.metadata.get("nbgrader")
    name = marks.get("grade_id") if isinstance(marks, dict) else None
    return name if isinstance(name, str) else ""


def _without_magics(source: str) -> str:
    """The source with lines that only IPython understands blanked, so that line numbers stay."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n"))


def _forget(content: Any) -> None:
    """Remove from a file what is not read of it: outputs, and ids, about which nbformat would print a line each."""
    cells = content.get("cells") if isinstance(content, dict) else None
    for number, cell in enumerate(cells if isinstance(cells, list) else []):
        if isinstance(cell, dict):
            cell |= {"outputs": []} if "outputs" in cell else {}
            cell |= {"id": f"cell-{number}"} if "id" in cell else {}


def _refuse_shape(content: Any, max_depth: int, max_nodes: int) -> None:
    level, num_nodes = [content], 1
    for _ in range(max_depth):
        level = [child for node in level for child in _children(node)]
        num_nodes += len(level)
        if num_nodes > max_nodes:
            raise Malformed(f"The file holds more than {max_nodes} values; clear its outputs and submit again.")
        if not level:
            return
    raise Malformed(f"The file nests deeper than any notebook does ({max_depth} levels).")


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
