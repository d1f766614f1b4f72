"""Noticing that the main thread waits for a collective that torch itself has started, such as DDP's."""

from __future__ import annotations

import sys
import threading
import time

from worldsize.launch.worker import call_tracer

_BUSY = 0.1  # a thread that uses more of a core than this is not waiting


class NativeWait:
    """The main thread's CPU time since it was last asked for; make it in that thread.

    An unfinished collective alone does not mean that the rank waits: it may overlap with computation.
    """

    def __init__(self) -> None:
        get_clock = getattr(time, "pthread_getcpuclockid", None)
        self._clock = get_clock(threading.get_ident()) if get_clock else None  # None on macOS
        self._start = self._now()

    def number(self) -> int:
        """Return torch's number of the collective that the thread waits for; 0 while it works."""
        if self._is_busy():  # then torch's record, which may be long, need not be read
            return 0
        pending = call_tracer.native().get("native")
        self._start = self._now()  # reading the record is not the thread's work
        return max(1, pending.sequence) if pending else 0

    def _is_busy(self) -> bool:
        (then_s, then_cpu_s), self._start = self._start, self._now()
        now_s, cpu_s = self._start
        return cpu_s - then_cpu_s > _BUSY * (now_s - then_s) and not _uses_gpu()

    def _now(self) -> tuple[float, float]:
        cpu_s = time.process_time() if self._clock is None else time.clock_gettime(self._clock)
        return time.monotonic(), cpu_s


def _uses_gpu() -> bool:
    """Whether this process has initialized CUDA: a thread that waits for a GPU keeps its core busy."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()
