"""Cells and files on which parsers take gigabytes: each is a verdict, and the grader stays small."""

import json
from pathlib import Path

import nbformat
import pytest
import stand_in_judge
from nbformat.v4 import new_code_cell
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from tiny_class import RIGHT, place
from tiny_lab import NAME, answered, make_course, release

from autograder.course import open_course
from autograder.submissions import bounded_process

MOST_BYTES = 1 << 30  # of the process that grades
CHARS = 1 << 20  # as many as a submission may hold
DOTS = ".a" * 200_000
BOMBS = {
    "imported_name": "import a" + DOTS,
    "imported_from": f"from a{DOTS} import b",
    "decorator": f"@a{DOTS}\ndef f(): pass",
    "pattern": f"match a:\n case a{DOTS}: pass",
    "attributes": "x = a" + DOTS,
    "calls": "a" + "()" * (CHARS // 2 - 2000),
    "items": "a" + "[0]" * (CHARS // 3 - 2000),
    "statements": "a\n" * (CHARS // 2 - 2000),
    "tuples": "x = [" + "()," * (CHARS // 3 - 2000) + "]",
    "signs": "-" * 60_000 + "1",
    "negations": "x = " + "not " * 50_000 + "1",
    "lambdas": "lambda: " * 9_000 + "1",
    "branches": "if x: pass\n" + "elif x: pass\n" * 50_000,
    "sum": "x = " + "1+" * 50_000 + "1",
}
HARMLESS = {
    "brackets": "(" * (CHARS - 2000),
    "nested_pattern": "match a:\n case " + "[" * 9_000 + "]" * 9_000 + ": pass",
    "comprehensions": "x = " + "[" * 100 + "a" + " for a in b]" * 100,
    "number": "x = 0x" + "f" * (CHARS - 2000),
    "text": "x = '" + "a" * (CHARS - 2000) + "'",
    "escapes": "x = '" + "\\N{BULLET}" * 50_000 + "'",
    "decorators": "@a\n" * 100_000 + "def f(): pass",
    "formatted": "x = " + "f'{" * 3_000,
    "arguments": "def f(" + ",".join(f"a{n}" for n in range(9_999)) + "): 0",
    "backslashes": "\\\n" * (CHARS // 2 - 2000),
}
FILES = {"dicts": '{"a":0},' * 2_500_000, "lists": "[]," * 6_500_000, "texts": '"ab",' * 3_900_000}
HANDED_IN = ("imported_name", "statements", "items", "signs", "text")  # the others end in the same way
FULL = ("ada", "text", "zoe")


@pytest.mark.parametrize("name", BOMBS)
def test_a_cell_that_takes_too_much_is_known_not_to_be_parsed(name):
    assert len(bounded_process.facts(("x = 1", BOMBS[name], "y = 2"))) == 1


@pytest.mark.parametrize("name", HARMLESS)
def test_other_long_cells_are_parsed_or_no_python(name):
    assert len(bounded_process.facts(("x = 1", HARMLESS[name], "y = 2"))) == 3


def grade_class(root: Path, program: str) -> tuple[int, str, int]:
    """How a command ends that grades a class in which most hand in a bomb beside right answers."""
    make_course(root)
    honest = json.loads(nbformat.writes(answered(release(root), RIGHT)))
    for name in ("ada", *HANDED_IN, "zoe"):
        added = json.loads(json.dumps(new_code_cell((BOMBS | HARMLESS).get(name, "x = 1"))))
        place(root, name, json.dumps(honest | {"cells": [*honest["cells"], added]}))
    for name, values in FILES.items():
        place(root, name, '{"cells": [' + values + "0]}")
    coursedir = open_course(root)
    assert NbGraderAPI(coursedir=coursedir, config=coursedir.config).generate_assignment(NAME, force=True)["success"]
    command = {"autograder": ("grade", NAME, "--jobs", "2"), "nbgrader": ("autograde", NAME)}[program]
    return stand_in_judge.run(root, program, *command)


@pytest.mark.parametrize("program", ["autograder", "nbgrader"])
def test_a_class_with_bombs_is_graded_by_a_grader_that_stays_small(tmp_path, program):
    code, said, peak_bytes = grade_class(tmp_path, program)
    assert code == 0, said
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as book:
        scores = {one.student.id: one.score for one in book.assignment_submissions(NAME)}
    assert scores == {name: 5 if name in FULL else 0 for name in ("ada", "zoe", *HANDED_IN, *FILES)}
    assert peak_bytes < MOST_BYTES
    words = " ".join(said.split())
    for name in {*HANDED_IN} - {*FULL}:
        folder = tmp_path / "autograded" / name / NAME / f"{NAME}.ipynb"
        assert "cannot be parsed within" in nbformat.read(folder, as_version=4).metadata.worldsize.malformed
    assert "holds more than 200000 values" in words or "cannot be read within" in words
