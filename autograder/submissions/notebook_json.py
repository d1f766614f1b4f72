"""Reading the JSON of an untrusted notebook without its outputs, with limits on depth and number of values.

Imports only the standard library, so that the separate process that reads large files starts fast.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from autograder.submissions import Malformed

_ID = re.compile(r"(?!cell-)[A-Za-z0-9_-]{1,64}")  # nbformat's pattern, without the prefix of our own ids
_WITH_IDS = 5  # the first minor version of nbformat 4 in which cells have ids
_MAX_LINE = 200
MAX_DEPTH = 40
MAX_NODES = 200_000  # values outside outputs; each may need a hundred times its bytes. A normal file has 1000


def content_of(file: bytes) -> Any:
    """Read the content of a notebook file without outputs.

    Raises:
        Malformed: it is not JSON, nested too deeply, or has too many values.
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
    """The first line of an error's text, cut if it is very long."""
    line = str(error).strip().split("\n")[0]
    return line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " ..."


def _forget(content: Any) -> None:
    """Remove outputs and give each cell a valid, unique id, because nbformat prints a line for each other id."""
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
    """The id of a cell, or a new one if its id is invalid or already taken."""
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
    raise Malformed(f"The file is nested deeper than any notebook (over {max_depth} levels).")


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node
