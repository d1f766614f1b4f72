"""The time of a collective with Gloo over TCP, torch's backend for CPU tensors.

Sources, read in 2026: gloo (pytorch/gloo and facebookincubator/gloo on GitHub) allreduce.cc, allgather.cc, reduce.cc,
broadcast.cc, barrier.cc, gather.cc, scatter.cc, alltoall.cc and transport/tcp/pair.cc; which of them torch calls is in
torch/csrc/distributed/c10d/ProcessGroupGloo.cpp.

Every message is a rendezvous (pair.cc): the receiver reports that it is ready, then the data is sent. A small send
therefore crosses the network twice, and so `latency_s` of a link, the time of a small send, is two crossings here. What
a rank sends goes out in order, so its report that it is ready waits behind data that it sent before. Not modelled:
adding and copying, tensors of fewer elements than segments, other traffic. All-gather and all-to-all post their sends
first; where the delay is next to nothing, their reports then often wait behind data (`make netlab`, 4 hosts: up to
15 and 40 percent longer).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from worldsize.hardware import Cluster

MAX_SEGMENT_BYTES = 1 << 20  # kMaxSegmentSize in gloo/allreduce.h and gloo/reduce.h


@dataclass(frozen=True)
class GlooCost:
    """The seconds that a collective takes, its algorithm, and the most bytes that any rank sends.

    `delay_s` is the part of its time spent on network latency rather than on sending: torch gives a group two threads,
    so another collective of the group can send meanwhile (ProcessGroupGloo.hpp, `threads = 2`).
    """

    time_s: float
    algorithm: str
    sent_bytes: float
    delay_s: float = 0.0


def cost(op: str, size_bytes: float, ranks: Sequence[int], cluster: Cluster) -> GlooCost:
    """The cost of an operation of `pricing.OPS` among at least two ranks; sizes and root are as in `pricing.price`.

    Torch's reduce-scatter on Gloo all-reduces and keeps a part.
    """
    whole = _cost(op, size_bytes, ranks, cluster)
    bytes_s = _cost(op, size_bytes, ranks, cluster.without_latency()).time_s
    return replace(whole, delay_s=max(0.0, whole.time_s - bytes_s))


def sent_bytes(op: str, size_bytes: float, num_ranks: int) -> float:
    """The most bytes that any of at least two ranks sends for an operation of `pricing.OPS`.

    Raises:
        ValueError: there is no such operation.
    """
    share = 1 / num_ranks
    if op == "barrier":
        return 0.0
    if op in ("all_reduce", "reduce_scatter"):
        return 2 * (1 - share) * size_bytes
    if op == "reduce":
        num_segments, segment_bytes = _reduce_segments(size_bytes, num_ranks)
        return num_segments * segment_bytes + size_bytes / num_ranks
    if op == "broadcast":
        return max(map(len, _children(num_ranks).values())) * size_bytes
    if op in ("all_gather", "all_to_all", "scatter"):
        return (1 - share) * size_bytes
    if op not in ("send", "gather"):
        raise ValueError(f"there is no formula for the time of {op!r} with Gloo")
    return size_bytes if op == "send" else share * size_bytes


def _cost(op: str, size_bytes: float, ranks: Sequence[int], cluster: Cluster) -> GlooCost:
    num_ranks, share = len(ranks), 1 / len(ranks)
    sent = sent_bytes(op, size_bytes, num_ranks)
    links = _Links.of(op, ranks, cluster)
    if op == "barrier":
        return GlooCost(math.ceil(math.log2(num_ranks)) * 2 * links.way_s, "gloo-dissemination", sent)
    if op in ("all_reduce", "reduce_scatter"):
        per_rank, segment_bytes = _segments(size_bytes, num_ranks)
        return GlooCost(2 * _ring_s((num_ranks - 1) * per_rank, segment_bytes, links), "gloo-ring", sent)
    if op == "all_gather":
        return GlooCost(_ring_s(2 * (num_ranks - 1), size_bytes * share / 2, links), "gloo-ring", sent)
    if op == "reduce":
        return GlooCost(_reduce_s(size_bytes, ranks, cluster, links), "gloo-ring", sent)
    if op == "broadcast":
        return GlooCost(_broadcast_s(size_bytes, num_ranks, links), "gloo-tree", sent)
    message_bytes = size_bytes if op == "send" else size_bytes * share
    return GlooCost(2 * links.way_s + message_bytes * links.s_per_byte, "gloo-direct", sent)


@dataclass(frozen=True)
class _Links:
    """The links between the ranks: the one-way latency, and the seconds per byte of each message on the busiest hop."""

    way_s: float
    s_per_byte: float

    @staticmethod
    def of(op: str, ranks: Sequence[int], cluster: Cluster) -> _Links:
        pairs = list(_pairs(op, ranks))
        routes = [cluster.route(*pair) for pair in pairs]
        loads = Counter(hop for route in routes for hop in route.hops)
        busiest = max(load / cluster.capacity_bytes_per_s(hop) for hop, load in loads.items())
        return _Links(max(route.latency_s for route in routes) / 2, busiest)


def _pairs(op: str, ranks: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Return the senders and receivers of concurrent messages; for a tree, a single pair."""
    if op in ("send", "scatter"):
        return [(ranks[0], other) for other in ranks[1:]]
    if op == "gather":
        return [(other, ranks[0]) for other in ranks[1:]]
    if op == "all_to_all":
        return [(src, dst) for src in ranks for dst in ranks if src != dst]
    if op == "broadcast":  # a rank's messages to several children are counted in _broadcast
        return [(ranks[0], ranks[1])]
    return list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))


