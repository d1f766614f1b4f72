"""Autograd's graph of a loss: the leaves it depends on, what it is the mean of, what was added before a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from worldsize.audit.names import Names

_MOST_NODES = 20_000  # of a graph that is searched
_MEANS = (
    "MeanBackward",
    "MseLossBackward",
    "NllLossBackward",
    "NllLoss2DBackward",
    "BinaryCrossEntropy",
    "SmoothL1Loss",
)


def is_mean(node: Any) -> bool:
    """Whether a loss with this graph node is a mean over elements."""
    return type(node).__name__.startswith(_MEANS) and getattr(node, "_saved_reduction", 1) == 1  # 2: a sum


def num_averaged(node: Any) -> float | None:
    """How many elements a loss is the mean of, if its last operation is a mean."""
    for name in ("_saved_total_weight", "_saved_self_sym_numel", "_saved_self"):
        value = getattr(node, name, None)
        if value is not None:
            is_count = name != "_saved_self" or not isinstance(value, torch.Tensor)
            return float(value) if is_count else float(value.numel())
    return None


def unscaled(node: Any) -> tuple[Any, float | None]:
    """What a loss was before it was multiplied or divided by numbers, and the factor; no factor if it is not known."""
    factor: float | None = 1.0
    while type(node).__name__ in ("MulBackward0", "DivBackward0"):
        below = [one for one, _ in node.next_functions if one is not None]
        other = getattr(node, "_saved_other", None)
        if len(below) != 1 or (other is not None and other.numel() != 1):
            break
        number = 0.0 if other is None else float(other)  # a loss that is multiplied by 0 says as little
        if factor is None or not number:
            factor = None
        else:
            factor = factor * number if "Mul" in type(node).__name__ else factor / number
        node = below[0]
    return node, factor


def search(roots: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[Any]]:
    """The leaves that these tensors depend on, in the order in which they are found, and the nodes between."""
    leaves: list[torch.Tensor] = []
    nodes: list[Any] = []
    seen: set[Any] = set()
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    while waiting and len(nodes) < _MOST_NODES:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        nodes.append(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(leaf)
        waiting.extend(below for below, _ in reversed(node.next_functions) if below is not None)
    return leaves, nodes


def bias_below(node: Any, names: Names) -> str:
    """The name of a vector that is a parameter and was added last to what a node got, perhaps multiplied."""
    added = [below for below, _ in node.next_functions if type(below).__name__.startswith(("Add", "Addmm"))]
    for below in [below for one in added for below, _ in one.next_functions]:
        inner = below.next_functions if type(below).__name__.startswith(("Div", "Mul")) else ()
        for leaf in (getattr(one, "variable", None) for one in (below, *(one for one, _ in inner))):
            if leaf is not None and leaf.dim() == 1:
                return names.of(leaf) or "a bias"
    return ""
