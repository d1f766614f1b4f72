"""Random values for hidden checks, drawn from the generator that a check gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from worldsize.hardware import H100, Cluster, Link

if TYPE_CHECKING:
    import torch

_T = TypeVar("_T")
_SOURCE = "drawn for one check, 2026"


def whole(rng: torch.Generator, low: int, high: int) -> int:
    """Draw a whole number from low to high, both included."""
    import torch

    return int(torch.randint(low, high + 1, (), generator=rng))


def between(rng: torch.Generator, low: float, high: float) -> float:
    """Draw a number from low to high."""
    import torch

    return low + (high - low) * float(torch.rand((), generator=rng, dtype=torch.float64))


def shuffled(rng: torch.Generator, items: Sequence[_T]) -> list[_T]:
    """Shuffle the items into a drawn order."""
    import torch

    return [items[place] for place in torch.randperm(len(items), generator=rng).tolist()]


def positive(rng: torch.Generator, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Draw values from 0.5 to 1.5, by default in float32: no sum of them is near zero, so a wrong sign shows."""
    import torch

    return torch.rand(shape, generator=rng, dtype=torch.float64).add(0.5).to(dtype or torch.float32)


def drawn_cluster(rng: torch.Generator, num_gpus: int, num_nodes: int = 1) -> Cluster:
    """Draw a cluster: links of random latency and rate, far slower between nodes, and a NIC for each GPU."""
    latency_s, bytes_per_s = 1e-6 * whole(rng, 1, 4), 1e9 * whole(rng, 100, 400)
    return Cluster(
        name="drawn",
        gpu=H100,
        gpus_per_node=num_gpus,
        intra=Link("drawn", latency_s, bytes_per_s, _SOURCE, kind="nvlink"),
        num_nodes=num_nodes,
        inter=Link("drawn slow", 3 * latency_s, bytes_per_s / whole(rng, 15, 25), _SOURCE),
        nics_per_node=num_gpus,
    )
