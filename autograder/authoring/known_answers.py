"""Reading and writing the bank of known answers, and filling an answer into a student's notebook.

An answer holds each cell that differs from the solution: whole, or as hunks against the solution's cell of that title.
A file of whole cells is a script, `NAME.py`; a file in which any cell is hunks is `NAME.diff`.
"""

import itertools
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

from nbformat import NotebookNode

from autograder.authoring import programs
from autograder.authoring.hunks import SEPARATOR, HunkError, apply_hunks, make_hunks, without_docstrings
from autograder.authoring.scripts import (
    CELL_MARKER,
    AuthoringError,
    Cell,
    Problem,
    Script,
    located,
    parse,
    parse_lines,
    without_markers,
)
from autograder.course import notebook_of
from autograder.files import write_whole

HEADER = re.compile(r"# ?([a-z_]+): *(.*)")
SCORE = re.compile(r"(\d+(?:\.\d+)?)(?: to (\d+(?:\.\d+)?))?")
KINDS = ("right", "wrong")
SUFFIXES = (".py", ".diff")
NO_DOCSTRINGS = "no_docstrings"  # the tag of a cell whose hunks apply to the solution's cell without docstrings
LEAST_SAVING = 3 / 4  # hunks are harder to read than a cell, so they must be this much shorter
_MAGIC = re.compile(r"^(%%?[a-z_]{2,}(?:\s.*)?)$")


@dataclass(frozen=True)
class KnownAnswer:
    """One known answer: the student cells that differ from the solution, and what grading it must give.

    If some of the points are for speed, a slow answer gets `score` to `most_score`, depending on the machine.
    """

    name: str  # with its kind, such as wrong/sums
    score: float | None
    most_score: float | None
    hints: list[str]
    about: str
    cells: dict[str, str]


def read_answer(lab: Path, name: str) -> KnownAnswer:
    """One known answer in the folder of a lab's solution, such as `wrong/sums`. Raises: AuthoringError, ValueError."""
    path = answer_path(lab, name)
    return _read(path, path.read_text(encoding="utf-8"), solved_cells(lab))


def read_known_answers(lab: Path) -> list[KnownAnswer]:
    """All known answers in the folder of a lab's solution: the right ones, then the wrong. Raises: AuthoringError."""
    paths = [path for kind in KINDS for path in sorted((lab / kind).glob("*")) if path.suffix in SUFFIXES]
    for path, following in itertools.pairwise(paths):
        if path.with_suffix("") == following.with_suffix(""):
            raise AuthoringError(located(following, [(1, f"There is also {path.name}: delete one of them.")]))
    solution = solved_cells(lab) if paths else {}
    return [_read(path, path.read_text(encoding="utf-8"), solution) for path in paths]


def answer_path(lab: Path, name: str) -> Path:
    """The file of a known answer. Raises: ValueError."""
    path = next((path for suffix in SUFFIXES if (path := lab / f"{name}{suffix}").is_file()), None)
    if path is None:
        raise ValueError(f"{lab.name} has no known answer `{name}`: there is neither {name}.py nor {name}.diff.")
    return path


def solved_cells(lab: Path) -> dict[str, str]:
    """The solution of every student cell of a lab and of its programs, by title, without the marker lines."""
    return {title: source for script in _scripts(lab) for title, source in solution_cells(script).items()}


def write_answer(lab: Path, name: str, script: Path) -> Path:
    """Write a known answer from a script of whole cells, as hunks where that is shorter, and return its file.

    The script may be an edited copy of the solution: unchanged cells are left out.

    Raises: AuthoringError.
    """
    path, solution = lab / name, solved_cells(lab)
    given = {cell.title for own in _scripts(lab) for cell in parse(own).cells} - solution.keys()
    source = parse(script)
    cells = [replace(cell, source=without_markers(cell.source)) for cell in source.cells if cell.title not in given]
    changed = [cell for cell in cells if cell.source != solution.get(cell.title)]
    if not changed:
        raise AuthoringError(located(script, [(1, "Every cell of this script equals the solution's: change one.")]))
    parts = ["\n".join(source.preamble).rstrip(), *(_shorter(cell, solution) for cell in changed)]
    path = path.with_name(path.name + (".diff" if any(f"\n{SEPARATOR}\n" in part for part in parts) else ".py"))
    text = ("\n\n" if path.suffix == ".diff" else "\n\n\n").join(part for part in parts if part) + "\n"
    _read(path, text, solution)
    for suffix in SUFFIXES:
        (lab / f"{name}{suffix}").unlink(missing_ok=True)
    write_whole(path, text)
    return path


