"""`run`: a function on real ranks, from a script or a notebook cell."""

from __future__ import annotations

import codecs
import contextlib
import itertools
import os
import selectors
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worldsize.launch import codec, failure, frames, warm
from worldsize.launch.failure import Failure, RankFailed, RunTimeout
from worldsize.timeline import Event, Timeline

_BACKENDS = ("auto", "gloo", "nccl")
_GRACE_S = 1.0  # how long the others may take to tell what they saw of a failure
KEPT_OUTPUT = 1 << 20  # characters of each rank's output that are kept, the last ones
_OUTPUT_CHUNK = 1 << 16
_MAX_TIMEOUT_S = 1_000_000  # 11 days; the kernel's own clocks for waiting end soon after
_job_numbers = itertools.count(1)
_one_at_a_time = threading.RLock()  # runs share the nursery's socket


@dataclass
class Run:
    """What a run gave: `values` and `output` by rank, the time it took in seconds, and its timeline."""

    values: list[Any]
    output: list[str]
    duration_s: float
    backend: str = "gloo"
    timeline: Timeline = field(default_factory=Timeline, repr=False)

    def __repr__(self) -> str:
        return f"Run({len(self.output)} ranks on {self.backend}, {self.duration_s:.2f} s)"


def run(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    each: Sequence[Sequence[Any]] | None = None,
    backend: str = "auto",
    timeout_s: float = 60,
    env: Mapping[str, str] | None = None,
    echo: bool = True,
    nursery: warm.Nursery | None = None,
    max_value_bytes: int = 1 << 34,
) -> Run:
    """A `Run` of `fn(*args, *each[rank])` on `world_size` ranks, each in a process of its own.

    The default process group is up when the function starts: NCCL when there is a GPU for every rank, Gloo otherwise.
    The function may be defined in a notebook cell. It may return numbers, strings, lists, tuples, dicts with string
    keys, and tensors. With `echo`, what ranks print appears as it comes.

    Raises:
        ValueError: an argument is wrong, or the function cannot be carried to another process.
        RankFailed: a rank raised, exited or was killed; names the culprit.
        RunTimeout: the ranks were not done after `timeout_s` seconds; says where each one stood.
    """
    _refuse_bad_arguments(world_size, each, backend, env or {})
    refuse_bad_timeout(timeout_s)
    payloads = [_carry(fn, (*args, *(each[rank] if each else ()))) for rank in range(world_size)]
    with _one_at_a_time:
        crew = _Crew(nursery or warm.shared(), world_size, echo, max_value_bytes)
        try:
            crew.start(payloads, backend, timeout_s, dict(env or {}))
            crew.listen(timeout_s)
            return crew.outcome(timeout_s)
        finally:
            crew.dismiss()


