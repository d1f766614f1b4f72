"""A rank's connection to the conductor, and the calls that are under way on it."""

from __future__ import annotations

import math
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.distributed import constants

from worldsize.emulate import torch_internals, wire
from worldsize.emulate.compute import Meter
from worldsize.emulate.conductor import ASK, Forbidden, refusal
from worldsize.emulate.messages import (
    Answer,
    Awaited,
    Blocked,
    Failed,
    FromConductor,
    FromRank,
    Hurry,
    Left,
    Posted,
    Refused,
    read_from_conductor,
)
from worldsize.emulate.record import COMPUTE, JOIN, MAIN, MARK, WAIT, Step
from worldsize.hardware import TRANSFERS

WAITING, DONE = "waiting", "done"
_PATIENCE_S = 0.1  # how long a rank waits for an answer before it reports that it is blocked,
_RANK_S = 0.005  # and how much longer for every rank that shares this machine
_CHUNK = 1 << 16
_MOST_UNSENT_BYTES = 1 << 16
_MAX_ANSWER_BYTES = 1 << 40  # the launcher is trusted
_UNNAMED: tuple[str, str] = ("", COMPUTE)  # work outside any span
_MOST_NAMED = 8  # ranks in a sentence
# torch gives every group a timeout: a program that names one of these is taken to name none
_UNSET_TIMEOUTS = (constants.default_pg_timeout, constants.default_pg_nccl_timeout)
_IDLE_S = 0.005  # less CPU time than this within the patience is mere waiting


class Observer(Protocol):
    """An observer of a rank's calls."""

    def posting(self, op: str, tensors: Sequence[torch.Tensor], group: Any, reduction: str, peer: int | None) -> Any:
        """A token for a call that is about to be posted; `posted` gets it back."""
        ...

    def posted(self, mark: Any, work: Work) -> None:
        """Note the work of a call."""
        ...

    def waiting(self, work: Work) -> AbstractContextManager[Any]:
        """The context in which a program's wait for a call runs."""
        ...

    def changed(self, work: Work, state: str) -> None:
        """Note that the rank can do nothing until this call is done, or that it is done."""
        ...


_start = threading.Thread.start  # a thread that fulfils a future is part of the lane that waits for it


