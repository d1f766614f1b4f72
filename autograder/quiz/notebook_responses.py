"""Reading answers from notebooks: literals assigned to `answer_N`. No code is run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from autograder.authoring import locked_parser
from autograder.quiz.formats.notebook import TO_REPLACE
from autograder.quiz.forms import Form
from autograder.quiz.responses import Problem, Responses
from autograder.quiz.written_answers import parse_value
from autograder.submissions.submitted_files import read_notebook
from worldsize.quiz.variant import Prose

_CHECKPOINTS = ".ipynb_checkpoints"
_MAX_PARSED_CHARS = 20_000  # in one answer's cell


def read_notebooks(folder: Path, responses: Responses) -> None:
    """Read every notebook below a folder; the student is the one named by the file or by a folder above it.

    The cell of question N has the id or the grade id `question_N`.

    Raises:
        ValueError: there are no notebooks.
    """
    files = [file for file in sorted(folder.rglob("*.ipynb")) if _CHECKPOINTS not in file.parts]
    if not files:
        raise ValueError(f"{folder} holds no notebooks.")
    for file in files:
        place = file.relative_to(folder)
        where = _shown(place)
        names = [name for name in (*place.parts[:-1], place.stem) if responses.is_known(name)]
        if len({name.strip().casefold() for name in names}) > 1:  # the collector names folders, students name files
            reason = "its path names more than one student; keep it under the student who handed it in"
            responses.problems.append(Problem(where, _shown(names[0]), None, reason))
            continue
        form = responses.form(names[0] if names else _shown(place.stem), where)
        if form is None or not responses.once(form, where):
            continue
        try:
            notebook = read_notebook(file)
            _refuse_another(notebook, form)
        except (OSError, ValueError) as error:
            responses.problems.append(Problem(where, form.student.id, None, str(error).removesuffix(".")))
            continue
        read_cells(notebook, form, where, responses)


def _shown(path: object) -> str:
    """The path of a student's file as text that is safe to print and write."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(path))


def _refuse_another(notebook: NotebookNode, form: Form) -> None:
    """Raise ValueError if the notebook's metadata names a student other than the form's."""
    quiz = notebook.metadata.get("quiz")
    named = str(quiz.get("student", form.student.id)) if isinstance(quiz, dict) else form.student.id
    if named.casefold() != form.student.id.casefold():
        raise ValueError(f"the notebook was made for {named[:100]!r}")


def read_cells(notebook: NotebookNode, form: Form, where: str, responses: Responses) -> None:
    """Read the answers of one notebook."""
    cells = {(cell.cell_type, name): cell.source for cell in notebook.cells for name in _names(cell)}
    for number in range(1, len(form.asked) + 1):
        is_essay = isinstance(responses.answer(form, number), Prose)
        source = cells.get(("markdown" if is_essay else "code", f"question_{number}"))
        if source is None:
            responses.problems.append(Problem(where, form.student.id, number, f"there is no cell question_{number}"))
            continue
        answer, here = responses.answer(form, number), f"{where}, cell question_{number}"
        if is_essay:
            written = "" if source.strip() == TO_REPLACE else source.strip()
            responses.put(form, number, written, here, lambda w=written: w or None)
            continue
        responses.put(
            form,
            number,
            _written(source, number),
            here,
            lambda s=source, n=number, a=answer: parse_value(a, value(s, n)),
        )


def value(source: str, number: int) -> Any:
    """The value that a cell assigns to `answer_N`.

    Raises:
        ValueError: the cell is not Python, does not assign `answer_N` exactly once, or assigns a non-literal.
    """
    assigned = _assigned(source, number)
    try:
        return ast.literal_eval(assigned)
    except (ValueError, TypeError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        said = repr(_written(source, number)[:80])
        raise ValueError(f"{said}: write a plain number, text, list or dict, because no code is run") from None


def _assigned(source: str, number: int) -> ast.expr:
    if len(source) > _MAX_PARSED_CHARS:  # the parser may need ten thousand times as much memory
        raise ValueError(f"the cell holds {len(source)} characters, and at most {_MAX_PARSED_CHARS} are read")
    try:
        statements = locked_parser.parse(source).body
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
        raise ValueError(f"the cell must assign {name} exactly once; it does so {len(found)} times")
    return found[0]


def _names(cell: NotebookNode) -> set[str]:
    marks = cell.metadata.get("nbgrader")
    names = [cell.get("id"), marks.get("grade_id") if isinstance(marks, dict) else None]
    return {name for name in names if isinstance(name, str)}


def _written(source: str, number: int) -> str:
    """The source text of the assigned value, or of the whole cell if that cannot be determined."""
    try:
        return ast.unparse(_assigned(source, number)).strip()
    except (ValueError, RecursionError, MemoryError):  # parsed, but nested too deeply to be unparsed
        return source.strip()
