"""The conductor: it matches what ranks post, moves and reduces the data, and keeps the record that gives the times.

It never waits and never looks at a clock: data moves as soon as all ranks that take part have posted, and what each
rank did, in order, is kept for `simulator`, which prices it afterwards. Two things do depend on virtual time: a rank
that asks for the time, and one that receives from any rank. They wait until nothing else can move; then the earliest
in virtual time goes first, and no later one can change what it saw.
"""

from __future__ import annotations

import itertools
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from worldsize.emulate.record import Operation, Step
from worldsize.event import axis_of


class Forbidden(RuntimeError):
    """A call that this run does not allow."""


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


class Reply(NamedTuple):
    """The answer to a rank's post: the bytes that it receives."""

    rank: int
    number: int
    body: bytes
    src: int | None = None  # the sender, for a rank that receives from any


@dataclass
class _Mailbox:
    sends: deque[Post] = field(default_factory=deque)
    recvs: deque[Post] = field(default_factory=deque)


class Conductor:
    """The data of one run. `steps[rank]` and `operations` are its record."""

    def __init__(self, world_size: int, allow: Iterable[str] | None = None) -> None:
        refuse_unknown(allow or ())
        self.world_size = world_size
        self.allow = None if allow is None else frozenset(allow)
        self.steps: list[list[Step]] = [[] for _ in range(world_size)]
        self.operations: list[Operation] = []
        self._open: set[tuple[int, int]] = set()  # (rank, number) of posts without a reply
        self._waiting: dict[int, set[int]] = {}  # rank -> those of them for which it is blocked
        self._over: set[int] = set()
        self._asks: dict[int, Post] = {}  # posts that ask for the time, by rank
        self._open_recvs: list[Post] = []  # from any rank
        self._mail: dict[tuple[Any, ...], _Mailbox] = defaultdict(_Mailbox)
        self._collectives: dict[tuple[str, int], dict[int, Post]] = {}
        self._num_posted: dict[tuple[str, int], int] = defaultdict(int)

    def note(self, rank: int, steps: Iterable[Step]) -> None:
        """Record what a rank did since its last message."""
        self.steps[rank].extend(steps)

    def post(self, post: Post) -> list[Reply]:
        """The replies that this post makes possible.

        Raises:
            Forbidden: the run does not allow this operation.
            ValueError: the rank asks for the time while it still waits for an answer.
        """
        if self.allow is not None and post.op not in (*self.allow, ASK):
            raise Forbidden(refusal(post.op, self.allow))
        if post.op == ASK:
            if post.rank in self._asks:
                raise ValueError(
                    "a rank asks for the time in two threads at once; ask in one thread of a rank at a time"
                )
            self._open.add((post.rank, post.number))
            self._asks[post.rank] = post
            self.wait(post.rank, post.number)
            return []
        if post.op == "recv" and post.peer is None:
            self._open.add((post.rank, post.number))
            self._open_recvs.append(post)
            return []
        if post.op in ("send", "recv"):
            return self._post_message(post)
        return self._post_collective(post)

    def wait(self, rank: int, number: int) -> None:
        """Note that a rank can do nothing until this post has a reply."""
        if (rank, number) in self._open:
            self._waiting.setdefault(rank, set()).add(number)

    def leave(self, rank: int) -> None:
        """Note that a rank posts no more."""
        self._over.add(rank)

    @property
    def is_still(self) -> bool:
        """True when some rank waits, and every other waits too or has ended."""
        waiting, over = self._waiting, self._over
        if not waiting or len(waiting) + len(over) < self.world_size:  # first what is nearly always so
            return False
        return len(waiting.keys() | over) == self.world_size

    @property
    def is_stuck(self) -> bool:
        """True when nothing can ever move again."""
        return self.is_still and not self._asks and not any(True for _ in self._candidates())

    @property
    def depends_on_time(self) -> bool:
        """True while some rank waits for something that only virtual time decides."""
        return bool(self._asks or self._open_recvs)

    def decide(self, posted_s: Mapping[tuple[int, int], float]) -> list[Reply]:
        """The replies to the earliest post that depends on virtual time; to be called only when all is still.

        `posted_s` has the virtual time of every post, by (rank, number).
        """
        asks = [(posted_s[rank, ask.number], rank, ask, None) for rank, ask in self._asks.items()]
        recvs = [
            (max(posted_s[one.rank, one.number] for one in pair), pair[0].rank, *pair) for pair in self._candidates()
        ]
        choices = sorted([*asks, *recvs], key=lambda choice: choice[:2])
        if not choices:
            return []
        first_s, _, post, recv = choices[0]
        if recv is None:  # together with all that ask at the same time: a replay for each would take quadratic time
            first = itertools.takewhile(lambda choice: choice[0] == first_s and choice[3] is None, choices)
            asked = [ask for _, _, ask, _ in first]
            for ask in asked:
                del self._asks[ask.rank]
            self._answered(asked)
            return [Reply(ask.rank, ask.number, struct.pack("d", first_s)) for ask in asked]
        self._open_recvs.remove(recv)
        self._mail[post.group, post.rank, recv.rank, post.tag].sends.popleft()
        return self._deliver(post, recv)

    def _candidates(self) -> Iterator[tuple[Post, Post]]:
        """Each sender's oldest send, with each receive from any rank that could take it."""
        taken = set()
        for recv in self._open_recvs:
            place = recv.group, recv.rank, recv.tag
            if place not in taken:
                taken.add(place)
                boxes = (self._mail.get((recv.group, src, recv.rank, recv.tag)) for src in recv.ranks)
                yield from ((box.sends[0], recv) for box in boxes if box and box.sends)

    # messages

    def _post_message(self, post: Post) -> list[Reply]:
        src, dst = (post.rank, post.peer) if post.op == "send" else (post.peer, post.rank)
        box = self._mail[post.group, src, dst, post.tag]
        mine, others = (box.sends, box.recvs) if post.op == "send" else (box.recvs, box.sends)
        mine.append(post)
        if not others:
            self._open.add((post.rank, post.number))
            return []
        return self._deliver(box.sends.popleft(), box.recvs.popleft())

    def _deliver(self, send: Post, recv: Post) -> list[Reply]:
        group = send.group if axis_of(send.group) else ""  # a message is known by its ranks; the group says the axis
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
        self._open.add((post.rank, post.number))
        if len(posts) < len(post.ranks) or len({_signature(one) for one in posts.values()}) > 1:
            return []  # calls that do not match get no answer: the ranks wait, and the hang is explained
        del self._collectives[post.group, sequence]
        ordered = [posts[rank] for rank in post.ranks]
        size_bytes = max(len(one.body) for one in ordered)
        if post.op in ("all_gather", "gather"):
            size_bytes *= len(ordered)
        operation = Operation(post.op, post.ranks, size_bytes, post.group, sequence, _parts(ordered), post.peer)
        self._close(operation, ordered)
        outputs = OUTPUTS[post.op](ordered)
        return [Reply(one.rank, one.number, body) for one, body in zip(ordered, outputs, strict=True)]

    def _close(self, operation: Operation, posts: Sequence[Post]) -> None:
        self.operations.append(operation)
        self._answered(posts)

    def _answered(self, posts: Sequence[Post]) -> None:
        for post in posts:
            self._open.discard((post.rank, post.number))
            if post.rank in self._waiting:
                self._waiting[post.rank].discard(post.number)
                if not self._waiting[post.rank]:
                    del self._waiting[post.rank]


