"""The conductor: it matches posts, moves and reduces the data, and keeps the record from which times are computed.

It never waits and never reads a clock: data moves as soon as all participating ranks have posted, and the record of
what each rank did, in order, is priced afterwards by `simulator`. Some results do depend on virtual time: a question
for the time, a receive from any rank, a wait or a monitored barrier with a timeout, and when a rank hears that another
is lost. These are decided only when nothing else can move, the earliest in virtual time first, so no later event can
change the result.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from worldsize.emulate.launcher.simulator import Times
from worldsize.emulate.protocol.operations import ASK, MONITORED, Forbidden, refusal, refuse_unknown
from worldsize.emulate.protocol.record import TIMEOUT, Operation, Step
from worldsize.event import axis_of


class Post(NamedTuple):
    """One rank's part in an operation."""

    rank: int
    number: int  # of this rank's posts
    op: str
    group: str
    ranks: tuple[int, ...]
    dtype: str
    num_items: int
    body: bytes
    peer: int | None = None
    tag: int = 0
    reduction: str = ""
    splits: tuple[int, ...] = ()


class TimedWait(NamedTuple):
    """A rank's wait for its post `awaited`, for at most `timeout_s` of virtual time."""

    rank: int
    number: int  # on its rank, counted together with posts
    awaited: int
    timeout_s: float
    lane: str


class OperationFailure(NamedTuple):
    """The moment at which an operation failed because these ranks were lost, or a wait because they had not come."""

    time_s: float
    ranks: tuple[int, ...]


class Reply(NamedTuple):
    """The answer to a rank's post: the bytes received, or the failure."""

    rank: int
    number: int
    body: bytes
    src: int | None = None  # the sender, for a rank that receives from any
    failure: OperationFailure | None = None


class _Loss(NamedTuple):
    """The loss of a rank instead of its `number`-th post, which the others hear `is_heard_after_s` later."""

    number: int
    is_heard_after_s: float


class _Choice(NamedTuple):
    """A decision that depends on virtual time: its time, kind and rank, and what follows from it."""

    time_s: float
    kind: int
    rank: int
    replies: Callable[[], list[Reply]]


_TimeOfPost = Callable[[int, int], float]  # (rank, number of its post) -> virtual time
_LOSS, _ASK, _TIMED, _MONITORED, _RECV = range(5)  # kinds of choices; at the same time, a loss goes first


@dataclass
class _Mailbox:
    sends: deque[Post] = field(default_factory=deque)
    recvs: deque[Post] = field(default_factory=deque)


