"""An upper bound on a record's virtual time, updated as the record grows: far cheaper than a replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from worldsize.emulate.protocol.record import Operation, Step
from worldsize.hardware import TRANSFERS


class Bound:
    """The seconds that a record's work and collectives would take one after the other.

    No replay takes longer, also after more has been recorded, because work and collectives do not slow each other down.
    The bound is infinite if the record has messages or transfers, which do, or operations that fail.
    """

    def __init__(self, price_s: Callable[[Operation], float]) -> None:
        self._price_s = price_s
        self._total_s = 0.0
        self._num_operations = 0
        self._num_steps: list[int] = []

    def of(self, steps: Sequence[Sequence[Step]], operations: Sequence[Operation]) -> float:
        """Return the bound for this record, which must extend the record of the last call."""
        self._num_steps = self._num_steps or [0] * len(steps)
        for rank, of_rank in enumerate(steps):
            new = of_rank[self._num_steps[rank] :]
            self._num_steps[rank] = len(of_rank)
            self._total_s += sum(math.inf if one.kind in TRANSFERS else one.duration_s for one in new)
        for one in operations[self._num_operations :]:
            shares = one.op == "send" or one.failed_s is not None
            self._total_s += math.inf if shares else self._price_s(one)
        self._num_operations = len(operations)
        return self._total_s
