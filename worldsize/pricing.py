"""The time of a built-in NCCL collective on a cluster, modelled like NCCL's own tuner, which takes the fastest.

A cluster whose `library` is "gloo" is priced by `worldsize.gloo`.

Constants are those of NCCL 2.28.3 (2025), src/graph/tuning.cc, unless noted. Not modelled: SHARP in the network
(CollNet), PAT, channels and threads, user buffers, other jobs on the network, and ranks that arrive late.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations
from typing import NamedTuple, TypeAlias

from worldsize import gloo
from worldsize.hardware import Cluster, Hop, Link, Nic
from worldsize.units import GB, US

ROUTED = ("all_to_all", "gather", "scatter", "send")
# how often every byte goes round the ring, or along a chain that a broadcast and a reduce make of it
_RING_ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1, "barrier": 2}
COLLECTIVES = (*_RING_ROUNDS,)
OPS = (*COLLECTIVES, *ROUTED)
ALGORITHMS = ("ring", "nccl-ring", "nccl-tree", "nvls", "nvls-tree")
PROTOCOLS = ("LL", "LL128", "Simple")

_BASE_S = {
    "ring": {"LL": 6.6 * US, "LL128": 14.0 * US, "Simple": 8.4 * US},
    "tree": {"LL": 6.8 * US, "LL128": 14.0 * US, "Simple": 8.4 * US},
}
_HOP_S = {
    ("ring", "nvlink"): {"LL": 0.6 * US, "LL128": 1.9 * US, "Simple": 3.4 * US},
    ("ring", "pcie"): {"LL": 1.0 * US, "LL128": 2.5 * US, "Simple": 5.7 * US},
    ("ring", "network"): {"LL": 2.7 * US, "LL128": 4.0 * US, "Simple": 14.0 * US},
    ("tree", "nvlink"): {"LL": 0.6 * US, "LL128": 1.25 * US, "Simple": 4.0 * US},
    ("tree", "pcie"): {"LL": 1.0 * US, "LL128": 1.9 * US, "Simple": 4.0 * US},
    ("tree", "network"): {"LL": 5.0 * US, "LL128": 8.5 * US, "Simple": 14.0 * US},
}
_NVLS_S, _NVLS_TREE_NETWORK_S = 25 * US, 14 * US
# the time a host takes to post one network operation, with the CPU that such nodes usually have: AMD, Intel
_POST_S = {"volta": 1 * US, "ampere": 2 * US, "ada": 2 * US, "hopper": 1 * US, "blackwell": 1 * US, "cdna3": 2 * US}

# Ceilings of bus bandwidth: for LL in total, for the others per channel; on one node, on two, on more.
_LL_MAX = {
    "volta": (39.0 * GB, 39.0 * GB, 20.4 * GB),
    "ampere": (87.7 * GB, 22.5 * GB, 19.0 * GB),
    "hopper": (141.0 * GB, 39.0 * GB, 20.4 * GB),
    "blackwell": (282.0 * GB, 39.0 * GB, 20.4 * GB),
}
_RING_LL128_MAX = {"volta": 20.0 * GB, "ampere": 20.0 * GB, "hopper": 36.7 * GB, "blackwell": 73.4 * GB}
_TREE_MAX = {
    "volta": (26.5 * GB, 18.5 * GB, 10.0 * GB),
    "ampere": (24.0 * GB, 23.6 * GB, 17.8 * GB),
    "hopper": (38.7 * GB, 41.4 * GB, 36.0 * GB),
    "blackwell": (70.0 * GB, 42.8 * GB, 24.0 * GB),
}
_TREE_LL128_MAX = {
    "volta": (20.0 * GB, 20.0 * GB, 20.0 * GB),
    "ampere": (20.0 * GB, 20.0 * GB, 20.0 * GB),
    "hopper": (36.7 * GB, 36.7 * GB, 29.0 * GB),
    "blackwell": (55.6 * GB, 31.67 * GB, 20.0 * GB),
}
_NVLS_TREE_MAX = {"hopper": (math.inf, 57.7 * GB, 45.5 * GB), "blackwell": (math.inf, 96.0 * GB, 43.1 * GB)}
_NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
# In a domain of 72 GB200 the switches reach less, and begin later: both fitted to the five rows `nvl72_*`, and taken to
# change evenly from 8 GPUs on. Of larger domains, and of other GPUs in more than 8, nothing is known.
_NVLS_MOST = {"hopper": 8, "blackwell": 72}
_NVL72_EFFICIENCY, _NVL72_S = 0.611, 570 * US
_NO_CEILING = (math.inf, math.inf, math.inf)
_NODE_CHANNELS = 24
# the factor on a tree's bandwidth at 64 B, 128 B, ... 512 MiB and beyond
_TREE_FACTORS = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, *5 * (1,)),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, *3 * (1,)),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 1),
    ),
}


@dataclass(frozen=True)
class Fit:
    """How a ring on NVLink differs from NCCL's figures: its steady rate, idle steps in a loop, time added to a call."""

    steady_fraction: float
    idle_steps: float
    start_s: float


