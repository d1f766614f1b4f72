"""Virtual time: when everything in a record would have happened on a cluster. No threads, no randomness, no real clock.

A rank's own work takes the time that it was given. A message starts when both ends have posted it and the one before it
from the same sender to the same receiver has arrived; it takes the latency of its route, and then its bytes flow at the
rate that others leave them on the route's shared hops (max-min fair). A collective starts when its last member has
posted it and the group's previous one is done, or has only delays left and the library lets the two overlap; it takes
the time of its price.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from worldsize.emulate.record import COMPUTE, POST, Operation, Step
from worldsize.event import COMMUNICATION, WAIT
from worldsize.hardware import Hop
from worldsize.timeline import Event, Timeline

_MOST_AT_ONCE = 2  # collectives of a group that share their delays: Gloo's threads
_ALMOST = 1e-12  # relative difference that rounding can make


class Cost(Protocol):
    """The cost of a collective: its time, how much of that the group's next may overlap, what each rank sends."""

    @property
    def time_s(self) -> float: ...

    @property
    def delay_s(self) -> float: ...

    @property
    def sent_bytes_per_rank(self) -> float: ...


class Route(Protocol):
    """The route of a message."""

    @property
    def latency_s(self) -> float: ...

    @property
    def hops(self) -> Sequence[Hop]: ...


class Unanswered(ValueError):
    """Ranks that waited for something that never happened."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"ranks {list(ranks)} wait for something that never happened")
        self.ranks = ranks


@dataclass(frozen=True)
class Prices:
    """A cluster's prices: the route between two ranks, the rate of each hop, the cost of a collective."""

    route: Callable[[int, int], Route]
    capacity_bytes_per_s: Callable[[Hop], float]
    collective: Callable[[Operation], Cost]


@dataclass(eq=False)  # compared by identity, as a key of dicts
class _Running:
    """One operation, from its first post to its end."""

    operation: Operation
    stream: _Stream
    ready_s: dict[int, float] = field(default_factory=dict)  # rank -> when it posted
    start_s: float = 0.0
    end_s: float | None = None
    cost: Cost | None = None  # of a collective, once it has started
    blocked: list[int] = field(default_factory=list)  # ranks that wait for it
    hops: Sequence[Hop] = ()  # of a message whose bytes are flowing
    left_bytes: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def is_message(self) -> bool:
        return self.operation.op == "send"

    def sent_bytes(self, rank: int) -> float:
        """The bytes that a rank puts on the wire for it."""
        one = self.operation
        if self.cost is None:
            return one.size_bytes if rank == one.ranks[0] else 0.0
        is_root = rank == one.root
        only_receives = (one.op == "scatter" and not is_root) or (one.op == "gather" and is_root)
        return 0.0 if only_receives else self.cost.sent_bytes_per_rank


@dataclass
class _Stream:
    """Operations that run one after the other: the collectives of a group, the messages of one rank to another."""

    queue: deque[_Running] = field(default_factory=deque)  # posted by all, not yet started
    busy: _Running | None = None  # the one that the next must wait for
    num_under_way: int = 0


@dataclass
class _Rank:
    steps: Sequence[Step]
    clock_s: float = 0.0
    place: int = 0
    events: list[Event] = field(default_factory=list)


def replay(steps: Sequence[Sequence[Step]], operations: Sequence[Operation], prices: Prices) -> Timeline:
    """The timeline of a record: work on stream "compute", waiting on "wait", operations on "communication".

    Raises:
        Unanswered: the record ends before everything has happened that a rank waits for.
    """
    replayed = _Replay(steps, operations, prices)
    replayed.run()
    stuck = [rank for rank, one in enumerate(replayed.ranks) if one.place < len(one.steps)]
    if stuck:
        raise Unanswered(stuck)
    return Timeline.of_events(event for rank in replayed.ranks for event in rank.events)


@dataclass(frozen=True)
class Clocks:
    """Virtual times in seconds: of each rank now, and of each post, by (rank, number)."""

    rank_s: Sequence[float]
    posted_s: Mapping[tuple[int, int], float]


def clocks(steps: Sequence[Sequence[Step]], operations: Sequence[Operation], prices: Prices) -> Clocks:
    """The clocks at the end of a record, which may end anywhere."""
    replayed = _Replay(steps, operations, prices)
    replayed.run()
    return Clocks([one.clock_s for one in replayed.ranks], replayed.posted_s)


