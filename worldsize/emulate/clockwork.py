"""Virtual time: when everything in a record would have happened on a cluster. No threads, no chance, no real clock.

A rank's own work takes the time that it was given. A message starts when both ends have posted it and the one before it
from the same sender to the same receiver is through; it needs the latency of its way, and then its bytes go at the rate
that others leave them on the way's shared parts (max-min fair). A collective starts when its last member has posted it
and the group's previous one is done, and takes its price.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from worldsize.emulate.record import COMPUTE, POST, Operation, Step
from worldsize.timeline import Event, Timeline

_ALMOST = 1e-12  # bytes left over by rounding, of one


class Way(Protocol):
    """How a message goes."""

    @property
    def latency_s(self) -> float: ...

    @property
    def hops(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Prices:
    """What a cluster asks: the way between two ranks, the rate of each part of it, the time of a collective."""

    route: Callable[[int, int], Way]
    capacity_bytes_per_s: Callable[[str], float]
    collective_s: Callable[[Operation], float]


@dataclass
class _Transfer:
    operation: Operation
    hops: Sequence[str]
    left_bytes: float
    rate: float = 0.0


@dataclass
class _Rank:
    steps: Sequence[Step]
    clock_s: float = 0.0
    place: int = 0
    events: list[Event] = field(default_factory=list)


def replay(steps: Sequence[Sequence[Step]], operations: Sequence[Operation], prices: Prices) -> Timeline:
    """The timeline of a record: computing on stream "compute", waiting on "wait", operations on "communication".

    Raises:
        ValueError: the record ends before everything that was waited for has happened.
    """
    return _Replay(steps, operations, prices).run()


class _Replay:
    def __init__(self, steps: Sequence[Sequence[Step]], operations: Sequence[Operation], prices: Prices) -> None:
        self._prices = prices
        self._ranks = [_Rank(of_rank) for of_rank in steps]
        self._of_post = {(rank, number): one for one in operations for rank, number in one.parts.items()}
        self._ready_s: dict[int, dict[int, float]] = defaultdict(dict)  # operation -> rank -> when it posted
        self._start_s: dict[int, float] = {}
        self._end_s: dict[int, float] = {}
        self._free_s: dict[object, float] = defaultdict(float)  # stream -> when its last operation ends
        self._queues: dict[object, deque[Operation]] = defaultdict(deque)  # posted by all, not started, by stream
        self._due: list[tuple[float, int, str, Operation]] = []  # starts and ends to come
        self._active: dict[int, _Transfer] = {}
        self._now_s = 0.0
        self._count = 0
        self._blocked: dict[int, list[int]] = defaultdict(list)  # operation -> ranks that wait for it

    def run(self) -> Timeline:
        for rank in range(len(self._ranks)):
            self._advance(rank)
        while self._due or self._active:
            self._next()
        stuck = [rank for rank, one in enumerate(self._ranks) if one.place < len(one.steps)]
        if stuck:
            raise ValueError(f"ranks {stuck} wait for something that never happened")
        return Timeline.of_events(event for rank in self._ranks for event in rank.events)

    # a rank

    def _advance(self, rank: int) -> None:
        """Takes a rank through its steps until it must wait for what has no end yet."""
        one = self._ranks[rank]
        while one.place < len(one.steps):
            step = one.steps[one.place]
            if step.kind == COMPUTE:
                self._note(rank, "compute", "compute", step.name, one.clock_s, one.clock_s + step.duration_s)
                one.clock_s += step.duration_s
            elif step.kind == POST:
                self._post(rank, step.number)
            elif not self._wait(rank, step.number):
                return
            one.place += 1

    def _post(self, rank: int, number: int) -> None:
        operation = self._of_post.get((rank, number))
        if operation is None:
            return  # posted, and never matched: somebody else's to explain
        ready = self._ready_s[id(operation)]
        ready[rank] = self._ranks[rank].clock_s
        if len(ready) == len(operation.parts):
            stream = _stream(operation)
            self._queues[stream].append(operation)
            if len(self._queues[stream]) == 1:
                self._schedule(operation)

    def _wait(self, rank: int, number: int) -> bool:
        one, operation = self._ranks[rank], self._of_post.get((rank, number))
        if operation is None or id(operation) not in self._end_s:
            self._blocked[id(operation)].append(rank)
            return False
        end_s = self._end_s[id(operation)]
        if end_s > one.clock_s:
            self._note(rank, "wait", "wait", operation.op, one.clock_s, end_s, operation)
            one.clock_s = end_s
        return True

    # an operation

    def _schedule(self, operation: Operation) -> None:
        start_s = max(max(self._ready_s[id(operation)].values()), self._free_s[_stream(operation)])
        self._push(start_s, "start", operation)

    def _push(self, time_s: float, what: str, operation: Operation) -> None:
        self._count += 1
        heapq.heappush(self._due, (time_s, self._count, what, operation))

    def _next(self) -> None:
        """Goes on to the next start or end of anything."""
        through_s, through = self._first_through()
        time_s = min(through_s, self._due[0][0] if self._due else through_s)
        self._flow(time_s)
        ended = [self._active.pop(id(one)).operation for one in through] if through_s == time_s else []
        while self._due and self._due[0][0] <= time_s:
            _, _, what, operation = heapq.heappop(self._due)
            if what == "start":
                self._start(operation)
            elif what == "flow":
                hops = self._prices.route(*operation.ranks).hops
                self._active[id(operation)] = _Transfer(operation, hops, float(operation.size_bytes))
            else:
                ended.append(operation)
        for operation in ended:
            self._end(operation)
        self._share()

    def _start(self, operation: Operation) -> None:
        start_s = self._start_s[id(operation)] = self._now_s
        if operation.op != "send":
            self._push(start_s + self._prices.collective_s(operation), "end", operation)
            return
        latency_s = self._prices.route(*operation.ranks).latency_s
        self._push(start_s + latency_s, "flow" if operation.size_bytes else "end", operation)

    def _end(self, operation: Operation) -> None:
        start_s = self._start_s[id(operation)]
        self._end_s[id(operation)] = self._free_s[_stream(operation)] = self._now_s
        for rank in operation.parts:
            self._note(rank, "communication", "communication", operation.op, start_s, self._now_s, operation)
        queue = self._queues[_stream(operation)]
        queue.popleft()
        if queue:
            self._schedule(queue[0])
        for rank in self._blocked.pop(id(operation), ()):
            self._advance(rank)

    # bytes

    def _first_through(self) -> tuple[float, list[Operation]]:
        """When the next transfers are through, and which."""
        first_s, through = float("inf"), []
        for one in self._active.values():
            at_s = self._now_s + one.left_bytes / one.rate
            if at_s < first_s * (1 - _ALMOST):
                first_s, through = at_s, [one.operation]
            elif at_s <= first_s * (1 + _ALMOST):
                through.append(one.operation)
        return first_s, through

    def _flow(self, time_s: float) -> None:
        for one in self._active.values():
            one.left_bytes = max(0.0, one.left_bytes - one.rate * (time_s - self._now_s))
        self._now_s = time_s

    def _share(self) -> None:
        """Gives every transfer its max-min fair rate: the tightest hop is shared out first."""
        users: dict[str, dict[int, _Transfer]] = defaultdict(dict)
        for key, one in self._active.items():
            for hop in one.hops:
                users[hop][key] = one
        left = {hop: self._prices.capacity_bytes_per_s(hop) for hop in users}
        while users:
            hop = min(users, key=lambda hop: left[hop] / len(users[hop]))
            rate = left[hop] / len(users[hop])
            for key, one in list(users[hop].items()):
                one.rate = rate
                for other in one.hops:
                    del users[other][key]
                    left[other] -= rate
            users = {name: of_hop for name, of_hop in users.items() if of_hop}

    def _note(
        self,
        rank: int,
        stream: str,
        kind: str,
        name: str,
        start_s: float,
        end_s: float,
        operation: Operation | None = None,
    ) -> None:
        size_bytes = 0
        if operation is not None and kind == "communication":
            size_bytes = operation.size_bytes if operation.op != "send" or rank == operation.ranks[0] else 0
        self._ranks[rank].events.append(Event(rank, stream, kind, name, start_s, end_s, size_bytes))


def _stream(operation: Operation) -> object:
    """What runs one after the other: the collectives of a group, the messages of one rank to another."""
    return operation.ranks if operation.op == "send" else ("group", operation.group)
