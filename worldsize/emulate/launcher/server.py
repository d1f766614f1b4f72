"""The launcher's side of an emulated run: a socket to every rank, the conductor, and the simulator."""

from __future__ import annotations

import contextlib
import itertools
import math
import select
import selectors
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from worldsize import framing, hardware, pricing
from worldsize.emulate.launcher.bound import Bound
from worldsize.emulate.launcher.conductor import Conductor, Post, Reply, TimedWait
from worldsize.emulate.launcher.exchanges import Exchange, Keeper, TooMuchSent
from worldsize.emulate.launcher.simulator import ClusterPrices, Times, replay, times
from worldsize.emulate.protocol.messages import (
    Awaited,
    Blocked,
    Compute,
    Emulated,
    FromConductor,
    FromRank,
    Hurry,
    Left,
    OperationFailed,
    OperationResult,
    Posted,
    Refused,
    read_from_rank,
)
from worldsize.emulate.protocol.operations import ASK, OPERATIONS, REDUCTIONS
from worldsize.emulate.protocol.record import JOIN, KINDS, MARK, MEASURED, POST, WAIT, Step
from worldsize.event import LOST
from worldsize.faults import Fault, Faults, LostRank
from worldsize.hardware import TRANSFERS, Cluster
from worldsize.timeline import Event, Timeline

_CHUNK = 1 << 16
_MOST_KEPT = 16  # limit on the kept exchanges, in messages of the largest size
_MOST_HELD = 8  # limit on the data in transit, in messages of the largest size
_MOST_PARTS = 64  # buffers per system call
_MOST_READS = 100  # after a rank's end, because it may have sent any amount
_MAX_TRANSFER_LANES = 1_000
_MAX_STEPS = 200_000  # per rank, which could otherwise send any number


class Lost(Exception):
    """A rank was lost to one of the run's faults, and the others do not hear of it."""


class TooManySteps(Exception):
    """A rank reported more steps than a run keeps."""


_KINDS = {
    Lost: "a planned loss",
    TooManySteps: "too many steps",
    TooMuchSent: "too many bytes",
}  # of faults, by their errors


class _RankConnection:
    """The connection to one rank: its socket, and what has not gone out yet."""

    def __init__(self, rank: int, max_post_bytes: int) -> None:
        self.rank = rank
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.inbox = framing.Inbox(max_post_bytes)
        self.outgoing: deque[memoryview] = deque()
        self.groups: dict[str, tuple[tuple[int, ...], frozenset[int]]] = {}  # group -> its ranks, in order and as a set
        self.open_bytes: dict[int, int] = {}  # posts without an answer
        self.num_steps = self.num_marks = 0
        self.transfer_lanes: set[str] = set()
        self.num_posts = self.num_calls = 0  # a question for the time counts as a post but not as a call
        self.lost_number: int | None = None  # of the post at which the rank was lost
        self.is_full = self.was_refused = False


