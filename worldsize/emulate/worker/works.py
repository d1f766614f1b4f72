"""The pending calls of a rank as torch's handles: works, and futures of their results."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.distributed import constants

from worldsize.emulate.protocol.messages import OperationFailed
from worldsize.emulate.protocol.record import WAIT
from worldsize.emulate.worker import torch_internals
from worldsize.emulate.worker.waits import Waits
from worldsize.units import format_ranks

WAITING, DONE = "waiting", "done"
_CALLBACKS = "callbacks"  # the lane of futures' callbacks
# torch gives every group a timeout: these defaults count as none
UNSET_TIMEOUTS = (constants.default_pg_timeout, constants.default_pg_nccl_timeout)
_collect_all: Callable[[Any], Any] = torch.futures.collect_all
# unpatched: a thread that fulfils a future belongs to the lane that waits for it
_start, _join = threading.Thread.start, threading.Thread.join


class Observer(Protocol):
    """An observer of a rank's calls."""

    def posting(self, op: str, tensors: Sequence[torch.Tensor], group: Any, reduction: str, peer: int | None) -> Any:
        """Return a token for a call that is about to be posted, which `posted` gets back."""
        ...

    def posted(self, mark: Any, work: Work) -> None:
        """Observe the work of a call."""
        ...

    def waiting(self, work: Work) -> AbstractContextManager[Any]:
        """Return the context in which a program's wait for a call runs."""
        ...

    def changed(self, work: Work, state: str) -> None:
        """Observe that the rank waits for this call, or that it is done."""
        ...


class Connection(Protocol):
    """The part of `client.Client` that a work needs."""

    observer: Observer
    waits: Waits
    fulfilments: Fulfilments
    last_backward: Backward | None

    def backward(self) -> Backward | None: ...
    def step(self, kind: str, number: int) -> None: ...
    def mark(self) -> int: ...
    def join(self, mark: int) -> None: ...
    def join_program(self) -> None: ...
    def on_lane(self, lane: str, after: int = 0) -> AbstractContextManager[None]: ...
    def await_answer(self, work: Work) -> None: ...
    def await_arrival(self, work: Work) -> None: ...
    def await_within(self, work: Work, timeout_s: float) -> None: ...
    def is_done(self, work: Work, asked_s: dict[str, float], question: str) -> bool: ...


class PendingCall(NamedTuple):
    """What a rank has called: an operation, among which ranks, with which peer."""

    op: str
    ranks: tuple[int, ...]
    peer: int | None

    def __str__(self) -> str:
        if self.op == "send":
            return f"send to rank {self.peer}"
        if self.op == "recv":
            return f"recv from {f'any of {format_ranks(self.ranks)}' if self.peer is None else f'rank {self.peer}'}"
        return f"{self.op} in the group of {format_ranks(self.ranks)}"


