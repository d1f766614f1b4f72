"""Faults for teaching, on an emulated cluster: slow, lost or silently wrong ranks. Same seed, same fault."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias, get_args

from worldsize.hardware import Cluster, Hop, Link


@dataclass(frozen=True)
class SlowRank:
    """A rank whose own work takes `factor` times as long; with `share` below 1, only in that share of its steps.

    `seed` draws the rank if it is None, and which steps are slow.
    """

    rank: int | None = None
    factor: float = 2.0
    share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _need_factor(self.factor)
        if not 0 <= self.share <= 1:
            raise ValueError(
                f"share is {self.share}; it must be the fraction of the rank's steps that are slow, from 0 to 1"
            )

    def on(self, cluster: Cluster, world_size: int) -> SlowRank:
        """Draw the rank."""
        return replace(self, rank=_drawn_rank(self.rank, self.seed, world_size))


@dataclass(frozen=True)
class SlowLink:
    """A hop with 1 / `factor` of its capacity, by its name in `Cluster.route(src, dst).hops`, such as `gpu0 out`.

    If `hop` is None, `seed` draws one that the ranks' ring crosses. A collective is as slow as the slowest link on its
    ring, and as the slowest link between two of its ranks.
    """

    hop: str | None = None
    factor: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        _need_factor(self.factor)

    def on(self, cluster: Cluster, world_size: int) -> SlowLink:
        """Draw the link.

        Raises:
            ValueError: the cluster has no such hop.
        """
        if self.hop is not None:
            cluster.hop(self.hop)
            return self
        hops = sorted(hop.name for hop in _hops_of_ring(range(world_size), cluster))
        if not hops:
            raise ValueError("one rank alone crosses no link; a slow link needs two ranks")
        return replace(self, hop=random.Random(self.seed).choice(hops))


@dataclass(frozen=True)
class _FaultAfterCalls:
    """A fault of a rank after it has posted `after_calls` operations; `seed` draws fields that are None."""

    rank: int | None = None
    after_calls: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.after_calls is not None and self.after_calls < 0:
            raise ValueError(f"after_calls must be a number of operations, 0 or more; got {self.after_calls}")

    def on(self, cluster: Cluster, world_size: int) -> Self:
        """Draw the rank and the number of calls, which is below 100."""
        drawn = random.Random(f"{self.seed} calls").randrange(100)
        after_calls = drawn if self.after_calls is None else self.after_calls
        return replace(self, rank=_drawn_rank(self.rank, self.seed, world_size), after_calls=after_calls)


@dataclass(frozen=True)
class LostRank(_FaultAfterCalls):
    """A rank that is lost after posting `after_calls` operations.

    `seed` draws the rank and the number of calls (below 100) if they are None. `is_heard_after_s` later in virtual
    time, the others' operations with it fail, and they can go on without it; None ends the run. If a rank has two
    losses, the first counts.
    """

    is_heard_after_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_heard_after_s is not None and not 0 <= self.is_heard_after_s < math.inf:
            raise ValueError(f"is_heard_after_s is {self.is_heard_after_s}; it must be a number of seconds, 0 or more")


class SilentError(_FaultAfterCalls):
    """One element whose sign flips as a rank sends it, once, without any warning.

    The error is in the first operation that carries the rank's data after `after_calls` operations. `seed` draws the
    element, and the rank and the number of calls (below 100) if they are None.
    """


Fault: TypeAlias = SlowRank | SlowLink | LostRank | SilentError


class Faults:
    """The faults of one run, with everything drawn.

    Raises:
        ValueError: a fault names a rank or a link that the run does not have, or something is not a fault.
    """

    def __init__(self, faults: Sequence[Fault], cluster: Cluster, world_size: int) -> None:
        for fault in faults if isinstance(faults, Iterable) else [faults]:
            if not isinstance(fault, Fault):
                known = ", ".join(kind.__name__ for kind in get_args(Fault))
                raise ValueError(f"{fault!r} is not a fault; give one of {known}")
        if isinstance(faults, Fault):
            raise ValueError(f"faults must be a list; write faults=[{faults!r}]")
        drawn = [fault.on(cluster, world_size) for fault in faults]
        self._cluster = cluster
        self._slow: dict[Hop, float] = {}
        for fault in drawn:
            if isinstance(fault, SlowLink) and fault.hop is not None:
                hop = cluster.hop(fault.hop)
                self._slow[hop] = self._slow.get(hop, 1.0) * fault.factor
        self._lost = [fault for fault in drawn if isinstance(fault, LostRank)]
        self._errors = [fault for fault in drawn if isinstance(fault, SilentError)]
        self._slow_ranks = [fault for fault in drawn if isinstance(fault, SlowRank)]
        self._crossed: set[Hop] = set()  # slow hops that were used
        self._draws: dict[tuple[int, str], random.Random] = {}  # per fault and lane, because lanes report in any order

    def slowed_s(self, rank: int, duration_s: float, lane: str = "") -> float:
        """Return the duration under these faults of work that would take `duration_s` without them."""
        for place, fault in enumerate(self._slow_ranks):
            if fault.rank != rank or not duration_s:
                continue
            if (place, lane) not in self._draws:
                self._draws[place, lane] = random.Random(f"{fault.seed} {lane}" if lane else fault.seed)
            if self._draws[place, lane].random() < fault.share:
                duration_s *= fault.factor
        return duration_s

    @property
    def are_heard(self) -> bool:
        """Whether some rank may be lost so that the others hear of it."""
        return any(fault.is_heard_after_s is not None for fault in self._lost)

    def loss(self, rank: int, num_calls: int) -> LostRank | None:
        """Return the fault, if any, by which a rank is lost after posting `num_calls` operations."""
        if not self._lost:  # checked first, because every post calls this
            return None
        losses = [fault for fault in self._lost if fault.rank == rank and num_calls >= (fault.after_calls or 0)]
        return min(losses, key=lambda fault: fault.after_calls or 0, default=None)

    def corrupted(self, rank: int, num_calls: int, num_items: int, body: bytes) -> bytes:
        """Apply a silent error, once, to the bytes that a rank sends after posting `num_calls` operations."""
        for fault in self._errors:
            if num_items and body and fault.rank == rank and num_calls >= (fault.after_calls or 0):
                self._errors.remove(fault)
                return _with_one_sign_changed(body, num_items, random.Random(f"{fault.seed} item"))
        return body

    def capacity_bytes_per_s(self, hop: Hop) -> float:
        """Return a hop's capacity under these faults, in bytes per second."""
        if hop in self._slow:
            self._crossed.add(hop)
        return self._cluster.capacity_bytes_per_s(hop) / self._slow.get(hop, 1.0)

    def cluster_of(self, ranks: Sequence[int]) -> Cluster:
        """Return the cluster for pricing a collective of these ranks: each kind of link is as slow as its slowest."""
        if not self._slow:
            return self._cluster
        slowest: dict[str, float] = {}
        for hop in (_hops_of_ring(ranks, self._cluster) | self._cluster.links_among(ranks)) & self._slow.keys():
            self._crossed.add(hop)
            kind = hop.kind if hop.kind in ("gpu", "link", "bridge") else "network"
            slowest[kind] = max(slowest.get(kind, 1.0), self._slow[hop])
        intra, inter, bridge = self._cluster.intra, self._cluster.inter, self._cluster.bridge_bytes_per_s
        mesh = self._cluster.mesh
        return replace(
            self._cluster,
            intra=_slowed(intra, slowest.get("gpu", 1.0)),
            inter=inter and _slowed(inter, slowest.get("network", 1.0)),
            bridge_bytes_per_s=bridge and bridge / slowest.get("bridge", 1.0),
            mesh=mesh and replace(mesh, link=_slowed(mesh.link, slowest.get("link", 1.0))),
        )

    def without_effect(self, num_calls: Mapping[int, int], lost: Collection[int]) -> list[str]:
        """Describe each fault without effect, given the number of operations posted by each rank and the lost ranks."""
        late = [
            f"{what} of rank {one.rank} did not happen: it was to come after {one.after_calls} calls, and the rank "
            f"made {num_calls[one.rank or 0]}."
            for what, faults in (("The loss", self._lost), ("The silent error", self._errors))
            for one in faults
            if one.rank not in lost
        ]
        idle = [
            f"The slow link {hop.name} slowed nothing: nothing crossed it."
            for hop in self._slow
            if hop not in self._crossed
        ]
        return [*late, *idle]


def _slowed(link: Link, factor: float) -> Link:
    return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / factor)


def _hops_of_ring(ranks: Sequence[int], cluster: Cluster) -> set[Hop]:
    following = [*ranks[1:], ranks[0]]
    return {hop for src, dst in zip(ranks, following, strict=True) for hop in cluster.route(src, dst).hops}


def _with_one_sign_changed(body: bytes, num_items: int, rng: random.Random) -> bytes:
    """Flip the sign bit of one random element; numbers are little-endian."""
    item_bytes = max(1, len(body) // num_items)
    last = (rng.randrange(len(body) // item_bytes) + 1) * item_bytes - 1
    return body[:last] + bytes([body[last] ^ 0x80]) + body[last + 1 :]


def _drawn_rank(rank: int | None, seed: int, world_size: int) -> int:
    if rank is None:
        return random.Random(seed).randrange(world_size)
    if not 0 <= rank < world_size:
        raise ValueError(f"a fault names rank {rank}, but the run has ranks 0 to {world_size - 1}")
    return rank


def _need_factor(factor: float) -> None:
    if not 1 <= factor < math.inf:
        raise ValueError(f"factor is {factor}; it must be how many times slower, 1 or more and finite")