class _Replay:
    def __init__(self, steps: Sequence[Sequence[Step]], operations: Sequence[Operation], prices: Prices) -> None:
        self._price = prices.collective
        self._capacity = lru_cache(maxsize=None)(prices.capacity_bytes_per_s)
        self._route = lru_cache(maxsize=None)(prices.route)
        self.ranks = [_Rank(of_rank) for of_rank in steps]
        self.posted_s: dict[tuple[int, int], float] = {}
        streams: dict[object, _Stream] = defaultdict(_Stream)
        running = [_Running(one, streams[_stream_of(one)]) for one in operations]
        self._of_post = {place: one for one in running for place in one.operation.parts.items()}
        self._due: list[tuple[float, int, str, _Running]] = []  # starts and ends to come
        self._flowing: dict[_Running, None] = {}  # in the order in which they began
        self._now_s = 0.0
        self._count = 0

    def run(self) -> None:
        for rank in range(len(self.ranks)):
            self._advance(rank)
        while self._due or self._flowing:
            self._next()

    # a rank

    def _advance(self, rank: int) -> None:
        """Take a rank through its steps until it must wait for an operation whose end is not known yet."""
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
        self.posted_s[rank, number] = self.ranks[rank].clock_s
        one = self._of_post.get((rank, number))
        if one is None:
            return  # posted, and never matched: the launcher explains the hang
        one.ready_s[rank] = self.ranks[rank].clock_s
        if len(one.ready_s) == len(one.operation.parts):
            one.stream.queue.append(one)
            self._admit(one.stream)

    def _wait(self, rank: int, number: int) -> bool:
        """True when the rank goes on: the end of what it waits for is known."""
        one, of_rank = self._of_post.get((rank, number)), self.ranks[rank]
        if one is None:
            return False
        if one.end_s is None:
            one.blocked.append(rank)
            return False
        if one.end_s > of_rank.clock_s:
            self._note(rank, WAIT, of_rank.clock_s, one.end_s, one)
            of_rank.clock_s = one.end_s
        return True

    # an operation

    def _admit(self, stream: _Stream) -> None:
        """Start the next operation of a stream, if the one before it has made room."""
        if stream.queue and stream.busy is None and stream.num_under_way < _MOST_AT_ONCE:
            stream.busy = one = stream.queue.popleft()
            stream.num_under_way += 1
            self._push(max(*one.ready_s.values(), self._now_s), "start", one)

    def _push(self, time_s: float, what: str, one: _Running) -> None:
        self._count += 1
        heapq.heappush(self._due, (time_s, self._count, what, one))

    def _next(self) -> None:
        """Advance to the next start or end of anything."""
        through_s, through = self._first_through()
        time_s = min(through_s, self._due[0][0] if self._due else through_s)
        self._flow(time_s)
        ended = through if through_s == time_s else []
        for one in ended:
            del self._flowing[one]
        while self._due and self._due[0][0] <= time_s:
            _, _, what, one = heapq.heappop(self._due)
            if what == "start":
                self._start(one)
            elif what == "room":
                self._make_room(one)
            elif what == "flow":
                one.hops = self._route(*one.operation.ranks).hops
                one.left_bytes = float(one.operation.size_bytes)
                self._flowing[one] = None
            else:
                ended.append(one)
        for one in ended:
            self._end(one)
        self._share()

    def _start(self, one: _Running) -> None:
        one.start_s = self._now_s
        if one.is_message:
            latency_s = self._route(*one.operation.ranks).latency_s
            self._push(one.start_s + latency_s, "flow" if one.operation.size_bytes else "end", one)
            return
        one.cost = self._price(one.operation)
        self._push(one.start_s + one.cost.time_s, "end", one)
        if one.cost.delay_s:
            self._push(one.start_s + one.cost.time_s - one.cost.delay_s, "room", one)

    def _end(self, one: _Running) -> None:
        one.end_s = self._now_s
        for rank in one.operation.parts:
            self._note(rank, COMMUNICATION, one.start_s, one.end_s, one)
        one.stream.num_under_way -= 1
        self._make_room(one)
        for rank in one.blocked:
            self._advance(rank)

    def _make_room(self, one: _Running) -> None:
        if one.stream.busy is one:
            one.stream.busy = None
        self._admit(one.stream)

    # bytes

    def _first_through(self) -> tuple[float, list[_Running]]:
        """When the next messages arrive in full, and which ones they are."""
        first_s, through = float("inf"), []
        for one in self._flowing:
            at_s = self._now_s + one.left_bytes / one.bytes_per_s
            if at_s < first_s * (1 - _ALMOST):
                first_s, through = at_s, [one]
            elif at_s <= first_s * (1 + _ALMOST):
                through.append(one)
        return first_s, through

    def _flow(self, time_s: float) -> None:
        for one in self._flowing:
            one.left_bytes = max(0.0, one.left_bytes - one.bytes_per_s * (time_s - self._now_s))
        self._now_s = time_s

    def _share(self) -> None:
        """Give every message its max-min fair rate; the tightest hops are shared out first."""
        users: dict[Hop, dict[_Running, None]] = defaultdict(dict)
        for one in self._flowing:
            for hop in one.hops:
                users[hop][one] = None
        left = {hop: self._capacity(hop) for hop in users}
        while users:
            rate = min(left[hop] / len(of_hop) for hop, of_hop in users.items())
            tightest = [hop for hop, of_hop in users.items() if left[hop] / len(of_hop) <= rate * (1 + _ALMOST)]
            for hop in tightest:
                for one in list(users[hop]):
                    one.bytes_per_s = rate
                    for other in one.hops:
                        del users[other][one]
                        left[other] -= rate
            users = {hop: of_hop for hop, of_hop in users.items() if of_hop}

    def _note(self, rank: int, kind: str, start_s: float, end_s: float, one: _Running) -> None:
        operation = one.operation
        name = "recv" if one.is_message and rank == operation.ranks[1] else operation.op
        sent_bytes = one.sent_bytes(rank) if kind == COMMUNICATION else 0.0
        peers = tuple(other for other in operation.ranks if other != rank) if one.is_message else operation.ranks
        place = operation.group, operation.sequence
        event = Event(rank, kind, kind, name, start_s, end_s, operation.size_bytes, sent_bytes, peers, *place)
        self.ranks[rank].events.append(event)


def _work(rank: int, step: Step, start_s: float) -> Event:
    return Event(rank, "compute", step.work, step.name, start_s, start_s + step.duration_s)


def _stream_of(operation: Operation) -> object:
    return operation.ranks if operation.op == "send" else ("group", operation.group)
