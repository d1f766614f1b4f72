"""The ranks of one run as their launcher sees them, however they were started: one loop hears them all."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from worldsize import framing
from worldsize.emulate.server import Emulation
from worldsize.emulate.simulator import Unanswered
from worldsize.event import SPANS, Event
from worldsize.launch.display.output import Tail
from worldsize.launch.display.view import View
from worldsize.launch.protocol import codec
from worldsize.launch.protocol.call_log import WAITING, Call, CallLog
from worldsize.launch.protocol.events import read_events
from worldsize.launch.protocol.failure import Failure
from worldsize.launch.protocol.quota import EXCEEDED, Quota
from worldsize.launch.protocol.source import MAX_LINES, Line
from worldsize.launch.reports import diagnosis, text
from worldsize.launch.reports.diagnosis import Standing
from worldsize.launch.reports.result import RankFailed, Run, RunStopped, RunTimeout
from worldsize.timeline import Timeline

_GRACE_S = 1.0  # how long the others may take to tell what they saw of a failure
_GLANCE_S = 0.1  # how often the view and the ranks' progress are looked at,
_GLANCE_AT_RANK_S = 0.003  # and less often where there are many ranks to look at
_MAX_EVENTS = 100_000  # of a rank, which may send any number
_STOPPED = "Stopped by the stop button."


class Member:
    """What the launcher knows of one rank."""

    def __init__(self, rank: int, control: socket.socket, quota: Quota) -> None:
        self.rank, self.control = rank, control
        self.local_rank, self.pid = rank, 0
        self.call_log = CallLog.make()
        self.inbox = framing.Inbox(quota.value_bytes)
        self.value: Any = None
        self.has_value = False
        self.has_joined = False
        self.failure: Failure | None = None
        self.where: Standing | None = None
        self.spans: list[tuple[str, str, float, float]] = []
        self.events: list[Event] = []
        self.duration_s = 0.0
        self.last_state = ""  # once the run is over
        self.is_hung_up = False
        self.has_exited = False

    @property
    def is_settled(self) -> bool:
        """True once it is known how the rank ends."""
        return self.has_value or self.failure is not None

    @property
    def state(self) -> str:
        """A few words for a reader; those of the run's end stay, whatever ending the rank does to it."""
        if self.last_state:
            return self.last_state
        if self.failure:
            return f"failed: {self.failure.headline}"
        if self.has_value:
            return "done"
        if not self.has_joined:
            return "starting"
        call = self.call_log.current()
        return f"waits in {call}" if call and call.state == WAITING else "running"

    @property
    def standing(self) -> Standing:
        """Where it is or was, as far as it has told."""
        state = diagnosis.RETURNED if self.has_value else diagnosis.FAILED if self.failure else diagnosis.RUNNING
        told = self.where or Standing(self.rank)
        return replace(told, state=state, calls=self.call_log.read())

    def fail(self, kind: str, reason: str) -> None:
        """Notes that it has failed, by something that was seen from outside."""
        self.failure = Failure(self.rank, kind, reason, [], time.monotonic_ns())

    def close(self) -> None:
        """Closes what was open for it."""
        self.control.close()
        self.call_log.close()


class _Stall:
    """Whether the ranks have got on at all in the last `stalled_s` seconds."""

    def __init__(self, stalled_s: float | None) -> None:
        self._stalled_s, self._moved_s, self._before = stalled_s, time.monotonic(), None

    def why(self, progress: Any) -> str:
        """A sentence once progress has been the same, and not None, for too long."""
        if progress is None or progress != self._before:
            self._before, self._moved_s = progress, time.monotonic()
        elif self._stalled_s is not None and time.monotonic() - self._moved_s > self._stalled_s:
            return f"Nothing has moved for {self._stalled_s:g} s: every rank that is not done waits in a call."
        return ""


