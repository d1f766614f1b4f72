"""Reading a submission strictly: a file from a stranger becomes named pieces of source, or a sentence why not."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

MAX_BYTES = 20 << 20
MAX_DEPTH = 40
_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Malformed(ValueError):
    """A file that is not a notebook of this assignment; the text is a sentence for the student."""


def read_submission(path: Path) -> NotebookNode:
    """The notebook in a submitted file.

    Raises:
        Malformed: it is no plain file, too large, not JSON, nested too deep, or not a valid notebook.
    """
    if path.is_symlink() or not path.is_file():
        raise Malformed("The submission is not a plain file.")
    if (size := os.path.getsize(path)) > MAX_BYTES:
        raise Malformed(
            f"The file has {size >> 20} MB; at most {MAX_BYTES >> 20} are read. Clear its outputs and submit again."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise Malformed(
            f"The file is damaged: it is not a whole notebook ({_first_line(error)}). "
            "Open it in JupyterLab, save it and submit it again."
        ) from None
    _refuse_depth(content, MAX_DEPTH)
    try:
        notebook = nbformat.reads(json.dumps(content), as_version=4)
        nbformat.validate(notebook)
    except Exception as error:
        raise Malformed(f"The file is not a valid notebook: {_first_line(error)}.") from None
    if not any(is_solution(cell) for cell in notebook.cells):
        raise Malformed("The notebook has no cell of this assignment; was another file submitted?")
    return notebook


def student_cells(submission: NotebookNode, release: NotebookNode) -> list[tuple[str, str]]:
    """The (name, source) of every cell that a hidden check may rely on, in the order of the submission.

    Answer cells are the student's, whole. Given cells are the release's. Of given cells and of those that the student
    added, only imports, definitions and literal constants are taken: such a cell may launch, draw, and never end.
    """
    given = {cell.metadata.nbgrader.grade_id: cell for cell in release.cells if _is_given_code(cell)}
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
        elif name not in {_grade_id(other) for other in release.cells}:
            cells.append((f"number {number}", definitions(cell.source)))
    return [(name, source) for name, source in cells if source.strip()]


def given_imports(release: NotebookNode) -> list[str]:
    """The modules that the given cells of a lab import: they are the instructor's, so safe to import ahead of time."""
    trees = [ast.parse(_without_magics(cell.source)) for cell in release.cells if _is_given_code(cell)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return sorted(names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module})


def definitions(source: str) -> str:
    """The imports, functions, classes and literal constants of a cell; nothing when it does not parse."""
    try:
        tree = ast.parse(_without_magics(source))
    except (SyntaxError, ValueError, RecursionError):
        return ""
    return "\n".join(ast.unparse(node) for node in tree.body if _defines(node))


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        try:
            ast.literal_eval(node.value)
        except (ValueError, TypeError):
            return False
        return True
    return isinstance(node, _DEFINITIONS)


def _is_given_code(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(_grade_id(cell)) and not is_solution(cell) and not is_grade(cell)


def _grade_id(cell: NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


def _without_magics(source: str) -> str:
    """The source with lines that only IPython understands blanked, so that line numbers stay."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n"))


def _refuse_depth(content: Any, limit: int) -> None:
    level = [content]
    for _ in range(limit):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise Malformed(f"The file nests deeper than any notebook does ({limit} levels).")


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