class _Here(threading.local):
    """Where the work of a thread goes: its lane, its meter, and the name and kind of the work now under way."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.lane = self.own_lane = MAIN
        self.labels = [_UNNAMED]


class Client:
    """The socket to the conductor. Any thread may post; of those that wait for an answer, one reads for all."""

    def __init__(
        self,
        sock: socket.socket,
        rank: int,
        world_size: int,
        allow: Iterable[str] | None,
        meter: Meter,
        observer: Observer,
        missing: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        meter.before_work = self.flush  # work may take long, and other ranks may wait for what was posted
        self.rank, self.observer = rank, observer
        self.folder = os.path.realpath(os.getcwd())  # of the program, which may go to another
        self.missing = missing  # the transfers that the cluster cannot carry, and why
        self._sock, self._patience_s = sock, _PATIENCE_S + _RANK_S * world_size
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(self._patience_s))
        self._inbox = wire.Inbox(_MAX_ANSWER_BYTES)
        self._allow = None if allow is None else frozenset(allow)
        self._lock = threading.Lock()
        self._recording = threading.RLock()  # of `_steps` and the marks in them
        self._arrival = threading.Condition()
        self._is_read = False  # a thread is reading
        self._unsent: list[bytes] = []  # posts earn nothing before the rank waits: until then they may go out together
        self._unsent_bytes = 0
        self._num_posts = 0
        self._groups: set[str] = set()
        self._works: dict[int, Work] = {}
        self._steps: list[Step] = []
        self._here = _Here(meter)
        self._last_marks: dict[str, int] = {}  # lane -> the mark that it set last
        self._num_marks = self.host_mark = 0  # the latter is where the program itself last waited, once it has streams
        self._is_hurried = self.is_in_child = False
        self.last_backward: _Backward | None = None  # until its end
        self._asked_s: dict[int, tuple[float, float]] = {}  # thread -> when it last asked, CPU time until then

    @property
    def lane(self) -> str:
        """The lane to which this thread's work goes."""
        return self._here.lane

    @property
    def meter(self) -> Meter:
        """The meter of this thread's work."""
        return self._here.meter

    def step(self, kind: str, number: int) -> None:
        """Record a step of this rank, after its own work until then; both go out with the next message."""
        self.spend(self.meter.take_s())
        self._record(Step(kind, number, lane=self._here.lane))

    def spend(self, duration_s: float) -> None:
        """Let this rank work for this long in virtual time."""
        if duration_s:
            self._record(Step(COMPUTE, 0, duration_s, *self._here.labels[-1], self._here.lane))

    def transfer(self, transfer: str, size_bytes: int, name: str, kind: str) -> None:
        """Let the current lane wait for a transfer, of this name and kind unless a span gives it others.

        Raises:
            ValueError: the cluster does not have what it needs.
        """
        if transfer in self.missing:
            raise ValueError(self.missing[transfer])
        self.spend(self.meter.take_s())
        labels = (name, kind) if self._here.labels[-1] == _UNNAMED else self._here.labels[-1]
        self._record(Step(transfer, size_bytes, 0.0, *labels, self._here.lane))

    @contextmanager
    def unmetered(self) -> Iterator[None]:
        """Leave out what the meter sees inside: something else says what it takes."""
        self.spend(self.meter.take_s())
        try:
            yield
        finally:
            self.meter.take_s()

    def _record(self, step: Step) -> None:
        with self._recording:
            self._steps.append(step)

    @contextmanager
    def span(self, name: str, kind: str) -> Iterator[None]:
        """Give the work inside this name and kind."""
        self.spend(self.meter.take_s())
        self._here.labels.append((name, kind))
        try:
            yield
        finally:
            self.spend(self.meter.take_s())
            self._here.labels.pop()

    @contextmanager
    def on_lane(self, lane: str, after: int = 0) -> Iterator[None]:
        """Let the work inside go to this lane, there no earlier than the mark `after`."""
        self.spend(self.meter.take_s())
        before, self._here.lane = self._here.lane, lane
        try:
            if after:
                self.join(after)
            yield
        finally:
            self.spend(self.meter.take_s())
            self._here.lane = before

    @contextmanager
    def in_thread(self, lane: str, after: int) -> Iterator[None]:
        """Let the work of this new thread go to a lane, there no earlier than the mark `after`."""
        self._here.own_lane = lane
        self._here.meter = self._here.meter.for_thread()
        self._here.meter.start()
        with self.on_lane(lane, after):
            yield

    def mark(self) -> int:
        """The number of a mark that is set here, on the current lane."""
        with self._recording:
            self._num_marks += 1
            number = self._last_marks[self._here.lane] = self._num_marks
            self.step(MARK, number)
        return number

    def join(self, mark: int) -> None:
        """Let the current lane go on no earlier than a mark."""
        self.step(JOIN, mark)

    def join_all(self) -> None:
        """Let the current lane go on no earlier than every other lane has come."""
        for lane in [lane for lane in self._last_marks if lane != self._here.lane]:
            with self.on_lane(lane):
                mark = self.mark()
            self.join(mark)

    def note_host(self) -> None:
        """Note that the program itself has waited here; what it issues on streams starts no earlier."""
        if self.host_mark:
            self.host_mark = self.mark()

    def replay(self, steps: Sequence[Step], lane: str, after: int) -> None:
        """Let these steps be a lane's, there no earlier than the mark `after`, and the current lane wait for them."""
        with self.on_lane(lane, after):
            for step in steps:
                self._record(step._replace(lane=lane))
            done = self.mark()
        self.join(done)

    def leave_to_parent(self) -> None:
        """Send nothing from now on: this is a process that the rank has forked."""
        self.is_in_child = True
        self._unsent, self._unsent_bytes, self._steps = [], 0, []
        self._lock, self._recording = threading.Lock(), threading.RLock()  # other threads may have held them
        self._here.meter = Meter()

    def take_work(self) -> list[Step]:
        """The work and transfers since the last call, of a process that the rank has forked."""
        return [step for step in self._take_steps() if step.kind == COMPUTE or step.kind in TRANSFERS]

    def join_program(self) -> None:
        """Let this thread go on no earlier than the lane on which it issues work has come: it hears of that itself."""
        if self._here.lane != self._here.own_lane:
            mark = self.mark()
            with self.on_lane(self._here.own_lane):
                self.join(mark)
                self.note_host()

    def backward(self) -> _Backward | None:
        """The backward that runs in this thread, if one does."""
        number = torch_internals.backward_number()
        if number is None:
            return None
        if self.last_backward is None or self.last_backward.number != number:
            self.last_backward = _Backward(self, number)
        return self.last_backward

    def elapsed_s(self) -> float:
        """The virtual time of this rank in seconds."""
        answer: list[bytes] = []
        self.await_answer(self.post(ASK, "", (), b"", answer.append, None, dtype="", num_items=0))
        self.note_host()
        return struct.unpack("d", answer[0])[0]

    def post(
        self,
        op: str,
        group: str,
        ranks: Sequence[int],
        body: bytes,
        fill: Callable[[bytes], Any],
        result: Any,
        *,
        dtype: str,
        num_items: int,
        peer: int | None = None,
        tag: int = 0,
        reduction: str = "",
        splits: Sequence[int] = (),
    ) -> Work:
        """The work of a call; when its answer comes, `fill` copies the answer into place.

        The call goes out with the next `flush`.

        Raises:
            Forbidden: the run does not allow this operation, or this is a process that the rank has forked.
        """
        if self.is_in_child:
            raise Forbidden("a process that a rank has started, such as a DataLoader's worker, has no part in the run")
        if self._allow is not None and op not in (*self._allow, ASK):
            self.note_refusal()
            raise Forbidden(refusal(op, self._allow))
        with self._lock:
            work = self._new_work(Call(op, tuple(ranks), peer), fill, result)
            is_known = group in self._groups  # a group's members go out only once: 256 ranks take a kilobyte
            self._groups.add(group)
            posted = Posted(
                number=work.number,
                op=op,
                group=group,
                dtype=dtype,
                num_items=num_items,
                ranks=None if is_known else tuple(ranks),
                peer=peer,
                tag=tag,
                reduction=reduction,
                splits=tuple(splits),
                lane=self._here.lane,
                steps=self._take_steps(),
            )
            self._append(posted, body)
            if self._unsent_bytes > _MOST_UNSENT_BYTES:
                self._send_all()
        return work

    def _new_work(self, call: Call, fill: Callable[[bytes], Any], result: Any) -> Work:
        self._num_posts += 1
        work = self._works[self._num_posts] = Work(self, self._num_posts, call, fill, result)
        self.spend(self.meter.take_s())  # the launcher itself records the post
        return work

    def flush(self) -> None:
        """Send all that has been posted."""
        if self._unsent:
            with self._lock:
                self._send_all()

    def _append(self, message: FromRank, body: bytes = b"") -> None:
        self._unsent += wire.pack(message.to_bytes(), len(body)), body
        self._unsent_bytes += len(body)

    def _send_all(self) -> None:
        is_long = self._unsent_bytes > _MOST_UNSENT_BYTES
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        for part in unsent if is_long else [b"".join(unsent)]:  # to send them at once takes a copy
            self._sock.sendall(part)

    def note_refusal(self) -> None:
        """Report to the conductor that a call of this rank was refused."""
        with self._lock:
            self._append(Refused(self._take_steps()))
            self._send_all()

    def _report_wait(self, work: Work) -> None:
        """Report to the conductor, once, that this rank is blocked until the work has its answer, if it is blocked."""
        if work.is_reported or not (threading.current_thread() is threading.main_thread() or self._is_main_asleep()):
            return
        work.report(WAITING)
        with self._lock:
            self._append(Blocked(work.number, self._take_steps()))
            self._send_all()

    def _is_main_asleep(self) -> bool:
        """True if the main thread has been idle for the whole patience, in C++'s backward or its wait for a future."""
        asked_s, before_s = self._asked_s.get(threading.get_ident(), (-math.inf, -1.0))
        if time.monotonic() - asked_s < self._patience_s:
            return False
        now_s = time.process_time()
        self._asked_s[threading.get_ident()] = time.monotonic(), now_s
        return torch_internals.is_main_in_native_wait() and now_s - before_s < _IDLE_S

    def leave(self) -> None:
        """Report the last steps of this rank, and that it posts no more."""
        with self._lock:
            self.spend(self.meter.take_s())
            self._append(Left(self._take_steps()))
            self._send_all()

    def _take_steps(self) -> list[Step]:
        with self._recording:
            steps, self._steps = self._steps, []
        return steps

    def await_answer(self, work: Work) -> None:
        """Wait until the answer of a work has come and is in place."""
        self.await_arrival(work)
        with self._arrival:
            work.land()

    def await_within(self, work: Work, timeout_s: float) -> None:
        """Wait in virtual time until a work is done, but no longer than `timeout_s`.

        Raises:
            DistBackendError: it is not done by then.
        """
        with self._lock:
            wait = self._new_work(work.call, lambda _: None, None)
            self._append(Awaited(wait.number, work.number, timeout_s, self._here.lane, self._take_steps()))
        self.await_arrival(wait)
        if wait.failure:
            self.join_program()
            late = wait.failure.ranks
            why = f"{_name(late)} had not come" if late else "it was still under way"
            raise dist.DistBackendError(f"Timed out waiting {timeout_s * 1e3:g}ms for {work.call}: {why}")

    def await_arrival(self, work: Work) -> None:
        """Wait until the answer of a work has come."""
        self.flush()
        with self._arrival:
            for one in (*work.stands_for, work):
                while not one.is_there:
                    if self._is_hurried:
                        self._report_wait(one)
                    if not (self._arrival.wait(self._patience_s) if self._is_read else self._read()):
                        self._report_wait(one)

    def poll(self, work: Work) -> bool:
        """True if the work has its answer; takes in first what has arrived."""
        self.flush()
        with self._arrival:
            if not work.has_all and not self._is_read:
                self._read(socket.MSG_DONTWAIT)
            if work.has_all:
                work.land()
            return work.has_all

    def _read(self, flags: int = 0) -> bool:
        """True when something came, False when nothing did in time; the lock of the arrivals is released meanwhile."""
        self._is_read = True
        self._arrival.release()
        try:
            data = self._sock.recv(_CHUNK, flags)
            if not data:
                signal.pause()  # the launcher has hung up, and ends this process
            for header, body in self._inbox.feed(data):
                self._take(read_from_conductor(header), body)
        except BlockingIOError:  # after the socket's own time-out
            return False
        finally:
            self._arrival.acquire()
            self._is_read = False
            self._arrival.notify_all()
        return True

    def _take(self, received: FromConductor, body: bytes) -> None:
        match received:
            case Hurry():
                self._is_hurried = True
            case Answer(number, src):
                self._works.pop(number).take(body, -1 if src is None else src)
            case Failed(number):
                self._works.pop(number).fail(received)


