"""Weeks 1 to 5 show what they compute, and spend few lines on how it looks.

A line counts if its statement builds the rows, columns, title or note of a table or picture, turns a number into text
(by a format, or by `units.format_...`), goes on with a call that draws, or lies in a function that draws by itself.
"""

import ast
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from repository import ROOT

from autograder.authoring.scripts import read_week

WEEKS = sorted((ROOT / "weeks").glob("week0[1-5]_*.py"))
MOST = 60
SHOWN = ("title", "columns", "note")


def calls(node: ast.AST, start: str) -> list[ast.Call]:
    """The calls within a node whose function's name begins like this."""
    found = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return [one for one in found if ast.unparse(one.func).startswith(start)]


def formats(node: ast.AST) -> bool:
    """Whether a node turns a number into text."""
    has_format = any(isinstance(one, ast.FormattedValue) and one.format_spec for one in ast.walk(node))
    return has_format or bool(calls(node, "units.format_"))


def changed(statement: ast.stmt) -> set[str]:
    """The names that a statement assigns or appends to."""
    if isinstance(statement, ast.Assign):
        place = statement.targets[0]
    elif isinstance(statement, ast.AugAssign):
        place = statement.target
    elif isinstance(statement, ast.Expr) and ast.unparse(statement).split("(")[0].endswith((".append", ".extend")):
        place = statement.value.func.value
    else:
        return set()
    while isinstance(place, ast.Subscript | ast.Attribute):
        place = place.value
    return {one.id for one in ast.walk(place) if isinstance(one, ast.Name)}


def shown_names(tree: ast.Module, statements: list[ast.stmt]) -> set[str]:
    """The names of what a cell shows, and of the rows that it appends to them."""
    names = set()
    for call in calls(tree, "draw."):
        given = [one.value for one in call.keywords if one.arg in SHOWN]
        given += call.args[:1] if ast.unparse(call.func) == "draw.table" else call.args[1:2]
        names |= {one.id for one in given if isinstance(one, ast.Name)}
    for statement in statements:
        if isinstance(statement, ast.Expr) and changed(statement) & names:
            row = statement.value.args[0]
            row = row.left if isinstance(row, ast.BinOp) else row
            names |= {row.id} if isinstance(row, ast.Name) else set()
    return names


def lines_of_formatting(source: str) -> set[int]:
    """The numbers of a cell's lines that count."""
    tree, lines = ast.parse(TransformerManager().transform_cell(source)), set()
    statements = [one for one in ast.walk(tree) if isinstance(one, ast.stmt) and not hasattr(one, "body")]
    names = shown_names(tree, statements)
    for one in statements:
        is_result = isinstance(one, ast.Assign) and isinstance(one.value, ast.Call)
        if formats(one) or (changed(one) & names and not is_result):
            lines |= {*range(one.lineno, (one.end_lineno or one.lineno) + 1)}
        elif calls(one, "draw."):
            lines |= {*range(one.lineno + 1, (one.end_lineno or one.lineno) + 1)}
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef) and calls(one, "draw.Picture"):
            lines |= {*range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    return lines


@pytest.mark.parametrize("path", WEEKS, ids=lambda path: path.name[:6])
def test_few_lines_format(path: Path):
    cells = [cell for cell in read_week(path).cells if cell.kind == "code"]
    by_cell = {cell.id: len(lines_of_formatting(cell.source)) for cell in cells}
    assert sum(by_cell.values()) < MOST, by_cell


def test_what_counts():
    source = """rows = []
for n in (1, 2):
    time_s = measured(n)
    row = {"ranks": n}
    rows.append(row | {"time_s": time_s})
print(f"{n} ranks")
print(f"{time_s:.2f} s")
draw.table(
    rows,
    title="Measured here",
)
"""
    assert lines_of_formatting(source) == {1, 4, 5, 7, 9, 10, 11}
    own = "def picture():\n    axes = draw.Picture(4, 4).subplots()\n    axes.plot([1, 2])\n\n\nmean = sum(times_s)"
    assert lines_of_formatting(own) == {1, 2, 3}
