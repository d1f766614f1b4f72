"""How much longer code takes because other work wants the same cores."""

from __future__ import annotations

import os

MOST = 4.0  # the most that a short limit grows by


def crowding() -> float:
    """How many times as long as on an idle machine code takes now: what wants to run for each core, 1 to `MOST`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, max(1.0, os.getloadavg()[0] / cores))