class Call(NamedTuple):
    """What a rank has called: an operation, among which ranks, with which peer."""

    op: str
    ranks: tuple[int, ...]
    peer: int | None

    def __str__(self) -> str:
        if self.op == "send":
            return f"send to rank {self.peer}"
        if self.op == "recv":
            return f"recv from rank {self.peer}" if self.peer is not None else f"recv from any of {_name(self.ranks)}"
        return f"{self.op} in the group of {_name(self.ranks)}"


class Work(torch_internals.Work):
    """One call under way. Its tensors are filled only when it is waited for, so a forgotten wait always shows."""

    def __init__(self, client: Client, number: int, call: Call, fill: Callable[[bytes], Any], result: Any) -> None:
        super().__init__()
        self.number, self.call = number, call
        self._client, self._fill, self._result = client, fill, result
        self.timeout_s: float | None = None  # of each wait for this call that has none of its own
        self.failure: Failed | None = None
        self.is_there = self.is_reported = False
        self.source_group: Sequence[int] = ()
        self.stands_for: Sequence[Work] = ()  # earlier calls of the group, for which nothing else waits
        self._src, self._body = -1, b""

    def take(self, body: bytes, src: int) -> None:
        """Keep the answer. The thread that reads calls this."""
        self._src, self._body = src, body
        self.report(DONE)
        self.is_there = True

    def fail(self, failure: Failed) -> None:
        """Keep why there is no answer. The thread that reads calls this."""
        self.failure = failure
        self.take(b"", -1)

    def raise_failure(self) -> None:
        """Raise what this call, or one for which it stands, has failed with.

        Raises:
            DistBackendError: a rank was lost.
        """
        for work in (*self.stands_for, self):
            if work.failure:
                self._client.join_program()
                heard = f"{_name(work.failure.ranks)} was lost, as was heard at {work.failure.time_s:g} s"
                raise dist.DistBackendError(f"{work.call} failed: {heard} of virtual time")

    @property
    def has_all(self) -> bool:
        """True if the answer is here, and that of every call for which this one stands."""
        return all(work.is_there for work in (*self.stands_for, self))

    def land(self) -> None:
        """Put the answer into the tensors, once; the lock of the arrivals is held."""
        for work in (*self.stands_for, self):
            body, work._body = work._body, b""
            work._fill(body)

    def report(self, state: str) -> None:
        """Report to the observer that the rank waits for this call, or that it is done."""
        self.is_reported = True
        self._client.observer.changed(self, state)

    def wait(self, timeout: Any = None) -> bool:
        """True, once the answer is here; in virtual time, the rank waits for the end of the call.

        Raises:
            DistBackendError: the timeout, a `timedelta` of virtual time, was too short, or a rank is lost.
        """
        with self._client.observer.waiting(self):
            self.await_within(seconds(timeout) or self.timeout_s)
            self._client.await_answer(self)
            self._client.step(WAIT, self.number)
            self.raise_failure()
        return True

    def await_within(self, timeout_s: float | None) -> None:
        """Wait until the call is done, but no longer than this, if it is said.

        Raises:
            DistBackendError: it is not done by then.
        """
        if timeout_s is not None:
            for work in (*self.stands_for, self):
                self._client.await_within(work, timeout_s)

    def backward(self) -> _Backward | None:
        """The backward that runs in this thread, if one does."""
        return self._client.backward()

    def is_completed(self) -> bool:
        """True if the answer is here; in virtual time, the rank has then waited for the end of the call."""
        if not self._client.poll(self):
            return False
        self._client.step(WAIT, self.number)
        return True

    def is_success(self) -> bool:
        """True if the answer is here, and is not that the call has failed."""
        return self._client.poll(self) and not any(work.failure for work in (*self.stands_for, self))

    def _source_rank(self) -> int:
        """The sender's rank within the group, once the call that received from any rank has set `source_group`."""
        return self.source_group.index(self._src)

    def result(self) -> Any:
        """The tensors that the call has filled."""
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors. Inside backward, it counts as waited for at backward's end, as DDP does."""
        if backward := self._client.backward():
            backward.works.append(self)
        future = Future(self)
        # a thread of its own, because C++ may wait for the future, and a callback may itself wait
        _start(threading.Thread(target=self._fulfil, args=(future,), daemon=True))
        return future

    def _fulfil(self, future: torch.futures.Future[Any]) -> None:
        try:
            self._client.await_answer(self)
            self.raise_failure()
        except Exception as error:  # raised where the future is waited for
            future.set_exception(error)
        else:
            future.set_result(self._result)


