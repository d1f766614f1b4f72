"""Tensors of the host: copies that a program makes for it do not count as memory of the GPU.

On the CPU every tensor stands for a GPU's, so that a copy must be noted as the host's.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

_storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # by the address of torch's own object


def note(storages: Iterable[torch.UntypedStorage]) -> None:
    """Note that these storages are the host's."""
    for storage in storages:
        address = storage._cdata
        _storages[address] = weakref.ref(storage, lambda _, address=address: _storages.pop(address, None))


def holds(storage: torch.UntypedStorage) -> bool:
    """True for a storage that was noted as the host's."""
    return storage._cdata in _storages


@contextmanager
def unseen_by_gpu() -> Iterator[None]:
    """Make the host's copies inside: no meter of the GPU's work or memory sees what is done there."""
    with _disable_current_modes():
        yield
