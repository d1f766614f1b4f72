"""Selecting the code of a submission for hidden checks, and facts about its source found without running it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

from autograder.authoring import locked_parser
from autograder.submissions import Malformed, bounded_process
from autograder.submissions.submitted_files import grade_id


class StudentCode(NamedTuple):
    """The code of a submission for hidden checks, and facts about its source found without running it.

    `cells` are (name, source), in the order of the submission. `look_at` has a line for each cell with names that an
    instructor should see. `unwritten` are the grade cells whose function is not written yet.
    """

    cells: list[tuple[str, str]]
    look_at: list[str]
    unwritten: set[str]


class _Piece(NamedTuple):
    """The source of a cell or of a program; `label` is its name in error messages."""

    name: str
    label: str
    source: str
    is_answer: bool = False
    is_given: bool = False
    is_cell: bool = True


def student_code(
    submission: NotebookNode, release: NotebookNode, programs: Mapping[str, str] | None = None
) -> StudentCode:
    """Select the code of a submitted notebook and of the programs next to it.

    Answer cells are taken whole from the student, given cells from the release. Of given cells and of cells that the
    student added, only imports, definitions and literal constants are taken: others may launch ranks or never end.

    Raises:
        Malformed: a cell or a program cannot be parsed within the limits.
    """
    pieces = [*_cells(submission, release)]
    pieces += [_Piece(name, name, source, is_cell=False) for name, source in (programs or {}).items()]
    every = bounded_process.facts(tuple(piece.source for piece in pieces))
    if len(every) < len(pieces):
        raise Malformed(
            f"{pieces[len(every)].label} cannot be parsed within {bounded_process.LIMITS}, or is nested deeper than "
            "Python's parser goes, so nothing was graded. Shorten it or delete it, and submit again."
        )
    pairs = list(zip(pieces, every, strict=True))
    cells = [
        (piece.name, piece.source if piece.is_answer else facts.definitions) for piece, facts in pairs if piece.is_cell
    ]
    bare = {piece.name for piece, facts in pairs if facts.is_unwritten and piece.is_answer}
    return StudentCode(
        cells=[(name, source) for name, source in cells if source.strip()],
        look_at=[
            f"{piece.name}: {', '.join(facts.sightings)}"
            for piece, facts in pairs
            if facts.sightings and not piece.is_given
        ],
        unwritten=_judged_by(release, bare | _unchanged(pieces, release)),
    )


def student_cells(submission: NotebookNode, release: NotebookNode) -> list[tuple[str, str]]:
    """The (name, source) of every cell that hidden checks may rely on; raises like `student_code`."""
    return student_code(submission, release).cells


def given_imports(release: NotebookNode) -> list[str]:
    """The modules that a lab's given cells import: the instructor wrote them, so they are safe to import early."""
    trees = [locked_parser.parse(_without_magics(cell.source)) for cell in release.cells if _is_given_code(cell)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return sorted(names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module})


def _cells(submission: NotebookNode, release: NotebookNode) -> Iterator[_Piece]:
    given = {grade_id(cell): _without_magics(cell.source) for cell in release.cells if _is_given_code(cell)}
    known = {grade_id(cell) for cell in release.cells if grade_id(cell)}
    present = {grade_id(cell) for cell in submission.cells}
    yield from (_Piece(name, f"The cell {name}", given[name], is_given=True) for name in given if name not in present)
    for number, cell in enumerate(submission.cells, start=1):
        name = grade_id(cell)
        if cell.cell_type != "code" or is_grade(cell):
            continue
        if name in given:
            yield _Piece(name, f"The cell {name}", given[name], is_given=True)
        elif is_solution(cell):
            yield _Piece(name, f"The cell {name}", _without_magics(cell.source), is_answer=True)
        elif name not in known:
            yield _Piece(f"number {number}", f"Cell {number}", _without_magics(cell.source))


def _unchanged(pieces: Collection[_Piece], release: NotebookNode) -> set[str]:
    """The answer cells that the student did not change."""
    released = {grade_id(cell): _without_magics(cell.source).strip() for cell in release.cells}
    return {piece.name for piece in pieces if piece.is_answer and released.get(piece.name) == piece.source.strip()}


def _judged_by(release: NotebookNode, answers: Collection[str]) -> set[str]:
    """The grade cells for these answer cells: those that follow one, before the next group of answers begins."""
    judging: set[str] = set()
    before: list[str] = []
    is_after_grade = False
    for cell in release.cells:
        if is_solution(cell):
            before = [*([] if is_after_grade else before), grade_id(cell)]
            is_after_grade = False
        elif is_grade(cell):
            is_after_grade = True
            judging |= {grade_id(cell)} if any(name in answers for name in before) else set()
    return judging


def _is_given_code(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(grade_id(cell)) and not is_solution(cell) and not is_grade(cell)


def _without_magics(source: str) -> str:
    """Blank the lines that only IPython understands; line numbers do not change."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n"))
