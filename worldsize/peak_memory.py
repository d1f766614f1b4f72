"""Peak memory of the tensors while code runs, counted on any device as it would be on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """A counter of the bytes of live tensors: those given, and those that operations make inside `with`.

    A tensor counts until nothing refers to it, views count once, and what an autograd graph has saved counts too.
    `most_bytes` is the peak so far, in bytes.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._sizes_bytes: dict[StorageWeakRef, int] = {}
        self.most_bytes = 0
        self._note(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func.is_view:
            self._note([one for one in tree_leaves(out) if isinstance(one, torch.Tensor)])
        return out

    def _note(self, tensors: Sequence[torch.Tensor]) -> None:
        storages = [one.untyped_storage() for one in tensors]
        self._sizes_bytes |= {StorageWeakRef(one): one.nbytes() for one in storages}
        self._sizes_bytes = {one: size for one, size in self._sizes_bytes.items() if not one.expired()}
        self.most_bytes = max(self.most_bytes, sum(self._sizes_bytes.values()))
