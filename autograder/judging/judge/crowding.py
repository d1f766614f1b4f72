"""The slowdown of code because other work wants the same cores."""

from __future__ import annotations

import os

from worldsize.cores import num_cores

MOST = 4.0  # the most that a short limit grows by


def crowding() -> float:
    """Return how many times longer code takes now than on an idle machine: runnable tasks per core, 1 to `MOST`."""
    return min(MOST, max(1.0, os.getloadavg()[0] / num_cores()))
