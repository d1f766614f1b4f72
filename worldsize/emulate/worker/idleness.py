"""Detection of idle ranks: threads may wait unreported, such as in C++ or in `sleep`."""

from __future__ import annotations

import glob
import time
from pathlib import Path

from worldsize.emulate.worker import torch_internals

_BUSY_SHARE = 0.1  # share of the time above which a process does more than wait and poll
_LONG_S = 2.0  # how long threads that poll or sleep are given


class Idleness:
    """One waiting thread's observation of its process since its wait began."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since_s, self._busy_s = time.monotonic(), _busy_s()

    def num_asleep(self) -> int:
        """Return how many threads sleep unreported: those in native waits, and after `_LONG_S` all."""
        waited_s = time.monotonic() - self._since_s
        if waited_s < self._patience_s or _busy_s() - self._busy_s > _BUSY_SHARE * waited_s:
            if waited_s > _LONG_S:  # start a new observation
                self._since_s, self._busy_s = time.monotonic(), _busy_s()
            return 0
        return 1 << 30 if waited_s >= _LONG_S else torch_internals.num_in_native_waits()


def _busy_s() -> float:
    """Return the seconds for which this process's threads ran or waited for a core.

    Source: Linux, Documentation/scheduler/sched-stats.rst: the first two figures of `/proc/PID/schedstat`, in ns.
    """
    total_ns = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            ran, waited, _ = Path(path).read_text().split()
        except (OSError, ValueError):  # the thread has ended
            continue
        total_ns += int(ran) + int(waited)
    return total_ns / 1e9 or time.process_time()
