"""What a rank notes about itself while it runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_MAX_SPANS = 50_000  # the last ones are kept; all of them travel in one header
_spans: deque[tuple[str, str, float, float]] = deque(maxlen=_MAX_SPANS)


@contextmanager
def span(name: str, kind: str = "compute") -> Iterator[None]:
    """Records the time that its block takes as an event of the run's timeline.

    Kinds that the drawer knows: data, forward, backward, compute, communication, update.
    """
    start_s = time.monotonic()
    try:
        yield
    finally:
        _spans.append((name[:80], kind[:80], start_s, time.monotonic()))


def drain() -> list[tuple[str, str, float, float]]:
    """The spans so far as (name, kind, start, end), in seconds of the machine's monotonic clock; then forgets them."""
    spans = list(_spans)
    _spans.clear()
    return spans