# The only numbers fitted by us, to rows of tests/data/collectives.csv: volta to the 18 rows `vtrain_ar_V100_*` of 2, 4
# and 8 GPUs, ampere to the 18 rows `vtrain_ar_A100_*`, hopper and blackwell to the "NVLS off" figures in the notes of
# `h200_nvls_*` and `b200_nvls_*`. A ring of n steps keeps 1 - idle_steps / (n + 1) of its steady rate, as its first
# send and last receive have no partner. The 20 us of ampere, which volta's rows show too, are in no tuner; two DGX A100
# with 93 us for 8 bytes (NVIDIA/nccl issue 812, 2023) have them as well.
FITTED = {
    "volta": Fit(steady_fraction=1.11, idle_steps=0.0, start_s=20 * US),
    "ampere": Fit(steady_fraction=0.975, idle_steps=0.5, start_s=20 * US),
    "ada": Fit(steady_fraction=1.0, idle_steps=0.0, start_s=0.0),
    "hopper": Fit(steady_fraction=0.99, idle_steps=0.1, start_s=0.0),
    "blackwell": Fit(steady_fraction=0.95, idle_steps=0.1, start_s=0.0),
    "cdna3": Fit(steady_fraction=1.0, idle_steps=0.0, start_s=0.0),
}


@dataclass(frozen=True)
class Price:
    """The seconds that an operation takes, its algorithm and protocol, and the most bytes that any rank sends.

    `delay_s` is the part of the time in which the group's next operation may also be under way; 0 with NCCL.
    """

    time_s: float
    algorithm: str
    protocol: str
    sent_bytes_per_rank: float
    delay_s: float = 0.0