def _shorter(cell: Cell, solution: Mapping[str, str]) -> str:
    """A cell of an answer as hunks where they save a quarter of its lines, otherwise whole."""
    is_text, title = cell.kind == "markdown", f"# %% {cell.title}"
    lines = cell.source.split("\n")
    forms = [[f"{title} [markdown]" if is_text else title, *(_commented(line, is_text) for line in lines)]]
    if cell.title in solution:
        own = solution[cell.title]
        bases = {title: own, f'{title} tags=["{NO_DOCSTRINGS}"]': without_docstrings(own)}
        forms += [[head, *make_hunks(base, cell.source)] for head, base in bases.items() if base != cell.source]
    best = min(forms, key=len)
    return "\n".join(best if len(best) <= LEAST_SAVING * len(forms[0]) else forms[0])


def _commented(line: str, is_text: bool) -> str:
    return f"# {line}".rstrip() if is_text else _MAGIC.sub(r"# \1", line)


def _scripts(lab: Path) -> list[Path]:
    return [lab / f"{notebook_of(lab.name)}.py", *programs.authored(lab)]


def _read(path: Path, text: str, solution: Mapping[str, str]) -> KnownAnswer:
    script, kind = _script(path, text), path.parent.name
    score, most_score, hints, problems = _header(script)
    about = _about(script)
    if kind == "wrong" and score is None:
        problems.append((1, "A wrong answer needs the score that it must get: `# score: 0`."))
    if kind == "wrong" and not about:
        problems.append((1, "Say in a comment below the header which mistake this answer makes."))
    if kind == "right" and score is not None:
        problems.append((1, "A right answer gets full marks, so it has no `# score:`."))
    problems += _cell_problems(script.cells)
    cells, misfits = _whole_cells(script, solution)
    problems += misfits
    if problems:
        raise AuthoringError(located(path, problems))
    return KnownAnswer(f"{kind}/{path.stem}", score, most_score, hints, about, cells)


def _script(path: Path, text: str) -> Script:
    """Parse the cells of an answer without applying hunks."""
    if path.suffix == ".py":
        return parse_lines(path, text.splitlines())
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if line.startswith("#") and CELL_MARKER.match(line)]
    cells = []
    for start, end in itertools.pairwise([*starts, len(lines)]):
        is_whole = SEPARATOR not in lines[start + 1 : end]
        (cell,) = parse_lines(path, lines[start : end if is_whole else start + 1], start + 1).cells
        cells.append(cell if is_whole else replace(cell, source="\n".join(lines[start + 1 : end])))
    return Script(path, lines[: starts[0]] if starts else lines, cells)


def _whole_cells(script: Script, solution: Mapping[str, str]) -> tuple[dict[str, str], list[Problem]]:
    """The source of each cell by title, with hunks applied to the solution's cells, and the problems found."""
    cells, problems = {}, []
    for cell in script.cells:
        lines = cell.source.split("\n")
        if cell.title not in solution:
            problems.append((cell.line, f"The solution has no cell `{cell.title}`: it has {', '.join(solution)}."))
        elif script.path.suffix == ".py" or SEPARATOR not in lines:
            cells[cell.title] = cell.source
        else:
            own = solution[cell.title]
            try:
                cells[cell.title] = apply_hunks(without_docstrings(own) if NO_DOCSTRINGS in cell.tags else own, lines)
            except HunkError as error:
                problems.append((cell.line + 1 + error.line, f"Cell `{cell.title}`: {error}."))
    return cells, problems


def solution_cells(path: Path) -> dict[str, str]:
    """The solution of every student cell of a lab's script or of a program by title, without the marker lines."""
    return {cell.title: without_markers(cell.source) for cell in parse(path).cells if cell.is_solution}


def compose(notebook: NotebookNode, cells: Mapping[str, str]) -> NotebookNode:
    """Copy a student's notebook and fill these sources into its student cells, by grade id."""
    filled = deepcopy(notebook)
    student_cells = {
        cell.metadata.nbgrader.grade_id: cell
        for cell in filled.cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }
    if unknown := sorted(cells.keys() - student_cells.keys()):
        known = ", ".join(student_cells)
        raise ValueError(f"The notebook has no student cell called {', '.join(unknown)}: it has {known}.")
    for title, source in cells.items():
        student_cells[title].source = source
    return filled


def _header(script: Script) -> tuple[float | None, float | None, list[str], list[Problem]]:
    score, most_score, hints, problems = None, None, [], []
    for line, text in enumerate(script.preamble, start=1):
        field = HEADER.fullmatch(text.strip())
        if text.strip() and not text.startswith("#"):
            problems.append((line, "This code stands before the first cell: put a `# %%` line above it."))
        elif field and field[1] == "hint" and field[2]:
            hints.append(field[2].strip())
        elif field and field[1] == "score" and score is None and (range_ := SCORE.fullmatch(field[2])):
            score, most_score = float(range_[1]), float(range_[2] or range_[1])
        elif field:
            problems.append(
                (
                    line,
                    f"`{text}` cannot be read: give `# score: N` (or `N to M`) once and `# hint: words` on each line.",
                )
            )
    return score, most_score, hints, problems


def _about(script: Script) -> str:
    """The comment above the first cell, without header lines; if there is none, the comment at the top of that cell."""
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