class Conductor:
    """The data of one run. `steps[rank]` and `operations` are its record."""

    def __init__(
        self,
        world_size: int,
        allow: Iterable[str] | None = None,
        on_exchange: Callable[[Operation, Sequence[Post]], None] | None = None,
    ) -> None:
        refuse_unknown(allow or ())
        self._on_exchange = on_exchange or (lambda *_: None)
        self.world_size = world_size
        self.allow = None if allow is None else frozenset(allow)
        self.steps: list[list[Step]] = [[] for _ in range(world_size)]
        self.operations: list[Operation] = []
        self._open: dict[tuple[int, int], Post] = {}  # posts without a reply, by (rank, number)
        self._still: dict[int, frozenset[int]] = {}  # blocked rank -> the posts for which it waits
        self._limited: set[int] = set()  # blocked ranks that have a wait with a timeout
        self._over: set[int] = set()
        self._asks: dict[tuple[int, int], Post] = {}  # posts that ask for the time, by (rank, number)
        self._open_recvs: list[Post] = []  # from any rank
        self._timed: dict[tuple[int, int], TimedWait] = {}  # by (rank, number)
        self._losses: dict[int, _Loss] = {}  # by rank
        self._heard: set[tuple[int, int]] = set()  # (rank, lost rank): the first has heard of the loss of the second
        self._mail: dict[tuple[Any, ...], _Mailbox] = defaultdict(_Mailbox)
        self._collectives: dict[tuple[str, int], dict[int, Post]] = {}
        self._members: dict[str, tuple[int, ...]] = {}  # group -> its ranks, as the first of them named them
        self._num_posted: dict[tuple[str, int], int] = defaultdict(int)
        # monitored barriers with a timeout, by their places: the first rank's post; those that have failed, with why
        self._monitored: dict[tuple[str, int], Post] = {}
        self._not_passed: dict[tuple[str, int], OperationFailure] = {}

    def note(self, rank: int, steps: Iterable[Step]) -> None:
        """Record a rank's steps since its last message."""
        self.steps[rank].extend(steps)

    def post(self, post: Post) -> list[Reply]:
        """Accept a post and return the replies that it makes possible.

        Raises:
            Forbidden: the run does not allow this operation.
        """
        if self.allow is not None and post.op not in (*self.allow, ASK):
            raise Forbidden(refusal(post.op, self.allow))
        if post.op == ASK:
            self._open[post.rank, post.number] = self._asks[post.rank, post.number] = post
            return []
        if self._losses and any((post.rank, lost) in self._heard for lost in self._lost_in(post)):
            self._open[post.rank, post.number] = post  # it will fail, whatever the lost rank had posted
            return []
        if post.op == "recv" and post.peer is None:
            self._open[post.rank, post.number] = post
            self._open_recvs.append(post)
            return []
        if post.op in ("send", "recv"):
            return self._post_message(post)
        return self._post_collective(post)

    def rest(self, rank: int, numbers: Collection[int], is_limited: bool = False) -> None:
        """Mark a rank as blocked until one of these posts has a reply or, if `is_limited`, a wait times out."""
        places = [(rank, number) for number in numbers]
        if all(place in self._open or place in self._timed for place in places):  # otherwise a reply is on its way
            self._still[rank] = frozenset(numbers)
            if is_limited:
                self._limited.add(rank)

    def go_on(self, rank: int) -> None:
        """Mark a rank as running."""
        if self._still.pop(rank, None) is not None:
            self._limited.discard(rank)

    def wait_within(self, wait: TimedWait) -> None:
        """Register a wait until a post is done or the wait times out, in which case its reply has a failure."""
        self._timed[wait.rank, wait.number] = wait

    def end_waits_within(self, most_s: float) -> list[Reply]:
        """Return the replies to waits that end in time because the whole record takes at most `most_s`."""
        waits = self._timed.values()
        ended = [wait for wait in waits if wait.timeout_s >= most_s and (wait.rank, wait.awaited) not in self._open]
        return [reply for wait in ended for reply in self._end_in_time(wait)]

    @property
    def has_timed_waits(self) -> bool:
        """Whether some rank waits with a timeout."""
        return bool(self._timed)

    def leave(self, rank: int) -> None:
        """Mark a rank as ended: it will not post again."""
        self._over.add(rank)

    def lose(self, rank: int, number: int, is_heard_after_s: float) -> None:
        """Mark a rank as lost instead of making its `number`-th post; its earlier posts are still carried out.

        The others' open operations with it fail `is_heard_after_s` later in virtual time.
        """
        self._losses[rank] = _Loss(number, is_heard_after_s)
        self.leave(rank)
        self._asks = {place: one for place, one in self._asks.items() if one.rank != rank}
        self._timed = {place: one for place, one in self._timed.items() if one.rank != rank}
        self._monitored = {place: one for place, one in self._monitored.items() if one.rank != rank}
        self._open_recvs = [one for one in self._open_recvs if one.rank != rank]
        self._open = {place: one for place, one in self._open.items() if one.rank != rank}
        self.go_on(rank)

    @property
    def is_still(self) -> bool:
        """Whether every rank is blocked or has ended, and at least one is blocked."""
        still, over = self._still, self._over
        if not still or len(still) + len(over) < self.world_size:  # the usual case, checked first
            return False
        return len(still.keys() | over) == self.world_size

    @property
    def is_stuck(self) -> bool:
        """Whether the run is deadlocked."""
        return (
            self.is_still
            and not self._limited - self._over
            and not (self._asks or self._timed or self._monitored)
            and not any(self._candidates())
            and not any(self._failing())
        )

    @property
    def depends_on_time(self) -> bool:
        """Whether some rank waits for a decision that depends on virtual time."""
        is_asked = self._asks or self._open_recvs or self._timed or self._monitored
        return bool(is_asked or (self._losses and any(self._failing())))

    def decide(self, times: Times) -> list[Reply]:
        """Decide the earliest choice in virtual time and return its replies; call it only while `is_still`.

        `times` are those of the record so far.
        """
        choices = sorted(self._choices(times), key=lambda one: (one.time_s, one.kind != _LOSS, one.rank))
        if not choices:
            return []
        first = choices[0]
        if first.kind == _RECV:
            return first.replies()
        # together with others of its kind at the same time: a replay for each would take quadratic time
        alike = itertools.takewhile(lambda one: (one.time_s, one.kind) == (first.time_s, first.kind), choices)
        return [reply for one in alike for reply in one.replies()]

    def _choices(self, times: Times) -> Iterator[_Choice]:
        posted_s = times.posted_s
        for ask in self._asks.values():
            time_s = posted_s(ask.rank, ask.number)
            yield _Choice(time_s, _ASK, ask.rank, partial(self._report_time, ask, time_s))
        for pair in self._candidates():
            time_s = max(posted_s(one.rank, one.number) for one in pair)
            yield _Choice(time_s, _RECV, pair[0].rank, partial(self._receive_from, *pair))
        for wait in self._timed.values():
            began_s = posted_s(wait.rank, wait.number)
            end_s = began_s + wait.timeout_s
            done_s = times.done_s(wait.rank, wait.awaited)
            if done_s > end_s:
                yield _Choice(end_s, _TIMED, wait.rank, partial(self._time_out, wait, end_s, posted_s))
            else:
                yield _Choice(max(began_s, done_s), _TIMED, wait.rank, partial(self._end_in_time, wait))
        for place, first in self._monitored.items():
            yield self._monitored_choice(place, first, posted_s)
        for post, lost_ranks in self._failing():
            heard_s, lost = min((self._heard_s(lost, posted_s), lost) for lost in lost_ranks)
            time_s = max(heard_s, posted_s(post.rank, post.number))
            yield _Choice(time_s, _LOSS, post.rank, partial(self._fail, post, lost, heard_s))

    def _report_time(self, ask: Post, time_s: float) -> list[Reply]:
        del self._asks[ask.rank, ask.number]
        self._answered([ask])
        return [Reply(ask.rank, ask.number, struct.pack("d", time_s))]

    def _receive_from(self, send: Post, recv: Post) -> list[Reply]:
        self._open_recvs.remove(recv)
        self._mail[send.group, send.rank, recv.rank, send.tag].sends.popleft()
        return self._deliver(send, recv)

    def _candidates(self) -> Iterator[tuple[Post, Post]]:
        """Yield each sender's oldest send with each receive from any rank that could match it."""
        taken = set()
        for recv in self._open_recvs:
            place = recv.group, recv.rank, recv.tag
            if place not in taken:
                taken.add(place)
                boxes = (self._mail.get((recv.group, src, recv.rank, recv.tag)) for src in recv.ranks)
                yield from ((box.sends[0], recv) for box in boxes if box and box.sends)

    # waits that end

    def _end_in_time(self, wait: TimedWait) -> list[Reply]:
        self._answered([self._timed.pop((wait.rank, wait.number))])
        return [Reply(wait.rank, wait.number, b"")]

    def _time_out(self, wait: TimedWait, end_s: float, posted_s: _TimeOfPost) -> list[Reply]:
        self._answered([self._timed.pop((wait.rank, wait.number))])
        self.note(wait.rank, [Step(TIMEOUT, wait.awaited, wait.timeout_s, lane=wait.lane)])
        return [Reply(wait.rank, wait.number, b"", failure=OperationFailure(end_s, self._late(wait, end_s, posted_s)))]

    def _late(self, wait: TimedWait, end_s: float, posted_s: _TimeOfPost) -> tuple[int, ...]:
        """Return the ranks that had not posted their part of the awaited operation by `end_s`, in the group's order."""
        post = self._open.get((wait.rank, wait.awaited))
        if post is None:  # all have posted it since
            with_it = (one for one in reversed(self.operations) if one.parts.get(wait.rank) == wait.awaited)
            parts = next((one.parts for one in with_it), {})
            needed = tuple(parts)
        elif post.op in OUTPUTS:
            parts, needed = _parts(self._posts_with(post).values()), post.ranks
        else:
            parts, needed = {}, () if post.peer is None else (post.peer,)
        others = (rank for rank in needed if rank != wait.rank)
        return tuple(rank for rank in others if posted_s(rank, parts.get(rank, 0)) > end_s)

    # monitored barriers

    def _monitored_choice(self, place: tuple[str, int], first: Post, posted_s: _TimeOfPost) -> _Choice:
        """Return how a monitored barrier ends: once all members have come, or when its first rank's time is over."""
        end_s = posted_s(first.rank, first.number) + first.splits[0] / 1e9
        posts = self._collectives[place].values()
        came_s = {one.rank: posted_s(one.rank, one.number) for one in posts if _signature(one) == _signature(first)}
        late = tuple(rank for rank in first.ranks if came_s.get(rank, math.inf) > end_s)
        if not late:
            return _Choice(max(came_s.values()), _MONITORED, first.rank, partial(self._pass_monitored, place))
        failure = OperationFailure(end_s, late)
        return _Choice(end_s, _MONITORED, first.rank, partial(self._fail_monitored, place, failure))

    def _pass_monitored(self, place: tuple[str, int]) -> list[Reply]:
        del self._monitored[place]
        return self._end_collective(place)

    def _fail_monitored(self, place: tuple[str, int], failure: OperationFailure) -> list[Reply]:
        """Fail a monitored barrier for all who came; those who come later fail when they do."""
        first = self._monitored.pop(place)
        self._not_passed[place] = failure
        came = [one for one in self._collectives[place].values() if _signature(one) == _signature(first)]
        return [reply for one in came for reply in self._fail_in(place, one, failure)]

    def _fail_in(self, place: tuple[str, int], post: Post, failure: OperationFailure) -> list[Reply]:
        del self._collectives[place][post.rank]
        operation = Operation(post.op, post.ranks, 0, post.group, parts=_parts([post]), failed_s=failure.time_s)
        self._close(operation, [post])
        return [Reply(post.rank, post.number, b"", failure=failure)]

    # lost ranks

    def _lost_in(self, post: Post) -> list[int]:
        """Return the lost ranks on which the answer to a post depends."""
        needed = post.ranks if post.peer is None or post.op in OUTPUTS else (post.peer,)
        return [rank for rank in self._losses if rank in needed]

    def _failing(self) -> Iterator[tuple[Post, list[int]]]:
        """Yield each open post that depends on lost ranks, with those ranks."""
        for post in self._open.values() if self._losses else ():
            if lost_ranks := self._lost_in(post):
                yield post, lost_ranks

    def _heard_s(self, lost: int, posted_s: _TimeOfPost) -> float:
        loss = self._losses[lost]
        return posted_s(lost, loss.number) + loss.is_heard_after_s

    def _fail(self, post: Post, lost: int, heard_s: float) -> list[Reply]:
        """Fail a post because a rank is lost."""
        self._heard.add((post.rank, lost))
        self._withdraw(post)
        ranks, op = post.ranks, post.op
        if op in ("send", "recv"):
            peer = lost if post.peer is None else post.peer
            op, ranks = "send", (post.rank, peer) if op == "send" else (peer, post.rank)
        operation = Operation(op, ranks, len(post.body), post.group, parts=_parts([post]), failed_s=heard_s)
        self._close(operation, [post])
        return [Reply(post.rank, post.number, b"", failure=OperationFailure(heard_s, (lost,)))]

    def _withdraw(self, post: Post) -> None:
        """Remove a post from those that may still be matched."""
        if post in self._open_recvs:
            self._open_recvs.remove(post)
        elif post.op in ("send", "recv"):
            box = self._mailbox(post)
            waiting = box.sends if post.op == "send" else box.recvs
            if post in waiting:
                waiting.remove(post)
        else:
            self._monitored = {place: one for place, one in self._monitored.items() if one is not post}
            self._posts_with(post).pop(post.rank, None)

    def _posts_with(self, post: Post) -> dict[int, Post]:
        """Return the posts so far of the collective that a post belongs to, by rank."""
        return next((posts for posts in self._collectives.values() if posts.get(post.rank) is post), {})

    # messages

    def _post_message(self, post: Post) -> list[Reply]:
        box = self._mailbox(post)
        mine, others = (box.sends, box.recvs) if post.op == "send" else (box.recvs, box.sends)
        mine.append(post)
        if not others:
            self._open[post.rank, post.number] = post
            return []
        return self._deliver(box.sends.popleft(), box.recvs.popleft())

    def _mailbox(self, post: Post) -> _Mailbox:
        src, dst = (post.rank, post.peer) if post.op == "send" else (post.peer, post.rank)
        return self._mail[post.group, src, dst, post.tag]

    def _deliver(self, send: Post, recv: Post) -> list[Reply]:
        # a message is identified by its ranks; its group only gives the axis
        group = send.group if axis_of(send.group) else ""
        operation = Operation("send", (send.rank, recv.rank), len(send.body), group, parts=_parts([send, recv]))
        self._close(operation, [send, recv])
        return [Reply(send.rank, send.number, b""), Reply(recv.rank, recv.number, send.body, send.rank)]

    # collectives

    def _post_collective(self, post: Post) -> list[Reply]:
        place = post.group, post.rank
        self._num_posted[place] += 1
        sequence = self._num_posted[place]
        posts = self._collectives.setdefault((post.group, sequence), {})
        posts[post.rank] = post
        self._open[post.rank, post.number] = post
        if post.op == "barrier" and post.tag == MONITORED:
            if failure := self._not_passed.get((post.group, sequence)):
                return self._fail_in((post.group, sequence), post, failure)
            if post.splits and post.rank == post.ranks[0]:
                self._monitored[post.group, sequence] = post
        members = self._members.setdefault(post.group, post.ranks)
        is_other = post.ranks != members  # a different group with the same name: the ranks called new_group differently
        if is_other or len(posts) < len(members) or len({_signature(one) for one in posts.values()}) > 1:
            return []  # mismatched calls get no answer: the ranks hang, and the report explains why
        if (post.group, sequence) in self._monitored:
            return []  # who came in time is decided in virtual time
        return self._end_collective((post.group, sequence))

    def _end_collective(self, place: tuple[str, int]) -> list[Reply]:
        posts = self._collectives.pop(place)
        post = next(iter(posts.values()))
        ordered = [posts[rank] for rank in post.ranks]
        size_bytes = max(len(one.body) for one in ordered)
        if post.op in ("all_gather", "gather"):
            size_bytes *= len(ordered)
        operation = Operation(post.op, post.ranks, size_bytes, *place, _parts(ordered), post.peer)
        self._close(operation, ordered)
        outputs = OUTPUTS[post.op](ordered)
        return [Reply(one.rank, one.number, body) for one, body in zip(ordered, outputs, strict=True)]

    def _close(self, operation: Operation, posts: Sequence[Post]) -> None:
        self.operations.append(operation)
        self._on_exchange(operation, posts)
        self._answered(posts)

    def _answered(self, posts: Sequence[Post | TimedWait]) -> None:
        for post in posts:
            self._open.pop((post.rank, post.number), None)
            if post.number in self._still.get(post.rank, ()):
                self.go_on(post.rank)


