"""The bytes that a rank's tensors hold, by kind: now, at the peak, and over a step.

`ws.run(..., memory=True)` records them on every rank; `worldsize.memory.meter.MemoryMeter` does so in any process.
`of_snapshot` reads torch's own record of a GPU's memory.
"""

import sys
from collections.abc import Iterable
from typing import Any

from worldsize.memory.snapshot import of_snapshot, read_snapshot
from worldsize.memory.use import KINDS, Holding, MemoryUse

__all__ = ["KINDS", "Holding", "MemoryUse", "count_as", "held", "of_snapshot", "read_snapshot"]


def held() -> dict[str, int]:
    """Return the bytes that this rank's tensors hold now, by kind.

    Raises:
        ValueError: the rank's memory is not counted.
    """
    meter = _meter()
    if meter is None:
        raise ValueError("memory is not counted here: call ws.run(..., memory=True), or enter a MemoryMeter")
    return meter.held()


def count_as(kind: str, tensors: Iterable[Any]) -> None:
    """Count these tensors as this kind of memory, such as "optimizer state" for an optimizer written by hand.

    Do nothing if memory is not counted.

    Raises:
        ValueError: the kind is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind of memory called {kind!r}; choose one of {', '.join(KINDS)}")
    if meter := _meter():
        meter.count_as(kind, tensors)


def _meter() -> Any:
    meters = sys.modules.get("worldsize.memory.meter")  # it needs torch, which a process may never import
    return meters and meters.current()