def _segments(size_bytes: float, num_ranks: int) -> tuple[int, float]:
    """Return the number of segments in each rank's chunk, at least two, and the bytes of a segment."""
    wanted = max(math.ceil(size_bytes / MAX_SEGMENT_BYTES), 2 * num_ranks)
    per_rank = math.ceil(wanted / num_ranks)
    return per_rank, size_bytes / (per_rank * num_ranks)


def _ring_s(num_segments: int, segment_bytes: float, links: _Links) -> float:
    """Compute the seconds in which every rank passes on `num_segments`, two at a time.

    All ranks act alike, so one is simulated. A segment is posted when the last but one has arrived, and the notice that
    the rank is ready for it is queued behind the previous segment.
    """
    segment_s = segment_bytes * links.s_per_byte
    # when the last two could be sent, had been sent, had arrived
    sent_s, out_s, came_s = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    for _ in range(num_segments):
        posted_s = came_s[-2]
        ready_s = max(posted_s, out_s[-1] if sent_s[-1] <= posted_s else 0.0)
        sent_s.append(ready_s + links.way_s)
        out_s.append(max(out_s[-1], sent_s[-1]) + segment_s)
        came_s.append(out_s[-1] + links.way_s)
    return came_s[-1]


def _reduce_s(size_bytes: float, ranks: Sequence[int], cluster: Cluster, links: _Links) -> float:
    """Compute the seconds of a ring until every rank has a part of the sum, then a gather of all parts at the root."""
    to_root = _Links.of("gather", ranks, cluster)
    gather_s = 2 * to_root.way_s + size_bytes / len(ranks) * to_root.s_per_byte
    return _ring_s(*_reduce_segments(size_bytes, len(ranks)), links) + gather_s


def _reduce_segments(size_bytes: float, num_ranks: int) -> tuple[int, float]:
    """Return how many segments a rank passes on in the ring of a reduce, and the bytes of a segment."""
    per_rank = max(2, math.ceil(size_bytes / MAX_SEGMENT_BYTES / num_ranks))
    # with more than two per chunk, reduce.cc passes on some needlessly
    return per_rank * num_ranks - 2, min(size_bytes / (2 * num_ranks), MAX_SEGMENT_BYTES)


def _broadcast_s(size_bytes: float, num_ranks: int, links: _Links) -> float:
    """Compute the seconds in which the data goes down the tree; a rank that has it sends it to all children at once."""
    has_s = {0: links.way_s}  # when the root hears that the others are ready
    children = _children(num_ranks)
    for rank in range(num_ranks):  # a child's rank is higher than its parent's
        for child in children[rank]:
            has_s[child] = has_s[rank] + len(children[rank]) * size_bytes * links.s_per_byte + links.way_s
    return max(has_s.values())


def _children(num_ranks: int) -> dict[int, list[int]]:
    """Map every rank to its children in the binomial tree of a broadcast."""
    return {
        rank: [rank + (1 << bit) for bit in range(num_ranks.bit_length()) if rank < 1 << bit < num_ranks - rank]
        for rank in range(num_ranks)
    }