class Work(torch_internals.Work):
    """One pending call. Its tensors are filled only when it is waited for, so a forgotten wait always shows."""

    def __init__(
        self, client: Connection, number: int, call: PendingCall, fill: Callable[[bytes], Any], result: Any
    ) -> None:
        super().__init__()
        self.number, self.call = number, call
        self.client, self._fill, self._result = client, fill, result
        self.timeout_s: float | None = None  # of each wait for this call that does not set one
        self.failure: OperationFailed | None = None
        self.is_there = self._is_over = False  # the latter once the program has waited
        self.asked_s: dict[str, float] = {}  # when it was not done, by what the program asked
        self.source_group: Sequence[int] = ()
        self.stands_for: Sequence[Work] = ()  # earlier calls of the group that are waited for together with this one
        self._src, self._body = -1, b""

    def take(self, body: bytes, src: int) -> None:
        """Store the answer; called by the thread that reads."""
        self._src, self._body = src, body
        self.report(DONE)
        self.is_there = True

    def fail(self, failure: OperationFailed) -> None:
        """Keep why there is no answer. The thread that reads calls this."""
        self.failure = failure
        self.take(b"", -1)

    def raise_failure(self) -> None:
        """Raise the failure of this call, or of one for which it stands.

        Raises:
            DistBackendError: a rank was lost.
        """
        for work in (*self.stands_for, self):
            if work.failure:
                self.client.join_program()
                heard = f"{format_ranks(work.failure.ranks)} was lost, as was heard at {work.failure.time_s:g} s"
                raise dist.DistBackendError(f"{work.call} failed: {heard} of virtual time")

    def land(self) -> None:
        """Copy the answer into the tensors, once; the caller holds the lock of the arrivals."""
        for work in (*self.stands_for, self):
            body, work._body = work._body, b""
            work._fill(body)

    def report(self, state: str) -> None:
        """Report to the observer that the rank waits for this call, or that it is done."""
        self.client.observer.changed(self, state)

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the answer, in virtual time until the end of the call, and return True.

        Raises:
            DistBackendError: the timeout, a `timedelta` of virtual time, was too short, or a rank is lost.
        """
        with self.client.observer.waiting(self):
            self.await_within(seconds(timeout) or self.timeout_s)
            self.client.await_answer(self)
            self.client.step(WAIT, self.number)
            self._is_over = True
            self.raise_failure()
        return True

    def await_within(self, timeout_s: float | None) -> None:
        """Wait until the call is done, for at most `timeout_s` if it is given.

        Raises:
            DistBackendError: it is not done by then.
        """
        if timeout_s is not None:
            for work in (*self.stands_for, self):
                self.client.await_within(work, timeout_s)

    def backward(self) -> Backward | None:
        """Return the backward pass that runs in this thread, if any."""
        return self.client.backward()

    def is_completed(self) -> bool:
        """Whether the call is done at this moment of virtual time.

        Raises:
            Forbidden: it was not done when last asked, and no virtual time has passed since.
        """
        return self._is_done("is_completed")

    def _is_done(self, question: str) -> bool:
        works = (*self.stands_for, self)
        if not self._is_over and all(self.client.is_done(work, work.asked_s, question) for work in works):
            self.client.await_answer(self)
            self.client.step(WAIT, self.number)
            self._is_over = True
        return self._is_over

    def is_success(self) -> bool:
        """Whether the call is done at this moment of virtual time and has not failed."""
        return self._is_done("is_success") and not any(work.failure for work in (*self.stands_for, self))

    def _source_rank(self) -> int:
        """Return the sender's rank within the group, for a receive.

        Raises:
            RuntimeError: this is not a receive.
        """
        if not self.source_group:
            raise RuntimeError(f"source_rank() is for receives; this is {self.call}")
        return self.source_group.index(self._src)

    source_rank = _source_rank

    def result(self) -> Any:
        """The tensors that the call has filled."""
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors; inside backward it counts as waited for at backward's end, as by DDP."""
        future = Future(self)
        if self._is_over:  # C++ reads the value of what it has waited for
            self._fulfil(future)
            return future
        if backward := self.client.backward():
            backward.works.append(self)
        # a separate thread, because C++ may wait for the future, and a callback may itself wait
        thread = threading.Thread(target=self._fulfil, args=(future,), daemon=True)
        self.client.waits.start(thread)
        self.client.fulfilments.add(thread, future)
        _start(thread)
        return future

    def _fulfil(self, future: torch.futures.Future[Any]) -> None:
        try:
            self.client.await_answer(self)
            self.raise_failure()
        except Exception as error:  # raised where the future is waited for
            future.set_exception(error)
        else:
            future.set_result(self._result)


class Fulfilments:
    """The threads that fulfil futures; they may hold a call's tensors slightly longer than the program does."""

    def __init__(self) -> None:
        self._threads: list[tuple[threading.Thread, weakref.ref[Future]]] = []
        self._lock = threading.Lock()

    def add(self, thread: threading.Thread, future: Future) -> None:
        """Add a thread that is about to be started."""
        with self._lock:
            self._threads = [pair for pair in self._threads if pair[0].is_alive() or pair[0].ident is None]
            self._threads.append((thread, weakref.ref(future)))

    def settle(self) -> None:
        """Wait for each thread whose future is fulfilled to end, unless a callback holds it up."""
        for thread, reference in self._threads:
            future = reference()
            if future is None or (future.done() and not future.has_callbacks):
                del future
                _join(thread)


