"""Virtual time: when everything in a record would have happened on a cluster. No threads, randomness or real clock.

A rank's own work takes its recorded duration. Each of a rank's lanes has its own clock and executes its steps in
order; a lane that joins another lane's mark goes on no earlier than that lane reached the mark.

A message starts when both ends have posted it and the previous one from the same sender to the same receiver has
arrived; it takes the latency of its route, and then its bytes flow at their max-min fair rate on the route's shared
hops.

A transfer between a GPU, its host and storage is a step of a lane: it takes the latency of its route, and then its
bytes flow like a message's. The lane goes on when they have arrived.

With Gloo a message is a rendezvous (pair.cc): the receiver's ready notice takes half of the latency and queues behind
bytes already bound for the same peer; the sender's bytes then follow, also queued behind earlier ones. The sender is
done when they have left, the receiver half a latency later.

A group's collectives start in the order in which its ranks call them, each when its last member has posted it and the
previous one is done, or has only delays left and the library lets the two overlap; its duration is its price.

Operations with a lost rank fail at a time given in the record.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, Protocol, assert_never

from worldsize.emulate.protocol.record import COMPUTE, JOIN, MAIN, MARK, POST, TIMEOUT, Operation, Step
from worldsize.event import COMMUNICATION, WAIT
from worldsize.hardware import TRANSFERS, Hop, Route
from worldsize.timeline import Event, Timeline

_MOST_AT_ONCE = 2  # collectives of a group whose delays overlap: the number of Gloo's threads
_ALMOST = 1e-12  # relative rounding error


class CollectiveCost(Protocol):
    """The cost of a collective: its time, how much of that the group's next may overlap, what each rank sends."""

    @property
    def time_s(self) -> float: ...

    @property
    def delay_s(self) -> float: ...

    @property
    def sent_bytes_per_rank(self) -> float: ...


class Unanswered(ValueError):
    """Some ranks waited for operations that never happened; `posts` maps each to the number of an awaited post."""

    def __init__(self, ranks: Sequence[int], posts: Mapping[int, int] = MappingProxyType({})) -> None:
        super().__init__(f"ranks {list(ranks)} wait for something that never happened")
        self.ranks, self.posts = ranks, posts


def _no_transfers(rank: int, transfer: str) -> Route:
    raise ValueError(f"the price list has no route for the transfer {transfer!r} of rank {rank}")


@dataclass(frozen=True)
class ClusterPrices:
    """A cluster's prices: the route between two ranks, the rate of each hop, the cost of a collective.

    `transfer_route` is the route of a rank's transfer, by its name.
    """

    route: Callable[[int, int], Route]
    capacity_bytes_per_s: Callable[[Hop], float]
    collective: Callable[[Operation], CollectiveCost]
    is_rendezvous: bool = False  # a message waits for its receiver's word, as Gloo's do
    transfer_route: Callable[[int, str], Route] = _no_transfers


@dataclass(eq=False)  # compared by identity, as a key of dicts
class _Running:
    """One operation from its first post to its end."""

    operation: Operation
    stream: _Stream
    ready_s: dict[int, float] = field(default_factory=dict)  # rank -> when it posted
    start_s: float = 0.0
    left_s: float | None = None  # when the last byte of a message had left its sender
    end_s: float | None = None
    cost: CollectiveCost | None = None  # of a collective, once it has started
    blocked: list[_Lane] = field(default_factory=list)  # what waits for it
    place: int = 0  # of a message's sending among all posts

    @property
    def is_message(self) -> bool:
        return self.operation.op == "send"

    def done_s(self, rank: int) -> float | None:
        """Return when a rank's part is done, if that is known yet."""
        return self.left_s if self.is_message and rank == self.operation.ranks[0] else self.end_s

    @property
    def is_posted(self) -> bool:
        """Whether all participants have posted it."""
        return len(self.ready_s) == len(self.operation.parts)

    def sent_bytes(self, rank: int) -> float:
        """Return the bytes that a rank sends for it."""
        one = self.operation
        if self.cost is None:
            return one.size_bytes if rank == one.ranks[0] else 0.0
        is_root = rank == one.root
        only_receives = (one.op == "scatter" and not is_root) or (one.op == "gather" and is_root)
        return 0.0 if only_receives else self.cost.sent_bytes_per_rank


