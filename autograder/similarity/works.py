"""Reading the code of all submissions to an assignment, of earlier years, and the code given to all students."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import is_solution

from autograder.authoring.known_answers import solution_cells
from autograder.course import beside, handed_in, notebook_of
from autograder.files import shown
from autograder.similarity.pairs import ComparedWork
from autograder.submissions import Malformed
from autograder.submissions.class_folders import class_folders
from autograder.submissions.submitted_files import grade_id, read_notebook, read_program


@dataclass(frozen=True)
class Given:
    """The code that an assignment gives to all students: given cells, programs, and all sources to be discounted."""

    cells: frozenset[str]
    programs: list[str]
    sources: Sequence[str]


def given(coursedir: CourseDirectory, assignment: str) -> Given:
    """Read the code in the release and the solution.

    Raises:
        ValueError: the assignment was not released, or has no solution that is code.
    """
    name = notebook_of(assignment)
    released = Path(coursedir.format_path(coursedir.release_directory, ".", assignment))
    source = Path(coursedir.format_path(coursedir.source_directory, ".", assignment))
    notebook, script = released / f"{name}.ipynb", source / f"{name}.py"
    if not notebook.is_file() or not script.is_file():
        raise ValueError(
            f"{notebook} or {script} is missing: only the labs and projects of this course can be compared, once "
            "`nbgrader generate_assignment` has released them."
        )
    programs = beside(released)
    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    sources = [cell.source for cell in cells] + [*solution_cells(script).values()]
    for program in programs:
        sources += [(released / program).read_text(encoding="utf-8"), *solution_cells(source / program).values()]
    return Given(frozenset(grade_id(cell) for cell in cells if not is_solution(cell)), programs, sources)


def works(
    coursedir: CourseDirectory, assignment: str, about: Given, past: Sequence[Path] = ()
) -> tuple[list[ComparedWork], list[str]]:
    """Everybody's work, that of folders of earlier years included, and who handed in what cannot be read.

    A folder of an earlier year is laid out like `submitted/`.

    Raises:
        ValueError: a folder of an earlier year has no such assignment.
    """
    found: list[ComparedWork] = []
    unreadable: list[str] = []
    students = class_folders(coursedir, assignment).students
    folders = [
        (student, Path(coursedir.format_path(coursedir.submitted_directory, student, assignment)), False)
        for student in students
    ]
    for year in past:
        theirs = sorted(path for path in year.glob(f"*/{assignment}") if path.is_dir())
        if not theirs:
            raise ValueError(f"{year} holds no STUDENT/{assignment}: name a folder that is laid out like submitted/.")
        folders += [(f"{year.name}/{shown(path.parent.name)}", path, True) for path in theirs]
    for name, folder, is_past in folders:
        try:
            found.append(ComparedWork(name, _parts(folder, assignment, about), is_past))
        except Malformed:
            unreadable.append(name)
    return found, unreadable


def _parts(folder: Path, assignment: str, about: Given) -> Mapping[str, str]:
    """The source of every cell that a student wrote and of every program, by name; raises Malformed."""
    notebook = read_notebook(handed_in(folder, notebook_of(assignment)))
    parts: dict[str, str] = {}
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "code" and grade_id(cell) not in about.cells - {""}:
            name = grade_id(cell) or f"cell {number}"
            parts[name] = "\n".join([*([parts[name]] if name in parts else []), cell.source])  # join cells of one name
    return {**parts, **{name: read_program(folder / name) for name in about.programs}}
