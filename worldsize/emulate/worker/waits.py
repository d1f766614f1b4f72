"""Tracking of blocked threads: a rank is still when all of its threads are blocked.

A thread waits for an answer of the conductor or for another thread: at a lock, and so at everything built on locks,
such as conditions, events, semaphores, queues and futures. The waker counts a thread as awake before it runs, so a
rank is never still while one of its threads is about to go on.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Still(NamedTuple):
    """The state of a rank whose threads are all blocked: the posts that they wait for, and whether a wait can time out.

    `since` counts how often a thread has woken, so two of these are equal only if nothing moved in between.
    """

    numbers: tuple[int, ...]
    is_limited: bool
    since: int


@dataclass(eq=False)
class _Wait:
    """One thread's wait: for the answer to a post, or at a lock."""

    is_counted: bool  # whether the thread is counted
    number: int | None = None
    is_limited: bool = False  # whether it has a timeout
    turn: Any = field(default_factory=_thread.allocate_lock)


class _ThreadState(threading.local):
    """What is known of a thread."""

    is_counted = False
    is_unwatched = False
    wait: _Wait | None = None  # its wait for an answer


class Waits:
    """The waits of a rank's threads; the last thread to block calls `when_still`.

    Counts the thread that makes this, and those announced with `start`.
    """

    def __init__(self, when_still: Callable[[], None]) -> None:
        self._when_still = when_still
        self._here = _ThreadState()
        self._here.is_counted = True
        self.reset()

    def reset(self) -> None:
        """Start over with only this thread, in a forked process."""
        self.guard = _thread.RLock()  # reentrant, because a signal handler may use locks
        self._num_awake, self._num_woken = 1, 0
        self._waits: set[_Wait] = set()
        self._counted: set[threading.Thread] = set()

    # threads

    def start(self, thread: threading.Thread) -> None:
        """Count a thread that is about to be started."""
        with self.guard:
            self._counted.add(thread)
            self._num_awake += 1

    def withdraw(self, thread: threading.Thread) -> None:
        """Stop counting a thread that has ended or could not be started."""
        with self.guard:
            self._counted.discard(thread)
            self._num_awake -= 1
        self._when_still()

    def run(self, thread: threading.Thread, body: Callable[[], None]) -> None:
        """Run the body of this thread, which is counted until its end if `start` announced it."""
        self._here.is_counted = thread in self._counted
        try:
            body()
        finally:
            if self._here.is_counted:
                self._here.is_counted = False
                self.withdraw(thread)

    # waits

    def wait_for_answer(self, number: int) -> None:
        """Mark this thread as blocked until a post has its answer."""
        if self._here.wait is None or self._here.wait.number != number:
            self._here.wait = self.sleep(_Wait(self._here.is_counted, number))

    def end_wait_for_answer(self) -> None:
        """Mark this thread as running again, for whatever reason."""
        if self._here.wait is not None:
            self.wake(self._here.wait)
            self._here.wait = None

    def answer(self, number: int) -> None:
        """Wake the threads that wait for a post's answer."""
        with self.guard:
            for wait in [wait for wait in self._waits if wait.number == number]:
                self.wake(wait)

    def sleep(self, wait: _Wait) -> _Wait:
        """Begin a wait."""
        with self.guard:
            self._waits.add(wait)
            self._num_awake -= wait.is_counted
        return wait

    def wake(self, wait: _Wait) -> None:
        """End a wait, unless it has already ended."""
        with self.guard:
            if wait in self._waits:
                self._waits.remove(wait)
                self._num_awake += wait.is_counted
                self._num_woken += 1

    def still(self, num_asleep: int = 0) -> Still | None:
        """Return the rank's blocked state if all threads but `num_asleep` sleeping ones are blocked, otherwise None.

        Return None also if no thread waits for an answer, because something outside the program may wake them.
        """
        with self.guard:
            numbers = sorted({one.number for one in self._waits if one.number is not None})
            if self._num_awake > num_asleep or not numbers:
                return None
            return Still(tuple(numbers), any(one.is_limited for one in self._waits), self._num_woken)

    # locks

    def lock(self) -> Any:
        """Make a lock that records its waits, to replace `threading.Lock`."""
        return _thread.allocate_lock() if self._here.is_unwatched else Lock(self)

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Make plain locks in this thread."""
        before, self._here.is_unwatched = self._here.is_unwatched, True
        try:
            yield
        finally:
            self._here.is_unwatched = before

    def wait_at_lock(self, has_limit: bool) -> _Wait:
        """Begin a wait of this thread at a lock."""
        return self.sleep(_Wait(self._here.is_counted, is_limited=has_limit))

    def report(self) -> None:
        """Call `when_still`, which reports if no thread can go on."""
        self._when_still()


class Lock:
    """A lock that is handed over first come, first served, so its releaser knows which thread goes on."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._at_fork_reinit()

    def _at_fork_reinit(self) -> None:
        """Free the lock in a forked process, which lacks the threads that waited."""
        self._is_held = False
        self._queue: deque[_Wait] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock and return True; False if it is taken and `blocking` is false or the timeout is over."""
        if timeout != -1 and (not blocking or timeout < 0):
            raise ValueError("can't specify a timeout for a non-blocking call" if not blocking else "timeout < 0")
        with self._waits.guard:
            if not self._is_held:
                self._is_held = True
                return True
            if not blocking or timeout == 0:
                return False
            wait = self._waits.wait_at_lock(timeout != -1)
            wait.turn.acquire()
            self._queue.append(wait)
        return self._wait(wait, timeout)

    def _wait(self, wait: _Wait, timeout: float) -> bool:
        try:
            self._waits.report()
            if wait.turn.acquire(True, timeout):
                return True
        except BaseException:  # such as KeyboardInterrupt
            if not self._give_up(wait):
                self.release()
            raise
        return not self._give_up(wait)

    def _give_up(self, wait: _Wait) -> bool:
        """Withdraw a wait and return True; False if the lock was handed over meanwhile."""
        with self._waits.guard:
            if wait not in self._queue:
                return False
            self._queue.remove(wait)
            self._waits.wake(wait)
            return True

    def release(self) -> None:
        """Hand the lock to the thread that has waited longest."""
        with self._waits.guard:
            if not self._is_held:
                raise RuntimeError("release unlocked lock")
            if not self._queue:
                self._is_held = False
                return
            wait = self._queue.popleft()
            self._waits.wake(wait)
            wait.turn.release()

    def locked(self) -> bool:
        """Whether a thread holds the lock."""
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
