"""The emulated cluster: real ranks and real data, with every message priced in virtual time."""

import sys
import time
from typing import Any

from worldsize.emulate.conductor import Conductor, Forbidden
from worldsize.emulate.simulator import replay

__all__ = ["Conductor", "Forbidden", "elapsed", "replay", "spend"]

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
        ValueError: the duration is negative.
    """
    if duration_s < 0:
        raise ValueError(f"duration_s is {duration_s}; it must be 0 or more")
    client = _client()
    if client is None:
        time.sleep(duration_s)
    else:
        client.spend(duration_s)


def _client() -> Any:
    backend = sys.modules.get("worldsize.emulate.backend")  # it needs torch, and only ranks import it
    return None if backend is None else backend.client()
