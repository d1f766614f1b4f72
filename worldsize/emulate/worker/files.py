"""Files and host copies of an emulated rank: the virtual time of `torch.save`, `torch.load` and copies of tensors.

A rank's tensors stand in for GPU tensors, except copies made for its host. A file is on its node's own storage if its
path is in the temporary folder and not in the program's folder, otherwise on the shared storage. A transfer that the
cluster does not describe takes no time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from worldsize.emulate.worker.client import Client
from worldsize.memory import host

CHECKPOINT, OFFLOAD = "checkpoint", "offload"  # kinds of work


def install(client: Client) -> None:
    """Let `torch.save` and `torch.load` take virtual time in this process from now on."""
    torch.save = torch.serialization.save = _timed_save(client, torch.save)
    torch.load = torch.serialization.load = _timed_load(client, torch.load)


def copy(client: Client | None, tensor: torch.Tensor, transfer: str, device: torch.device | str) -> torch.Tensor:
    """Copy a tensor to the memory of its rank's host, or from there to the GPU."""
    with client.unmetered() if client else contextlib.nullcontext():
        if transfer == "to device":
            copied = tensor.to(device, copy=True)
        else:
            with host.unseen_by_gpu():
                copied = tensor.to("cpu", copy=True)
            note_on_host(copied)
    if client is not None:
        client.transfer(transfer, _size_bytes(_storages(copied)), transfer, OFFLOAD)
    return copied


def bytes_on_gpu(held: Any) -> int:
    """Return the bytes of an object's tensors that are not copies for the host, counting each storage once."""
    return _size_bytes(one for one in _storages(held) if not host.holds(one))


def note_on_host(held: Any) -> None:
    """Mark all tensors of this object as copies for the host."""
    host.note(_storages(held))


def transfer_if_described(client: Client, transfer: str, size_bytes: int, name: str) -> None:
    """Let the current lane wait for a checkpoint's transfer, if the cluster describes it."""
    if transfer not in client.missing:
        client.transfer(transfer, size_bytes, name, CHECKPOINT)


def transfer_of_file(client: Client, path: str | os.PathLike[str], direction: str) -> str:
    """Return the name of the transfer that reads or writes a file.

    The program's folder is always shared: during grading it may be inside the temporary folder, or be that folder.
    """
    file, temporary, program = os.path.realpath(path), os.path.realpath(tempfile.gettempdir()), client.folder
    is_program = not os.path.isabs(path) or (_is_in(file, program) and not _is_in(temporary, program))
    return f"{direction} local" if _is_in(file, temporary) and not is_program else direction


def _is_in(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def _timed_save(client: Client, before: Any) -> Any:
    @wraps(before)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        start = _position(f)
        with _described(client, "write"):
            before(obj, f, *args, **kwargs)
        if not _is_for_checkpoint():
            with contextlib.suppress(Exception):  # on an error, the transfer takes no time
                if copied_bytes := bytes_on_gpu(obj):
                    transfer_if_described(client, "to host", copied_bytes, "torch.save")
                if (path := path_of(f)) is not None:
                    end = _position(f)
                    size_bytes = os.path.getsize(path) if start is None or end is None else end - start
                    transfer_if_described(client, transfer_of_file(client, path, "write"), size_bytes, "torch.save")

    return save


def _timed_load(client: Client, before: Any) -> Any:
    @wraps(before)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        with _described(client, "read"):
            loaded = before(f, *args, **kwargs)
        if not _is_for_checkpoint():
            with contextlib.suppress(Exception):
                if (path := path_of(f)) is not None:
                    transfer_if_described(
                        client, transfer_of_file(client, path, "read"), os.path.getsize(path), "torch.load"
                    )
                if copied_bytes := bytes_on_gpu(loaded):
                    transfer_if_described(client, "to device", copied_bytes, "torch.load")
        return loaded

    return load


def _described(client: Client, transfer: str) -> contextlib.AbstractContextManager[None]:
    """Return a context that leaves work unmetered if the cluster describes the transfer that replaces it."""
    return contextlib.nullcontext() if transfer in client.missing else client.unmetered()


def _is_for_checkpoint() -> bool:
    """Whether torch's checkpoints call: their reader and writer account for whole files, not only for tensors."""
    return str(sys._getframe(2).f_globals.get("__name__")).startswith("torch.distributed.checkpoint")


def _position(f: Any) -> int | None:
    """Return the position in an open file; None for a path or a file without positions."""
    try:
        return f.tell()
    except (AttributeError, OSError):
        return None


def path_of(f: Any) -> str | None:
    """Return the path of a file, given as a path or open; None for a file in memory."""
    name = f if isinstance(f, str | os.PathLike) else getattr(f, "name", None)
    return os.fspath(name) if isinstance(name, str | os.PathLike) else None


def _storages(held: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(held):
        if isinstance(leaf, torch.nn.Module):
            yield from _storages([*leaf.parameters(), *leaf.buffers()])
        elif isinstance(leaf, torch.Tensor) and is_traceable_wrapper_subclass(leaf):  # a DTensor's shard
            yield from _storages([getattr(leaf, name) for name in leaf.__tensor_flatten__()[0]])
        elif isinstance(leaf, torch.Tensor):
            yield leaf.untyped_storage()


def _size_bytes(storages: Iterable[torch.UntypedStorage]) -> int:
    return sum({one._cdata: one.nbytes() for one in storages}.values())
