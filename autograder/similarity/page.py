"""A self-contained page that shows pairs of works side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autograder.files import templates, write_whole
from autograder.similarity.pairs import Comparison, Pair

MAX_PAIRS = 50  # the most pairs on a page


@dataclass(frozen=True)
class _Side:
    """A part of one work: its lines, each with whether the other work also has it."""

    name: str
    lines: Sequence[tuple[str, bool]]


def write_page(assignment: str, comparison: Comparison, line: float, to: Path) -> None:
    """Write the most similar pairs, with parts of the same name side by side; lines that both have are marked."""
    environment = templates()
    shown = [(pair, _rows(pair)) for pair in comparison.pairs[:MAX_PAIRS]]
    num_more = len(comparison.pairs) - len(shown)
    page = environment.get_template("similar.html.j2")
    write_whole(to, page.render(assignment=assignment, pairs=shown, num_more=num_more, line=line))


def _rows(pair: Pair) -> list[tuple[_Side, _Side]]:
    """Each part of the two works side by side, without parts that share nothing."""
    names = dict.fromkeys([*pair.one.parts, *pair.other.parts])
    return [
        (_side(pair, 0, name), _side(pair, 1, name)) for name in names if any(lines.get(name) for lines in pair.lines)
    ]


def _side(pair: Pair, place: int, name: str) -> _Side:
    source = (pair.one, pair.other)[place].parts.get(name, "")
    shared = pair.lines[place].get(name, set())
    return _Side(name, [(text, number in shared) for number, text in enumerate(source.split("\n"), start=1)])
