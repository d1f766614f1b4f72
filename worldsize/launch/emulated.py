"""The launcher's side of an emulated run: a socket to every rank, the conductor between them, clockwork at the end."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from worldsize import frames, hardware, pricing
from worldsize.emulate.clockwork import Prices, replay
from worldsize.emulate.conductor import Conductor, Post, Reply
from worldsize.emulate.record import EFFICIENCY, KINDS, Step
from worldsize.hardware import Cluster
from worldsize.timeline import Timeline

_CHUNK = 1 << 20
_MAX_POST_BYTES = 1 << 34


class _Line:
    """The socket to one rank, with what has not gone out yet."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.inbox = frames.Inbox(_MAX_POST_BYTES)
        self.outgoing: deque[memoryview] = deque()
        self.groups: dict[str, tuple[int, ...]] = {}


class Emulation:
    """The wire of a run on an emulated cluster.

    Raises:
        ValueError: the cluster is not known or has too few GPUs, `allow` names an operation that there is not, or
            `compute` is not one of flops, measured, none.
    """

    def __init__(self, world_size: int, cluster: Cluster | str, allow: Collection[str] | None, compute: str) -> None:
        if compute not in KINDS:
            raise ValueError(f"compute {compute!r} is not known; use one of {', '.join(KINDS)}")
        self._compute = compute
        self._cluster = hardware.cluster(cluster) if isinstance(cluster, str) else cluster
        if world_size > self._cluster.world_size:
            raise ValueError(f"{self.name} has {self._cluster.world_size} GPUs; {world_size} ranks do not fit on it")
        self._conductor = Conductor(world_size, allow)
        self._lines = [_Line(rank) for rank in range(world_size)]
        self._selector: selectors.BaseSelector | None = None

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
            "scale": 1.0,
            "flops_per_s": {dtype: peak * EFFICIENCY for dtype, peak in gpu.peak_flops_per_s.items()},
            "bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
        }
        return {"allow": None if self._conductor.allow is None else sorted(self._conductor.allow), "compute": compute}

    @property
    def is_stuck(self) -> bool:
        """True when nothing will ever move."""
        return self._conductor.is_stuck

    def fd_of(self, rank: int) -> int:
        """The rank's end of its socket."""
        return self._lines[rank].theirs.fileno()

    def listen(self, selector: selectors.BaseSelector, on_fault: Callable[[int, str], None]) -> None:
        """Hears the ranks from now on; each has its end. What cannot be taken from one is told to `on_fault`."""
        self._selector, self._on_fault = selector, on_fault
        for line in self._lines:
            line.theirs.close()
            selector.register(line.ours, selectors.EVENT_READ, lambda line=line: self._serve(line))

    def leave(self, rank: int) -> None:
        """Notes that a rank posts no more."""
        self._conductor.leave(rank)

    def timeline(self) -> Timeline:
        """What happened, in virtual time."""
        return replay(self._conductor.steps, self._conductor.operations, self._prices())

    def _prices(self) -> Prices:
        cluster = self._cluster
        return Prices(
            cluster.route,
            cluster.capacity_bytes_per_s,
            lambda one: pricing.price(one.op, one.size_bytes, one.ranks, cluster).time_s,
        )

    def _watch(self, line: _Line, events: int) -> None:
        assert self._selector
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
            return
        try:
            for header, body in line.inbox.feed(data):
                self._take(line.rank, header, body)
        except Exception as error:  # a rank may post anything, and it must not become the launcher's fault
            self._selector.unregister(line.ours)
            self._on_fault(line.rank, str(error))

    def _take(self, rank: int, header: dict[str, Any], body: bytes) -> None:
        self._conductor.note(rank, [Step(str(s[0]), int(s[1]), float(s[2]), str(s[3])) for s in header["steps"]])
        if header["kind"] == "post":
            line = self._lines[rank]
            if "ranks" in header:
                line.groups[str(header["group"])] = tuple(int(one) for one in header["ranks"])
            for reply in self._conductor.post(_post_of(line, header, body)):
                self._answer(reply)
        elif header["kind"] == "wait":
            self._conductor.wait(rank, int(header["number"]))
        elif header["kind"] == "leave":
            self._conductor.leave(rank)

    def _answer(self, reply: Reply) -> None:
        line = self._lines[reply.rank]
        line.outgoing.append(memoryview(frames.pack("answer", reply.body, number=reply.number)))
        self._write(line)

    def _write(self, line: _Line) -> None:
        while line.outgoing:
            try:
                sent = line.ours.send(line.outgoing[0])
            except BlockingIOError:
                self._watch(line, selectors.EVENT_READ | selectors.EVENT_WRITE)
                return
            except OSError:  # the rank is gone, which the nursery tells
                line.outgoing.clear()
                return
            if sent == len(line.outgoing[0]):
                line.outgoing.popleft()
                if not line.outgoing:
                    self._watch(line, selectors.EVENT_READ)
            else:
                line.outgoing[0] = line.outgoing[0][sent:]

    def close(self) -> None:
        """Closes every socket."""
        for line in self._lines:
            line.theirs.close()
            line.ours.close()


def _post_of(line: _Line, header: dict[str, Any], body: bytes) -> Post:
    group = str(header["group"])
    return Post(
        line.rank,
        int(header["number"]),
        str(header["op"]),
        group,
        line.groups[group],
        str(header["dtype"]),
        int(header["num_items"]),
        body,
        header.get("peer"),
        int(header.get("tag", 0)),
        str(header.get("reduction", "")),
        tuple(header.get("splits", ())),
    )
