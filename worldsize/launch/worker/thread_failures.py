"""Reports to the launcher on threads of a rank that end with an exception, which Python only prints."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from worldsize.launch.protocol import failure
from worldsize.launch.protocol.messages import ThreadFailed
from worldsize.message import MAX_WORD


def install(report: Callable[[ThreadFailed], None]) -> None:
    """Report every exception that ends a thread from now on, except one that the thread hands on."""
    before = threading.excepthook

    def excepthook(args: threading.ExceptHookArgs) -> None:
        before(args)
        if isinstance(args.exc_value, SystemExit) or args.exc_value is None:  # a thread may legitimately end like this
            return
        with contextlib.suppress(Exception):  # the launcher has hung up
            failed = failure.of_exception(0, args.exc_value, time.monotonic_ns())
            report(ThreadFailed(args.thread.name[:MAX_WORD] if args.thread else "", failed))

    threading.excepthook = excepthook