@dataclass
class _Stream:
    """Operations that run one after the other: a group's collectives, or one rank's messages to another."""

    # not started yet: collectives in order of calls, messages in order of posts
    queue: deque[_Running] = field(default_factory=deque)
    busy: _Running | None = None  # the operation for which the next must wait
    num_under_way: int = 0
    words: list[_Word] = field(default_factory=list["_Word"])  # ready notices queued behind the bytes of `busy`


class _Word(NamedTuple):
    """A receiver's notice that it is ready for a message: when it was given, and its position among all posts."""

    message: _Running
    given_s: float
    place: int


@dataclass(eq=False)  # compared by identity, as a key of dicts
class _Flow:
    """The bytes in transit of a message, or of a lane's current transfer."""

    of: _Running | _Lane
    hops: Sequence[Hop]
    left_bytes: float
    bytes_per_s: float = 0.0


@dataclass(eq=False)
class _Lane:
    """One lane of a rank, and its progress."""

    rank: int
    name: str
    steps: list[Step] = field(default_factory=list[Step])
    clock_s: float = 0.0
    place: int = 0
    reason: _Running | None = None  # the operation whose end set the clock


# scheduled events


class _Starts(NamedTuple):
    """An operation starts."""

    operation: _Running


class _BeginsToFlow(NamedTuple):
    """The first byte of a message enters its route."""

    message: _Running


class _MakesRoom(NamedTuple):
    """The next operation of the stream may start."""

    operation: _Running


class _GivesWord(NamedTuple):
    """A receiver becomes ready for a message."""

    message: _Running


class _Ends(NamedTuple):
    """An operation ends."""

    operation: _Running


class _StartsTransfer(NamedTuple):
    """The first byte of a lane's current transfer enters its route."""

    lane: _Lane


_Due = _Starts | _BeginsToFlow | _MakesRoom | _GivesWord | _Ends | _StartsTransfer


@dataclass
class _Mark:
    """A mark of a rank: when it was reached and because of what, or the lanes that wait for it."""

    time_s: float | None = None
    reason: _Running | None = None
    blocked: list[_Lane] = field(default_factory=list[_Lane])


def replay(steps: Sequence[Sequence[Step]], operations: Sequence[Operation], prices: ClusterPrices) -> Timeline:
    """The timeline of a record: work on stream "compute", waiting on "wait", operations on "communication".

    Raises:
        Unanswered: the record ends before everything has happened that a rank waits for.
    """
    return replay_of(dict(enumerate(steps)), operations, prices).timeline


class Replayed(NamedTuple):
    """A timeline, and the seconds at which each rank has reached each of its marks."""

    timeline: Timeline
    marks_s: Mapping[tuple[int, int], float]


def replay_of(steps: Mapping[int, Sequence[Step]], operations: Sequence[Operation], prices: ClusterPrices) -> Replayed:
    """The same of some ranks of a larger job: the parts of the others in an operation are taken to be in time.

    Raises:
        Unanswered: the record ends before everything has happened that a rank waits for.
    """
    replayed = _Replay(steps, operations, prices)
    replayed.run()
    stuck = [(lane.rank, lane.steps[lane.place]) for lane in replayed.lanes if lane.place < len(lane.steps)]
    if stuck:
        posts = {rank: step.number for rank, step in sorted(stuck) if step.kind == WAIT}
        raise Unanswered(sorted({rank for rank, _ in stuck}), posts)
    return Replayed(Timeline.of_events(replayed.events), replayed.marks_s())


class Times(NamedTuple):
    """The virtual times, in seconds, at which a rank makes its `number`-th post and at which that is done.

    Infinity stands for events that never happen in the record.
    """

    posted_s: Callable[[int, int], float]
    done_s: Callable[[int, int], float]


def times(steps: Sequence[Sequence[Step]], operations: Sequence[Operation], prices: ClusterPrices) -> Times:
    """The times of a record, which may end anywhere."""
    replayed = _Replay(dict(enumerate(steps)), operations, prices)
    replayed.run()
    return Times(replayed.posted_s, replayed.done_s)