class Emulation:
    """The launcher's side of a run on an emulated cluster.

    Raises:
        ValueError: the cluster is unknown or has too few GPUs, `allow` names an unknown operation, or `compute` is
            neither flops, measured or none nor a number, 0 or more.
    """

    def __init__(
        self,
        world_size: int,
        cluster: Cluster | str,
        allow: Collection[str] | None,
        compute: str | float,
        faults: Sequence[Fault] = (),
        max_post_bytes: int = 1 << 34,
        keeps_exchanges: bool = False,
    ) -> None:
        is_number = isinstance(compute, int | float) and math.isfinite(compute) and compute >= 0
        if compute not in KINDS and not is_number:
            raise ValueError(f"compute must be one of {', '.join(KINDS)}, or a number, 0 or more; got {compute!r}")
        self._compute, self._scale = (MEASURED, float(compute)) if is_number else (str(compute), 1.0)
        self._cluster = hardware.cluster(cluster) if isinstance(cluster, str) else cluster
        if not isinstance(self._cluster, Cluster):
            known = "a cluster of worldsize.hardware, or the name of one such as 'dgx-h100'"
            raise ValueError(f"cluster must be {known}; got a {type(cluster).__name__}")
        if world_size > self._cluster.world_size:
            raise ValueError(f"{self.name} has {self._cluster.world_size} GPUs; {world_size} ranks do not fit on it")
        self._faults = Faults(faults, self._cluster, world_size)
        price = lru_cache(maxsize=1024)(self._price)  # each request for the time replays the whole record
        self._prices = ClusterPrices(
            self._cluster.route,
            self._faults.capacity_bytes_per_s,
            lambda one: price(one.op, one.size_bytes, one.ranks),
            is_rendezvous=self._cluster.library == "gloo",
            transfer_route=self._cluster.transfer_route,
        )
        self._bound = Bound(lambda one: price(one.op, one.size_bytes, one.ranks).time_s)
        self._keeper = Keeper(_MOST_KEPT * max_post_bytes) if keeps_exchanges else None
        self._conductor = Conductor(world_size, allow, self._keeper.keep if self._keeper else None)
        self._connections = [_RankConnection(rank, max_post_bytes) for rank in range(world_size)]
        self._max_held_bytes = _MOST_HELD * max_post_bytes
        self.num_posts = 0  # of all ranks
        self._unsent: dict[int, _RankConnection] = {}  # the connections, by rank, with answers to be sent
        self._held_bytes = 0  # posts without an answer, and answers that have not gone out
        self._selector: selectors.BaseSelector | None = None
        self._is_hurrying = False

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._cluster.name

    @property
    def for_ranks(self) -> Emulated:
        """The description of the emulation in every rank's job."""
        allow = self._conductor.allow
        return Emulated(
            local_world_size=self._cluster.gpus_per_node,
            compute=Compute(self._compute, self._scale, self._cluster.gpu),
            allow=None if allow is None else sorted(allow),
            missing=self._cluster.missing_transfers(),
        )

    @property
    def is_stuck(self) -> bool:
        """Whether the run is deadlocked."""
        return self._conductor.is_stuck

    def fd_of(self, rank: int) -> int:
        """Return the file descriptor of the rank's end of its socket."""
        return self._connections[rank].theirs.fileno()

    def listen(
        self,
        selector: selectors.BaseSelector,
        on_fault: Callable[[int, str, str], None],
        on_loss: Callable[[int], None],
    ) -> None:
        """Start to serve the ranks, each of which now has its end of its socket.

        `on_fault` is called with a rank that fails here, a kind and a reason; `on_loss` with a lost rank, if others
        hear it.
        """
        self._selector, self._on_fault, self._on_loss = selector, on_fault, on_loss
        for connection in self._connections:
            connection.theirs.close()
            selector.register(
                connection.ours, selectors.EVENT_READ, lambda connection=connection: self._serve(connection)
            )

    def leave(self, rank: int) -> None:
        """Mark a rank as ended, after handling what it sent last: that may include the post at which it is lost."""
        if self._faults.are_heard:
            self._serve_last(self._connections[rank])
        self._conductor.leave(rank)
        self._decide()

    def was_refused(self, rank: int) -> bool:
        """Whether this rank has reported that a call was refused."""
        connection = self._connections[rank]
        self._serve_last(connection)
        return connection.was_refused

    def _serve_last(self, connection: _RankConnection) -> None:
        """Take what a rank has sent before its end."""
        for _ in range(_MOST_READS):
            if self._is_ready(connection):
                self._serve(connection)

    def _is_ready(self, connection: _RankConnection) -> bool:
        is_heard = self._selector is not None and connection.ours in self._selector.get_map()
        if not is_heard:
            return False
        waiting = select.poll()  # `select` refuses file descriptors above 1023, which a notebook may have
        waiting.register(connection.ours, select.POLLIN)
        return bool(waiting.poll(0))

    def timeline(self) -> Timeline:
        """Compute the run's timeline in virtual time, on which lost ranks are marked to the end."""
        replayed = replay(self._conductor.steps, self._conductor.operations, self._prices)
        end_s = replayed.end_s
        lost = [
            Event(rank, LOST, LOST, LOST, lost_s, end_s) for rank, lost_s in self.lost_s().items() if lost_s < end_s
        ]
        return Timeline.of_events([*replayed.events, *lost]) if lost else replayed

    @property
    def warnings(self) -> list[str]:
        """Describe the faults that had no effect on the finished run."""
        num_calls = {connection.rank: connection.num_calls for connection in self._connections}
        lost = {connection.rank for connection in self._connections if connection.lost_number is not None}
        return self._faults.without_effect(num_calls, lost)

    def exchanges(self) -> list[Exchange]:
        """Return the messages and collectives with their data, if the run kept them."""
        return self._keeper.exchanges(self._times()) if self._keeper else []

    def lost_s(self) -> dict[int, float]:
        """Map each lost rank to the virtual time of its loss."""
        lost = {one.rank: one.lost_number for one in self._connections if one.lost_number is not None}
        if not lost:
            return {}
        posted_s = self._times().posted_s
        return {rank: posted_s(rank, number) for rank, number in lost.items()}

    def _times(self) -> Times:
        return times(self._conductor.steps, self._conductor.operations, self._prices)

    def _price(self, op: str, size_bytes: int, ranks: tuple[int, ...]) -> pricing.Price:
        return pricing.price(op, size_bytes, ranks, self._faults.cluster_of(ranks))

    def _decide(self) -> None:
        """Decide what depends on virtual time, once nothing else can move."""
        conductor = self._conductor
        if conductor.has_timed_waits:
            for reply in conductor.end_waits_within(self._bound.of(conductor.steps, conductor.operations)):
                self._answer(reply)
        if conductor.depends_on_time and not self._is_hurrying:
            self._is_hurrying = True
            for connection in self._connections:
                self._send(connection, Hurry())
        while conductor.depends_on_time and conductor.is_still:  # an answer may be one for which no rank waits
            replies = conductor.decide(self._times())
            if not replies:
                return
            for reply in replies:
                self._answer(reply)

    def send_answers(self) -> None:
        """Send the pending answers together, so that a rank is woken once for several."""
        unsent, self._unsent = self._unsent, {}
        for connection in unsent.values():
            self._write(connection)

    def _watch(self, connection: _RankConnection, is_full: bool) -> None:
        """Listen to a rank from now on; while its socket is full, also for when it can take more."""
        assert self._selector
        connection.is_full = is_full
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_full else 0)
        with contextlib.suppress(KeyError):  # it is already unregistered
            self._selector.modify(connection.ours, events, lambda: self._serve(connection))

    def _serve(self, connection: _RankConnection) -> None:
        if connection.is_full:
            self._write(connection)
        try:
            data = connection.ours.recv(_CHUNK)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        assert self._selector
        if not data:
            self._selector.unregister(connection.ours)
            self._conductor.leave(connection.rank)
            self._decide()
            return
        try:
            for header, body in connection.inbox.feed(data):
                if connection.lost_number is None:
                    self._take(connection, read_from_rank(header), body)
            self._decide()  # after all messages: it may take a second, and the launcher checks its deadline in between
        except Exception as error:  # whatever a rank posts, the launcher must go on
            with contextlib.suppress(KeyError):  # a lost rank is already unregistered
                self._selector.unregister(connection.ours)
            self._on_fault(connection.rank, _KINDS.get(type(error), "broken message"), str(error))

    def _take(self, connection: _RankConnection, received: FromRank, body: bytes) -> None:
        rank = connection.rank
        connection.num_steps += len(received.steps) + 1
        if connection.num_steps > _MAX_STEPS:
            raise TooManySteps(
                f"one rank recorded more than {_MAX_STEPS:,} pieces of work, calls and waits; emulate fewer steps"
            )
        self._conductor.note(rank, [self._checked(connection, step) for step in received.steps])
        self._conductor.go_on(rank)
        match received:
            case Posted() if loss := self._loss_at(connection, received):
                self._lose(connection, received.lane, loss)
            case Posted():
                self._take_post(connection, received, body)
            case Awaited():
                self._take_timed_wait(connection, received, body)
            case Blocked(numbers, is_limited):
                for number in numbers:
                    _refuse_unknown_post(connection, number)
                self._conductor.rest(rank, numbers, is_limited)
            case Left():
                self._conductor.leave(rank)
            case Refused():
                connection.was_refused = True

    def _loss_at(self, connection: _RankConnection, posted: Posted) -> LostRank | None:
        """Return the fault, if any, that loses the rank at this post.

        Raises:
            Lost: the others do not hear of it.
        """
        loss = None if posted.op == ASK else self._faults.loss(connection.rank, connection.num_calls)
        if loss and loss.is_heard_after_s is None:
            raise Lost(f"gone after {connection.num_calls} calls")
        return loss

    def _lose(self, connection: _RankConnection, lane: str, loss: LostRank) -> None:
        assert self._selector and loss.is_heard_after_s is not None
        self._selector.unregister(connection.ours)
        number = connection.lost_number = connection.num_posts + 1
        self._conductor.note(connection.rank, [Step(POST, number, lane=lane)])  # the moment of the loss
        self._conductor.lose(connection.rank, number, loss.is_heard_after_s)
        self._on_loss(connection.rank)

    def _take_post(self, connection: _RankConnection, posted: Posted, sent: bytes) -> None:
        post = _post_of(connection, posted, sent, len(self._connections))
        body = sent if post.op == ASK else self._with_faults(connection, post)
        self._open_post(connection, post.number, posted.lane, sent)
        if body is not sent:
            post = post._replace(body=body)
        for reply in self._conductor.post(post):
            self._answer(reply)

    def _take_timed_wait(self, connection: _RankConnection, awaited: Awaited, sent: bytes) -> None:
        _refuse_other_number(connection, awaited.number)
        _refuse_unknown_post(connection, awaited.awaited)
        self._open_post(connection, awaited.number, awaited.lane, sent)
        self._conductor.wait_within(
            TimedWait(connection.rank, awaited.number, awaited.awaited, awaited.timeout_s, awaited.lane)
        )

    def _open_post(self, connection: _RankConnection, number: int, lane: str, sent: bytes) -> None:
        """Count a post that is to have an answer, and record it."""
        connection.num_posts += 1
        self.num_posts += 1
        connection.open_bytes[number] = len(sent)
        self._held_bytes += len(sent)
        if self._held_bytes > self._max_held_bytes:
            raise ValueError(
                f"the ranks sent more than {self._max_held_bytes} bytes that no rank has received; receive them earlier"
            )
        # recorded here, because a rank's own report could be false
        self._conductor.note(connection.rank, [Step(POST, number, lane=lane)])

    def _with_faults(self, connection: _RankConnection, post: Post) -> bytes:
        """The operation's data as they leave the rank, with the run's faults."""
        connection.num_calls += 1
        return self._faults.corrupted(connection.rank, connection.num_calls - 1, post.num_items, post.body)

    def _checked(self, connection: _RankConnection, step: Step) -> Step:
        """The step as it goes on the record: with the time that it takes under the run's faults."""
        if step.kind == WAIT:
            _refuse_unknown_post(connection, step.number)
        elif step.kind == MARK:
            connection.num_marks += 1
        if step.kind in (MARK, JOIN):
            _refuse_unknown_mark(connection, step)
        elif step.kind in TRANSFERS:
            self._cluster.transfer_route(connection.rank, step.kind)
            connection.transfer_lanes.add(step.lane)
            if len(connection.transfer_lanes) > _MAX_TRANSFER_LANES:  # each may have a transfer in progress
                raise ValueError(f"one rank uses more than {_MAX_TRANSFER_LANES:,} lanes for transfers; use fewer")
        duration_s = self._faults.slowed_s(connection.rank, step.duration_s, step.lane)
        return step if duration_s == step.duration_s else step._replace(duration_s=duration_s)

    def _answer(self, reply: Reply) -> None:
        self._held_bytes -= self._connections[reply.rank].open_bytes.pop(reply.number)
        answer = OperationResult(number=reply.number, src=reply.src)
        if reply.failure:
            answer = OperationFailed(reply.number, reply.failure.time_s, reply.failure.ranks)
        self._send(self._connections[reply.rank], answer, reply.body)

    def _send(self, connection: _RankConnection, answer: FromConductor, body: bytes = b"") -> None:
        for part in filter(None, (framing.pack_header(answer.to_bytes(), len(body)), body)):
            # without a copy, since all ranks of a collective may receive this body
            connection.outgoing.append(memoryview(part))
            self._held_bytes += len(part)
        self._unsent[connection.rank] = connection

    def _write(self, connection: _RankConnection) -> None:
        while connection.outgoing:
            try:
                sent = connection.ours.sendmsg(itertools.islice(connection.outgoing, _MOST_PARTS))
            except BlockingIOError:
                self._watch(connection, is_full=True)
                return
            except OSError:  # the rank has ended, as the forkserver reports
                self._held_bytes -= sum(map(len, connection.outgoing))
                connection.outgoing.clear()
                return
            self._held_bytes -= sent
            while sent and sent >= len(connection.outgoing[0]):
                sent -= len(connection.outgoing.popleft())
            if sent:
                connection.outgoing[0] = connection.outgoing[0][sent:]
        if connection.is_full:
            self._watch(connection, is_full=False)

    def close(self) -> None:
        """Close every socket."""
        for connection in self._connections:
            connection.theirs.close()
            connection.ours.close()