def _refuse_bad_arguments(
    world_size: int, each: Sequence[Sequence[Any]] | None, backend: str, env: Mapping[str, str]
) -> None:
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size is the number of ranks, a whole number from 1 up; got {world_size!r}")
    if each is not None:
        _refuse_bad_each(each, world_size)
    if backend not in _BACKENDS:
        raise ValueError(f"backend {backend!r} is not known; use one of {', '.join(_BACKENDS)}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(f"env holds text by name; got {name!r}: {value!r}")


def _refuse_bad_each(each: Sequence[Sequence[Any]], world_size: int) -> None:
    if not isinstance(each, list | tuple) or not all(isinstance(args, list | tuple) for args in each):
        raise ValueError(
            "each is a list with one tuple of arguments a rank; for one argument a rank, write [(a0,), (a1,)]"
        )
    if len(each) != world_size:
        raise ValueError(f"each holds one tuple of arguments a rank; got {len(each)} for {world_size} ranks")


def refuse_bad_timeout(timeout_s: float) -> None:
    """Nothing, when `timeout_s` is a time to wait.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise ValueError(f"timeout_s is a number of seconds above 0, at most {_MAX_TIMEOUT_S}; got {timeout_s!r}")


def _carry(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    import cloudpickle

    if not callable(fn):
        raise ValueError(f"run takes a function; got a {type(fn).__name__}")
    try:
        return cloudpickle.dumps((fn, args))
    except Exception as error:
        name = getattr(fn, "__name__", repr(fn))
        raise ValueError(
            f"{name} and its arguments cannot be carried to another process: {error}. "
            "Open files, locks and running generators must be made inside the function."
        ) from error


class _Member:
    """What the launcher knows of one rank."""

    def __init__(self, rank: int, job: int, control: socket.socket, output_fd: int, max_value_bytes: int) -> None:
        self.rank, self.job, self.control, self.output_fd = rank, job, control, output_fd
        self.inbox = frames.Inbox(max_value_bytes)
        self.value: Any = None
        self.has_value = False
        self.failure: Failure | None = None
        self.where: list[failure.Line] | None = None
        self.spans: list[tuple[str, str, float, float]] = []
        self.text = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.unfinished_line = b""
        self.is_hung_up = False
        self.is_silent = False
        self.has_exited = False

    @property
    def is_settled(self) -> bool:
        return self.has_value or self.failure is not None


class _Crew:
    """The ranks of one run, from their fork to their end."""

    def __init__(self, nursery: warm.Nursery, world_size: int, echo: bool, max_value_bytes: int) -> None:
        self._nursery, self._world_size, self._echo = nursery, world_size, echo
        self._max_value_bytes = max_value_bytes
        self._members: dict[int, _Member] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(nursery.socket, selectors.EVENT_READ, self._hear_nursery)
        self._start_s = self._end_s = time.monotonic()
        self._backend = "gloo"
        self._store = os.path.join(nursery.scratch, uuid.uuid4().hex)

    def start(self, payloads: list[bytes], backend: str, timeout_s: float, env: dict[str, str]) -> None:
        ours = os.environ if self._nursery.is_local else {}  # which may have changed since the nursery started
        job: dict[str, Any] = {
            "world_size": self._world_size,
            "backend": backend,
            "store": self._store,
            "timeout_s": timeout_s,
            "num_threads": max(1, (os.cpu_count() or 1) // self._world_size),
            "env": {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo", **ours, **env},
            "sources": failure.cell_sources() if self._nursery.is_local else {},
        }
        if self._nursery.is_local:
            job |= {"cwd": os.getcwd(), "path": sys.path}
        for rank in range(self._world_size):
            self._fork(rank)
        for member, payload in zip(self._members.values(), payloads, strict=True):
            with contextlib.suppress(OSError):  # its end is about to be reported
                frames.send(member.control, "job", payload, rank=member.rank, **job)
            member.control.setblocking(False)

    def _fork(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        output_r, output_w = os.pipe()
        member = _Member(rank, next(_job_numbers), ours, output_r, self._max_value_bytes)
        self._members[member.job] = member
        with contextlib.suppress(OSError):  # the nursery's end is about to be heard
            self._nursery.fork(member.job, theirs.fileno(), output_w)
        theirs.close()
        os.close(output_w)
        os.set_blocking(output_r, False)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._hear_rank(member))
        self._selector.register(output_r, selectors.EVENT_READ, lambda: self._hear_output(member))

    def listen(self, timeout_s: float) -> None:
        """Returns when every rank has settled, a failure has had its time to spread, or time is up."""
        deadline_s = self._start_s + timeout_s
        while not all(member.is_settled for member in self._members.values()):
            if any(member.failure for member in self._members.values()):
                deadline_s = min(deadline_s, time.monotonic() + _GRACE_S)
            if not self._turn(deadline_s):
                break
        self._end_s = time.monotonic()

    def outcome(self, timeout_s: float) -> Run:
        """The run, when every rank returned.

        Raises:
            RankFailed, RunTimeout: otherwise.
        """
        members = list(self._members.values())
        if not any(member.failure for member in members) and not all(member.has_value for member in members):
            self._ask_where()
        failures = [member.failure for member in members if member.failure]
        self._stop_the_rest()
        self._drain_output()
        output = [member.text for member in members]
        if failures:
            raise RankFailed(failure.tell(failures, self._world_size), failure.order(failures), output)
        if not all(member.has_value for member in members):
            raise self._timeout(timeout_s, output)
        values = [member.value for member in members]
        return Run(values, output, self._end_s - self._start_s, self._backend, self._timeline())

    def dismiss(self) -> None:
        """Ends what is left of the ranks and forgets them."""
        self._stop_the_rest()
        self._selector.close()
        for member in self._members.values():
            member.control.close()
            os.close(member.output_fd)
        if self._nursery.is_local:
            with contextlib.suppress(OSError):
                os.unlink(self._store)

    def _turn(self, deadline_s: float) -> bool:
        """Handles what is ready; False when the deadline passed with nothing to handle."""
        ready = self._selector.select(max(0.0, deadline_s - time.monotonic()))
        for key, _ in ready:
            key.data()
        return bool(ready) and time.monotonic() < deadline_s

    def _hear_nursery(self) -> None:
        try:
            message = frames.receive(self._nursery.socket)
        except ConnectionError:
            message = None
        if message is None:
            self._selector.unregister(self._nursery.socket)
            self._nursery.close()
            for member in self._members.values():
                member.has_exited = True
                self._settle_by_status(member, 9)
            return
        header = message[0]
        member = self._members.get(header.get("job", 0))
        if header["kind"] == "exited" and member:
            for _ in range(4):  # what it said last stands before how it ended; more than a socket holds
                self._hear_rank(member)
            member.has_exited = True
            self._settle_by_status(member, header["status"])

    def _settle_by_status(self, member: _Member, status: int) -> None:
        if not member.is_settled:
            member.failure = failure.of_status(member.rank, status, time.monotonic_ns())

    def _hear_rank(self, member: _Member) -> None:
        if member.is_hung_up:
            return
        try:
            data = member.control.recv(1 << 20)
            if not data:
                self._hang_up(member)
            for header, body in member.inbox.feed(data):
                self._take(member, header, body)
        except BlockingIOError:
            return
        except ConnectionError:
            self._hang_up(member)
        except Exception as error:  # the rank may have sent anything, and it must not become the launcher's fault
            self._hang_up(member)
            reason = f"what the rank sent back cannot be read: {error}"
            member.failure = Failure(member.rank, "broken result", reason, [], time.monotonic_ns())

    def _hang_up(self, member: _Member) -> None:
        member.is_hung_up = True
        self._selector.unregister(member.control)

    def _take(self, member: _Member, header: dict[str, Any], body: bytes) -> None:
        kind = header.get("kind")
        if kind == "joined":
            self._backend = str(header["backend"])
        elif kind == "where":
            member.where = Failure.from_fields(member.rank, header).lines
        elif member.is_settled:
            return
        elif kind == "done":
            member.value, member.spans = codec.decode(body), _read_spans(header["spans"])
            member.has_value = True
        elif kind == "failed":
            member.failure, member.spans = (
                Failure.from_fields(member.rank, header["failure"]),
                _read_spans(header["spans"]),
            )

    def _hear_output(self, member: _Member) -> bool:
        if member.is_silent:
            return False
        try:
            data = os.read(member.output_fd, _OUTPUT_CHUNK)
        except BlockingIOError:
            return False
        if not data:
            member.is_silent = True
            self._selector.unregister(member.output_fd)
            return False
        member.text = (member.text + member.decoder.decode(data))[-KEPT_OUTPUT:]
        if self._echo:
            *lines, member.unfinished_line = (member.unfinished_line + data).split(b"\n")
            self._print(member, lines)
        return True

    def _print(self, member: _Member, lines: list[bytes]) -> None:
        if lines:
            text = "".join(f"[rank {member.rank}] {line.decode('utf-8', 'replace')}\n" for line in lines)
            sys.stdout.write(text)
            sys.stdout.flush()

    def _drain_output(self) -> None:
        for member in self._members.values():
            for _ in range(KEPT_OUTPUT // _OUTPUT_CHUNK):  # what a rank left running may go on printing
                if not self._hear_output(member):
                    break
            if self._echo and member.unfinished_line:
                self._print(member, [member.unfinished_line])
                member.unfinished_line = b""

    def _ask_where(self) -> None:
        waiting = [member for member in self._members.values() if not member.is_settled]
        for member in waiting:
            with contextlib.suppress(OSError):
                frames.send(member.control, "where")
        deadline_s = time.monotonic() + _GRACE_S
        while any(member.where is None and not member.is_hung_up for member in waiting):
            if not self._turn(deadline_s):
                break

    def _timeout(self, timeout_s: float, output: list[str]) -> RunTimeout:
        members = self._members.values()
        returned = [member.rank for member in members if member.has_value]
        standing = [Failure(m.rank, "not done", "", m.where or []) for m in members if not m.has_value]
        return RunTimeout(failure.tell_hang(standing, returned, timeout_s), standing, output)

    def _stop_the_rest(self) -> None:
        self._nursery.kill([member.job for member in self._members.values() if not member.has_exited])
        deadline_s = time.monotonic() + 10 * _GRACE_S
        while self._nursery.is_alive and not all(member.has_exited for member in self._members.values()):
            self._turn(deadline_s)
            if time.monotonic() > deadline_s:
                break

    def _timeline(self) -> Timeline:
        return Timeline.of_events(
            Event(member.rank, "main", kind, name, start_s - self._start_s, end_s - self._start_s)
            for member in self._members.values()
            for name, kind, start_s, end_s in member.spans
        )


def _read_spans(spans: Any) -> list[tuple[str, str, float, float]]:
    return [(str(name), str(kind), float(start_s), float(end_s)) for name, kind, start_s, end_s in spans]