def _parts(posts: Iterable[Post]) -> dict[int, int]:
    return {post.rank: post.number for post in posts}


def _signature(post: Post) -> tuple[Any, ...]:
    # of an all-gather with splits the ranks' sizes may differ
    size = (post.num_items, len(post.body)) if post.op in _SAME_SIZE and not post.splits else None
    splits = (*post.splits, len(post.body)) if post.op == "reduce_scatter" else ()
    return post.op, post.tag, post.dtype, post.peer, size, splits, post.reduction


# each function returns what each member receives, in the group's order


def _all_reduce(posts: Sequence[Post]) -> list[bytes]:
    total = _reduced([post.body for post in posts], posts[0])
    return [total] * len(posts)


def _reduce(posts: Sequence[Post]) -> list[bytes]:
    total = _reduced([post.body for post in posts], posts[0])
    return [total if post.rank == post.peer else b"" for post in posts]


def _all_gather(posts: Sequence[Post]) -> list[bytes]:
    return [b"".join(post.body for post in posts)] * len(posts)


def _gather(posts: Sequence[Post]) -> list[bytes]:
    everything = b"".join(post.body for post in posts)
    return [everything if post.rank == post.peer else b"" for post in posts]


def _broadcast(posts: Sequence[Post]) -> list[bytes]:
    (root,) = (post for post in posts if post.rank == post.peer)
    return [b"" if post is root else root.body for post in posts]


