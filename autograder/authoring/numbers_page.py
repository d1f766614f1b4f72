"""One page with every week's numbers to remember, from the cells with that title."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autograder.authoring.scripts import Cell, Script, parse

PAGE = Path("docs/numbers.md")
TITLE = "numbers_to_remember"  # title of the cells
HEADING = "## Numbers to remember"  # their first line
_HEAD = """\
# Numbers to remember

The numbers worth knowing by heart, week by week, from the last sections of the lessons.

<!-- `autograder build` writes this page. -->
"""


def numbers_page(weeks: Iterable[Path]) -> str:
    """Write the page, with a section for each of these scripts that has numbers. Raises: AuthoringError."""
    sections = [text for script in map(parse, sorted(weeks)) for text in _sections(script)]
    return "\n".join([_HEAD, *sections])


def _sections(script: Script) -> list[str]:
    tables = [_table(cell) for cell in script.cells if cell.kind == "markdown" and cell.title == TITLE]
    return [f"## {_name(script)}\n\n{table}\n" for table in tables if table]


def _table(cell: Cell) -> str:
    return cell.source.removeprefix(HEADING).strip()


def _name(script: Script) -> str:
    """The title of the week: its first heading."""
    lines = (line for cell in script.cells if cell.kind == "markdown" for line in cell.source.splitlines())
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), script.path.stem)
