"""The memory that a rank holds at each place of its program, used to align runs of different depths."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from worldsize.memory.ledger import line_of_program
from worldsize.memory.meter import MemoryMeter
from worldsize.paper.record import MemoryLevel, OperatorLocation


class LevelMeter(MemoryMeter):
    """A meter that also records the place of each operation in the program; `phase` returns the phase of training."""

    def __init__(self, phase: Callable[[], str], **options: Any) -> None:
        super().__init__(**options)
        self._phase = phase
        self._places: dict[OperatorLocation, int] = {}
        self._of_operations: list[int] = []  # which of the places

    def take_operation(self, func: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Record an operation that has run."""
        name, (filename, number) = func.overloadpacket.__name__, line_of_program()
        module = re.sub(r"\d+", "", self._modules.current)  # without numbers, all layers have the same name
        size_bytes = sum(one.numel() * one.element_size() for one in outputs)
        place = OperatorLocation(name, self._phase(), module, f"{filename}:{number}", size_bytes)
        self._of_operations.append(self._places.setdefault(place, len(self._places)))
        super().take_operation(func, inputs, outputs)

    def levels(self) -> tuple[list[OperatorLocation], list[MemoryLevel]]:
        """The places, and in the program's order what was held where that changed."""
        found = [
            MemoryLevel(self._of_operations[operation - 1], sizes)
            for operation, sizes in self._ledger.levels()
            if operation
        ]
        return list(self._places), found
