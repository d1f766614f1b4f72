"""The conditions that stop a run: its time is up, or it has made no progress for too long."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from worldsize.launch.launcher.worker import Worker
from worldsize.launch.reports.result import End, Ending

GLANCE_S = 0.1  # interval at which the view and the ranks' progress are checked
_PROBES = 20  # how often ranks are asked, during the longest permitted standstill, whether they wait
_GLANCE_AT_RANK_S = 0.003  # plus this much per rank
_GRACE_S = 1.0  # how long the other ranks may take to report their side of a failure


class Monitor:
    """The clocks of one run: its deadline, its next check, and the time since the last progress."""

    def __init__(self, start_s: float, timeout_s: float, stalled_s: float | None) -> None:
        self.deadline_s = start_s + timeout_s
        self._timeout_s, self._stalled_s = timeout_s, stalled_s
        self._glance_s = 0.0
        self._probe_s = start_s
        self._moved_s, self._before, self._num_heard = time.monotonic(), None, 0

    def is_glance_due(self, num_workers: int) -> bool:
        """Whether the next check of all ranks is due; it costs more with more ranks."""
        now_s = time.monotonic()
        if now_s < self._glance_s:
            return False
        self._glance_s = now_s + max(GLANCE_S, _GLANCE_AT_RANK_S * num_workers)
        return True

    def is_probe_due(self) -> bool:
        """Whether to ask the ranks again if they wait for communication that torch itself has started."""
        now_s = time.monotonic()
        if self._stalled_s is None or now_s < self._probe_s + self._stalled_s / _PROBES:
            return False
        self._probe_s = now_s
        return True

    def shorten(self) -> None:
        """Bring the deadline forward after a failure, leaving the other ranks time to report their side of it."""
        self.deadline_s = min(self.deadline_s, time.monotonic() + _GRACE_S)

    def stall(self, num_heard: int, progress: Callable[[], Any]) -> Ending | None:
        """Return an `Ending` if for too long no message came and `progress` stayed the same value other than None."""
        if num_heard != self._num_heard:  # counting messages costs far less than reading every rank's calls
            self._num_heard, self._before, self._moved_s = num_heard, None, time.monotonic()
            return None
        if (now := progress()) is None or now != self._before:
            self._before, self._moved_s = now, time.monotonic()
        elif self._stalled_s is not None and time.monotonic() - self._moved_s > self._stalled_s:
            words = f"No progress for {self._stalled_s:g} s: every unfinished rank is waiting in a call."
            return Ending(End.STALLED, words)
        return None

    def timeout(self) -> Ending | None:
        """Return an `Ending` if the deadline has passed."""
        if time.monotonic() < self.deadline_s:
            return None
        return Ending(End.TIMEOUT, f"The ranks did not finish within {self._timeout_s:g} s.")


def progress(workers: Sequence[Worker], num_printed_bytes: int) -> Any:
    """A value that changes when a rank makes progress; None while any rank works.

    It is also None before the first rank has connected, because starting counts as work.
    """
    waits = [(worker.rank, worker.waits_in) for worker in workers if not worker.is_settled]
    if not workers or any(numbers is None for _, numbers in waits):
        return None
    return waits, num_printed_bytes
