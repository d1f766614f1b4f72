"""Fuzzed submissions: a valid notebook, mutated in its structure, its text or its bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

ODD_TEXT = (
    "\x00", "\ud800", "\udfff\ud800", "\ufeff", "\u202e", "\u2028", "\x1b[31m", "\r", "\r\n", "\x0c", "𝒕𝒐𝒕𝒂𝒍", "tоtal",
    "é", "e\u0301", "%%bash\nls", "%time", "!ls", "?", "def f(:", "x = " + "[" * 300, "x" * 100_000, "\t \tx = 1",
    "return 1", "yield", "await x", "nonlocal y", "'''", "raise SystemExit", "import os; os._exit(3)", "{{ 1 / 0 }}",
    "<script>alert(1)</script>", "</textarea></script>", "$\\frac", "![](attachment:a.png)", "1" + "0" * 5000, "...",
)  # fmt: skip
ODD_IDS = (
    "",
    "total",
    "check_total",
    "mean",
    "tоtal",
    "to tal",
    "../total",
    "t" * 300,
    "é",
    "\x00",
    "\ud800",
    "a.b",
    "0",
)
ODD_NUMBERS = (0, -1, 1, 3, 4, 5, 6, 99, 10**30, 1e308, -0.0, float("nan"), float("inf"), -float("inf"), True)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.sampled_from(ODD_NUMBERS), st.sampled_from(ODD_TEXT), st.sampled_from(ODD_IDS),
    st.text(max_size=12), st.text(st.characters(), max_size=4),
)  # fmt: skip
KEYS = st.sampled_from(
    ["nbgrader", "grade_id", "cell_type", "source", "cells", "metadata", "id", "outputs", "attachments", "points",
     "grade", "solution", "locked", "task", "schema_version", "tags", "worksheets", "worldsize", "", "\x00", "a"]
)  # fmt: skip
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
OUTPUTS = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {"output_type": st.sampled_from(["stream", "execute_result", "display_data", "error", "pyout", "x", 3])},
        optional={
            "text": JSON, "name": JSON, "data": JSON, "metadata": JSON, "execution_count": JSON, "traceback": JSON,
            "ename": JSON, "evalue": JSON,
        },
    ),
)  # fmt: skip
ATTACHMENTS = st.dictionaries(
    st.sampled_from(["a.png", "../../a.png", "", "a<b>.svg", "\x00", "a" * 300]),
    st.dictionaries(
        st.sampled_from(["image/png", "image/svg+xml", "text/html", "application/json", "x", ""]),
        st.sampled_from(["aGVsbG8=", "not base64 é", "", "<svg onload=alert(1)>", ["aGV", "sbG8="], {"a": 1}, None, 3]),
        max_size=2,
    )
    | JSON,
    max_size=2,
)

Draw = Callable[[st.SearchStrategy], Any]


@st.composite
def submissions(draw: Draw, whole: dict[str, Any]) -> bytes:
    """The bytes of a file that somebody might hand in, made from a whole one, given as JSON, by a few mutations."""
    content = deepcopy(whole)
    for mutate in draw(st.lists(st.sampled_from(STRUCTURAL), max_size=4)):
        mutate(draw, content)
    text = json.dumps(content, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    if draw(st.integers(0, 14)) == 14:
        text = repeat_keys(draw, text)
    written = text.encode("utf-8", "surrogatepass")
    return draw(st.sampled_from(BYTES))(draw, written) if draw(st.integers(0, 9)) == 9 else written


def cells_of(content: dict[str, Any]) -> list[Any]:
    cells = content.get("cells")
    return cells if isinstance(cells, list) else []


def some_cell(draw: Draw, content: dict[str, Any]) -> dict[str, Any]:
    found = [cell for cell in cells_of(content) if isinstance(cell, dict)]
    return draw(st.sampled_from(found)) if found else {}


def drop(draw: Draw, content: dict[str, Any]) -> None:
    cells = cells_of(content)
    for _ in range(draw(st.integers(1, 3))):
        if cells:
            del cells[draw(st.integers(0, len(cells) - 1))]


def duplicate(draw: Draw, content: dict[str, Any]) -> None:
    cells = cells_of(content)
    cell = some_cell(draw, content)
    cells.extend(deepcopy(cell) for _ in range(draw(st.sampled_from([1, 1, 1, 1, 1, 2, 2, 50, 2500]))))


def reorder(draw: Draw, content: dict[str, Any]) -> None:
    cells = cells_of(content)
    cells[:] = draw(st.permutations(cells)) if len(cells) < 20 else cells[::-1]


def add(draw: Draw, content: dict[str, Any]) -> None:
    cell: dict[str, Any] = {
        "cell_type": draw(st.sampled_from(["code", "markdown", "raw", "heading", "x", None])),
        "source": draw(source()),
        "metadata": draw(st.just({}) | JSON),
    }
    if draw(st.booleans()):
        cell["id"] = draw(SCALARS)
    if draw(st.booleans()):
        cell |= {"outputs": [], "execution_count": draw(st.none() | SCALARS)}
    if draw(st.booleans()):
        cell["attachments"] = draw(ATTACHMENTS | JSON)
    cells_of(content).insert(draw(st.integers(0, 5)), cell)


@st.composite
def source(draw: Draw) -> Any:
    """A cell's source: text, or a list of lines, or neither."""
    text = "".join(
        draw(st.lists(st.sampled_from([*ODD_TEXT, "\n", "def total(tensor):\n    return tensor\n"]), max_size=4))
    )
    return draw(
        st.sampled_from([text, text.splitlines(keepends=True), [text], [[text]], None, 3, {text: text}, [None]])
    )


