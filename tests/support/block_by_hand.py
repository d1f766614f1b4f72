"""Lab 8's solution as a program on ranks."""

import types
from pathlib import Path

from repository import ROOT

from autograder.authoring.known_answers import solution_cells
from autograder.authoring.scripts import parse

LAB = ROOT / "solutions" / "lab08"
_SOLVED = ("copy_and_reduce", "gather_and_scatter", "shard_weights", "parallel_mlp", "parallel_attention")
_ORDER = ("setup", "given", *_SOLVED, "parallel_block", "sync_replicated", "vocabulary_loss")


def solution_source(path: Path = LAB / "lab08.py") -> str:
    """The source of the notebook's definitions, with the solution, without the run that it starts."""
    given = {cell.title: cell.source for cell in parse(path).cells if cell.title in ("setup", "given")}
    given["setup"] = given["setup"].split("\nws.run(")[0]
    cells = given | solution_cells(path)
    return "\n\n".join(cells[title] for title in _ORDER)


def solved(source: str) -> types.ModuleType:
    """The solution as a module, in this process."""
    module = types.ModuleType("solved")
    exec(source, module.__dict__)
    return module