def _post_of(connection: _RankConnection, posted: Posted, body: bytes, world_size: int) -> Post:
    """The post of a message.

    Raises:
        ValueError: it is invalid; our own backend would not have sent it.
    """
    if posted.ranks is not None:
        connection.groups[posted.group] = posted.ranks, _members(posted.ranks, connection.rank, world_size)
    if posted.group not in connection.groups:
        raise ValueError(f"a call names the group {posted.group!r} before a message has listed its ranks")
    ranks, members = connection.groups[posted.group]
    post = Post(
        rank=connection.rank,
        number=posted.number,
        op=posted.op,
        group=posted.group,
        ranks=ranks,
        dtype=posted.dtype,
        num_items=posted.num_items,
        body=body,
        peer=posted.peer,
        tag=posted.tag,
        reduction=posted.reduction,
        splits=posted.splits,
    )
    _refuse_other_number(connection, post.number)
    if post.op != ASK:
        _refuse_impossible(post, members)
    return post


def _members(ranks: tuple[int, ...], rank: int, world_size: int) -> frozenset[int]:
    """Return the ranks of a group as a set; empty if this rank cannot be in such a group."""
    members = frozenset(ranks)
    is_known = members <= set(range(world_size)) and len(members) == len(ranks)
    return members if is_known and rank in members else frozenset()