class _Replay:
    def __init__(
        self, steps: Mapping[int, Sequence[Step]], operations: Sequence[Operation], prices: ClusterPrices
    ) -> None:
        self._price = prices.collective
        self._is_rendezvous = prices.is_rendezvous
        self._capacity = lru_cache(maxsize=None)(prices.capacity_bytes_per_s)
        self._route = lru_cache(maxsize=None)(prices.route)
        self.lanes = [lane for rank, of_rank in steps.items() for lane in _lanes(rank, of_rank)]
        self.events: list[Event] = []
        self._posted_s: dict[tuple[int, int], float] = {}
        self._marks: dict[tuple[int, int], _Mark] = defaultdict(_Mark)
        self._streams: dict[object, _Stream] = defaultdict(_Stream)
        running = [_Running(one, self._streams[_stream_of(one)]) for one in operations]
        for one in sorted(running, key=lambda one: one.operation.sequence):
            if not one.is_message and one.operation.failed_s is None:
                one.stream.queue.append(one)
        self._of_post = {place: one for one in running for place in one.operation.parts.items()}
        self._transfer_route = lru_cache(maxsize=None)(prices.transfer_route)
        self._due: list[tuple[float, int, _Due]] = []  # time, position among all events, event
        self._flowing: dict[_Flow, None] = {}  # in order of their start
        self._now_s = 0.0
        self._count = 0

    def run(self) -> None:
        for lane in self.lanes:
            self._advance(lane)
        while self._due or self._flowing:
            self._next()

    def posted_s(self, rank: int, number: int) -> float:
        """Return when a rank makes a post."""
        return self._posted_s.get((rank, number), math.inf)

    def done_s(self, rank: int, number: int) -> float:
        """Return when that post's operation is done for the rank."""
        running = self._of_post.get((rank, number))
        done_s = None if running is None else running.done_s(rank)
        return math.inf if done_s is None else done_s

    def marks_s(self) -> dict[tuple[int, int], float]:
        """Map each (rank, number of its mark) to when the mark was reached."""
        return {key: mark.time_s for key, mark in self._marks.items() if mark.time_s is not None}

    # a lane

    def _advance(self, lane: _Lane) -> None:
        """Advance a lane, and those that waited for its marks, as far as possible."""
        ready = [lane]
        while ready:  # not recursive: a rank may report any number of lanes
            ready += self._go_on(ready.pop())

    def _go_on(self, lane: _Lane) -> list[_Lane]:
        """Advance a lane until it must wait for a time not yet known; return the lanes that its marks unblock."""
        let_go: list[_Lane] = []
        while lane.place < len(lane.steps):
            step = lane.steps[lane.place]
            if step.kind == COMPUTE:
                self.events.append(_work(lane, step, lane.clock_s + step.duration_s))
                lane.clock_s += step.duration_s
                lane.reason = None
            elif step.kind == POST:
                self._post(lane, step.number)
            elif step.kind == MARK:
                let_go += self._reach(lane, step.number)
            elif step.kind == TIMEOUT:
                self._hold(lane, lane.clock_s + step.duration_s, self._of_post.get((lane.rank, step.number)))
            elif step.kind in TRANSFERS:
                self._start_transfer(lane, step)
                break
            elif not (self._join if step.kind == JOIN else self._wait)(lane, step.number):
                break
            lane.place += 1
        return let_go

    def _post(self, lane: _Lane, number: int) -> None:
        rank = lane.rank
        self._posted_s[rank, number] = lane.clock_s
        one = self._of_post.get((rank, number))
        if one is None:
            return  # posted, and never matched: the launcher explains the hang
        if one.operation.failed_s is not None:
            one.left_s = one.end_s = one.operation.failed_s
            return
        if self._is_rendezvous and one.is_message and rank == one.operation.ranks[1]:
            self._push(lane.clock_s, _GivesWord(one))  # only then is it known what is queued before it
            return
        self._count += 1
        one.place = self._count
        self._make_ready(one, rank, lane.clock_s)

    def _make_ready(self, one: _Running, rank: int, time_s: float) -> None:
        one.ready_s[rank] = time_s
        if one.is_posted:
            if one.is_message:
                one.stream.queue.append(one)
            self._admit(one.stream)

    def _wait(self, lane: _Lane, number: int) -> bool:
        """Wait for a post; return whether the lane goes on, because the end of the operation is known."""
        one = self._of_post.get((lane.rank, number))
        if one is None:
            return False
        done_s = one.done_s(lane.rank)
        if done_s is None:
            one.blocked.append(lane)
            return False
        self._hold(lane, done_s, one)
        return True

    def _reach(self, lane: _Lane, number: int) -> list[_Lane]:
        """Reach a mark; return the lanes that waited for it."""
        mark = self._marks[lane.rank, number]
        mark.time_s, mark.reason = lane.clock_s, lane.reason
        return mark.blocked

    def _join(self, lane: _Lane, number: int) -> bool:
        """Join a mark; return whether the lane goes on, because the time of the mark is known."""
        mark = self._marks[lane.rank, number]
        if mark.time_s is None:
            mark.blocked.append(lane)
            return False
        self._hold(lane, mark.time_s, mark.reason)
        return True

    def _hold(self, lane: _Lane, until_s: float, reason: _Running | None) -> None:
        """Move a lane's clock to `until_s` at the earliest; show the main lane's wait on the timeline."""
        if until_s <= lane.clock_s:
            return
        if lane.name == MAIN:
            self.events.append(_waited(lane.rank, lane.clock_s, until_s, reason))
        lane.clock_s, lane.reason = until_s, reason

    # an operation

    def _admit(self, stream: _Stream) -> None:
        """Start a stream's next operation if it is posted and the previous one allows it."""
        is_next = stream.queue and stream.queue[0].is_posted
        if is_next and stream.busy is None and stream.num_under_way < _MOST_AT_ONCE:
            stream.busy = one = stream.queue.popleft()
            stream.num_under_way += 1
            self._push(max(*one.ready_s.values(), self._now_s), _Starts(one))

    def _push(self, time_s: float, due: _Due) -> None:
        self._count += 1
        heapq.heappush(self._due, (time_s, self._count, due))

    def _next(self) -> None:
        """Advance to the next event."""
        through_s, through = self._first_through()
        time_s = min(through_s, self._due[0][0] if self._due else through_s)
        self._flow(time_s)
        ended = self._take_through(through) if through_s == time_s else []
        while self._due and self._due[0][0] <= time_s:
            at_s, place, due = heapq.heappop(self._due)
            match due:
                case _Starts(operation):
                    self._start(operation)
                case _MakesRoom(operation):
                    self._make_room(operation)
                case _GivesWord(message):
                    self._send_word(_Word(message, at_s, place))
                case _BeginsToFlow(message):
                    self._begin_to_flow(message)
                case _StartsTransfer(lane):
                    self._begin_transfer(lane)
                case _Ends(operation):
                    ended.append(operation)
                case _:
                    assert_never(due)
        for one in ended:
            if isinstance(one, _Lane):
                self._end_transfer(one)
            else:
                self._end(one)
        self._share()

    def _take_through(self, through: Sequence[_Flow]) -> list[_Running | _Lane]:
        """Finish flows; return what ends with them (a rendezvous message ends half a latency later)."""
        ended: list[_Running | _Lane] = []
        for flow in through:
            del self._flowing[flow]
        for flow in through:
            if self._is_rendezvous and isinstance(flow.of, _Running):
                self._let_go(flow.of)
            else:
                ended.append(flow.of)
        return ended

    def _start(self, one: _Running) -> None:
        one.start_s = self._now_s
        if one.is_message:
            latency_s = self._route(*one.operation.ranks).latency_s
            if self._is_rendezvous:
                self._push(max(self._now_s, one.ready_s[one.operation.ranks[1]] + latency_s / 2), _BeginsToFlow(one))
            else:
                self._push(one.start_s + latency_s, _BeginsToFlow(one) if one.operation.size_bytes else _Ends(one))
            return
        one.cost = self._price(one.operation)
        self._push(one.start_s + one.cost.time_s, _Ends(one))
        if one.cost.delay_s:
            self._push(one.start_s + one.cost.time_s - one.cost.delay_s, _MakesRoom(one))

    def _begin_to_flow(self, one: _Running) -> None:
        if one.operation.size_bytes:
            hops = self._route(*one.operation.ranks).hops
            self._flowing[_Flow(one, hops, float(one.operation.size_bytes))] = None
        else:
            self._let_go(one)

    def _let_go(self, one: _Running) -> None:
        """Release what is queued behind a rendezvous message whose bytes have all left."""
        one.left_s = self._now_s
        self._push(one.left_s + self._route(*one.operation.ranks).latency_s / 2, _Ends(one))
        one.stream.num_under_way -= 1
        self._make_room(one)
        words, one.stream.words = one.stream.words, []
        for word in words:
            self._send_word(word)
        self._go_on_after(one)

    def _end(self, one: _Running) -> None:
        one.end_s = self._now_s
        if one.left_s is None:
            one.left_s = one.end_s
            one.stream.num_under_way -= 1
            self._make_room(one)
        self.events.extend(
            _event(rank, COMMUNICATION, one.start_s, done_s, one)
            for rank in one.operation.parts
            if (done_s := one.done_s(rank)) is not None
        )
        self._go_on_after(one)

    def _go_on_after(self, one: _Running) -> None:
        """Advance the lanes whose ranks are done with an operation."""
        done = [lane for lane in one.blocked if one.done_s(lane.rank) is not None]
        one.blocked = [lane for lane in one.blocked if one.done_s(lane.rank) is None]
        for lane in done:
            self._advance(lane)

    def _send_word(self, word: _Word) -> None:
        """Notify a sender that its receiver is ready, after the bytes queued to it before."""
        src, dst = word.message.operation.ranks
        opposite = self._streams[dst, src]
        way_s = self._route(src, dst).latency_s / 2
        if (ahead := opposite.busy) and (_in_line_s(ahead, way_s), ahead.place) < (word.given_s, word.place):
            opposite.words.append(word)
        else:
            self._make_ready(word.message, dst, self._now_s)

    def _make_room(self, one: _Running) -> None:
        if one.stream.busy is one:
            one.stream.busy = None
        self._admit(one.stream)

    # a transfer

    def _start_transfer(self, lane: _Lane, step: Step) -> None:
        latency_s = self._transfer_route(lane.rank, step.kind).latency_s
        self._push(lane.clock_s + latency_s, _StartsTransfer(lane))

    def _begin_transfer(self, lane: _Lane) -> None:
        step = lane.steps[lane.place]
        if step.number:  # bytes
            hops = self._transfer_route(lane.rank, step.kind).hops
            self._flowing[_Flow(lane, hops, float(step.number))] = None
        else:
            self._end_transfer(lane)

    def _end_transfer(self, lane: _Lane) -> None:
        self.events.append(_work(lane, lane.steps[lane.place], self._now_s))
        lane.clock_s, lane.reason = self._now_s, None
        lane.place += 1
        self._advance(lane)

    # bytes

    def _first_through(self) -> tuple[float, list[_Flow]]:
        """Return when the next flows arrive in full, and which flows they are."""
        first_s, through = float("inf"), list[_Flow]()
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
        """Give every flow its max-min fair rate, starting with the most congested hops."""
        users: dict[Hop, dict[_Flow, None]] = defaultdict(dict)
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


