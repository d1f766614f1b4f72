"""The JSON of a stranger's notebook: bounded in depth and in the number of its values, without its outputs.

Imports only the standard library: large files are read in a process of their own, which needs nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from autograder.submissions import Malformed

_ID = re.compile(r"(?!cell-)[A-Za-z0-9_-]{1,64}")  # nbformat's own form, but for our own names
_WITH_IDS = 5  # the first minor version of nbformat 4 in which cells have ids
_MAX_LINE = 200
MAX_DEPTH = 40
MAX_NODES = 200_000  # values besides outputs; each may cost a hundred times its bytes. An honest file has 1000


def content_of(file: bytes) -> Any:
    """What a file holds besides outputs.

    Raises:
        Malformed: it is not JSON, nested too deep, or of too many values.
    """
    try:
        content = json.loads(file.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Malformed(
            f"The file is damaged: it is not a whole notebook ({first_line(error)}). "
            "Open it in JupyterLab, save it and submit it again."
        ) from None
    _forget(content)
    _refuse_shape(content, MAX_DEPTH, MAX_NODES)
    return content


def first_line(error: Exception) -> str:
    """The first line of an error's text, cut where it is very long."""
    line = str(error).strip().split("\n")[0]
    return line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " ..."


def _forget(content: Any) -> None:
    """Remove outputs, which are not read, and give each cell a plain id: nbformat would print a line for each other."""
    if not isinstance(content, dict):
        return
    if content.get("nbformat_minor") in range(_WITH_IDS):
        content["nbformat_minor"] = _WITH_IDS
    cells = content.get("cells")
    ids: set[str] = set()
    for number, cell in enumerate(cells if isinstance(cells, list) else []):
        if isinstance(cell, dict):
            cell |= {"outputs": []} if "outputs" in cell else {}
            cell["id"] = _plain_id(cell.get("id"), number, ids)


def _plain_id(given: Any, number: int, taken: set[str]) -> str:
    """The id of a cell, or one of our own in place of an id that is not valid or not its alone."""
    if not isinstance(given, str) or not _ID.fullmatch(given) or given in taken:
        return f"cell-{number}"
    taken.add(given)
    return given


def _refuse_shape(content: Any, max_depth: int, max_nodes: int) -> None:
    level, num_nodes = [content], 1
    for _ in range(max_depth):
        level = [child for node in level for child in _children(node)]
        num_nodes += len(level)
        if num_nodes > max_nodes:
            raise Malformed(f"The file holds more than {max_nodes} values; clear its outputs and submit again.")
        if not level:
            return
    raise Malformed(f"The file nests deeper than any notebook does ({max_depth} levels).")


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node