def refuse_unknown(allow: Iterable[str]) -> None:
    """Raise ValueError unless there are such operations.

    Raises:
        ValueError: one of the names is no operation.
    """
    if unknown := sorted(set(allow) - OPERATIONS):
        raise ValueError(f"there is no operation {', '.join(unknown)}; known are {', '.join(sorted(OPERATIONS))}")


def refusal(op: str, allow: Iterable[str]) -> str:
    """The message for a call that is not allowed."""
    return f"{op} is not allowed here: this run is to be built from {', '.join(sorted(allow))} alone"


def _parts(posts: Sequence[Post]) -> dict[int, int]:
    return {post.rank: post.number for post in posts}


def _signature(post: Post) -> tuple[Any, ...]:
    size = (post.num_items, len(post.body)) if post.op in _SAME_SIZE else None
    splits = (*post.splits, len(post.body)) if post.op == "reduce_scatter" else ()
    return post.op, post.dtype, post.peer, size, splits, post.reduction


# each function gives what each member gets, in the group's order


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
OPERATIONS = frozenset({"send", "recv", *OUTPUTS})
ASK = "ask the time"
_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "gather"})  # on every rank


def _split(post: Post) -> list[bytes]:
    item = len(post.body) // post.num_items if post.num_items else 0
    pieces, start = [], 0
    for num_items in post.splits:
        pieces.append(post.body[start : start + num_items * item])
        start += num_items * item
    return pieces


def _reduced(bodies: Sequence[bytes], post: Post) -> bytes:
    """The bodies reduced item by item, in the group's order."""
    import torch

    if not bodies[0]:
        return b""
    dtype = getattr(torch, post.dtype)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the ranks keep the cores busy, and threads that wait for a core take three times as long
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
REDUCTIONS = frozenset(_COMBINE)