def price(
    op: str,
    size_bytes: float,
    ranks: Sequence[int],
    cluster: Cluster,
    algorithm: str | None = None,
    beside: Sequence[Sequence[int]] = (),
) -> Price:
    """The seconds, algorithm and protocol of one operation among these ranks of a cluster.

    `size_bytes` counts as in nccl-tests: the full, gathered tensor for all_gather, reduce_scatter, gather and scatter;
    all that one rank holds for all_to_all; the tensor for the rest. A barrier all-reduces one byte, whatever the size.
    The first rank is the root; `send` goes from the first to the second.

    Without `algorithm`, NCCL's tuner chooses; Gloo has no choice. "ring" is the textbook's: one ring in the order of
    the ranks, every step a message on `cluster.route`, no protocol. The other names force NCCL's choice.

    `beside` are other groups that do the same at the same time: all share the NICs, the network and a node's bridge.

    Raises:
        ValueError: there is no such operation, algorithm or rank, the size is negative, the algorithm cannot do it, or
            a group is beside one on Gloo.
    """
    _check(op, size_bytes, ranks, cluster, algorithm)
    others = tuple(map(tuple, beside))
    _check_beside(op, ranks, others, cluster)
    if op == "barrier":
        size_bytes = 1
    if len(ranks) == 1:
        return Price(0.0, algorithm or "none", "none", 0.0)
    if algorithm == "ring":
        return _textbook_ring(op, size_bytes, tuple(ranks), cluster, others)
    if cluster.library == "gloo":
        if algorithm is not None:
            raise ValueError(
                f"{cluster.name} uses Gloo, which has one algorithm per operation; pass algorithm=None or 'ring'"
            )
        if others:
            raise ValueError(f"{cluster.name} uses Gloo, whose groups are priced alone; leave `beside` out")
        found = gloo.cost(op, size_bytes, ranks, cluster)
        return Price(found.time_s, found.algorithm, "tcp", found.sent_bytes, found.delay_s)
    if cluster.gpu.architecture not in FITTED:
        raise ValueError(
            f"No collectives of NCCL are known for {cluster.gpu.name}, whose architecture is "
            f"{cluster.gpu.architecture}; take algorithm='ring', or a cluster whose library is 'gloo'"
        )
    group = _group(tuple(ranks), cluster, others)
    candidates = list(_routed(op, tuple(ranks), cluster, group, others) if op in ROUTED else _collective(op, group))
    if algorithm is not None:
        candidates = [candidate for candidate in candidates if candidate.algorithm == algorithm]
    if not candidates:
        raise ValueError(
            f"{algorithm!r} cannot do {op} among these {len(ranks)} ranks of {cluster.name}; "
            "leave algorithm=None for NCCL's choice"
        )
    best = min(candidates, key=lambda candidate: candidate.time_s(size_bytes))
    return Price(best.time_s(size_bytes), best.algorithm, best.protocol, best.sent_fraction * size_bytes)


def bus_factor(op: str, num_ranks: int) -> float:
    """The factor by which nccl-tests multiplies size over time to get the bus bandwidth of an operation.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md (2025).
    """
    if op == "all_reduce":
        return 2 * (num_ranks - 1) / num_ranks
    return (num_ranks - 1) / num_ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def _check(op: str, size_bytes: float, ranks: Sequence[int], cluster: Cluster, algorithm: str | None) -> None:
    if op not in OPS:
        raise ValueError(f"no operation is called {op!r}; the priced ones are {', '.join(OPS)}")
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ValueError(f"no algorithm is called {algorithm!r}; take None or one of {', '.join(ALGORITHMS)}")
    if not 0 <= size_bytes < math.inf:
        raise ValueError(f"size_bytes is {size_bytes}; it must be 0 or more and finite")
    if not ranks or len(set(ranks)) < len(ranks):
        raise ValueError(f"ranks are {list(ranks)}; give at least one rank, each once")
    if op == "send" and len(ranks) != 2:
        raise ValueError(f"send has {len(ranks)} ranks; give two, the sender and the receiver")
    for rank in ranks:
        cluster.node_of(rank)


def _check_beside(op: str, ranks: Sequence[int], others: Sequence[Sequence[int]], cluster: Cluster) -> None:
    if not all(others):
        raise ValueError("beside has a group without ranks; leave it out")
    groups = [tuple(ranks), *map(tuple, others)]
    # a rank may send one message and receive another
    seen = Counter(groups) if op == "send" else Counter(rank for group in groups for rank in group)
    if twice := [one for one, number in seen.items() if number > 1]:
        what = f"the message {twice[0]}" if op == "send" else f"rank {twice[0]}"
        raise ValueError(f"{what} is there several times; the groups of ranks and beside must be different ones")
    for rank in (min(map(min, groups)), max(map(max, groups))):
        cluster.node_of(rank)


class _NodeRings(NamedTuple):
    """The rings within a node: the rate that they have together, what they run over, and NCCL's channels for them."""

    bytes_per_s: float
    wires: str
    num_channels: int = _NODE_CHANNELS


