"""Answers in notebooks, read as data: literals that are assigned to `answer_N`. No code is run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder import syntax
from autograder.quiz.forms import Form
from autograder.quiz.reading import of_value
from autograder.quiz.responses import Handed, Problem

_CHECKPOINTS = ".ipynb_checkpoints"


def read_notebooks(folder: Path, handed: Handed) -> None:
    """Reads every notebook below a folder: whose it is, its name or one of its folders says.

    The cell of question N is the one whose id, or whose grade id, is `question_N`.

    Raises:
        ValueError: there are no notebooks.
    """
    files = [file for file in sorted(folder.rglob("*.ipynb")) if _CHECKPOINTS not in file.parts]
    if not files:
        raise ValueError(f"{folder} holds no notebooks.")
    for file in files:
        where = str(file.relative_to(folder))
        names = [name for name in (file.stem, *file.relative_to(folder).parts[:-1]) if handed.is_known(name)]
        form = handed.form(names[0] if len(set(map(str.casefold, names))) == 1 else file.stem, where)
        if form is None or not handed.once(form, where):
            continue
        try:
            notebook = nbformat.read(file, as_version=4)
        except Exception as error:  # nbformat raises whatever a stranger's file provokes
            reason = f"the notebook cannot be read ({type(error).__name__}: {error})"
            handed.problems.append(Problem(where, form.student.id, None, " ".join(reason.split())[:300]))
            continue
        named = str(notebook.metadata.get("quiz", {}).get("student", form.student.id))
        if named.casefold() != form.student.id.casefold():
            reason = f"the notebook was made for {named!r}"
            handed.problems.append(Problem(where, form.student.id, None, reason))
            continue
        read_cells(notebook, form, where, handed)


def read_cells(notebook: NotebookNode, form: Form, where: str, handed: Handed) -> None:
    """Reads the answers of one notebook."""
    cells = {name: cell.source for cell in notebook.cells if cell.cell_type == "code" for name in _names(cell)}
    for number in range(1, len(form.asked) + 1):
        source = cells.get(f"question_{number}")
        if source is None:
            handed.problems.append(Problem(where, form.student.id, number, f"there is no cell question_{number}"))
            continue
        answer, here = handed.answer(form, number), f"{where}, cell question_{number}"
        handed.put(
            form, number, _written(source, number), here, lambda s=source, n=number, a=answer: of_value(a, value(s, n))
        )


def value(source: str, number: int) -> Any:
    """What a cell assigns to `answer_N`.

    Raises:
        ValueError: it is not Python, assigns it never or twice, or something that is not a literal.
    """
    assigned = _assigned(source, number)
    try:
        return ast.literal_eval(assigned)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        said = f"{ast.unparse(assigned)[:80]!r} is not a plain number, text, list or dict"
        raise ValueError(f"{said}, and no code is run") from None


def _assigned(source: str, number: int) -> ast.expr:
    try:
        statements = syntax.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the cell is not Python ({error})") from error
    name = f"answer_{number}"
    found = [
        statement.value
        for statement in statements
        if isinstance(statement, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
    ]
    if len(found) != 1:
        raise ValueError(f"the cell assigns {name} {len(found) or 'no'} times, and not once")
    return found[0]


def _names(cell: NotebookNode) -> set[str]:
    return {str(cell.get("id", "")), str(cell.metadata.get("nbgrader", {}).get("grade_id", ""))}


def _written(source: str, number: int) -> str:
    """What the cell assigns, as far as that can be seen."""
    try:
        return ast.unparse(_assigned(source, number)).strip()
    except ValueError:
        return source.strip()
