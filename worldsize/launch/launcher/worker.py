"""The launcher's record of one rank."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from worldsize import framing
from worldsize.event import SPANS, Event
from worldsize.launch.protocol import codec, failure, stack_dump
from worldsize.launch.protocol.call_log import WAITING, CallLog
from worldsize.launch.protocol.events import read_events
from worldsize.launch.protocol.failure import Failure, FailureCause
from worldsize.launch.protocol.messages import (
    Done,
    Events,
    Failed,
    FromRank,
    Held,
    Joined,
    Position,
    Probed,
    Span,
    ThreadFailed,
    read_from_rank,
)
from worldsize.launch.protocol.quota import EXCEEDED
from worldsize.launch.reports import diagnosis
from worldsize.launch.reports.diagnosis import StoppedRank
from worldsize.memory.use import MemoryUse
from worldsize.message import Message, pack_and_send
from worldsize.source import Line

_CHUNK = 1 << 16  # bytes read at a time, which bounds the messages handled before the clock is checked again
_MAX_EVENTS = 100_000  # kept per rank, which may send any number
_MAX_THREADS = 10  # failed threads kept per rank


class Worker:
    """A rank's socket, its call log, and its reports."""

    def __init__(
        self, rank: int, control: socket.socket, max_value_bytes: int, start_s: float, is_local: bool = True
    ) -> None:
        self.rank, self.control, self.is_local = rank, control, is_local
        self.local_rank, self.pid = rank, 0
        self.call_log = CallLog.make()
        self.value: Any = None
        self.has_value = self.has_joined = self.is_hung_up = self.has_exited = False
        self.is_lost = False  # by a planned loss, which does not fail the run
        self.failure: Failure | None = None
        self.position: Position | None = None
        self.native = 0  # as of the last probe
        self.memory: MemoryUse | None = None
        self.failed_threads: list[ThreadFailed] = []  # the first `_MAX_THREADS`
        self.duration_s = 0.0
        self.num_unseen = 0  # collectives that no event describes
        self.last_state = ""  # set once the run is over
        self._inbox = framing.Inbox(max_value_bytes)
        self._start_s = start_s  # start of the run
        self._spans: Sequence[Span] = ()
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        control.setblocking(False)

    # the channel

    def send(self, message: Message, body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send the rank one message.

        Raises:
            OSError: the rank is gone.
        """
        self.control.setblocking(True)
        try:
            pack_and_send(self.control, message, body, fds)
        finally:
            self.control.setblocking(False)

    def receive(self) -> Iterator[tuple[FromRank, Any]]:
        """Yield the messages received, each with the content that `take` keeps.

        Raises:
            BlockingIOError: no message is waiting.
            ConnectionError: the rank has hung up.
            ValueError: the rank sent something other than a message.
        """
        data = self.control.recv(_CHUNK)
        if not data:
            raise ConnectionError("the rank has closed its connection")
        for header, body in self._inbox.feed(data):
            message = read_from_rank(header)
            yield message, self._content_of(message, body)

    def _content_of(self, message: FromRank, body: bytes) -> Any:
        """The events of `Events` or the value of `Done`; None for other messages and for a settled rank."""
        match message:
            case Events(rows) if not self.is_settled:
                return read_events(self.rank, rows, self._start_s)
            case Done() if body and not self.is_settled:
                return codec.decode(body)
            case _:
                return None

    def close(self) -> None:
        """Close the rank's socket and call log."""
        self.control.close()
        self.call_log.close()

    # the rank's state

    def take(self, message: FromRank, content: Any) -> None:
        """Keep a report that `receive` yielded; for a settled rank, only its position and failed threads."""
        match message:
            case Position():
                self.position = message
            case Probed(native):
                self.native = native
            case ThreadFailed():
                self.failed_threads = [*self.failed_threads, message][:_MAX_THREADS]
            case _ if self.is_settled:
                pass
            case Joined():
                self.has_joined = True
            case Events():
                self._events.extend(content)
            case Held(use):
                self.memory = use
            case Done(spans, duration_s, num_unseen):
                self.value, self.num_unseen = content, num_unseen
                self._spans, self.duration_s, self.has_value = spans, duration_s, True
            case Failed(failure, spans):
                self.failure, self._spans = replace(failure, rank=self.rank), spans

    def fail(self, cause: FailureCause, kind: str, reason: str) -> None:
        """Record a failure of the rank that was seen from outside."""
        self.failure = Failure(self.rank, kind, reason, [], time.monotonic_ns(), cause)

    def note_status(self, status: int, time_ns: int) -> None:
        """Record that the rank's process ended with this wait status and without a report."""
        failed = failure.of_status(self.rank, status, time_ns)
        self.failure = replace(failed, lines=self.dumped_lines) if failed.kind in failure.CRASHES else failed

    def exceed(self, reason: str) -> None:
        """Record that the rank has failed by exceeding its quota."""
        self.fail(FailureCause.LIMIT, EXCEEDED, reason)

    @property
    def is_settled(self) -> bool:
        """Whether the rank has returned, failed or been lost."""
        return self.has_value or self.is_lost or self.failure is not None

    @property
    def is_silent(self) -> bool:
        """Whether the rank runs and has not reported its position."""
        is_running = self.pid > 0 and not (self.is_settled or self.is_hung_up or self.has_exited)
        return is_running and self.position is None

    @property
    def is_in_call(self) -> bool:
        """Whether the rank waits in a logged call."""
        call = self.call_log.current()
        return call is not None and call.state == WAITING

    @property
    def waits_in(self) -> tuple[int, int] | None:
        """The numbers of the logged call and of torch's own collective in which the rank waits; None while it works."""
        call = self.call_log.current()
        number = call.number if call else 0
        if call and call.state == WAITING:
            return number, 0
        return (number, self.native) if self.native else None

    @property
    def state(self) -> str:
        """The rank's state in a few words; fixed once the run is over, however the rank is then ended."""
        if self.last_state:
            return self.last_state
        if self.failure:
            return f"failed: {self.failure.headline}"
        if self.is_lost:
            return diagnosis.LOST
        if self.has_value:
            return "done"
        if not self.has_joined:
            return "starting"
        call = self.call_log.current()
        return f"waits in {call}" if call and call.state == WAITING else "running"

    @property
    def standing(self) -> StoppedRank:
        """Where the rank is or was, as far as it has reported."""
        state = diagnosis.RETURNED if self.has_value else diagnosis.FAILED if self.failure else diagnosis.RUNNING
        state = diagnosis.LOST if self.is_lost else state
        at = self.position or Position([])
        return StoppedRank(self.rank, state, at.lines, self.call_log.read(), at.native, at.num_native)

    @property
    def dumped_lines(self) -> list[Line]:
        """The lines of the stack that the rank has dumped, if any."""
        return stack_dump.read(self.call_log.fd, quotes_files=self.is_local)

    @property
    def events(self) -> Iterator[Event]:
        """Yield the rank's events and spans, in seconds since the start of the run."""
        yield from self._events
        for name, kind, start_s, end_s in self._spans:
            yield Event(self.rank, SPANS, kind, name, start_s - self._start_s, end_s - self._start_s)