@dataclass(frozen=True)
class _Group:
    """What the tuner knows about a set of ranks: where they are, and the bandwidth of their links."""

    cluster: Cluster
    num_ranks: int
    num_nodes: int
    num_local: int
    num_nics: int
    node: _NodeRings
    network_bytes_per_s: float
    tree_network_bytes_per_s: float

    @property
    def generation(self) -> str:
        # NCCL counts compute capability 8.9 as 8.0
        return "ampere" if self.cluster.gpu.architecture == "ada" else self.cluster.gpu.architecture

    @property
    def fit(self) -> Fit:
        return FITTED[self.cluster.gpu.architecture]

    @property
    def wires(self) -> str:
        return self.node.wires

    @property
    def has_nvlink_switch(self) -> bool:
        return self.cluster.intra.kind == "nvlink"

    @property
    def scale(self) -> int:
        """The index into the tuner's ceilings: 0 for one node, 1 for two, 2 for more."""
        return min(self.num_nodes, 3) - 1

    @property
    def num_channels(self) -> int:
        if self.num_nodes == 1:
            return self.node.num_channels
        # ncclTopoDupChannels (src/graph/search.cc) splits fast channels while there are few
        is_split = self.num_nics <= 4 and _inter(self.cluster).bandwidth_bytes_per_s >= 25 * GB
        return self.num_nics * (2 if is_split else 1)

    @property
    def protocols(self) -> tuple[str, ...]:
        if self.generation not in _LL_MAX:  # of RCCL's own protocols nothing is known here
            return ("Simple",)
        # LL128 needs 128-byte writes that arrive whole: NVLink, and no bounce through the host
        is_plain = self.wires != "nvlink" or (self.num_nodes > 1 and _inter(self.cluster).kind == "tcp")
        return ("LL", "Simple") if is_plain else PROTOCOLS

    def network_hop_s(self, algorithm: str, protocol: str) -> float:
        slower_s = _inter(self.cluster).latency_s - _HOP_S["ring", "network"]["Simple"]
        return _HOP_S[algorithm, "network"][protocol] + max(0.0, slower_s)


@dataclass(frozen=True)
class _Candidate:
    """One way to do an operation: the seconds before its first byte, and the bytes per second from then on."""

    algorithm: str
    protocol: str
    latency_s: float
    bytes_per_s: float
    sent_fraction: float
    plateau_bytes: float = math.inf
    plateau_s: float = 0.0

    def time_s(self, size_bytes: float) -> float:
        bytes_per_s = self.bytes_per_s
        if self.algorithm == "nccl-tree":
            bytes_per_s *= _tree_factor(self.protocol, size_bytes)
        late_s = self.plateau_s if size_bytes >= self.plateau_bytes else 0.0
        return self.latency_s + late_s + size_bytes / bytes_per_s


_Ranks: TypeAlias = tuple[int, ...]


@lru_cache(maxsize=1024)
def _group(ranks: _Ranks, cluster: Cluster, beside: tuple[_Ranks, ...] = ()) -> _Group:
    nodes = _by_node(ranks, cluster)
    num_local, nics = max(map(len, nodes.values())), _nics_by_node(ranks, cluster)
    ring = tree = math.inf
    if len(nodes) > 1:
        others = [of_other for other in beside if len(of_other := _nics_by_node(other, cluster)) > 1]
        ring, tree = _network_bytes_per_s(nics, others, cluster)
    local_gpus = {tuple(sorted(rank % cluster.gpus_per_node for rank in local)) for local in nodes.values()}
    on_bridge = _num_on_bridge(beside, next(iter(nodes)), cluster)
    slowest = min(_node_rings(gpus, len(nodes) > 1, on_bridge, cluster) for gpus in local_gpus)
    return _Group(cluster, len(ranks), len(nodes), num_local, len(nics[0]), slowest, ring, tree)


def _by_node(ranks: _Ranks, cluster: Cluster) -> dict[int, list[int]]:
    """The ranks on each node, in the order in which the ranks come to the nodes, as NCCL joins them."""
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(cluster.node_of(rank), []).append(rank)
    return nodes


def _nics_by_node(ranks: _Ranks, cluster: Cluster) -> list[list[Nic]]:
    """The NICs that a group uses on each of its nodes: as many on each."""
    nics = [
        (node, sorted({cluster.nic_of(rank) for rank in local})) for node, local in _by_node(ranks, cluster).items()
    ]
    num_nics = min(len(of_node) for _, of_node in nics)
    return [[(node, nic) for nic in of_node[:num_nics]] for node, of_node in nics]


