"""The JSON of a stranger's notebook: bounded in depth and in the number of its values, without its outputs.

Imports only the standard library: large files are read in a process of their own, which needs nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from autograder.submissions.malformed import Malformed

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
    """The beginning of an error's text."""
    return str(error).strip().split("\n")[0][:200]


def _forget(content: Any) -> None:
    """Remove from a file what is not read of it: outputs, and ids, about which nbformat would print a line each."""
    cells = content.get("cells") if isinstance(content, dict) else None
    for number, cell in enumerate(cells if isinstance(cells, list) else []):
        if isinstance(cell, dict):
            cell |= {"outputs": []} if "outputs" in cell else {}
            cell |= {"id": f"cell-{number}"} if "id" in cell else {}


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
