"""The emulated cluster: real ranks and real data, with every message priced in virtual time."""

from __future__ import annotations

import math
import operator
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from worldsize.emulate.launcher.conductor import Conductor
from worldsize.emulate.launcher.simulator import replay
from worldsize.emulate.protocol.messages import MAX_TRANSFER_BYTES
from worldsize.emulate.protocol.operations import Forbidden
from worldsize.hardware import TRANSFERS

if TYPE_CHECKING:
    import torch

__all__ = [
    "Conductor",
    "Forbidden",
    "Lane",
    "elapsed",
    "lane",
    "replay",
    "spend",
    "to_device",
    "to_host",
    "transfer",
]

_KINDS = {"to": "offload", "read": "data", "write": "checkpoint"}  # kind of a transfer, by the first word of its name
_START_S = time.monotonic()


def elapsed() -> float:
    """Return this rank's time in seconds: virtual on an emulated cluster, otherwise real; only differences count.

    On an emulated cluster the call returns once every other rank waits too or has ended, which takes a little real
    time.
    """
    client = _client()
    return time.monotonic() - _START_S if client is None else client.elapsed_s()


def spend(duration_s: float) -> None:
    """Spend `duration_s` seconds of virtual time on work; outside an emulated cluster, sleep as long.

    Raises:
        ValueError: the duration is negative or not finite.
    """
    duration_s = float(duration_s)  # accepts NumPy's and torch's numbers too
    if not 0 <= duration_s < math.inf:
        raise ValueError(f"duration_s is {duration_s}; it must be a number of seconds, 0 or more")
    client = _client()
    if client is None:
        time.sleep(duration_s)
    else:
        client.spend(duration_s)


def transfer(size_bytes: float, transfer: str) -> None:
    """Transfer `size_bytes` in virtual time and wait until they have arrived.

    `transfer` is "to host" or "to device" between the rank's GPU and its host's memory, "read" or "write" between that
    memory and the shared storage, or "read local" or "write local" between it and the node's own storage. A transfer
    takes the latency of its route and shares the bandwidth of every link and store on it; inside `lane` the rank's
    other work goes on meanwhile. On the timeline its kind is "offload", "data" for reads and "checkpoint" for writes,
    and its name is that of the transfer, unless it is inside a `worldsize.span`. Outside an emulated cluster nothing
    happens: the program's own copies and files take their real time.

    Raises:
        ValueError: the transfer is unknown, the cluster lacks the hardware for it, or the size is not a number of
            bytes.
    """
    size_bytes = _whole(size_bytes)
    if transfer not in TRANSFERS:
        raise ValueError(f"transfer is {transfer!r}; it must be one of {', '.join(TRANSFERS)}")
    if not 0 <= size_bytes <= MAX_TRANSFER_BYTES:
        raise ValueError(f"size_bytes is {size_bytes}; it must be 0 to {MAX_TRANSFER_BYTES} bytes")
    client = _client()
    if client is not None:
        client.transfer(transfer, size_bytes, transfer, _KINDS[transfer.split()[0]])


def _whole(size_bytes: float) -> int:
    """Convert a size that may be a float, such as 2e9, to an integer."""
    if isinstance(size_bytes, float) and size_bytes.is_integer():
        return int(size_bytes)
    try:
        return operator.index(size_bytes)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise ValueError(f"size_bytes is {size_bytes!r}; it must be a whole number of bytes, such as 2 * GB") from None


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the memory of its rank's host, as for an offload; the copy takes virtual time.

    On an emulated cluster a rank's CPU tensors stand in for GPU tensors, so `tensor.cpu()` would do nothing. On a GPU
    this copies to the CPU. The copy does not count as GPU memory.

    Raises:
        ValueError: the emulated cluster has no host.
    """
    return _copied(tensor, "to host", "cpu")


def to_device(tensor: torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """Copy a tensor from the host to this rank's device; on an emulated cluster it remains a CPU tensor.

    Raises:
        ValueError: the emulated cluster has no host.
    """
    return _copied(tensor, "to device", device)


def _copied(tensor: torch.Tensor, transfer: str, device: torch.device | str) -> torch.Tensor:
    from worldsize.emulate.worker import files  # needs torch

    return files.copy(_client(), tensor, transfer, device)


class Lane:
    """Work that a rank does concurrently with its other work."""

    _mark = 0

    def join(self) -> None:
        """Wait in virtual time until this work is done; call it where its result is used."""
        client = _client()
        if client is not None and self._mark:
            client.join(self._mark)


@contextmanager
def lane(name: str) -> Iterator[Lane]:
    """Overlap the block's work with the rank's other work in virtual time, as a thread or a copy engine would.

    The block starts when the rank reaches it and the lane's earlier blocks are done. Code after the block does not wait
    for it until it calls `join` of the yielded `Lane`. Outside an emulated cluster the block runs like any other.

    Raises:
        ValueError: the name is empty.
    """
    client, work = _client(), Lane()
    if client is None:
        yield work
        return
    if not name:
        raise ValueError("a lane needs a name, under which the timeline shows its work")
    with client.on_lane(name, client.mark()):
        try:
            yield work
        finally:
            work._mark = client.mark()


def _client() -> Any:
    backend = sys.modules.get("worldsize.emulate.worker.backend")  # it needs torch, which only ranks import
    return None if backend is None else backend.client()
