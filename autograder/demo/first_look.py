"""First look for a newcomer: a few cells, each below its text, and cheating submissions with the judge's answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mistune
from nbformat import NotebookNode

from autograder.authoring.known_answers import KnownAnswer
from autograder.judging.report import Report

SCRIPT = Path("solutions", "first_look.py")


@dataclass(frozen=True)
class Look:
    """One item of the first look: its text and its cell's output as HTML, and the cell itself."""

    text: str
    output: str
    program: str


@dataclass(frozen=True)
class Cheat:
    """A cheating submission: what it tries, the check that caught it, and the score."""

    about: str
    promise: str
    answered: str
    score: str


def looks(notebook: NotebookNode) -> list[Look]:
    """The items of an executed notebook: each is a text cell and the code cell below it."""
    cells = notebook.cells
    pairs = itertools.pairwise(cells)
    return [
        Look(str(mistune.html(text.source)), _shown(code), code.source)
        for text, code in pairs
        if (text.cell_type, code.cell_type) == ("markdown", "code")
    ]


def cheat(answer: KnownAnswer, check: str, report: Report) -> Cheat:
    """A known cheating answer, with what its report says of one check."""
    result = next(one for one in report.checks if one.name == check)
    score = f"{report.score:g} of {report.max_score:g} points"
    return Cheat(answer.about, result.promise, result.message, score)


def _shown(cell: NotebookNode) -> str:
    """The output of a cell as HTML."""
    outputs: Sequence[NotebookNode] = cell.outputs
    return "\n".join(output.data["text/html"] for output in outputs if "text/html" in output.get("data", {}))