def _num_on_bridge(groups: tuple[_Ranks, ...], node: int, cluster: Cluster) -> int:
    """How often the messages of these groups cross the bridge of a node together."""
    if cluster.bridge_bytes_per_s is None:
        return 0
    nodes = [_by_node(group, cluster) for group in groups]
    return sum(len(of_group[node]) + (len(of_group) > 1) for of_group in nodes if node in of_group)


def _node_rings(gpus: tuple[int, ...], is_entered: bool, num_others: int, cluster: Cluster) -> _NodeRings:
    """The rings of NCCL's search among GPUs of a node, which other nodes enter or not.

    `num_others` messages of other groups cross the node's bridge at the same time.
    """
    mesh, num_hops = cluster.mesh, len(gpus)
    if mesh is not None and len(gpus) > 1:
        if rings := mesh.rings(gpus):
            link_bytes_per_s = rings.number * rings.link_fraction * mesh.link.bandwidth_bytes_per_s
            return _NodeRings(link_bytes_per_s, "nvlink" if rings.is_direct else "pcie", rings.number)
        num_hops = mesh.num_unlinked(gpus)
    bytes_per_s = cluster.intra.bandwidth_bytes_per_s
    if cluster.bridge_bytes_per_s is not None:
        # on one node every rank's send crosses the bridge; with more, what enters the node crosses it too
        bytes_per_s = min(bytes_per_s, cluster.bridge_bytes_per_s / (num_hops + is_entered + num_others))
    return _NodeRings(bytes_per_s, cluster.intra.kind)


def _network_bytes_per_s(
    nodes: list[list[Nic]], others: list[list[list[Nic]]], cluster: Cluster
) -> tuple[float, float]:
    """The bandwidth of a node's NICs together, in rings through the nodes in this order and in NCCL's trees over them.

    Between the NICs, both have a share of what they cross, and of the NICs themselves where rings of `others` use them.
    The tuner's figures are for nodes in the order in which the network joins them; in another order, a tree is slower
    by as much more as it crosses.
    """
    users = Counter(nic for group in (nodes, *others) for of_node in group for nic in of_node)
    num_users = max(users[nic] for of_node in nodes for nic in of_node)
    nics_bytes_per_s = len(nodes[0]) * _inter(cluster).bandwidth_bytes_per_s / num_users
    beside = [edge for other in others for edge in _ring_edges(other)]
    ring = _between_nics_bytes_per_s(_ring_edges(nodes), beside, cluster)
    tree, in_place = ring, sorted(nodes)
    if nodes != in_place:
        slower, usual = (_between_nics_bytes_per_s(_tree_edges(order), [], cluster) for order in (nodes, in_place))
        ring_in_place = _between_nics_bytes_per_s(_ring_edges(in_place), beside, cluster)
        tree = ring_in_place * (slower / usual if slower < usual else 1.0)
    return min(nics_bytes_per_s, ring), min(nics_bytes_per_s, tree)


_Edge: TypeAlias = tuple[list[Nic], list[Nic]]  # from a node to the next, over as many NICs each


