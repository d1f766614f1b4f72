"""Host copies of tensors, which do not count as GPU memory.

CPU tensors stand in for GPU tensors, so host copies must be marked explicitly.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

_storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # address of torch's object -> storage


def note(storages: Iterable[torch.UntypedStorage]) -> None:
    """Mark storages as the host's."""
    for storage in storages:
        address = storage._cdata
        _storages[address] = weakref.ref(storage, lambda _, address=address: _storages.pop(address, None))


def holds(storage: torch.UntypedStorage) -> bool:
    """Whether a storage was marked as the host's."""
    return storage._cdata in _storages


@contextmanager
def unseen_by_gpu() -> Iterator[None]:
    """Hide the operations in the block, which makes host copies, from meters of the GPU's work and memory."""
    with _disable_current_modes():
        yield
