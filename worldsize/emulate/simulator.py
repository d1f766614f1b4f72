"""Virtual time: when everything in a record would have happened on a cluster. No threads, no chance, no real clock.

A rank's own work takes the time that it was given. A message starts when both ends have posted it and the one before it
from the same sender to the same receiver is through; it needs the latency of its way, and then its bytes go at the rate
that others leave them on the way's shared parts (max-min fair). A collective starts when its last member has posted it
and the group's previous one is done, or at least has only delays left where the library lets the two overlap, and takes
its price.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from worldsize.emulate.record import COMPUTE, POST, Operation, Step
from worldsize.timeline import Event, Timeline

_MOST_AT_ONCE = 2  # collectives of a group that share their delays: Gloo's threads
_ALMOST = 1e-12  # bytes left over by rounding, of one


class Cost(Protocol):
    """What a collective takes, in how much of that the group's next may be under way, what each rank sends for it."""

    @property
    def time_s(self) -> float: ...

    @property
    def delay_s(self) -> float: ...

    @property
    def sent_bytes_per_rank(self) -> float: ...


class Way(Protocol):
    """How a message goes."""

    @property
    def latency_s(self) -> float: ...

    @property
    def hops(self) -> Sequence[str]: ...


class Unanswered(ValueError):
    """Ranks waited for what never happened."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"ranks {list(ranks)} wait for something that never happened")
        self.ranks = ranks


@dataclass(frozen=True)
class Prices:
    """What a cluster asks: the way between two ranks, the rate of each part of it, the cost of a collective."""

    route: Callable[[int, int], Way]
    capacity_bytes_per_s: Callable[[str], float]
    collective: Callable[[Operation], Cost]


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
        Unanswered: the record ends before everything that was waited for has happened.
    """
    replayed = _Replay(steps, operations, prices)
    replayed.run()
    stuck = [rank for rank, one in enumerate(replayed.ranks) if one.place < len(one.steps)]
    if stuck:
        raise Unanswered(stuck)
    return Timeline.of_events(event for rank in replayed.ranks for event in rank.events)


@dataclass(frozen=True)
class Clocks:
    """Virtual times in seconds: of each rank, and of each (rank, number) when it was posted."""

    rank_s: Sequence[float]
    posted_s: Mapping[tuple[int, int], float]


def clocks(steps: Sequence[Sequence[Step]], operations: Sequence[Operation], prices: Prices) -> Clocks:
    """What time it is at the end of a record, which may end anywhere."""
    replayed = _Replay(steps, operations, prices)
    replayed.run()
    return Clocks([one.clock_s for one in replayed.ranks], replayed.posted_s)