def _in_line_s(message: _Running, way_s: float) -> float:
    """Return when a message's bytes are queued: it has been sent, and the receiver's notice has arrived."""
    src, dst = message.operation.ranks
    return max(message.ready_s[src], message.ready_s[dst] + way_s)


def _lanes(rank: int, steps: Sequence[Step]) -> list[_Lane]:
    """Split a rank's steps into its lanes, the main one first."""
    lanes = {MAIN: _Lane(rank, MAIN)}
    for step in steps:
        if step.lane not in lanes:
            lanes[step.lane] = _Lane(rank, step.lane)
        lanes[step.lane].steps.append(step)
    return list(lanes.values())


def _work(lane: _Lane, step: Step, end_s: float) -> Event:
    size_bytes = 0 if step.kind == COMPUTE else step.number
    return Event(lane.rank, lane.name or "compute", step.work, step.name, lane.clock_s, end_s, size_bytes)


def _event(rank: int, kind: str, start_s: float, end_s: float, one: _Running) -> Event:
    """Make the event of a rank's part in an operation, or of its wait for one."""
    operation = one.operation
    name = "recv" if one.is_message and rank == operation.ranks[1] else operation.op
    sent_bytes = one.sent_bytes(rank) if kind == COMMUNICATION else 0.0
    peers = tuple(other for other in operation.ranks if other != rank) if one.is_message else operation.ranks
    place = operation.group, operation.sequence
    return Event(rank, kind, kind, name, start_s, end_s, operation.size_bytes, sent_bytes, peers, *place)


def _waited(rank: int, start_s: float, end_s: float, reason: _Running | None) -> Event:
    return _event(rank, WAIT, start_s, end_s, reason) if reason else Event(rank, WAIT, WAIT, "", start_s, end_s)


def _stream_of(operation: Operation) -> object:
    return operation.ranks if operation.op == "send" else ("group", operation.group)