def _between_nics_bytes_per_s(edges: list[_Edge], beside: list[_Edge], cluster: Cluster) -> float:
    """The bandwidth of the ways between two nodes' NICs together, when all edges and those beside carry messages."""
    loads = _hops_between(edges, cluster)
    if loads:
        others = _hops_between(beside, cluster)
        loads = Counter({hop: load + others[hop] for hop, load in loads.items()})
    num_nics, rates = len(edges[0][0]), []
    for hop, load in loads.items():
        shared = math.gcd(num_nics, load)  # so that a load of one a NIC changes no digit
        rates.append(cluster.capacity_bytes_per_s(hop) * (num_nics // shared) / (load // shared))
    return min(rates, default=math.inf)


def _hops_between(edges: list[_Edge], cluster: Cluster) -> Counter[Hop]:
    """The hops between NICs that these edges cross, and how often."""
    pairs = (pair for src, dst in edges for pair in zip(src, dst, strict=True))
    return Counter(hop for pair in pairs for hop in cluster.network_hops(*pair))


def _ring_edges(nodes: list[list[Nic]]) -> list[_Edge]:
    return list(pairwise([*nodes, nodes[0]]))


def _tree_edges(nodes: list[list[Nic]]) -> list[_Edge]:
    """The edges, both ways, of NCCL's two binary trees, each of which carries half of the data.

    A node's parent is the one with the lowest bit of its number moved up by one, or without it. The second tree is the
    first for the nodes in reverse, or, if their number is odd, moved on by one.

    Source: NCCL 2.28.3 (2025) src/graph/trees.cc.
    """
    edges = []
    for order in nodes, nodes[::-1] if len(nodes) % 2 == 0 else nodes[1:] + nodes[:1]:
        for child in range(1, len(order)):
            lowest = child & -child
            parent = (child ^ lowest) | (lowest << 1)
            if parent >= len(order):
                parent = child ^ lowest
            edges += [(order[child], order[parent]), (order[parent], order[child])]
    return edges


def _inter(cluster: Cluster) -> Link:
    assert cluster.inter is not None
    return cluster.inter


def _collective(op: str, group: _Group) -> Iterator[_Candidate]:
    for protocol in group.protocols:
        yield _ring(op, protocol, group)
    if op not in ("all_reduce", "barrier"):
        return
    for protocol in group.protocols:
        yield _tree(protocol, group)
    if group.has_nvlink_switch and group.generation in _NVLS_EFFICIENCY and group.num_local > 1:
        yield _nvls(group) if group.num_nodes == 1 else _nvls_tree(group)


def _ring(op: str, protocol: str, group: _Group) -> _Candidate:
    if op not in _RING_ROUNDS:
        raise ValueError(f"there is no formula for the time of {op!r}")
    num_ranks, num_rounds = group.num_ranks, _RING_ROUNDS[op]
    steps = num_rounds * (num_ranks - 1)
    network_steps = num_rounds * (group.num_nodes - 1)
    bus_bytes_per_s = min(_ring_node_bytes_per_s(steps, group), group.network_bytes_per_s)
    if protocol == "LL":
        bus_bytes_per_s = min(bus_bytes_per_s / 2, _LL_MAX[group.generation][group.scale])
    if protocol == "LL128":
        ceiling = group.num_channels * _RING_LL128_MAX[group.generation]
        bus_bytes_per_s = min(bus_bytes_per_s * 0.92, ceiling)
    latency_s = (steps - network_steps) * _ring_hop_s(op, protocol, group)
    if network_steps:
        # with one rank per node there is no neighbour to hide behind: the tree's latency
        latency_s += network_steps * group.network_hop_s("tree" if group.num_local == 1 else "ring", protocol)
    latency_s += _BASE_S["ring"][protocol]
    is_chain = op in ("broadcast", "reduce")
    has_plateau = protocol == "Simple" and group.num_nodes > 1 and num_rounds == 2
    return _Candidate(
        "nccl-ring",
        protocol,
        latency_s + group.fit.start_s,
        bus_bytes_per_s * (1 if is_chain else num_ranks / steps),
        1 if is_chain else steps / num_ranks,
        plateau_bytes=64 * group.num_channels * num_ranks if has_plateau else math.inf,
        plateau_s=0.4 * latency_s,
    )


def _ring_node_bytes_per_s(steps: int, group: _Group) -> float:
    if group.num_local == 1:
        return math.inf
    if group.wires != "nvlink":
        return group.node.bytes_per_s
    return group.node.bytes_per_s * group.fit.steady_fraction * (1 - group.fit.idle_steps / (steps + 1))


def _ring_hop_s(op: str, protocol: str, group: _Group) -> float:
    """The seconds of one step within a node; a chain passes on whole chunks, a ring across nodes posts every step."""
    algorithm = "tree" if op in ("broadcast", "reduce") and protocol == "Simple" else "ring"
    hop_s = _HOP_S[algorithm, group.wires][protocol]
    if group.num_nodes == 1:
        return hop_s
    return max(hop_s, _POST_S[group.cluster.gpu.architecture] * (3 if protocol == "Simple" else 1))


def _tree(protocol: str, group: _Group) -> _Candidate:
    bus_bytes_per_s = min(
        0.92 * min(_tree_node_bytes_per_s(group), _tree_network_bytes_per_s(group)),
        group.num_channels * _TREE_MAX.get(group.generation, _NO_CEILING)[group.scale],
    )
    if protocol == "LL":
        bus_bytes_per_s = min(bus_bytes_per_s / 3.8, _LL_MAX[group.generation][group.scale])
    if protocol == "LL128":
        ceiling = group.num_channels * _TREE_LL128_MAX[group.generation][group.scale]
        bus_bytes_per_s = min(bus_bytes_per_s * (7 / 9 if group.num_nodes == 1 else 120 / 128), ceiling)
    latency_s = 2 * (group.num_local - 1) * _HOP_S["tree", group.wires][protocol]
    if group.num_nodes > 1:
        latency_s += 2 * int(math.log2(group.num_nodes)) * group.network_hop_s("tree", protocol)
    latency_s += _BASE_S["tree"][protocol] + group.fit.start_s
    return _Candidate("nccl-tree", protocol, latency_s, bus_bytes_per_s / 2, 2)


def _tree_node_bytes_per_s(group: _Group) -> float:
    return math.inf if group.num_local == 1 else group.node.bytes_per_s * group.fit.steady_fraction


def _tree_network_bytes_per_s(group: _Group) -> float:
    """The network bandwidth of a tree: with two nodes each byte crosses a NIC once per direction, with more twice."""
    return group.tree_network_bytes_per_s * (2 if group.num_nodes == 2 else 1)


def _tree_factor(protocol: str, size_bytes: float) -> float:
    """The factor on a tree's bandwidth, linear between the tabled sizes so that more bytes never take less time."""
    factors = _TREE_FACTORS[protocol]
    place = min(max(math.log2(max(size_bytes, 64) / 64), 0), len(factors) - 1)
    low = min(int(place), len(factors) - 2)
    return factors[low] + (place - low) * (factors[low + 1] - factors[low])


def _nvls_bytes_per_s(group: _Group) -> float:
    """The rate of a reduction in the NVLink switches of one node, from the bytes that leave each GPU.

    The switch reads every rank's whole tensor, and each rank adds its share of the result: size x (n + 1) / n.
    """
    efficiency = _NVLS_EFFICIENCY[group.generation]
    efficiency += (_NVL72_EFFICIENCY - efficiency) * _part_of_nvl72(group)
    return group.node.bytes_per_s * efficiency * group.num_local / (group.num_local + 1)


def _nvls_s(group: _Group) -> float:
    return _NVLS_S + (_NVL72_S - _NVLS_S) * _part_of_nvl72(group)


def _part_of_nvl72(group: _Group) -> float:
    """How far a group is from 8 GPUs of a node, 0, to a domain of 72, 1.

    Raises:
        ValueError: it is larger than any whose switches were measured.
    """
    most = _NVLS_MOST[group.generation]
    if group.num_local > most:
        raise ValueError(
            f"{group.cluster.name}: {group.num_local} GPUs on one set of NVLink switches; the largest such set "
            f"that was measured has {most}, so nothing is known of this one"
        )
    return max(0, group.num_local - 8) / 64


def _nvls(group: _Group) -> _Candidate:
    sent_fraction = (group.num_local + 1) / group.num_local
    return _Candidate("nvls", "Simple", _nvls_s(group) + group.fit.start_s, _nvls_bytes_per_s(group), sent_fraction)


def _nvls_tree(group: _Group) -> _Candidate:
    bus_bytes_per_s = min(
        _tree_network_bytes_per_s(group), group.num_local * _NVLS_TREE_MAX[group.generation][group.scale]
    )
    # whatever the tree: every node takes in as many bytes as there are in the result
    bytes_per_s = min(
        _nvls_bytes_per_s(group),
        bus_bytes_per_s * group.num_ranks / (2 * (group.num_ranks - 1)),
        group.network_bytes_per_s,
    )
    network_hop_s = _NVLS_TREE_NETWORK_S + group.network_hop_s("tree", "Simple") - _HOP_S["tree", "network"]["Simple"]
    latency_s = _nvls_s(group) + 2 * int(math.log2(group.num_nodes)) * network_hop_s
    sent_fraction = (group.num_local + 1 + min(group.num_nodes - 1, 2)) / group.num_local
    return _Candidate("nvls-tree", "Simple", latency_s + group.fit.start_s, bytes_per_s, sent_fraction)


def _routed(
    op: str, ranks: _Ranks, cluster: Cluster, group: _Group, beside: tuple[_Ranks, ...]
) -> Iterator[_Candidate]:
    """Point-to-point messages, all at once; the busiest hop limits them."""
    share = 1.0 if op == "send" else 1 / len(ranks)
    sent_fraction = share if op in ("send", "gather") else 1 - share
    busiest_s_per_byte = share * _busiest_s_per_byte(op, ranks, cluster, beside)
    for protocol in ("LL", "Simple"):
        hop_s = group.network_hop_s("tree", protocol) if group.num_nodes > 1 else _HOP_S["ring", group.wires][protocol]
        slowdown = 2 if protocol == "LL" else 1
        latency_s = _BASE_S["ring"][protocol] + hop_s + group.fit.start_s
        yield _Candidate("p2p", protocol, latency_s, 1 / (busiest_s_per_byte * slowdown), sent_fraction)


@lru_cache(maxsize=1024)
def _busiest_s_per_byte(pattern: str, ranks: _Ranks, cluster: Cluster, beside: tuple[_Ranks, ...] = ()) -> float:
    """Seconds per byte that every pair of a pattern sends, on the hop that takes longest to carry its load."""
    if pattern == "all_to_all" and not beside:
        busiest = cluster.busiest_of_all_pairs(ranks)
        return max(load / cluster.capacity_bytes_per_s(hop) for hop, load in busiest)
    loads = _hops_of_pairs(pattern, (ranks,), cluster)
    others = _hops_of_pairs(pattern, beside, cluster)
    return max((load + others[hop]) / cluster.capacity_bytes_per_s(hop) for hop, load in loads.items())


def _hops_of_pairs(pattern: str, groups: tuple[_Ranks, ...], cluster: Cluster) -> Counter[Hop]:
    """The hops that the messages of a pattern cross in these groups, and how often."""
    pairs = (pair for ranks in groups for pair in _pairs(pattern, ranks))
    return Counter(hop for src, dst in pairs for hop in cluster.route(src, dst).hops)


def _pairs(pattern: str, ranks: _Ranks) -> list[tuple[int, int]]:
    """The senders and receivers of the messages that are under way at once."""
    if pattern == "all_to_all":
        return list(permutations(ranks, 2))
    if pattern == "ring":
        return list(zip(ranks, ranks[1:] + ranks[:1], strict=True))
    if pattern == "gather":
        return [(rank, ranks[0]) for rank in ranks[1:]]
    if pattern in ("scatter", "send"):
        return [(ranks[0], rank) for rank in ranks[1:]]
    raise ValueError(f"there is no formula for the time of {pattern!r}")


def _textbook_ring(op: str, size_bytes: float, ranks: _Ranks, cluster: Cluster, beside: tuple[_Ranks, ...]) -> Price:
    if op not in ("all_reduce", "all_gather", "reduce_scatter", "barrier"):
        raise ValueError(f"the textbook ring does all_reduce, all_gather, reduce_scatter and barrier, not {op}")
    steps = _RING_ROUNDS[op] * (len(ranks) - 1)
    chunk_bytes = size_bytes / len(ranks)
    latency_s = max(cluster.route(src, dst).latency_s for src, dst in _pairs("ring", ranks))
    step_s = latency_s + chunk_bytes * _busiest_s_per_byte("ring", ranks, cluster, beside)
    return Price(steps * step_s, "ring", "none", steps * chunk_bytes)
