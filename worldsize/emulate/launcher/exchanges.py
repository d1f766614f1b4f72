"""What went over the emulated wire, body by body: the conductor's word, which no rank can forge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from worldsize.emulate.launcher.conductor import Post
    from worldsize.emulate.launcher.simulator import Times
    from worldsize.emulate.protocol.record import Operation


class Exchange(NamedTuple):
    """One message (`ranks` are sender and receiver) or collective, with the bytes that each rank put into it.

    `numbers` count each rank's posts in its program's order; `posted_s` and `done_s` are by rank and in virtual time,
    the latter infinite where it never ended.
    """

    op: str
    ranks: tuple[int, ...]
    group: str
    dtype: str
    reduction: str
    root: int | None
    bodies: Mapping[int, bytes]
    numbers: Mapping[int, int]
    posted_s: Mapping[int, float]
    done_s: Mapping[int, float]

    @property
    def body(self) -> bytes:
        """What was sent in a message, or by the root of a broadcast or scatter."""
        return self.bodies[self.ranks[0] if self.op == "send" or self.root is None else self.root]

    def tensor(self, rank: int | None = None) -> torch.Tensor:
        """What a rank put in, flat; without a rank, `body`."""
        import torch

        body = self.body if rank is None else self.bodies.get(rank, b"")
        dtype = getattr(torch, self.dtype)
        return torch.frombuffer(bytearray(body), dtype=dtype) if body else torch.empty(0, dtype=dtype)


class TooMuchSent(Exception):
    """More was sent than is kept."""


class Keeper:
    """The exchanges of a run, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._left_bytes = max_bytes
        self._kept: list[tuple[Operation, Sequence[Post]]] = []

    def keep(self, operation: Operation, posts: Sequence[Post]) -> None:
        """Keep an operation that took place.

        Raises:
            TooMuchSent: there is no room for it.
        """
        self._left_bytes -= sum(len(post.body) for post in posts)
        if self._left_bytes < 0:
            raise TooMuchSent("the ranks of this run sent far more than this task needs; send less")
        self._kept.append((operation, posts))

    def exchanges(self, times: Times) -> list[Exchange]:
        """All that was kept, in the order in which it was posted in virtual time."""
        made = [_exchange(operation, posts, times) for operation, posts in self._kept]
        return sorted(made, key=lambda one: (max(one.posted_s.values()), min(one.ranks)))


def _exchange(operation: Operation, posts: Sequence[Post], times: Times) -> Exchange:
    sent = [post for post in posts if post.op != "recv"]
    return Exchange(
        op=operation.op,
        ranks=operation.ranks,
        group=posts[0].group,
        dtype=posts[0].dtype,
        reduction=posts[0].reduction,
        root=operation.root,
        bodies={post.rank: post.body for post in sent},
        numbers=operation.parts,
        posted_s={rank: times.posted_s(rank, number) for rank, number in operation.parts.items()},
        done_s={rank: times.done_s(rank, number) for rank, number in operation.parts.items()},
    )
