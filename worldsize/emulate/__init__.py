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

_KINDS = {"to": "offload", "read": "data", "write": "checkpoint"}  # of transfers, by their first words
_START_S = time.monotonic()


def elapsed() -> float:
    """The time of this rank in seconds: virtual on an emulated cluster, otherwise by the clock; only differences count.

    On an emulated cluster it waits until every other rank waits too or has ended, which takes a moment of real time.
    """
    client = _client()
    return time.monotonic() - _START_S if client is None else client.elapsed_s()


def spend(duration_s: float) -> None:
    """Let this rank work for `duration_s` seconds of virtual time; off an emulated cluster, sleep as long.

    Raises:
        ValueError: the duration is negative or not finite.
    """
    duration_s = float(duration_s)  # numpy's and torch's numbers too
    if not 0 <= duration_s < math.inf:
        raise ValueError(f"duration_s is {duration_s}; it must be a number of seconds, 0 or more")
    client = _client()
    if client is None:
        time.sleep(duration_s)
    else:
        client.spend(duration_s)


def transfer(size_bytes: float, transfer: str) -> None:
    """Let this rank wait in virtual time until so many bytes have gone where `transfer` says.

    "to host" and "to device" are between the rank's GPU and its host's memory; "read" and "write" between that memory
    and the storage that all nodes share; "read local" and "write local" between it and the node's own. A transfer takes
    a latency, and shares every link and store on its way with what else goes over it; inside `lane` the rank's other
    work goes on meanwhile. On the timeline its kind is "offload", "data" for reads and "checkpoint" for writes, and its
    name that of the transfer, unless it is inside a `worldsize.span`. Off an emulated cluster nothing happens: the
    program's own copies and files take their own time there.

    Raises:
        ValueError: there is no such transfer, the cluster does not have what it needs, or the size is not a number of
            bytes.
    """
    size_bytes = _whole(size_bytes)
    if transfer not in TRANSFERS:
        raise ValueError(f"a transfer is {transfer!r}; it must be one of {', '.join(TRANSFERS)}")
    if not 0 <= size_bytes <= MAX_TRANSFER_BYTES:
        raise ValueError(f"size_bytes is {size_bytes}; it must be 0 to {MAX_TRANSFER_BYTES} bytes")
    client = _client()
    if client is not None:
        client.transfer(transfer, size_bytes, transfer, _KINDS[transfer.split()[0]])


def _whole(size_bytes: float) -> int:
    """A size that may be a float, such as 2e9."""
    if isinstance(size_bytes, float) and size_bytes.is_integer():
        return int(size_bytes)
    try:
        return operator.index(size_bytes)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise ValueError(f"size_bytes is {size_bytes!r}; it must be a whole number of bytes, such as 2 * GB") from None


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor in the memory of its rank's host, as for an offload; in virtual time the copy takes its time.

    On an emulated cluster the tensors of a rank, which are the CPU's, stand for a GPU's: `tensor.cpu()` would do
    nothing there. On a GPU this is a copy to the CPU. The copy does not count as memory of the GPU.

    Raises:
        ValueError: the emulated cluster has no host.
    """
    return _copied(tensor, "to host", "cpu")


def to_device(tensor: torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """A copy of a tensor of the host on this rank's device; on an emulated cluster it stays the CPU's.

    Raises:
        ValueError: the emulated cluster has no host.
    """
    return _copied(tensor, "to device", device)


def _copied(tensor: torch.Tensor, transfer: str, device: torch.device | str) -> torch.Tensor:
    from worldsize.emulate.worker import files  # needs torch

    return files.copy(_client(), tensor, transfer, device)


class Lane:
    """Work that a rank does beside its other work."""

    _mark = 0

    def join(self) -> None:
        """Wait in virtual time until this work is done; call it where its result is used."""
        client = _client()
        if client is not None and self._mark:
            client.join(self._mark)


@contextmanager
def lane(name: str) -> Iterator[Lane]:
    """Let the block's work go on beside the rank's other work in virtual time, as in a thread or on a copy engine.

    The block starts when the rank comes to it and the lane's earlier blocks are done. What follows it does not wait for
    it until `join` of what this gives is called. Off an emulated cluster the block runs like any other.

    Raises:
        ValueError: the name is empty.
    """
    client, work = _client(), Lane()
    if client is None:
        yield work
        return
    if not name:
        raise ValueError("a lane needs a name, which its work has on the timeline")
    with client.on_lane(name, client.mark()):
        try:
            yield work
        finally:
            work._mark = client.mark()


def _client() -> Any:
    backend = sys.modules.get("worldsize.emulate.worker.backend")  # it needs torch, and only ranks import it
    return None if backend is None else backend.client()
