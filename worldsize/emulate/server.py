"""The launcher's side of an emulated run: a socket to every rank, the conductor between them, clockwork at the end."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from worldsize import framing, hardware, pricing
from worldsize.emulate.conductor import ASK, Conductor, Post, Reply
from worldsize.emulate.record import COMPUTE, EFFICIENCY, KINDS, MEASURED, POST, WAIT, Step
from worldsize.emulate.simulator import Prices, clocks, replay
from worldsize.faults import Fault, Faults
from worldsize.hardware import Cluster
from worldsize.timeline import Timeline

_CHUNK = 1 << 16
_MOST_HELD = 8  # messages of the largest size that may be under way at a time, for memory's sake
_MAX_STEPS = 200_000  # of a rank, which may send any number,
_MAX_STEP_S = 1e9  # and of any length


class Lost(Exception):
    """A rank is lost by one of the run's faults."""


class _Line:
    """The socket to one rank, with what has not gone out yet."""

    def __init__(self, rank: int, max_post_bytes: int) -> None:
        self.rank = rank
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.inbox = framing.Inbox(max_post_bytes)
        self.outgoing: deque[memoryview] = deque()
        self.groups: dict[str, tuple[int, ...]] = {}
        self.open_bytes: dict[int, int] = {}  # posts without an answer
        self.num_posts = self.num_calls = self.num_steps = 0  # who asks for the time posts, and calls nothing
        self.is_full = False