class Crew(ABC):
    """The ranks of one run; a subclass starts them, hears how they end, and ends them."""

    is_stalled = False  # True once nothing has moved for too long
    may_recover = False  # true where a failed rank can come back
    answer_s = 1.0  # how long ranks may take to tell where they stand

    def __init__(self, view: View, quota: Quota, emulation: Emulation | None = None) -> None:
        self.view, self.emulation = view, emulation
        self.members: list[Member] = []
        self.tails: dict[int, Tail] = {}
        self.selector = selectors.DefaultSelector()
        self.backend = ""
        self.restarts = 0
        self._quota = quota
        self._start_s = self._end_s = time.monotonic()

    @property
    def states(self) -> list[tuple[int, str]]:
        """Each rank and its state in words, by rank."""
        return sorted((member.rank, member.state) for member in self.members)

    # what a subclass says

    @property
    def is_over(self) -> bool:
        """True when nothing more is to be waited for."""
        return bool(self.members) and all(member.is_settled for member in self.members)

    @property
    @abstractmethod
    def headline(self) -> str:
        """One line: how many ranks, and where they run."""

    @abstractmethod
    def end_ranks(self) -> None:
        """Ends every rank that still runs, and all that they have started; returns when they are gone."""

    # the loop

    def add(self, rank: int, control: socket.socket) -> Member:
        """A new member that is heard from now on."""
        member = Member(rank, control, self._quota)
        self.members.append(member)
        control.setblocking(False)
        self.selector.register(control, selectors.EVENT_READ, lambda: self.hear(member))
        return member

    def listen(self, timeout_s: float, stalled_s: float | None) -> str:
        """Why it is over: 'ended', or a sentence when the ranks must be stopped."""
        deadline_s, glance_s = self._start_s + timeout_s, 0.0
        stall = _Stall(stalled_s)
        why = ""
        while not self.is_over and not why:
            self.turn(deadline_s)
            why = self._why_stuck()
            if time.monotonic() >= glance_s:  # what it costs to look grows with the ranks
                glance_s = time.monotonic() + max(_GLANCE_S, _GLANCE_AT_RANK_S * len(self.members))
                if any(member.failure for member in self.members) and not self.may_recover:
                    deadline_s = min(deadline_s, time.monotonic() + _GRACE_S)
                self.view.glance(self)
                if not why and (why := stall.why(self._progress())):
                    self.is_stalled = True
            if time.monotonic() >= deadline_s:
                why = why or f"The ranks were not done after {timeout_s:g} s."
        self._end_s = time.monotonic()
        return "ended" if self.is_over else why

    def _why_stuck(self) -> str:
        if self.view.is_stop_asked:
            return _STOPPED
        if self.emulation and self.emulation.is_stuck:
            return "Nothing can move any more: every rank that is not done waits for another."
        return ""

    def turn(self, deadline_s: float) -> None:
        """Handles what is ready, waiting for it no longer than to the next glance."""
        for key, _ in self.selector.select(max(0.0, min(deadline_s - time.monotonic(), _GLANCE_S))):
            key.data()

    def _progress(self) -> Any:
        """What changes when a rank gets on; None while one of them is at work on something that is no call.

        None too before the first of them has come: to start is work.
        """
        if not self.members:
            return None
        marks = []
        for member in self.members:
            if not member.is_settled:
                call = member.call_log.current()
                if call is None or call.state != WAITING:
                    return None
                marks.append((member.rank, call.number))
        return marks, sum(tail.num_bytes for tail in self.tails.values())

    def tell(self, member: Member, kind: str, body: bytes = b"", fds: list[int] | None = None, **fields: Any) -> None:
        """Sends a rank one message.

        Raises:
            OSError: it is gone.
        """
        member.control.setblocking(True)
        try:
            framing.send(member.control, kind, body, fds, **fields)
        finally:
            member.control.setblocking(False)

    def hear(self, member: Member) -> None:
        """Takes what a rank has sent."""
        if member.is_hung_up:
            return
        try:
            data = member.control.recv(1 << 20)
            if not data:
                self.hang_up(member)
            for header, body in member.inbox.feed(data):
                self.take(member, header, body)
        except BlockingIOError:
            return
        except ConnectionError:
            self.hang_up(member)
        except Exception as error:  # the rank may have sent anything, and it must not become the launcher's fault
            self.hang_up(member)
            kind = EXCEEDED if isinstance(error, framing.TooLong) else "broken result"
            member.fail(kind, f"what the rank sent back cannot be read: {error}")

    def hang_up(self, member: Member) -> None:
        """Hears no more of a rank."""
        member.is_hung_up = True
        self.selector.unregister(member.control)

    def take(self, member: Member, header: dict[str, Any], body: bytes) -> None:
        """Takes one message of a rank."""
        kind = header.get("kind")
        if self.emulation and kind in ("done", "failed"):
            self.emulation.leave(member.rank)
        if kind == "joined":
            member.has_joined, self.backend = True, str(header["backend"])
            self.view.begin(self.headline)
        elif kind == "where":
            member.where = _read_where(member.rank, header)
        elif member.is_settled:
            return
        elif kind == "events":
            told = read_events(member.rank, header["events"], self._start_s)
            member.events = [*member.events, *told][-_MAX_EVENTS:]
        elif kind == "done":
            member.value, member.spans = codec.decode(body) if body else None, _read_spans(header["spans"])
            member.duration_s = float(header["duration_s"])
            member.has_value = True
        elif kind == "failed":
            member.failure = Failure.from_fields(member.rank, header["failure"])
            member.spans = _read_spans(header["spans"])

    def print(self, rank: int, data: bytes) -> None:
        """Keeps what a rank printed and shows it; a rank that prints too much fails by that."""
        tail = self.tails.setdefault(rank, Tail())
        self.view.output(rank, tail.feed(data))
        most = self._quota.printed_bytes
        if most is not None and tail.num_bytes > most:
            for member in self.members:
                if member.rank == rank and not member.is_settled:
                    member.fail(EXCEEDED, f"it printed more than {most / 1e6:g} MB")

    # the end

    def outcome(self, why: str) -> Run:
        """The run, when every rank returned.

        Raises:
            RankFailed, RunTimeout, RunStopped: otherwise.
        """
        if not self.went_well or any(member.failure for member in self.members):
            self._ask_where()
        failures = [member.failure for member in self.members if member.failure]  # of which some came meanwhile
        standings = [member.standing for member in self.members]
        for member in self.members:
            member.last_state = member.state
        self.end_ranks()
        self.view.end(self)
        output = [self.tails[rank].text if rank in self.tails else "" for rank in self._ranks()]
        if why == _STOPPED:
            raise RunStopped(text.tell_hang(standings, why), failures, output, standings)
        if failures:
            failures = text.blame(failures, standings)
            raise RankFailed(text.tell_failure(failures, standings), failures, output, standings)
        if not self.went_well:
            error = RunTimeout(text.tell_hang(standings, why), text.held_up(standings), output, standings)
            error.is_stalled = self.is_stalled
            raise error
        return self._run(output)

    @property
    def went_well(self) -> bool:
        """True when every rank has returned."""
        return bool(self.members) and all(member.has_value for member in self.members)

    def _ranks(self) -> Sequence[int]:
        return range(max([*(member.rank for member in self.members), *self.tails], default=-1) + 1)

    def _run(self, output: list[str]) -> Run:
        members = sorted(self.members, key=lambda member: member.rank)
        return Run(
            [member.value for member in members],
            output,
            self._end_s - self._start_s,
            self.backend,
            self._timeline(output),
            [member.state for member in members],
            [member.duration_s for member in members],
            self.restarts,
        )

    def _timeline(self, output: list[str]) -> Timeline:
        if not self.emulation:
            return Timeline.of_events(self._events())
        try:
            return self.emulation.timeline()
        except Unanswered as error:  # what ranks say of their waiting is theirs to get wrong
            failures = [Failure(rank, "broken message", str(error), [], time.monotonic_ns()) for rank in error.ranks]
            raise RankFailed(text.tell_failure(failures, []), failures, output) from None

    def _events(self) -> Iterator[Event]:
        for member in self.members:
            yield from member.events
            for name, kind, start_s, end_s in member.spans:
                yield Event(member.rank, SPANS, kind, name, start_s - self._start_s, end_s - self._start_s)

    def _ask_where(self) -> None:
        """Asks every rank where it stands; how one that has hung up came to its end is told by who started it."""
        for member in self.members:
            if member.is_hung_up:
                continue
            with contextlib.suppress(OSError):
                self.tell(member, "where")
        deadline_s = time.monotonic() + self.answer_s
        while any(map(_is_awaited, self.members)) and time.monotonic() < deadline_s:
            self.turn(deadline_s)

    def close(self) -> None:
        """Ends what is left and forgets it."""
        self.end_ranks()
        self.view.end(self)
        self.selector.close()
        if self.emulation:
            self.emulation.close()
        for member in self.members:
            member.close()


def _is_awaited(member: Member) -> bool:
    return not member.is_settled if member.is_hung_up else member.where is None


def _read_where(rank: int, header: dict[str, Any]) -> Standing:
    lines = [Line.from_fields(line) for line in header["lines"][-MAX_LINES:]]
    native = header.get("native")
    call = Call.from_fields(native, WAITING, int(native["number"])) if native else None
    return Standing(rank, lines=lines, native=call, num_native=int(header.get("num_native", 0)))


def _read_spans(spans: Any) -> list[tuple[str, str, float, float]]:
    return [(str(name), str(kind), float(start_s), float(end_s)) for name, kind, start_s, end_s in spans]
