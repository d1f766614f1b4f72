"""Threads of an emulated rank: each is a lane with its own clock, and threads that communicate synchronise clocks.

A thread begins when it is started, whatever its starter does next; `join`, the result of a `concurrent.futures.Future`
and an item from a `queue.Queue` are available no earlier than the other thread has produced them. A full queue holds
up `put`. Other means (locks, events, shared variables) do not synchronise clocks.
"""

# each undocumented part of Python used here has a test
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from worldsize.emulate.worker.client import Client
from worldsize.emulate.worker.waits import Waits
from worldsize.emulate.worker.wrapping import around
from worldsize.memory.meter import in_new_thread


def install(client: Client) -> None:
    """Give new threads of this process their own lanes, and record their waits."""
    _note_waits(client.waits)
    _give_lanes(client)
    _pass_on_results(client)
    _pass_on_items(client)


def _note_waits(waits: Waits) -> None:
    """Make locks, and everything that uses them, record their waits from now on."""
    threading.Lock = threading._allocate_lock = waits.lock
    threading.RLock, threading._CRLock = threading._PyRLock, None
    queue.SimpleQueue = queue._PySimpleQueue


def _give_lanes(client: Client) -> None:
    numbers = itertools.count(1)

    def start(before: Callable[..., Any], thread: Any) -> Any:
        if thread._started.is_set():
            return before(thread)  # which raises
        after, run = client.mark(), thread.run
        lane = f"thread {next(numbers)}"

        def run_on_lane() -> None:
            with client.in_thread(lane, after), in_new_thread():
                try:
                    run()
                finally:
                    thread._last_mark = client.mark()

        thread.run, thread._run_lock = run_on_lane, threading.Lock()
        thread._run_lock.acquire()
        client.waits.start(thread)
        try:
            return before(thread)
        except BaseException:  # such as that no thread can be started
            client.waits.withdraw(thread)
            thread._run_lock.release()
            raise

    def bootstrap(before: Callable[..., Any], thread: Any) -> None:
        def whole() -> None:  # including the hook for its exception, which runs after `run`
            try:
                before(thread)
            finally:
                if lock := thread.__dict__.get("_run_lock"):
                    lock.release()

        client.waits.run(thread, whole)

    def join(before: Callable[..., Any], thread: Any, timeout: float | None = None) -> None:
        running = thread.__dict__.get("_run_lock")  # only a started thread has it
        if running and thread is not threading.current_thread():
            start_s = time.monotonic()
            if running.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
                running.release()
            timeout = timeout if timeout is None else max(0.0, timeout - (time.monotonic() - start_s))
        before(thread, timeout)
        if not thread.is_alive():
            _join(client, thread, "_last_mark")

    around(threading.Thread, "start", start)
    around(threading.Thread, "_bootstrap_inner", bootstrap)
    around(threading.Thread, "join", join)


def _pass_on_results(client: Client) -> None:
    def init(before: Callable[..., Any], future: Any) -> None:
        before(future)
        future._made_mark = client.mark()

    def run(before: Callable[..., Any], future: Any) -> Any:
        _join(client, future, "_made_mark")  # a pool's thread is older than its tasks
        return before(future)

    def settle(before: Callable[..., Any], future: Any, outcome: Any) -> None:
        future._done_mark = client.mark()
        before(future, outcome)

    def result(before: Callable[..., Any], future: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return before(future, *args, **kwargs)
        finally:
            _join(client, future, "_done_mark")

    for name, call in (
        ("__init__", init),
        ("set_running_or_notify_cancel", run),
        ("set_result", settle),
        ("set_exception", settle),
        ("result", result),
        ("exception", result),
    ):
        around(Future, name, call)


def _pass_on_items(client: Client) -> None:
    """Synchronise clocks through queues; `_put` and `_get` hold the queue's lock, so they run in the items' order."""

    def init(before: Callable[..., Any], made: Any, maxsize: int) -> None:
        before(made, maxsize)
        made._put_marks, made._got_marks, made._num_put = deque(), deque(), 0

    def put(before: Callable[..., Any], made: Any, item: Any) -> None:
        marks = made.__dict__.get("_put_marks")  # a queue made before `install` has none
        if marks is not None:
            if 0 < made.maxsize <= made._num_put:  # into the slot that was freed first
                client.join(made._got_marks.popleft())
            made._num_put += 1
            marks.append(client.mark())
        before(made, item)

    def get(before: Callable[..., Any], made: Any) -> Any:
        marks = made.__dict__.get("_put_marks")
        if marks is not None:
            client.join(marks.popleft())
            if made.maxsize > 0:
                made._got_marks.append(client.mark())
        return before(made)

    around(queue.Queue, "_init", init)
    around(queue.Queue, "_put", put)
    around(queue.Queue, "_get", get)


def _join(client: Client, holder: Any, name: str) -> None:
    mark = getattr(holder, name, 0)  # 0 if made before `install`
    if mark:
        client.join(mark)
