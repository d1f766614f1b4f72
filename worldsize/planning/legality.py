"""Checks of whether a layout is legal, with the first reason if it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worldsize.hardware import Cluster
from worldsize.models.shapes import Shape
from worldsize.planning.layout import stage_layers


def meshes(num_ranks: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield every (tp, cp, dp, pp) whose product is this number."""
    for tp in divisors(num_ranks):
        for cp in divisors(num_ranks // tp):
            for dp in divisors(num_ranks // (tp * cp)):
                yield tp, cp, dp, num_ranks // (tp * cp * dp)


def divisors(number: int) -> list[int]:
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def why_not(
    mesh: Sequence[int], model: Shape, cluster: Cluster, global_batch: int, length: int, is_tp_free: bool = False
) -> str:
    """Return the first reason why a (tp, cp, dp, pp) is not legal, or "". `is_tp_free`: tp may span nodes."""
    tp, cp, dp, pp = mesh
    if not is_tp_free and cluster.gpus_per_node % tp:
        return f"tp does not divide the {cluster.gpus_per_node} GPUs of a node"
    if model.num_heads % tp or model.num_kv_heads % tp:
        return f"tp does not divide {model.num_heads} heads and {model.num_kv_heads} key/value heads"
    if model.hidden_width % tp or model.width % tp:
        return f"tp does not divide a width of {model.width} and a hidden width of {model.hidden_width}"
    if not stage_layers(model.num_layers, pp):
        return f"pp does not divide {model.num_layers} layers, nor {model.num_layers + 2} with embedding and head"
    if global_batch % dp:
        return f"dp does not divide a batch of {global_batch} sequences"
    if length % (2 * cp if cp > 1 else 1) or length // cp % tp:
        # each rank gets a chunk from the front and its mirror from the back, because later tokens attend to more
        return f"{length} tokens cannot be split into 2 cp pieces, and a rank's share of them into tp"
    return ""
