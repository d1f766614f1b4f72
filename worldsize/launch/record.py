"""What a rank notes about itself while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_spans: list[tuple[str, str, float, float]] = []


@contextmanager
def span(name: str, kind: str = "compute") -> Iterator[None]:
    """Records the time that its block takes as an event of the run's timeline.

    Kinds that the drawer knows: data, forward, backward, compute, communication, update.
    """
    start_s = time.monotonic()
    try:
        yield
    finally:
        _spans.append((name, kind, start_s, time.monotonic()))


def drain() -> list[tuple[str, str, float, float]]:
    """The spans so far as (name, kind, start, end), in seconds of the machine's monotonic clock; then forgets them."""
    spans = list(_spans)
    _spans.clear()
    return spans
