"""What an assignment consists of: a notebook, and programs beside it, released without solutions and read strictly.

A program is authored like the notebooks, in cells with titles, so that a known answer can replace any of them.
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
    """The programs of a project, in the folder that holds its solution; a lab has none."""
    if not is_project(folder.name):
        return []
    ours = ("checks.py", f"{notebook_of(folder.name)}.py")
    return sorted(path for path in folder.glob("*.py") if path.name not in ours)


def solved(path: Path, cells: Mapping[str, str] | None = None) -> str:
    """A program with its solution; `cells`, sources by title, take the place of its own.

    Raises:
        ValueError: the program has no cell of that title.
    """
    script = parse(path)
    known = {cell.title for cell in script.cells}
    if unknown := sorted(set(cells or {}) - known):
        raise ValueError(f"{path.name} has no cell called {', '.join(unknown)}: it has {', '.join(sorted(known))}.")
    return _text(path, lambda title, source: (cells or {}).get(title, without_markers(source)))


def released(path: Path) -> str:
    """A program as students get it: every solution is a line that says to replace it."""
    return _text(path, lambda _, source: _without_solutions(source))


def titles(path: Path) -> list[str]:
    """The titles of the cells of a program that students write."""
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
    """A preprocessor that puts an assignment's programs, without solutions, beside the released notebook."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        for path in authored(Path(resources["metadata"]["path"])):
            resources.setdefault("outputs", {})[path.name] = released(path).encode()
        return nb, resources
