"""Events and spans of a rank, as they come over its socket."""

from __future__ import annotations

import math
from typing import Any

from worldsize.event import COMMUNICATION, Event


def read_events(rank: int, rows: Any, origin_s: float) -> list[Event]:
    """The events that a rank drained, in seconds since `origin_s` of the monotonic clock.

    Raises:
        ValueError: the rows are not events; a rank may send anything.
    """
    try:
        return [_event(rank, origin_s, *row) for row in rows]
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not an event: {error}") from None


def _event(
    rank: int,
    origin_s: float,
    stream: Any,
    kind: Any,
    name: Any,
    start_s: Any,
    end_s: Any,
    size_bytes: Any = 0,
    peers: Any = (),
    group: Any = "",
    sequence: Any = 0,
) -> Event:
    start_s, end_s, size_bytes = float(start_s) - origin_s, float(end_s) - origin_s, int(size_bytes)
    if not (math.isfinite(start_s) and start_s <= end_s < math.inf and size_bytes >= 0):
        raise ValueError(f"an event from {start_s} s to {end_s} s of {size_bytes} bytes")
    # the bytes that a collective sends cannot be seen from outside the backend
    sent_bytes = size_bytes if (kind, name) == (COMMUNICATION, "send") else 0
    words = str(stream)[:80], str(kind)[:80], str(name)[:80]
    place = tuple(int(peer) for peer in peers), str(group)[:80], int(sequence)
    return Event(rank, *words, start_s, end_s, size_bytes, sent_bytes, *place)