class _Replay:
    def __init__(self, steps: Sequence[Sequence[Step]], operations: Sequence[Operation], prices: Prices) -> None:
        self._prices = prices
        self.ranks = [_Rank(of_rank) for of_rank in steps]
        self._of_post = {(rank, number): one for one in operations for rank, number in one.parts.items()}
        self._ready_s: dict[int, dict[int, float]] = defaultdict(dict)  # operation -> rank -> when it posted
        self.posted_s: dict[tuple[int, int], float] = {}
        self._start_s: dict[int, float] = {}
        self._end_s: dict[int, float] = {}
        self._busy: dict[object, Operation | None] = defaultdict(lambda: None)  # stream -> what keeps the next back
        self._num_under_way: dict[object, int] = defaultdict(int)
        self._queues: dict[object, deque[Operation]] = defaultdict(deque)  # posted by all, not started, by stream
        self._due: list[tuple[float, int, str, Operation]] = []  # starts and ends to come
        self._active: dict[int, _Transfer] = {}
        self._capacity = lru_cache(maxsize=None)(prices.capacity_bytes_per_s)
        self._route = lru_cache(maxsize=None)(prices.route)
        self._now_s = 0.0
        self._count = 0
        self._blocked: dict[int, list[int]] = defaultdict(list)  # operation -> ranks that wait for it

    def run(self) -> None:
        for rank in range(len(self.ranks)):
            self._advance(rank)
        while self._due or self._active:
            self._next()

    # a rank

    def _advance(self, rank: int) -> None:
        """Takes a rank through its steps until it must wait for what has no end yet."""
        one = self.ranks[rank]
        while one.place < len(one.steps):
            step = one.steps[one.place]
            if step.kind == COMPUTE:
                one.events.append(_work(rank, step, one.clock_s))
                one.clock_s += step.duration_s
            elif step.kind == POST:
                self._post(rank, step.number)
            elif not self._wait(rank, step.number):
                return
            one.place += 1

    def _post(self, rank: int, number: int) -> None:
        operation = self._of_post.get((rank, number))
        self.posted_s[rank, number] = self.ranks[rank].clock_s
        if operation is None:
            return  # posted, and never matched: somebody else's to explain
        ready = self._ready_s[id(operation)]
        ready[rank] = self.ranks[rank].clock_s
        if len(ready) == len(operation.parts):
            self._queues[_stream(operation)].append(operation)
            self._admit(_stream(operation))

    def _wait(self, rank: int, number: int) -> bool:
        one, operation = self.ranks[rank], self._of_post.get((rank, number))
        if operation is None or id(operation) not in self._end_s:
            self._blocked[id(operation)].append(rank)
            return False
        end_s = self._end_s[id(operation)]
        if end_s > one.clock_s:
            self._note(rank, "wait", one.clock_s, end_s, operation)
            one.clock_s = end_s
        return True

    # an operation

    def _admit(self, stream: object) -> None:
        """Lets the next operation of a stream start, when the one before it has made room."""
        queue = self._queues[stream]
        if queue and self._busy[stream] is None and self._num_under_way[stream] < _MOST_AT_ONCE:
            self._busy[stream] = queue[0]
            self._num_under_way[stream] += 1
            self._push(max(*self._ready_s[id(queue[0])].values(), self._now_s), "start", queue.popleft())

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
            elif what == "room":
                self._make_room(operation)
            elif what == "flow":
                hops = self._route(*operation.ranks).hops
                self._active[id(operation)] = _Transfer(operation, hops, float(operation.size_bytes))
            else:
                ended.append(operation)
        for operation in ended:
            self._end(operation)
        self._share()

    def _start(self, operation: Operation) -> None:
        start_s = self._start_s[id(operation)] = self._now_s
        if operation.op != "send":
            cost = self._prices.collective(operation)
            self._push(start_s + cost.time_s, "end", operation)
            if cost.delay_s:
                self._push(start_s + cost.time_s - cost.delay_s, "room", operation)
            return
        latency_s = self._route(*operation.ranks).latency_s
        self._push(start_s + latency_s, "flow" if operation.size_bytes else "end", operation)

    def _end(self, operation: Operation) -> None:
        start_s = self._start_s[id(operation)]
        self._end_s[id(operation)] = self._now_s
        for rank in operation.parts:
            self._note(rank, "communication", start_s, self._now_s, operation)
        self._num_under_way[_stream(operation)] -= 1
        self._make_room(operation)
        for rank in self._blocked.pop(id(operation), ()):
            self._advance(rank)

    def _make_room(self, operation: Operation) -> None:
        stream = _stream(operation)
        if self._busy[stream] is operation:
            self._busy[stream] = None
        self._admit(stream)

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
        """Gives every transfer its max-min fair rate: the tightest hops are shared out first."""
        users: dict[str, dict[int, _Transfer]] = defaultdict(dict)
        for key, one in self._active.items():
            for hop in one.hops:
                users[hop][key] = one
        left = {hop: self._capacity(hop) for hop in users}
        while users:
            rate = min(left[hop] / len(of_hop) for hop, of_hop in users.items())
            tightest = [hop for hop, of_hop in users.items() if left[hop] / len(of_hop) <= rate * (1 + _ALMOST)]
            for hop in tightest:
                for key, one in list(users[hop].items()):
                    one.rate = rate
                    for other in one.hops:
                        del users[other][key]
                        left[other] -= rate
            users = {name: of_hop for name, of_hop in users.items() if of_hop}

    def _note(self, rank: int, kind: str, start_s: float, end_s: float, operation: Operation) -> None:
        is_message = operation.op == "send"
        name = "recv" if is_message and rank == operation.ranks[1] else operation.op
        sent_bytes = 0.0
        if kind == "communication" and name != "recv" and not _only_receives(operation, rank):
            sent_bytes = operation.size_bytes if is_message else self._prices.collective(operation).sent_bytes_per_rank
        peers = tuple(other for other in operation.ranks if other != rank) if is_message else operation.ranks
        place = operation.group, operation.sequence
        event = Event(rank, kind, kind, name, start_s, end_s, operation.size_bytes, sent_bytes, peers, *place)
        self.ranks[rank].events.append(event)


def _only_receives(operation: Operation, rank: int) -> bool:
    is_root = rank == operation.root
    return (operation.op == "scatter" and not is_root) or (operation.op == "gather" and is_root)


def _work(rank: int, step: Step, start_s: float) -> Event:
    return Event(rank, "compute", step.work, step.name, start_s, start_s + step.duration_s)


def _stream(operation: Operation) -> object:
    """What runs one after the other: the collectives of a group, the messages of one rank to another."""
    return operation.ranks if operation.op == "send" else ("group", operation.group)
