"""Which threads of a rank can go on: the rank is still when none can.

A thread waits for an answer of the conductor, or for another thread: at a lock, and so at all that is made of locks,
such as conditions, events, semaphores, queues and the results of futures. What wakes a thread counts it as awake before
it runs, so that a rank is never still while one of its threads is about to go on.
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
    """A rank of which no thread can go on: the posts that they wait for, and whether a wait ends by the clock.

    `since` counts how often a thread has gone on, so that two stills are equal only where nothing moved in between.
    """

    numbers: tuple[int, ...]
    is_limited: bool
    since: int


@dataclass(eq=False)
class _Wait:
    """One thread's wait: for the answer to a post, or at a lock."""

    is_counted: bool  # the thread is
    number: int | None = None
    is_limited: bool = False  # it ends by the clock, and its thread may go on then
    turn: Any = field(default_factory=_thread.allocate_lock)


class _ThreadState(threading.local):
    """What is known of a thread."""

    is_counted = False
    is_unwatched = False
    wait: _Wait | None = None  # for an answer


class Waits:
    """The waits of a rank's threads; `when_still` is called by a thread that goes to sleep as the last one.

    Counted are the thread that makes this, and those that others announce by `start`.
    """

    def __init__(self, when_still: Callable[[], None]) -> None:
        self._when_still = when_still
        self._here = _ThreadState()
        self._here.is_counted = True
        self.reset()

    def reset(self) -> None:
        """Begin anew with this thread alone, in a process that was forked."""
        self.guard = _thread.RLock()  # reentrant, because a signal's handler may use locks
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
        """Count a thread no longer: it has ended, or could not be started."""
        with self.guard:
            self._counted.discard(thread)
            self._num_awake -= 1
        self._when_still()

    def run(self, thread: threading.Thread, body: Callable[[], None]) -> None:
        """Run the body of this thread, which counts to its end if `start` has announced it."""
        self._here.is_counted = thread in self._counted
        try:
            body()
        finally:
            if self._here.is_counted:
                self._here.is_counted = False
                self.withdraw(thread)

    # waits

    def wait_for_answer(self, number: int) -> None:
        """Note that this thread can do nothing until a post has its answer."""
        if self._here.wait is None or self._here.wait.number != number:
            self._here.wait = self.sleep(_Wait(self._here.is_counted, number))

    def end_wait_for_answer(self) -> None:
        """Note that this thread goes on, however that comes."""
        if self._here.wait is not None:
            self.wake(self._here.wait)
            self._here.wait = None

    def answer(self, number: int) -> None:
        """Note that a post has its answer: who waits for it goes on."""
        with self.guard:
            for wait in [one for one in self._waits if one.number == number]:
                self.wake(wait)

    def sleep(self, wait: _Wait) -> _Wait:
        """Note that the wait has begun."""
        with self.guard:
            self._waits.add(wait)
            self._num_awake -= wait.is_counted
        return wait

    def wake(self, wait: _Wait) -> None:
        """Note that the wait is over, once."""
        with self.guard:
            if wait in self._waits:
                self._waits.remove(wait)
                self._num_awake += wait.is_counted
                self._num_woken += 1

    def still(self, num_asleep: int = 0) -> Still | None:
        """Why no thread can go on, but for so many that are known to sleep otherwise; None while one can.

        None, too, where no thread waits for an answer: what they wait for may come from outside the program.
        """
        with self.guard:
            numbers = sorted({one.number for one in self._waits if one.number is not None})
            if self._num_awake > num_asleep or not numbers:
                return None
            return Still(tuple(numbers), any(one.is_limited for one in self._waits), self._num_woken)

    # locks

    def lock(self) -> Any:
        """A lock that notes who waits at it, to stand in for `threading.Lock`."""
        return _thread.allocate_lock() if self._here.is_unwatched else Lock(self)

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Make locks that note nothing, in this thread."""
        before, self._here.is_unwatched = self._here.is_unwatched, True
        try:
            yield
        finally:
            self._here.is_unwatched = before

    def wait_at_lock(self, has_limit: bool) -> _Wait:
        """The wait of this thread at a lock, which begins."""
        return self.sleep(_Wait(self._here.is_counted, is_limited=has_limit))

    def report(self) -> None:
        """Have it known if no thread can go on."""
        self._when_still()


class Lock:
    """A lock that is handed over, first come, first served: who releases it knows which thread goes on."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._at_fork_reinit()

    def _at_fork_reinit(self) -> None:
        """Free the lock, in a process that was forked; threads that waited are not there."""
        self._is_held = False
        self._queue: deque[_Wait] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """True once this thread holds the lock; False if it is not to wait, or no longer."""
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
        """True if the wait is withdrawn; False if the lock was handed over meanwhile."""
        with self._waits.guard:
            if wait not in self._queue:
                return False
            self._queue.remove(wait)
            self._waits.wake(wait)
            return True

    def release(self) -> None:
        """Hand the lock to who has waited longest."""
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
        """True while a thread holds it."""
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