def rewrite(draw: Draw, content: dict[str, Any]) -> None:
    some_cell(draw, content)["source"] = draw(source())


def spoil_source(draw: Draw, content: dict[str, Any]) -> None:
    """Insert odd text in the middle of a cell's source."""
    cell = some_cell(draw, content)
    text = "".join(map(str, cell["source"])) if isinstance(cell.get("source"), list) else str(cell.get("source"))
    at = draw(st.integers(0, max(len(text), 1)))
    cell["source"] = text[:at] + draw(st.sampled_from(ODD_TEXT)) + text[at:]


def swap_type(draw: Draw, content: dict[str, Any]) -> None:
    cell = some_cell(draw, content)
    cell["cell_type"] = draw(st.sampled_from(["code", "markdown", "raw", "heading", "", None, 3]))
    if draw(st.booleans()):
        cell.pop("outputs", None)
        cell.pop("execution_count", None)


def mark(draw: Draw, content: dict[str, Any]) -> None:
    """Grading metadata of another kind."""
    cell = some_cell(draw, content)
    metadata = cell.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        return
    if draw(st.booleans()):
        metadata["nbgrader"] = draw(JSON)
    elif isinstance(marks := metadata.setdefault("nbgrader", {}), dict):
        key = draw(st.sampled_from(["grade_id", "points", "grade", "solution", "locked", "task", "schema_version"]))
        marks[key] = draw(st.sampled_from(ODD_IDS) if key == "grade_id" else JSON)


def rename(draw: Draw, content: dict[str, Any]) -> None:
    some_cell(draw, content)["id"] = draw(SCALARS)


def output(draw: Draw, content: dict[str, Any]) -> None:
    some_cell(draw, content)["outputs"] = draw(st.lists(OUTPUTS, max_size=3) | JSON)


def attach(draw: Draw, content: dict[str, Any]) -> None:
    some_cell(draw, content)["attachments"] = draw(ATTACHMENTS | JSON)


def change_format(draw: Draw, content: dict[str, Any]) -> None:
    content["nbformat"] = draw(st.sampled_from([4, 4, 4, 3, 2, 5, 0, "4", None, 4.0, 10**30]))
    content["nbformat_minor"] = draw(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 99, -1, "5", None, 5.5]))
    if content["nbformat"] == 3 and draw(st.booleans()):
        cells = content.pop("cells", [])
        for cell in cells if isinstance(cells, list) else []:
            if isinstance(cell, dict) and cell.get("cell_type") == "code":
                cell |= {"input": cell.pop("source", ""), "language": "python"}
        content["worksheets"] = [{"cells": cells, "metadata": {}}]


def spoil(draw: Draw, content: dict[str, Any]) -> None:
    """Something else at any place of the file."""
    place: Any = content
    for _ in range(draw(st.integers(0, 6))):
        inner = list(place.values()) if isinstance(place, dict) else place
        inner = [child for child in inner if isinstance(child, dict | list) and child]
        place = draw(st.sampled_from(inner)) if inner else place
    if not place:
        return
    key = draw(st.sampled_from(sorted(place, key=str) if isinstance(place, dict) else range(len(place))))
    if draw(st.booleans()):
        place[key] = draw(JSON)
    else:
        del place[key]


def nest(draw: Draw, content: dict[str, Any]) -> None:
    depth = draw(st.sampled_from([5, 30, 38, 45, 500]))
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    target = draw(st.sampled_from([content, some_cell(draw, content)]))
    target[draw(st.sampled_from(["metadata", "x", "outputs", "attachments"]))] = value


STRUCTURAL = [
    drop, duplicate, reorder, add, add, rewrite, rewrite, spoil_source, spoil_source, swap_type, mark, mark, rename,
    output, attach, change_format, spoil, spoil, nest,
]  # fmt: skip


def repeat_keys(draw: Draw, text: str) -> str:
    """A key a second time, with another value."""
    key = draw(st.sampled_from(["cells", "metadata", "source", "grade_id", "nbformat", "id", "cell_type"]))
    again = json.dumps(draw(JSON))
    return text.replace(f'"{key}":', f'"{key}": {again}, "{key}":', draw(st.integers(1, 3)))


def truncate(draw: Draw, whole: bytes) -> bytes:
    return whole[: draw(st.integers(0, len(whole)))]


def flip(draw: Draw, whole: bytes) -> bytes:
    spoilt, rng = bytearray(whole), random.Random(draw(st.integers(0, 1 << 32)))
    for _ in range(draw(st.sampled_from([1, 1, 2, 50])) if spoilt else 0):
        spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def insert(draw: Draw, whole: bytes) -> bytes:
    at = draw(st.integers(0, len(whole)))
    odd = draw(
        st.sampled_from([b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b",", b"}", b'"', b"NaN", b"\\u0000"])
    )
    return whole[:at] + odd + whole[at:]


def recode(draw: Draw, whole: bytes) -> bytes:
    coding = draw(st.sampled_from(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7", "cp037"]))
    return whole.decode("utf-8", "surrogatepass").encode(coding, "replace")


def splice(draw: Draw, whole: bytes) -> bytes:
    """The file twice, or with something before or behind."""
    odd = draw(st.sampled_from([whole, b"\n", b"\x00" * 100, b"<<<<<<< HEAD\n", b"// ", b"[]"]))
    return draw(st.sampled_from([odd + whole, whole + odd]))


BYTES = [truncate, flip, insert, recode, splice]
