"""Programs that belong to an assignment in addition to its notebook, released without solutions.

A program is written like a notebook, in cells with titles, so that a known answer can replace any cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor

from autograder.authoring.scripts import parse, split_regions, without_markers
from autograder.course import is_project, notebook_of

_STUB = 'raise NotImplementedError("Replace this line with your own code.")'


def authored(folder: Path) -> list[Path]:
    """The programs in the folder of a project's solution; empty for a lab."""
    if not is_project(folder.name):
        return []
    ours = ("checks.py", f"{notebook_of(folder.name)}.py")
    return sorted(path for path in folder.glob("*.py") if path.name not in ours)


def solved(path: Path, cells: Mapping[str, str] | None = None) -> str:
    """A program with its solution; `cells`, sources by title, replace its own cells.

    Raises:
        ValueError: the program has no cell of that title.
    """
    script = parse(path)
    known = {cell.title for cell in script.cells}
    if unknown := sorted(set(cells or {}) - known):
        raise ValueError(f"{path.name} has no cell called {', '.join(unknown)}: it has {', '.join(sorted(known))}.")
    return _text(path, lambda title, source: (cells or {}).get(title, without_markers(source)))


def released(path: Path) -> str:
    """A program as students get it: a line to be replaced instead of every solution."""
    return _text(path, lambda _, source: _without_solutions(source))


def titles(path: Path) -> list[str]:
    """The titles of the student cells of a program."""
    return [cell.title for cell in parse(path).cells if cell.is_solution]


def _text(path: Path, source_of: Any) -> str:
    script = parse(path)
    parts = ["\n".join(script.preamble).rstrip()] if script.preamble else []
    parts += [f"# %% {cell.title}\n{source_of(cell.title, cell.source).rstrip()}" for cell in script.cells]
    return "\n\n\n".join(parts) + "\n"


def _without_solutions(source: str) -> str:
    lines = []
    for line, is_solution, is_first in split_regions(source):
        if not is_solution:
            lines.append(line)
        elif is_first:
            lines.append(line[: len(line) - len(line.lstrip())] + _STUB)
    return "\n".join(lines)


class ReleasePrograms(NbGraderPreprocessor):
    """A preprocessor that writes an assignment's programs, without solutions, next to the released notebook."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        for path in authored(Path(resources["metadata"]["path"])):
            resources.setdefault("outputs", {})[path.name] = released(path).encode()
        return nb, resources
