"""A rank's connection to the conductor, and its pending calls."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch.distributed as dist

from worldsize import framing
from worldsize.emulate.protocol.messages import (
    Awaited,
    Blocked,
    FromConductor,
    FromRank,
    Hurry,
    Left,
    OperationFailed,
    OperationResult,
    Posted,
    Refused,
    read_from_conductor,
)
from worldsize.emulate.protocol.operations import ASK, Forbidden, refusal
from worldsize.emulate.protocol.record import COMPUTE, Step
from worldsize.emulate.worker.compute import Meter
from worldsize.emulate.worker.idleness import Idleness
from worldsize.emulate.worker.steps import StepRecorder
from worldsize.emulate.worker.waits import Still, Waits
from worldsize.emulate.worker.works import WAITING, Fulfilments, Observer, PendingCall, Work
from worldsize.hardware import TRANSFERS
from worldsize.units import format_ranks

_NO_POLLING = (
    "{}() was False before, and no virtual time has passed since: only work, emulate.spend and waits take "
    "time. Call wait() instead of asking again; to take whichever message comes first, receive without src."
)
_PATIENCE_S = 0.1  # how long a rank waits for an answer before it reports that it is blocked
_RANK_S = 0.005  # added to this time for every rank on this machine
_CHUNK = 1 << 16
_MOST_UNSENT_BYTES = 1 << 16
_MAX_ANSWER_BYTES = 1 << 40  # the launcher is trusted


class Client(StepRecorder):
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
        super().__init__(meter, missing)
        meter.before_work = self.flush  # work may take long while other ranks wait for this rank's posts
        self.rank, self.observer = rank, observer
        self.folder = os.path.realpath(os.getcwd())  # the program's folder, which it may leave
        self._sock, self._patience_s = sock, _PATIENCE_S + _RANK_S * world_size
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(self._patience_s))
        self._inbox = framing.Inbox(_MAX_ANSWER_BYTES)
        self._allow = None if allow is None else frozenset(allow)
        self._lock = threading.RLock()
        self._arrival = threading.Condition()
        self._is_read = False  # whether a thread is reading
        self._unsent: list[bytes] = []  # posts are batched until the rank waits
        self._unsent_bytes = 0
        self._num_posts = 0
        self._groups: set[str] = set()
        self._works: dict[int, Work] = {}
        self._is_hurried = False
        self.waits = Waits(self._report_if_still)
        self.fulfilments = Fulfilments()
        self._reported: Still | None = None

    def replay(self, steps: Sequence[Step], lane: str, after: int) -> None:
        """Add these steps to a lane, no earlier than the mark `after`, and let the current lane wait for them."""
        with self.on_lane(lane, after):
            for step in steps:
                self._record(step._replace(lane=lane))
            done = self.mark()
        self.join(done)

    def hold_locks(self) -> None:
        """Lock the state that a fork copies, before this process forks."""
        self._lock.acquire()
        self._recording.acquire()
        self.waits.guard.acquire()

    def free_locks(self) -> None:
        """Release the locks after the fork."""
        self.waits.guard.release()
        self._recording.release()
        self._lock.release()

    def leave_to_parent(self) -> None:
        """Stop sending, in a process that the rank has forked."""
        self.is_in_child = True
        self._unsent, self._unsent_bytes, self._steps = [], 0, []
        self._lock, self._recording = threading.RLock(), threading.RLock()  # other threads may have held them
        self.waits.reset()
        self._here.meter = Meter()

    def take_work(self) -> list[Step]:
        """Return the work and transfers since the last call, in a process that the rank has forked."""
        return [step for step in self._take_steps() if step.kind == COMPUTE or step.kind in TRANSFERS]

    def elapsed_s(self) -> float:
        """Ask the conductor for the virtual time of this rank, in seconds."""
        time_s = self.ask_time()()
        self.note_host()
        return time_s

    def ask_time(self) -> Callable[[], float]:
        """Ask the conductor for the virtual time of the current lane here, in seconds.

        What is returned waits for the answer.
        """
        answer: list[bytes] = []
        work = self.post(ASK, "", (), b"", answer.append, None, dtype="", num_items=0)

        def time_s() -> float:
            if not answer:
                self.await_answer(work)
            return struct.unpack("d", answer[0])[0]

        return time_s

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
        """Post a call and return its work; `fill` copies the answer into place when it comes.

        The call goes out with the next `flush`.

        Raises:
            Forbidden: the run does not allow this operation, or this is a process that the rank has forked.
        """
        if self.is_in_child:
            raise Forbidden(
                "a process that a rank has started, such as a DataLoader's worker, cannot take part in the run: "
                "communicate from the rank itself"
            )
        if self._allow is not None and op not in (*self._allow, ASK):
            self.note_refusal()
            raise Forbidden(refusal(op, self._allow))
        with self._lock:
            work = self._new_work(PendingCall(op, tuple(ranks), peer), fill, result)
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

    def _new_work(self, call: PendingCall, fill: Callable[[bytes], Any], result: Any) -> Work:
        self._num_posts += 1
        work = self._works[self._num_posts] = Work(self, self._num_posts, call, fill, result)
        self._note_work()  # the launcher itself records the post
        return work

    def flush(self) -> None:
        """Send all pending posts."""
        if self._unsent:
            with self._lock:
                self._send_all()

    def _append(self, message: FromRank, body: bytes = b"") -> None:
        self._unsent += framing.pack_header(message.to_bytes(), len(body)), body
        self._unsent_bytes += len(body)

    def _send_all(self) -> None:
        is_long = self._unsent_bytes > _MOST_UNSENT_BYTES
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        for part in unsent if is_long else [b"".join(unsent)]:  # joining them takes a copy
            self._sock.sendall(part)

    def note_refusal(self) -> None:
        """Report to the conductor that a call of this rank was refused."""
        with self._lock:
            self._append(Refused(self._take_steps()))
            self._send_all()

    def _report_if_still(self, num_asleep: int = 0) -> None:
        """Report to the conductor, once, that all threads of this rank but `num_asleep` sleeping ones are blocked."""
        if self.is_in_child:
            return
        with self._lock:
            # nothing is sent between the check and the report: a thread that wakes up afterwards sends afterwards
            still = self.waits.still(num_asleep)
            if still is None or still == self._reported:
                return
            self._reported = still
            # first, because the launcher may look at this rank as soon as it has the report
            for number in still.numbers:
                if number in self._works:
                    self._works[number].report(WAITING)
            self._append(Blocked(still.numbers, still.is_limited, self._take_steps()))
            self._send_all()

    def leave(self) -> None:
        """Report the last steps of this rank, and that it will not post again."""
        self.fulfilments.settle()  # the memory held is recorded next
        with self._lock:
            self._note_work()
            self._append(Left(self._take_steps()))
            self._send_all()

    def await_answer(self, work: Work) -> None:
        """Wait until the answer to a call has come and is in its tensors."""
        self.await_arrival(work)
        with self._arrival:
            work.land()

    def await_within(self, work: Work, timeout_s: float) -> None:
        """Wait in virtual time until a call is done, for at most `timeout_s`.

        Raises:
            DistBackendError: it is not done by then.
        """
        if failure := self._await_in_vain(work, timeout_s):
            self.join_program()
            late = failure.ranks
            why = f"{format_ranks(late)} had not come" if late else "it was still under way"
            raise dist.DistBackendError(
                f"[emulated cluster] Timed out waiting {timeout_s * 1e3:g}ms for {work.call}: {why}"
            )

    def is_done(self, work: Work, asked_s: dict[str, float], question: str) -> bool:
        """Whether a call is done at this moment of virtual time; `asked_s` has the time of each question's last "no".

        Raises:
            Forbidden: the answer was no before, and no virtual time has passed since.
        """
        failure = self._await_in_vain(work, 0.0)
        if failure and asked_s.get(question) == failure.time_s:
            self.note_refusal()
            raise Forbidden(_NO_POLLING.format(question))
        asked_s[question] = failure.time_s if failure else -1.0
        return not failure

    def _await_in_vain(self, work: Work, timeout_s: float) -> OperationFailed | None:
        """Wait in virtual time until a work is done, but no longer than this: what a wait that was in vain gave."""
        with self._lock:
            wait = self._new_work(work.call, lambda _: None, None)
            self._append(Awaited(wait.number, work.number, timeout_s, self._here.lane, self._take_steps()))
        self.await_arrival(wait)
        return wait.failure

    def await_arrival(self, work: Work) -> None:
        """Wait until the answer to a call has come."""
        with self._arrival, self.waits.unwatched():
            for call in (*work.stands_for, work):
                self._await(call)

    def _await(self, work: Work) -> None:
        """Wait until the answer has come; after a while, or at once in a hurry, report that this thread waits."""
        since_s, idleness = time.monotonic(), None
        try:
            while not work.is_there:
                is_long = time.monotonic() - since_s >= self._patience_s
                if is_long or self._is_hurried:
                    self.waits.wait_for_answer(work.number)
                    self._report_if_still()
                if is_long and self.waits.still() is None:  # a thread may sleep unreported
                    idleness = idleness or Idleness(self._patience_s)
                    self._report_if_still(idleness.num_asleep())
                self.flush()
                if self._is_read:
                    self._arrival.wait(self._patience_s)
                else:
                    self._read()
        finally:
            self.waits.end_wait_for_answer()

    def _read(self) -> None:
        """Receive frames, if any come in time; the lock of the arrivals is released meanwhile."""
        self._is_read = True
        self._arrival.release()
        try:
            data = self._sock.recv(_CHUNK)
            if not data:
                signal.pause()  # the launcher has hung up and will kill this process
            for header, body in self._inbox.feed(data):
                self._take(read_from_conductor(header), body)
        except BlockingIOError:  # after the socket's own timeout
            pass
        finally:
            self._arrival.acquire()
            self._is_read = False
            self._arrival.notify_all()

    def _take(self, received: FromConductor, body: bytes) -> None:
        match received:
            case Hurry():
                self._is_hurried = True
            case OperationResult(number, src):
                self._works.pop(number).take(body, -1 if src is None else src)
                self.waits.answer(number)
            case OperationFailed(number):
                self._works.pop(number).fail(received)
                self.waits.answer(number)


def _timeval(time_s: float) -> bytes:
    return struct.pack("ll", int(time_s), int(time_s % 1 * 1e6))
