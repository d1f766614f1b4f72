"""Reading the bank of known answers, and putting an answer into a student's notebook."""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from autograder.authoring.scripts import AuthoringError, Cell, Problem, Script, located, parse, without_markers

HEADER = re.compile(r"# ?([a-z_]+): *(.*)")
SCORE = re.compile(r"(\d+(?:\.\d+)?)(?: to (\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Answer:
    """One known answer: the student cells that differ from the solution, and what grading it must give.

    Where a part of the points is for speed, a slow answer gets `score` to `most_score`, depending on the machine.
    """

    name: str
    score: float | None
    most_score: float | None
    hints: list[str]
    about: str
    cells: dict[str, str]


def read_answer(path: Path) -> Answer:
    """The answer in a file of a `wrong/` or `right/` folder. Raises: AuthoringError."""
    script = parse(path)
    score, most_score, hints, problems = _header(script)
    about = _about(script)
    if path.parent.name == "wrong" and score is None:
        problems.append((1, "A wrong answer needs the score that it must get: `# score: 0`."))
    if path.parent.name == "wrong" and not about:
        problems.append((1, "Say in a comment below the header which mistake this answer makes."))
    if path.parent.name == "right" and score is not None:
        problems.append((1, "A right answer gets full marks, so it has no `# score:`."))
    problems += _cell_problems(script.cells)
    if problems:
        raise AuthoringError(located(path, problems))
    return Answer(path.stem, score, most_score, hints, about, {cell.title: cell.source for cell in script.cells})


def solution_cells(path: Path) -> dict[str, str]:
    """The solution of every student cell of a lab's script or of a program by title, without the marker lines."""
    return {cell.title: without_markers(cell.source) for cell in parse(path).cells if cell.is_solution}


def compose(notebook: NotebookNode, cells: Mapping[str, str]) -> NotebookNode:
    """A copy of a student's notebook in which the student cells named by grade id hold these sources."""
    filled = deepcopy(notebook)
    found = {
        cell.metadata.nbgrader.grade_id: cell
        for cell in filled.cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }
    if unknown := sorted(cells.keys() - found.keys()):
        raise ValueError(f"The notebook has no student cell called {', '.join(unknown)}: it has {', '.join(found)}.")
    for title, source in cells.items():
        found[title].source = source
    return filled


def _header(script: Script) -> tuple[float | None, float | None, list[str], list[Problem]]:
    score, most_score, hints, problems = None, None, [], []
    for line, text in enumerate(script.preamble, start=1):
        found = HEADER.fullmatch(text.strip())
        if text.strip() and not text.startswith("#"):
            problems.append((line, "This code stands before the first cell: put a `# %%` line above it."))
        elif found and found[1] == "hint" and found[2]:
            hints.append(found[2].strip())
        elif found and found[1] == "score" and score is None and (range_ := SCORE.fullmatch(found[2])):
            score, most_score = float(range_[1]), float(range_[2] or range_[1])
        elif found:
            problems.append(
                (
                    line,
                    f"`{text}` cannot be read: give `# score: N` (or `N to M`) once and `# hint: words` on each line.",
                )
            )
    return score, most_score, hints, problems


def _about(script: Script) -> str:
    """The comment above the first cell, without the header, or otherwise the comment that begins the first cell."""
    first_cell = script.cells[0].source.split("\n") if script.cells else []
    for lines in (script.preamble, first_cell):
        comments = []
        for line in lines:
            if line.startswith("#") and not HEADER.fullmatch(line.strip()):
                comments.append(line.removeprefix("#").strip())
            elif comments or (lines is first_cell):
                break
        if comments:
            return " ".join(comments)
    return ""


def _cell_problems(cells: list[Cell]) -> list[Problem]:
    problems, seen = [], set()
    for cell in cells:
        if not cell.title:
            problems.append((cell.line, "This cell needs the title of the student cell that it answers."))
        elif cell.title in seen:
            problems.append((cell.line, f"The cell `{cell.title}` is answered twice in this file."))
        elif without_markers(cell.source) != cell.source:
            problems.append((cell.line, f"The cell `{cell.title}` holds a solution marker: an answer has none."))
        seen.add(cell.title)
    return problems or ([] if cells else [(1, "This answer has no cell: start each with `# %% its_title`.")])