class Emulation:
    """The wire of a run on an emulated cluster.

    Raises:
        ValueError: the cluster is not known or has too few GPUs, `allow` names an operation that there is not, or
            `compute` is not one of flops, measured, none, nor a number from 0 up.
    """

    def __init__(
        self,
        world_size: int,
        cluster: Cluster | str,
        allow: Collection[str] | None,
        compute: str | float,
        faults: Sequence[Fault] = (),
        max_post_bytes: int = 1 << 34,
    ) -> None:
        is_number = isinstance(compute, int | float) and math.isfinite(compute) and compute >= 0
        if compute not in KINDS and not is_number:
            raise ValueError(f"compute {compute!r} is not known; use one of {', '.join(KINDS)}, or a number from 0 up")
        self._compute, self._scale = (MEASURED, float(compute)) if is_number else (compute, 1.0)
        self._cluster = hardware.cluster(cluster) if isinstance(cluster, str) else cluster
        if world_size > self._cluster.world_size:
            raise ValueError(f"{self.name} has {self._cluster.world_size} GPUs; {world_size} ranks do not fit on it")
        self._faults = Faults(faults, self._cluster, world_size)
        price = lru_cache(maxsize=1024)(self._price)  # each question for the time replays the whole record
        self._prices = Prices(
            self._cluster.route,
            self._faults.capacity_bytes_per_s,
            lambda one: price(one.op, one.size_bytes, one.ranks),
        )
        self._conductor = Conductor(world_size, allow)
        self._lines = [_Line(rank, max_post_bytes) for rank in range(world_size)]
        self._max_held_bytes = _MOST_HELD * max_post_bytes
        self._held_bytes = 0  # posts without an answer, and answers that have not gone out
        self._selector: selectors.BaseSelector | None = None
        self._is_hurrying = False

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._cluster.name

    @property
    def fields(self) -> dict[str, Any]:
        """What every rank is told of it."""
        gpu = self._cluster.gpu
        compute = {
            "kind": self._compute,
            "scale": self._scale,
            "flops_per_s": {dtype: peak * EFFICIENCY for dtype, peak in gpu.peak_flops_per_s.items()},
            "bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
        }
        ours = {"local_world_size": self._cluster.gpus_per_node, "compute": compute}
        return ours | {"allow": None if self._conductor.allow is None else sorted(self._conductor.allow)}

    @property
    def is_stuck(self) -> bool:
        """True when nothing will ever move."""
        return self._conductor.is_stuck

    def fd_of(self, rank: int) -> int:
        """The rank's end of its socket."""
        return self._lines[rank].theirs.fileno()

    def listen(self, selector: selectors.BaseSelector, on_fault: Callable[[int, str, str], None]) -> None:
        """Hears the ranks from now on; each has its end. How one fails here is told to `on_fault`: a kind, a reason."""
        self._selector, self._on_fault = selector, on_fault
        for line in self._lines:
            line.theirs.close()
            selector.register(line.ours, selectors.EVENT_READ, lambda line=line: self._serve(line))

    def leave(self, rank: int) -> None:
        """Notes that a rank posts no more."""
        self._conductor.leave(rank)
        self._decide()

    def timeline(self) -> Timeline:
        """What happened, in virtual time."""
        return replay(self._conductor.steps, self._conductor.operations, self._prices)

    def _price(self, op: str, size_bytes: int, ranks: tuple[int, ...]) -> pricing.Price:
        return pricing.price(op, size_bytes, ranks, self._faults.cluster_of(ranks))

    def _decide(self) -> None:
        """Answers what depends on virtual time, once nothing else can move."""
        conductor = self._conductor
        if conductor.depends_on_time and not self._is_hurrying:
            self._is_hurrying = True
            for line in self._lines:
                self._send(line, "hurry")
        if conductor.depends_on_time and conductor.is_still:
            for reply in conductor.decide(clocks(conductor.steps, conductor.operations, self._prices)):
                self._answer(reply)

    def _watch(self, line: _Line, is_full: bool) -> None:
        """Hears a rank from now on, and while it is full also when it can take more."""
        assert self._selector
        line.is_full = is_full
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_full else 0)
        with contextlib.suppress(KeyError):  # its rank is no longer heard
            self._selector.modify(line.ours, events, lambda: self._serve(line))

    def _serve(self, line: _Line) -> None:
        self._write(line)
        try:
            data = line.ours.recv(_CHUNK)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        assert self._selector
        if not data:
            self._selector.unregister(line.ours)
            self._conductor.leave(line.rank)
            self._decide()
            return
        try:
            for header, body in line.inbox.feed(data):
                self._take(line.rank, header, body)
            self._decide()  # after all of them, for it may take a second: whoever watches the time comes in between
        except Exception as error:  # a rank may post anything, and it must not become the launcher's fault
            self._selector.unregister(line.ours)
            self._on_fault(line.rank, "a planned loss" if isinstance(error, Lost) else "broken message", str(error))

    def _take(self, rank: int, header: dict[str, Any], body: bytes) -> None:
        line = self._lines[rank]
        line.num_steps += len(header["steps"]) + 1
        if line.num_steps > _MAX_STEPS:
            raise ValueError(
                f"one rank has more than {_MAX_STEPS:,} pieces of work, calls and waits; emulate fewer steps"
            )
        self._conductor.note(rank, [self._step_of(line, fields) for fields in header["steps"]])
        if header["kind"] == "post":
            self._take_post(line, header, body)
        elif header["kind"] == "wait":
            self._conductor.wait(rank, int(header["number"]))
        elif header["kind"] == "leave":
            self._conductor.leave(rank)

    def _take_post(self, line: _Line, header: dict[str, Any], sent: bytes) -> None:
        post = _post_of(line, header, sent, len(self._lines))
        body = sent if post.op == ASK else self._befall(line, post)
        line.num_posts += 1
        line.open_bytes[post.number] = len(sent)
        self._held_bytes += len(sent)
        if self._held_bytes > self._max_held_bytes:
            raise ValueError(f"more than {self._max_held_bytes} bytes that nobody takes")
        self._conductor.note(line.rank, [Step(POST, post.number)])  # what moves data is not left to a rank to tell
        if body is not sent:
            post = replace(post, body=body)
        for reply in self._conductor.post(post):
            self._answer(reply)

    def _befall(self, line: _Line, post: Post) -> bytes:
        """What leaves the rank in place of the operation's data.

        Raises:
            Lost: the rank is gone instead.
        """
        if self._faults.is_lost(line.rank, line.num_calls):
            raise Lost(f"gone after {line.num_calls} calls")
        line.num_calls += 1
        return self._faults.spoil(line.rank, line.num_calls - 1, post.num_items, post.body)

    def _step_of(self, line: _Line, fields: Sequence[Any]) -> Step:
        kind, number, duration_s, name, work = fields
        duration_s = float(duration_s)
        if kind not in (COMPUTE, WAIT) or not (math.isfinite(duration_s) and 0 <= duration_s <= _MAX_STEP_S):
            raise ValueError(f"a step of kind {kind!r:.80} that takes {duration_s:g} s")
        if kind == WAIT and not 0 < int(number) <= line.num_posts:
            raise ValueError(f"a wait for post {number!r:.80} of {line.num_posts}")
        return Step(kind, int(number), self._faults.stretch(line.rank, duration_s), str(name)[:80], str(work)[:80])

    def _answer(self, reply: Reply) -> None:
        self._held_bytes -= self._lines[reply.rank].open_bytes.pop(reply.number)
        fields = {} if reply.src is None else {"src": reply.src}
        self._send(self._lines[reply.rank], "answer", reply.body, number=reply.number, **fields)

    def _send(self, line: _Line, kind: str, body: bytes = b"", **fields: Any) -> None:
        line.outgoing.append(memoryview(framing.pack(kind, body, **fields)))
        self._held_bytes += len(line.outgoing[-1])
        self._write(line)

    def _write(self, line: _Line) -> None:
        while line.outgoing:
            try:
                sent = line.ours.send(line.outgoing[0])
            except BlockingIOError:
                self._watch(line, is_full=True)
                return
            except OSError:  # the rank is gone; the forkserver reports that
                self._held_bytes -= sum(map(len, line.outgoing))
                line.outgoing.clear()
                return
            self._held_bytes -= sent
            if sent == len(line.outgoing[0]):
                line.outgoing.popleft()
            else:
                line.outgoing[0] = line.outgoing[0][sent:]
        if line.is_full:
            self._watch(line, is_full=False)

    def close(self) -> None:
        """Closes every socket."""
        for line in self._lines:
            line.theirs.close()
            line.ours.close()


def _post_of(line: _Line, header: dict[str, Any], body: bytes, world_size: int) -> Post:
    """The post in a message.

    Raises:
        ValueError, TypeError, KeyError: it is none that a rank's own backend would send.
    """
    group = str(header["group"])
    if "ranks" in header:
        line.groups[group] = tuple(int(one) for one in header["ranks"])
    post = Post(
        line.rank,
        int(header["number"]),
        str(header["op"]),
        group,
        line.groups[group],
        str(header["dtype"]),
        int(header["num_items"]),
        body,
        None if header.get("peer") is None else int(header["peer"]),
        int(header.get("tag", 0)),
        str(header.get("reduction", "")),
        tuple(int(one) for one in header.get("splits", ())),
    )
    members = set(post.ranks)
    is_known = members <= set(range(world_size)) and len(members) == len(post.ranks) and post.rank in members
    is_to_itself = post.op in ("send", "recv") and post.peer == post.rank  # which no way on a cluster leads to
    if post.op != ASK and not (is_known and post.peer in (None, *members) and not is_to_itself):
        raise ValueError(f"{post.op:.80} among {post.ranks!s:.80}, of rank {line.rank} with {post.peer}")
    if post.number != line.num_posts + 1:
        raise ValueError(f"post {post.number} after {line.num_posts}")
    if post.num_items < 0 or min(post.splits, default=0) < 0:
        raise ValueError("a negative size")
    return post