def _refuse_impossible(post: Post, members: frozenset[int]) -> None:
    is_to_itself = post.op in ("send", "recv") and post.peer == post.rank  # a cluster has no such route
    if not members:
        raise ValueError(
            f"rank {post.rank} called {post.op} in the group {post.ranks!s:.80}, which must list it and other ranks of "
            "the run once each"
        )
    if not (post.peer is None or post.peer in members) or is_to_itself:
        raise ValueError(
            f"rank {post.rank} called {post.op} with rank {post.peer}, which is not another rank of the group "
            f"{post.ranks!s:.80}"
        )
    if post.op not in OPERATIONS or post.reduction not in ("", *REDUCTIONS):
        raise ValueError(f"there is no operation {post.op!r} with the reduction {post.reduction!r}")
    if len(post.body) % post.num_items if post.num_items else post.body:
        raise ValueError(f"{len(post.body)} bytes cannot hold {post.num_items} items of equal size")


def _refuse_other_number(connection: _RankConnection, number: int) -> None:
    if number != connection.num_posts + 1:
        raise ValueError(f"the post has number {number}; expected {connection.num_posts + 1}")


def _refuse_unknown_post(connection: _RankConnection, number: int) -> None:
    if not 0 < number <= connection.num_posts:
        raise ValueError(f"a wait names post {number}, but the rank has made {connection.num_posts} posts")


def _refuse_unknown_mark(connection: _RankConnection, step: Step) -> None:
    is_next = step.kind != MARK or step.number == connection.num_marks
    if not (is_next and 0 < step.number <= connection.num_marks):
        raise ValueError(f"a {step.kind} names mark {step.number}, but the rank has made {connection.num_marks} marks")