def _scatter(posts: Sequence[Post]) -> list[bytes]:
    (root,) = (post for post in posts if post.rank == post.peer)
    return _split(root)


def _reduce_scatter(posts: Sequence[Post]) -> list[bytes]:
    pieces = [_split(post) for post in posts]
    return [_reduced([mine[place] for mine in pieces], posts[0]) for place in range(len(posts))]


def _all_to_all(posts: Sequence[Post]) -> list[bytes]:
    pieces = [_split(post) for post in posts]
    return [b"".join(mine[place] for mine in pieces) for place in range(len(posts))]


def _barrier(posts: Sequence[Post]) -> list[bytes]:
    return [b""] * len(posts)


OUTPUTS: dict[str, Callable[[Sequence[Post]], list[bytes]]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "gather"})  # on every rank


def _split(post: Post) -> list[bytes]:
    item = len(post.body) // post.num_items if post.num_items else 0
    pieces, start = [], 0
    for num_items in post.splits:
        pieces.append(post.body[start : start + num_items * item])
        start += num_items * item
    return pieces


def _reduced(bodies: Sequence[bytes], post: Post) -> bytes:
    """Reduce the bodies elementwise, in the group's order."""
    import torch

    if not bodies[0]:
        return b""
    dtype = getattr(torch, post.dtype)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the ranks keep the cores busy, so several threads would take three times as long
    try:
        total, *others = (torch.frombuffer(bytearray(body), dtype=dtype) for body in bodies)
        for other in others:
            _COMBINE[post.reduction](total, other)
        if post.reduction == "AVG":
            total /= len(bodies)
    finally:
        torch.set_num_threads(num_threads)
    return total.view(torch.uint8).numpy().tobytes()


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": lambda total, other: total.add_(other),
    "AVG": lambda total, other: total.add_(other),
    "PRODUCT": lambda total, other: total.mul_(other),
    "MIN": lambda total, other: total.copy_(total.minimum(other)),
    "MAX": lambda total, other: total.copy_(total.maximum(other)),
    "BAND": lambda total, other: total.bitwise_and_(other),
    "BOR": lambda total, other: total.bitwise_or_(other),
    "BXOR": lambda total, other: total.bitwise_xor_(other),
}
