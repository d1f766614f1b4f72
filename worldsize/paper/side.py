"""Messages with data between the processes of a run on paper: shapes and votes on which pipeline stages agree."""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import _disable_current_modes

_TIMEOUT = timedelta(minutes=10)


class NeedsRanks(Exception):
    """A rank must receive data from a rank that is not recorded."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"ranks {list(ranks)} exchange data, and must be recorded together")
        self.ranks = tuple(ranks)


class Side:
    """A real group of the recorded ranks; it must be made before the process leaves its default group."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._places = {rank: place for place, rank in enumerate(ranks)}
        self._under_way: list[Any] = []  # pending sends, which are done when they are received
        self._group: Any = None
        if len(ranks) > 1:
            store = dist.PrefixStore("paper", distributed_c10d._get_default_store())
            self._group = dist.ProcessGroupGloo(store, dist.get_rank(), len(ranks), _TIMEOUT)

    def carry(self, op: str, tensors: Sequence[torch.Tensor], peer: int | None, ranks: Sequence[int]) -> None:
        """Send or receive tensors that have data; ignore fake ones.

        Raises:
            NeedsRanks: the peer is not recorded.
        """
        if op not in ("send", "recv") or any(isinstance(one, FakeTensor) for one in tensors):
            return
        if self._group is None or peer not in self._places:
            raise NeedsRanks(ranks)
        with _disable_current_modes():
            for one in tensors:
                if op == "send":
                    copy = one.clone()
                    self._under_way.append((self._group.send([copy], self._places[peer], 0), copy))
                else:
                    self._group.recv([one], self._places[peer], 0).wait()