class Backward:
    """The calls of one backward pass whose futures C++ waits for at its end without calling Python."""

    def __init__(self, client: Connection, number: int) -> None:
        self.number = number
        self.works: list[Work] = []
        self.futures: list[Future] = []
        self._client = client
        torch_internals.call_when_backward_ends(self._end)

    def _end(self) -> None:
        """Wait for the calls in virtual time, and raise any failure: C++ would mistake the error for tensors."""
        self._client.last_backward = None
        for work in self.works:
            work.await_within(work.timeout_s)
        for work in self.works:
            self._client.step(WAIT, work.number)
        for work in self.works:
            self._client.await_arrival(work)
            work.raise_failure()
        for future in self.futures:
            future.join()


class Future(torch.futures.Future):  # type: ignore[type-arg]
    """A future of the results of calls, fulfilled when their answers come; waiting for it takes virtual time."""

    def __init__(self, *works: Work) -> None:
        super().__init__()
        self._works = works
        # on the callbacks' lane, where the callbacks that produce this future's value ended
        self._marks: list[int] = []
        self.has_callbacks = False

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Register a callback that the thread that fulfils the future runs afterwards."""
        self.has_callbacks = True
        super().add_done_callback(callback)

    def wait(self) -> Any:
        """Wait for the tensors, or for the callback's result.

        Raises:
            Exception: the call or the callback failed.
        """
        for work in self._works:
            work.wait()
        return self.join()

    def join(self) -> Any:
        """Return the value, waiting in virtual time only for the callbacks."""
        value = super().wait()
        self._join_callbacks()
        return value

    def _join_callbacks(self) -> None:
        for mark in self._marks:
            self._works[0].client.join(mark)

    def then(self, callback: Callable[[Any], Any]) -> Future:  # type: ignore[override]
        """Return a future of the callback's result.

        Inside backward the callback runs at once, as with NCCL, where only its stream waits for the call: its
        communication then has the same order on all ranks. Elsewhere it runs in a thread, once the call is done.
        """
        after = Future(*self._works)

        def run(done: Any) -> None:
            try:
                after.set_result(callback(done))
            except Exception as error:
                after.set_exception(error)

        backward = self._works[0].backward()
        if backward is None:
            self.add_done_callback(run)
            return after
        backward.futures.append(after)
        client = self._works[0].client
        with client.on_lane(_CALLBACKS, client.mark()):
            self._join_callbacks()
            for work in self._works:
                client.await_answer(work)  # in real time only
                client.step(WAIT, work.number)
            with suppress(Exception):  # the callback gets it
                super().wait()
            run(self)
            after._marks = [client.mark()]
        return after

    @classmethod
    def of_all(cls, futures: Sequence[Future]) -> Future:
        """A future of these futures, once all are filled."""
        whole = cls(*(work for one in futures for work in one._works))
        whole._marks = [mark for one in futures for mark in one._marks]

        def fill(done: Any) -> None:
            try:
                done.wait()
            except Exception as error:
                whole.set_exception(error)
            else:
                whole.set_result(list(futures))

        _collect_all(futures).then(fill)
        return whole


def lead_collected_futures() -> None:
    """Make torch collect futures of calls into a `Future`.

    Torch's own runs a callback in this thread if all are fulfilled already, otherwise in the thread that fulfils the
    last one, whose work is not counted: virtual time would depend on a race.
    """

    def collect_all(futures: Sequence[Any]) -> Any:
        """A future of these futures, once all are filled."""
        is_ours = futures and all(isinstance(future, Future) for future in futures)
        return Future.of_all(futures) if is_ours else _collect_all(futures)

    def wait_all(futures: Sequence[Any]) -> list[Any]:
        """Wait for all these futures and return their values."""
        return [future.wait() for future in collect_all(futures).wait()]

    torch.futures.collect_all, torch.futures.wait_all = collect_all, wait_all


def seconds(timeout: timedelta | None) -> float | None:
    """Convert a timeout to seconds; None if there is none, which torch's defaults count as."""
    if timeout is None or timeout in UNSET_TIMEOUTS or timeout <= timedelta(0):
        return None
    return timeout.total_seconds()
