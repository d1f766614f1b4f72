"""The messages and collectives of an emulated run with their data, seen by the conductor, so no rank can forge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from worldsize.emulate.launcher.conductor import Post
    from worldsize.emulate.launcher.simulator import Times
    from worldsize.emulate.protocol.record import Operation


class Exchange(NamedTuple):
    """One message (`ranks` are sender and receiver) or collective, with each rank's input bytes.

    `numbers` count each rank's posts in program order; `posted_s` and `done_s` are virtual times by rank, the latter
    infinite if the operation never ended.
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
        """The data of a message, or of the root of a broadcast or scatter."""
        return self.bodies[self.ranks[0] if self.op == "send" or self.root is None else self.root]

    def tensor(self, rank: int | None = None) -> torch.Tensor:
        """Return a rank's input as a flat tensor; without a rank, that of `body`."""
        import torch

        body = self.body if rank is None else self.bodies.get(rank, b"")
        dtype = getattr(torch, self.dtype)
        return torch.frombuffer(bytearray(body), dtype=dtype) if body else torch.empty(0, dtype=dtype)


class TooMuchSent(Exception):
    """The ranks sent more data than the run keeps."""


class Keeper:
    """A store of a run's exchanges, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._left_bytes = max_bytes
        self._kept: list[tuple[Operation, Sequence[Post]]] = []

    def keep(self, operation: Operation, posts: Sequence[Post]) -> None:
        """Store an operation that took place.

        Raises:
            TooMuchSent: there is no room for it.
        """
        self._left_bytes -= sum(len(post.body) for post in posts)
        if self._left_bytes < 0:
            raise TooMuchSent("the ranks of this run sent far more than this task needs; send less")
        self._kept.append((operation, posts))

    def exchanges(self, times: Times) -> list[Exchange]:
        """Return the stored exchanges, ordered by the virtual time at which they were posted."""
        made = [_exchange(operation, posts, times) for operation, posts in self._kept]
        return sorted(made, key=lambda exchange: (max(exchange.posted_s.values()), min(exchange.ranks)))


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
