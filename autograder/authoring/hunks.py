"""Hunks without line numbers that change one text into another, each with enough context to match in one place only.

A hunk is a line `@@`, then lines that begin with a space (context), `-` (removed) or `+` (added). An empty line is
empty context, except at the end of a hunk, where it only separates.
"""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SEPARATOR = "@@"


class HunkError(ValueError):
    """A hunk cannot be read or applied; holds the reason and the line, counted from 0."""

    def __init__(self, line: int, problem: str):
        super().__init__(problem)
        self.line = line


@dataclass(frozen=True)
class _Hunk:
    """Lines that a text must contain, and the lines that replace them; `line` is the separator's."""

    line: int
    old: list[str]
    new: list[str]


def apply_hunks(text: str, hunks: Sequence[str]) -> str:
    """Apply hunks to a text. Raises: HunkError."""
    lines, changed, position = text.split("\n"), [], 0
    placed = [(_find(lines, hunk, number), hunk) for number, hunk in enumerate(_parse(hunks), start=1)]
    for start, hunk in sorted(placed, key=lambda pair: pair[0]):
        if start < position:
            raise HunkError(hunk.line, "this hunk overlaps another: merge them")
        changed += lines[position:start] + hunk.new
        position = start + len(hunk.old)
    return "\n".join(changed + lines[position:])


def make_hunks(old: str, new: str) -> list[str]:
    """The lines of the hunks that change one text into another; none if they are equal."""
    before, after, hunks = old.split("\n"), new.split("\n"), []
    operations = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    for start, end in _regions(before, operations):
        hunks.append(SEPARATOR)
        for kind, old_start, old_end, new_start, new_end in operations:
            if kind == "equal":
                context = before[max(old_start, start) : min(old_end, end)]
                hunks += [f" {line}" if line else "" for line in context]
            elif start <= old_start and old_end <= end:
                hunks += [f"-{line}" for line in before[old_start:old_end]]
                hunks += [f"+{line}" for line in after[new_start:new_end]]
    return hunks


def without_docstrings(source: str) -> str:
    """A Python source without the docstrings of its functions and classes, and without empty lines after them."""
    lines, kinds = source.split("\n"), (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    try:
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    except SyntaxError:  # an answer in prose
        return source
    dropped: set[int] = set()
    for node in nodes:
        if ast.get_docstring(node, clean=False) is not None:
            end = node.body[0].end_lineno or 0
            while end < len(lines) and not lines[end].strip():
                end += 1
            dropped.update(range(node.body[0].lineno - 1, end))
    return "\n".join(line for number, line in enumerate(lines) if number not in dropped)


def _parse(lines: Sequence[str]) -> Iterator[_Hunk]:
    starts = [number for number, line in enumerate(lines) if line == SEPARATOR]
    for number, line in enumerate(lines[: starts[0]] if starts else lines):
        if line.strip():
            raise HunkError(number, f"a hunk must begin with a line `{SEPARATOR}`")
    for start, end in itertools.pairwise([*starts, len(lines)]):
        body = "\n".join(lines[start + 1 : end]).rstrip("\n").split("\n")
        for number, line in enumerate(body, start=start + 1):
            if line and line[0] not in " -+":
                raise HunkError(number, "a line of a hunk must begin with a space, `-` or `+`")
        old = [line[1:] for line in body if line[:1] != "+"]
        new = [line[1:] for line in body if line[:1] != "-"]
        if old == new:
            raise HunkError(start, "this hunk changes nothing")
        yield _Hunk(start, old, new)


def _find(lines: Sequence[str], hunk: _Hunk, number: int) -> int:
    """The index of the only line where a hunk matches. Raises: HunkError."""
    places = _places(lines, hunk.old)
    if len(places) > 1 or not hunk.old:
        raise HunkError(hunk.line, f"hunk {number} matches {len(places)} places: give it more lines of context")
    if not places:
        absent = next((line for line in hunk.old if line not in lines), None)
        why = "its lines do not follow each other" if absent is None else f"there is no line `{absent.strip()}`"
        raise HunkError(hunk.line, f"the solution has changed: hunk {number} matches nowhere, {why}")
    return places[0]


def _places(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    last = len(lines) - len(wanted)
    return [start for start in range(last + 1) if lines[start : start + len(wanted)] == wanted]


def _regions(lines: Sequence[str], operations: Sequence[tuple[str, int, int, int, int]]) -> list[tuple[int, int]]:
    """The regions of a text that hunks cover: the changed lines, and enough lines around them to be unique."""
    regions: list[tuple[int, int]] = []
    for kind, start, end, _, _ in operations:
        if kind == "equal":
            continue
        is_unique = False
        while not is_unique and (start, end) != (0, len(lines)):
            start, end = max(start - 1, 0), min(end + 1, len(lines))
            while end < len(lines) and not lines[end - 1]:  # an empty line at the end of a hunk is not context
                end += 1
            is_unique = len(_places(lines, lines[start:end])) == 1
        while regions and start <= regions[-1][1]:
            earlier = regions.pop()
            start, end = min(start, earlier[0]), max(end, earlier[1])
        regions.append((start, end))
    return regions
