"""The time of a collective as Gloo does it over TCP: torch's backend for CPU tensors.

Sources, read in 2026: gloo (pytorch/gloo and facebookincubator/gloo on GitHub) allreduce.cc, allgather.cc, reduce.cc,
broadcast.cc, barrier.cc, gather.cc, scatter.cc, alltoall.cc and transport/tcp/pair.cc; which of them torch calls stands
in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp.

Every message is a rendezvous (pair.cc): the receiver reports that it is ready, then the data goes. A small
send therefore takes two ways, and so `latency_s` of a link, the time of a small send, is two ways here. What a rank
sends goes out in order, so word that it is ready waits behind data that it sent before. Not modelled: adding up and
copying, tensors of fewer elements than segments, other traffic. All-gather and all-to-all post their sends first; where
the delay is next to nothing, their words then often wait behind data (`worldsize.netlab`, 4 hosts: up to 15 and 40
percent longer).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from worldsize.hardware import Cluster

MAX_SEGMENT_BYTES = 1 << 20  # kMaxSegmentSize in gloo/allreduce.h and gloo/reduce.h


@dataclass(frozen=True)
class Cost:
    """The seconds that a collective takes, how it is done, and the most bytes that any rank sends.

    `delay_s` are the seconds in which it waits for the network and not for its bytes: torch gives a group two threads,
    so that another collective of the group can then send (ProcessGroupGloo.hpp, `threads = 2`).
    """

    time_s: float
    algorithm: str
    sent_bytes: float
    delay_s: float = 0.0


def cost(op: str, size_bytes: float, ranks: Sequence[int], cluster: Cluster) -> Cost:
    """What an operation of `pricing.OPS` among at least two ranks costs; sizes and the root are as in `pricing.price`.

    torch has no reduce-scatter of Gloo's own: it all-reduces and keeps a part.
    """
    whole = _cost(op, size_bytes, ranks, cluster)
    bytes_s = _cost(op, size_bytes, ranks, cluster.without_latency()).time_s
    return replace(whole, delay_s=max(0.0, whole.time_s - bytes_s))


def _cost(op: str, size_bytes: float, ranks: Sequence[int], cluster: Cluster) -> Cost:
    num_ranks, share = len(ranks), 1 / len(ranks)
    links = _Links.of(op, ranks, cluster)
    if op == "barrier":
        return Cost(math.ceil(math.log2(num_ranks)) * 2 * links.way_s, "gloo-dissemination", 0.0)
    if op in ("all_reduce", "reduce_scatter"):
        per_rank, segment_bytes = _segments(size_bytes, num_ranks)
        phase_s = _ring_s((num_ranks - 1) * per_rank, segment_bytes, links)
        return Cost(2 * phase_s, "gloo-ring", 2 * (1 - share) * size_bytes)
    if op == "all_gather":
        return Cost(_ring_s(2 * (num_ranks - 1), size_bytes * share / 2, links), "gloo-ring", (1 - share) * size_bytes)
    if op == "reduce":
        return _reduce(size_bytes, ranks, cluster, links)
    if op == "broadcast":
        return _broadcast(size_bytes, num_ranks, links)
    message_bytes = size_bytes if op == "send" else size_bytes * share
    num_sent = num_ranks - 1 if op in ("all_to_all", "scatter") else 1
    return Cost(2 * links.way_s + message_bytes * links.s_per_byte, "gloo-direct", num_sent * message_bytes)


@dataclass(frozen=True)
class _Links:
    """What the ranks' messages meet: the seconds of one way, and of a byte of each message on the busiest hop."""

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
    """The senders and receivers of the messages that are under way at once; of a tree, one."""
    if op in ("send", "scatter"):
        return [(ranks[0], other) for other in ranks[1:]]
    if op == "gather":
        return [(other, ranks[0]) for other in ranks[1:]]
    if op == "all_to_all":
        return [(src, dst) for src in ranks for dst in ranks if src != dst]
    if op == "broadcast":  # a rank's messages to several others are counted as they are sent
        return [(ranks[0], ranks[1])]
    return list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))


def _segments(size_bytes: float, num_ranks: int) -> tuple[int, float]:
    """How many segments each rank's chunk has, two at the least, and the bytes of one."""
    wanted = max(math.ceil(size_bytes / MAX_SEGMENT_BYTES), 2 * num_ranks)
    per_rank = math.ceil(wanted / num_ranks)
    return per_rank, size_bytes / (per_rank * num_ranks)


def _ring_s(num_segments: int, segment_bytes: float, links: _Links) -> float:
    """The seconds in which every rank passes on this many segments, two under way at a time.

    All ranks do the same at the same time, so one stands for all. A segment is posted when the last but one has come,
    and the word that it may be sent goes out behind the segment before it.
    """
    segment_s = segment_bytes * links.s_per_byte
    sent_s, out_s, came_s = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]  # when it could go, was out, had come; the last two
    for _ in range(num_segments):
        posted_s = came_s[-2]
        word_s = max(posted_s, out_s[-1] if sent_s[-1] <= posted_s else 0.0)
        sent_s.append(word_s + links.way_s)
        out_s.append(max(out_s[-1], sent_s[-1]) + segment_s)
        came_s.append(out_s[-1] + links.way_s)
    return came_s[-1]


def _reduce(size_bytes: float, ranks: Sequence[int], cluster: Cluster, links: _Links) -> Cost:
    """A ring until every rank has a part of the sum, then all parts to the root."""
    num_ranks = len(ranks)
    segment_bytes = min(size_bytes / (2 * num_ranks), MAX_SEGMENT_BYTES)
    per_rank = max(2, math.ceil(size_bytes / MAX_SEGMENT_BYTES / num_ranks))
    num_segments = per_rank * num_ranks - 2  # with more than two a chunk, reduce.cc passes on some for nothing
    to_root = _Links.of("gather", ranks, cluster)
    gather_s = 2 * to_root.way_s + size_bytes / num_ranks * to_root.s_per_byte
    sent_bytes = num_segments * segment_bytes + size_bytes / num_ranks
    return Cost(_ring_s(num_segments, segment_bytes, links) + gather_s, "gloo-ring", sent_bytes)


def _broadcast(size_bytes: float, num_ranks: int, links: _Links) -> Cost:
    """A binomial tree: who has it sends to all of its children at once, and everybody has been ready for long."""
    has_s = {0: links.way_s}  # when the root hears that the others are ready
    children = {
        rank: [rank + (1 << bit) for bit in range(num_ranks.bit_length()) if rank < 1 << bit < num_ranks - rank]
        for rank in range(num_ranks)
    }
    for rank in range(num_ranks):  # a child has a higher number than its parent
        for child in children[rank]:
            has_s[child] = has_s[rank] + len(children[rank]) * size_bytes * links.s_per_byte + links.way_s
    most = max(len(of_rank) for of_rank in children.values())
    return Cost(max(has_s.values()), "gloo-tree", most * size_bytes)
