"""The emulated cluster: real ranks and real data, with every message priced in virtual time."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from worldsize.emulate.conductor import Conductor, Forbidden
from worldsize.emulate.simulator import replay

__all__ = ["Conductor", "Forbidden", "Lane", "elapsed", "lane", "replay", "spend"]

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
    backend = sys.modules.get("worldsize.emulate.backend")  # it needs torch, and only ranks import it
    return None if backend is None else backend.client()