class _Backward:
    """The calls of one backward whose futures C++ waits for at its end, where no Python is called."""

    def __init__(self, client: Client, number: int) -> None:
        self.number = number
        self.works: list[Work] = []
        self.futures: list[Future] = []
        self._client = client
        torch_internals.call_when_backward_ends(self._end)

    def _end(self) -> None:
        """Wait for the calls in virtual time, and raise what has failed: C++ would take the error for tensors."""
        self._client.last_backward = None
        for work in self.works:
            work.await_within(work.timeout_s)
        for work in self.works:
            self._client.step(WAIT, work.number)
        for work in self.works:
            self._client.await_arrival(work)
            work.raise_failure()
        for future in self.futures:
            torch.futures.Future.wait(future)


class Future(torch.futures.Future):  # type: ignore[type-arg]
    """A future of a call's tensors, filled when its answer comes. Its rank waits for it in virtual time too."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def wait(self) -> Any:
        """The tensors, or what a callback made of them.

        Raises:
            Exception: the call or the callback failed.
        """
        self._work.wait()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Future:  # type: ignore[override]
        """A future of what the callback makes of this one."""
        after = Future(self._work)
        if backward := self._work.backward():
            backward.futures.append(after)

        def run(done: Any) -> None:
            try:
                after.set_result(callback(done))
            except Exception as error:
                after.set_exception(error)

        self.add_done_callback(run)
        return after


def seconds(timeout: timedelta | None) -> float | None:
    """The seconds of a timeout; None where it stands for none, as torch's defaults do."""
    if timeout is None or timeout in _UNSET_TIMEOUTS or timeout <= timedelta(0):
        return None
    return timeout.total_seconds()


def _name(ranks: Sequence[int]) -> str:
    """'rank 1', 'ranks 0 to 7' or 'ranks 0, 2 and 3'."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    cut = [*ranks[:_MOST_NAMED], f"{len(ranks) - _MOST_NAMED} others"]
    *names, last = map(str, cut if len(ranks) > len(cut) else ranks)
    return f"ranks {', '.join(names)} and {last}"


def _timeval(time_s: float) -> bytes:
    return struct.pack("ll", int(time_s), int(time_s % 1 * 1e6))
