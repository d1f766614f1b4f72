"""GPUs, links and clusters as data: every number with its source and date. Bandwidths are per direction."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from worldsize.units import GB, TB, US

TFLOPS = 1e12
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8")
ARCHITECTURES = ("ampere", "ada", "hopper", "blackwell")
LIBRARIES = ("nccl", "gloo")
LINK_KINDS = ("nvlink", "pcie", "rdma", "tcp")


@dataclass(frozen=True)
class Gpu:
    """One GPU; `peak_flops_per_s` holds dense rates by dtype, on tensor cores where they take that dtype.

    `launch_s` is added to every kernel. The catalogue has none: its programs launch ahead of the GPU.
    """

    name: str
    architecture: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    source: str
    launch_s: float = 0.0

    def __post_init__(self) -> None:
        _need_one_of(f"{self.name}: architecture", self.architecture, ARCHITECTURES)
        _need_positive(f"{self.name}: memory_bytes", self.memory_bytes)
        _need_positive(f"{self.name}: memory_bandwidth_bytes_per_s", self.memory_bandwidth_bytes_per_s)
        for dtype, flops_per_s in self.peak_flops_per_s.items():
            _need_one_of(f"{self.name}: a key of peak_flops_per_s", dtype, DTYPES)
            _need_positive(f"{self.name}: peak_flops_per_s of {dtype}", flops_per_s)
        if not self.peak_flops_per_s:
            raise ValueError(f"{self.name}: peak_flops_per_s is empty; give the rate of at least one dtype")
        if self.launch_s < 0:
            raise ValueError(f"{self.name}: launch_s is {self.launch_s}; it must be 0 or more seconds")
        _need_source(self.name, self.source)


@dataclass(frozen=True)
class Link:
    """A GPU's port or a NIC: the rate that transfers reach, the data sheet's peak, and the time of a small send."""

    name: str
    latency_s: float
    bandwidth_bytes_per_s: float
    source: str
    peak_bytes_per_s: float | None = None
    kind: str = "rdma"

    def __post_init__(self) -> None:
        _need_one_of(f"{self.name}: kind", self.kind, LINK_KINDS)
        _need_positive(f"{self.name}: bandwidth_bytes_per_s", self.bandwidth_bytes_per_s)
        if self.latency_s < 0:
            raise ValueError(f"{self.name}: latency_s is {self.latency_s}; it must be 0 or more seconds")
        if self.peak_bytes_per_s is not None and self.peak_bytes_per_s < self.bandwidth_bytes_per_s:
            raise ValueError(
                f"{self.name}: the peak of {self.peak_bytes_per_s:g} B/s is below the rate that transfers reach, "
                f"{self.bandwidth_bytes_per_s:g} B/s; give the data sheet's figure as peak_bytes_per_s"
            )
        _need_source(self.name, self.source)


class Hop(NamedTuple):  # a key of dicts in every replay; a dataclass takes four times as long to hash
    """A directed part of a cluster that messages share: a GPU's port, a NIC, a leaf switch's links, a host bridge.

    Examples of names: `gpu0 out`, `node1 nic0 in`, `leaf0 up`, `node0 bridge`.
    """

    kind: Literal["gpu", "nic", "leaf", "bridge"]
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Route:
    """A message's latency in seconds and the hops that it occupies."""

    latency_s: float
    hops: tuple[Hop, ...]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes of GPUs on `intra` links, joined by NICs on `inter` links.

    `is_rail`: NIC i of every node is on leaf switch i. Without it, all NICs of a node are on one leaf switch. Either
    way a leaf connects `nodes_per_leaf` nodes (None: all), and `oversubscription` is the ratio of its downlinks to its
    uplinks. `is_switched=False`: the node's GPUs and NICs share one host bridge of `bridge_bytes_per_s`. `library` is
    the library of the collectives, "nccl" or "gloo".
    """

    name: str
    gpu: Gpu
    gpus_per_node: int
    intra: Link
    num_nodes: int = 1
    inter: Link | None = None
    nics_per_node: int = 1
    is_rail: bool = True
    oversubscription: float = 1.0
    nodes_per_leaf: int | None = None
    is_switched: bool = True
    bridge_bytes_per_s: float | None = None
    library: str = "nccl"
    source: str = ""

    def __post_init__(self) -> None:
        for count in ("gpus_per_node", "num_nodes", "nics_per_node"):
            _need_positive(f"{self.name}: {count}", getattr(self, count))
        _need_one_of(f"{self.name}: library", self.library, LIBRARIES)
        if self.intra.kind not in ("nvlink", "pcie"):
            raise ValueError(
                f"{self.name}: intra is {self.intra.name}, of kind {self.intra.kind!r}; a node's GPUs are joined by a "
                'Link of kind="nvlink" or kind="pcie"'
            )
        if self.num_nodes > 1 and self.inter is None:
            raise ValueError(f"{self.name}: {self.num_nodes} nodes need a network; give inter=, a Link such as IB_NDR")
        if self.nics_per_node > self.gpus_per_node:
            raise ValueError(
                f"{self.name}: {self.nics_per_node} NICs for {self.gpus_per_node} GPUs; "
                "nics_per_node must be at most gpus_per_node"
            )
        if self.oversubscription < 1:
            raise ValueError(
                f"{self.name}: oversubscription is {self.oversubscription}; it is downlinks over uplinks, 1 or more"
            )
        if self.nodes_per_leaf is not None:
            _need_positive(f"{self.name}: nodes_per_leaf", self.nodes_per_leaf)
        if self.is_switched != (self.bridge_bytes_per_s is None):
            raise ValueError(
                f"{self.name}: bridge_bytes_per_s is {self.bridge_bytes_per_s} and is_switched is {self.is_switched}; "
                "give the bridge's capacity with is_switched=False, and only then"
            )
        if self.bridge_bytes_per_s is not None:
            _need_positive(f"{self.name}: bridge_bytes_per_s", self.bridge_bytes_per_s)

    @property
    def world_size(self) -> int:
        """The number of GPUs, which is the number of ranks."""
        return self.num_nodes * self.gpus_per_node

    def with_nodes(self, num_nodes: int) -> Cluster:
        """The same cluster with this many nodes."""
        return replace(self, num_nodes=num_nodes)

    def without_latency(self) -> Cluster:
        """The same cluster with links without latency."""
        inter = self.inter and replace(self.inter, latency_s=0.0)
        return replace(self, intra=replace(self.intra, latency_s=0.0), inter=inter)

    def node_of(self, rank: int) -> int:
        """The node that holds this rank.

        Raises:
            ValueError: the cluster has no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not on {self.name}; its ranks are 0 to {self.world_size - 1}")
        return rank // self.gpus_per_node

    def nic_of(self, rank: int) -> int:
        """The NIC, counted within its node, through which this rank leaves its node.

        Raises:
            ValueError: the cluster has no such rank.
        """
        self.node_of(rank)
        return rank % self.gpus_per_node * self.nics_per_node // self.gpus_per_node

    def leaf_of(self, rank: int) -> int:
        """The leaf switch to which this rank's NIC is connected.

        Raises:
            ValueError: the cluster has no such rank.
        """
        group = self.node_of(rank) // (self.nodes_per_leaf or self.num_nodes)
        return group * self.nics_per_node + self.nic_of(rank) if self.is_rail else group

    def route(self, src_rank: int, dst_rank: int) -> Route:
        """The latency in seconds and the hops of a message; messages that share a hop share its capacity.

        Raises:
            ValueError: the cluster has no such rank.
        """
        src_node, dst_node = self.node_of(src_rank), self.node_of(dst_rank)
        if src_rank == dst_rank:
            return Route(0.0, ())
        if src_node == dst_node:
            hops = (_gpu(src_rank, "out"), *self._bridge(src_node), _gpu(dst_rank, "in"))
            return Route(self.intra.latency_s, hops)
        assert self.inter is not None
        return Route(
            self.inter.latency_s,
            (
                *self._bridge(src_node),
                self._nic(src_rank, "out"),
                *self._leaf_links(self.leaf_of(src_rank), self.leaf_of(dst_rank)),
                self._nic(dst_rank, "in"),
                *self._bridge(dst_node),
            ),
        )

    def busiest_of_all_pairs(self, ranks: Sequence[int]) -> list[tuple[Hop, int]]:
        """Of each kind the hop that carries most when every rank sends to every other, and the messages on it.

        The same as counting the hops of every `route`, in a time that grows with the ranks and not with their square.
        """
        places = [(rank, self.node_of(rank)) for rank in ranks]
        on_node = Counter(node for _, node in places)
        loads: Counter[Hop] = Counter()
        for rank, node in places:
            within, beyond = on_node[node] - 1, len(places) - on_node[node]
            loads[_gpu(rank, "out")] += within
            for bridge in self._bridge(node):
                loads[bridge] += within + 2 * beyond
            loads[self._nic(rank, "out")] += beyond
        if self.inter is not None and self._leaf_links(0, 1):
            leaves = [(node, self.leaf_of(rank)) for rank, node in places]
            on_leaf, on_both = Counter(leaf for _, leaf in leaves), Counter(leaves)
            for node, leaf in leaves:
                loads[_leaf(leaf, "up")] += len(places) - on_node[node] - on_leaf[leaf] + on_both[node, leaf]
        most: dict[str, tuple[Hop, int]] = {}
        for hop, load in loads.items():
            if load > most.get(hop.kind, (hop, 0))[1]:
                most[hop.kind] = hop, load
        return list(most.values())

    def hop(self, name: str) -> Hop:
        """The hop of this name.

        Raises:
            ValueError: the cluster has no such hop.
        """
        found = next((hop for rank in range(self.world_size) for hop in self._hops_at(rank) if hop.name == name), None)
        if found is None:
            raise ValueError(f"{self.name} has no hop {name!r}; take the names from route(src_rank, dst_rank).hops")
        return found

    def capacity_bytes_per_s(self, hop: Hop) -> float:
        """The capacity that the messages on a hop share, in bytes per second.

        Raises:
            ValueError: the cluster has no hop of this kind.
        """
        if hop.kind == "gpu":
            return self.intra.bandwidth_bytes_per_s
        if hop.kind == "bridge" and self.bridge_bytes_per_s is not None:
            return self.bridge_bytes_per_s
        if hop.kind in ("nic", "leaf") and self.inter is not None:
            return self.inter.bandwidth_bytes_per_s if hop.kind == "nic" else self.leaf_bytes_per_s
        raise ValueError(f"{self.name} has no {hop.kind}, and so no hop {hop.name!r}")

    @property
    def leaf_bytes_per_s(self) -> float:
        """The capacity of all uplinks of a leaf switch, in bytes per second, and so of its downlinks."""
        assert self.inter is not None
        num_nics = (self.nodes_per_leaf or self.num_nodes) * (1 if self.is_rail else self.nics_per_node)
        return num_nics * self.inter.bandwidth_bytes_per_s / self.oversubscription

    def _hops_at(self, rank: int) -> list[Hop]:
        """Every hop that a message from or to this rank may take on its side."""
        hops = [_gpu(rank, "out"), _gpu(rank, "in"), *self._bridge(self.node_of(rank))]
        if self.inter is not None:
            leaf = self.leaf_of(rank)
            hops += [self._nic(rank, "out"), self._nic(rank, "in"), _leaf(leaf, "up"), _leaf(leaf, "down")]
        return hops

    def _nic(self, rank: int, direction: str) -> Hop:
        return Hop("nic", f"node{self.node_of(rank)} nic{self.nic_of(rank)} {direction}")

    def _bridge(self, node: int) -> tuple[Hop, ...]:
        return () if self.is_switched else (Hop("bridge", f"node{node} bridge"),)

    def _leaf_links(self, src_leaf: int, dst_leaf: int) -> tuple[Hop, ...]:
        # a rail-optimised fabric at 1:1 has an uplink for every downlink, so the NICs are the limit
        if src_leaf == dst_leaf or (self.is_rail and self.oversubscription == 1):
            return ()
        return _leaf(src_leaf, "up"), _leaf(dst_leaf, "down")


def _gpu(rank: int, direction: str) -> Hop:
    return Hop("gpu", f"gpu{rank} {direction}")


def _leaf(leaf: int, direction: str) -> Hop:
    return Hop("leaf", f"leaf{leaf} {direction}")


def cluster(name: str) -> Cluster:
    """The catalogue's cluster of this name; `-x4` at its end sets four nodes, as in `h100-ndr-x4`.

    Raises:
        ValueError: there is no such cluster; the message names the nearest one and all others.
    """
    base, count = name, None
    if match := re.fullmatch(r"(.+)-x(\d+)", name):
        base, count = match[1], int(match[2])
    if base not in _CLUSTERS:
        nearest = difflib.get_close_matches(base, _CLUSTERS, n=1, cutoff=0.0)[0]
        raise ValueError(f"no cluster is called {name!r}; did you mean {nearest!r}? Known: {', '.join(clusters())}")
    return _CLUSTERS[base] if count is None else replace(_CLUSTERS[base], name=name, num_nodes=count)


def clusters() -> list[str]:
    """The names that `cluster` knows, one node first."""
    return list(_CLUSTERS)


def _need_positive(what: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{what} is {value}; it must be more than 0")


def _need_one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{what} is {value!r}; it must be one of {', '.join(known)}")


def _need_source(name: str, source: str) -> None:
    if not re.search(r"\b(19|20)\d\d\b", source):
        raise ValueError(f"{name}: the source {source!r} names no year; say where the numbers come from, and of when")


# The vendors' data sheets are cited by title and date; "recalled" marks what was not checked again for this file.
_AMPERE_FLOPS = {
    "float64": 19.5 * TFLOPS,
    "float32": 19.5 * TFLOPS,
    "tf32": 156 * TFLOPS,
    "float16": 312 * TFLOPS,
    "bfloat16": 312 * TFLOPS,
}
_HOPPER_FLOPS = {
    "float64": 67 * TFLOPS,
    "float32": 67 * TFLOPS,
    "tf32": 494.5 * TFLOPS,
    "float16": 989 * TFLOPS,
    "bfloat16": 989 * TFLOPS,
    "float8": 1979 * TFLOPS,
}

A100 = Gpu(
    "A100 SXM 80 GB",
    "ampere",
    80 * GB,
    2.039 * TB,
    _AMPERE_FLOPS,
    "NVIDIA A100 80GB data sheet (2021), as tabled in glennklockwood.com/garden/processors/A100, read 2026",
)
A100_PCIE = Gpu(
    "A100 PCIe 80 GB",
    "ampere",
    80 * GB,
    1.935 * TB,
    _AMPERE_FLOPS,
    "NVIDIA A100 80GB data sheet (2021); memory bandwidth as tabled in thundercompute.com/blog, read 2026",
)
H100 = Gpu(
    "H100 SXM",
    "hopper",
    80 * GB,
    3.35 * TB,
    _HOPPER_FLOPS,
    "NVIDIA H100 data sheet (2023), as tabled in stas00/ml-engineering compute/accelerator (2024), read 2026; "
    "float64 recalled",
)
H200 = Gpu(
    "H200 SXM",
    "hopper",
    141 * GB,
    4.8 * TB,
    _HOPPER_FLOPS,
    "NVIDIA H200 data sheet (2023), as tabled in stas00/ml-engineering compute/accelerator (2024), read 2026; "
    "float64 recalled",
)
B200 = Gpu(
    "B200 SXM",
    "blackwell",
    180 * GB,
    8 * TB,
    {
        "float64": 37 * TFLOPS,
        "float32": 75 * TFLOPS,
        "tf32": 1100 * TFLOPS,
        "float16": 2250 * TFLOPS,
        "bfloat16": 2250 * TFLOPS,
        "float8": 4500 * TFLOPS,
    },
    "NVIDIA HGX B200 specifications (2025), copied in zdszero.github.io, halved where they count sparsity, read 2026; "
    "memory bandwidth from stas00/ml-engineering (2025): 8 TB/s, later HGX tables say 7.7",
)
L40S = Gpu(
    "L40S",
    "ada",
    48 * GB,
    0.864 * TB,
    {
        "float64": 1.431 * TFLOPS,
        "float32": 91.6 * TFLOPS,
        "tf32": 183 * TFLOPS,
        "float16": 362.05 * TFLOPS,
        "bfloat16": 362.05 * TFLOPS,
        "float8": 733 * TFLOPS,
    },
    "NVIDIA L40S data sheet (2023), as copied by mullet.se and, for float64, itcreations.com, read 2026",
)

# One step of NCCL's ring with the Simple protocol stands for the time of a small send.
_ALPHA = "latency: ring step, Simple, NCCL 2.28.3 (2025) src/graph/tuning.cc"
_NCCL_RATE = "rate: links x GB/s per link in NCCL 2.28.3 (2025) src/graph/topo.h"
_GTC = "rate: NVIDIA GTC 2024 talk S62129, all-reduce bus bandwidth"
_PEAK = "peak: stas00/ml-engineering network/README.md (2025)"

NVLINK3 = Link("NVLink 3", 3.4 * US, 12 * 20.0 * GB, f"{_ALPHA}; {_NCCL_RATE}: 12 x 20.0; {_PEAK}", 300 * GB, "nvlink")
NVLINK4 = Link("NVLink 4", 3.4 * US, 18 * 20.6 * GB, f"{_ALPHA}; {_NCCL_RATE}: 18 x 20.6; {_PEAK}", 450 * GB, "nvlink")
NVLINK5 = Link("NVLink 5", 3.4 * US, 18 * 40.1 * GB, f"{_ALPHA}; {_NCCL_RATE}: 18 x 40.1; {_PEAK}", 900 * GB, "nvlink")
PCIE4 = Link("PCIe 4 x16", 5.7 * US, 24 * GB, f"{_ALPHA}; {_GTC}; {_PEAK}", 31 * GB, "pcie")
PCIE5 = Link("PCIe 5 x16", 5.7 * US, 48 * GB, f"{_ALPHA}; {_GTC}; {_PEAK}", 63 * GB, "pcie")
IB_HDR = Link("InfiniBand HDR", 14 * US, 24 * GB, f"{_ALPHA}; {_GTC}, 200 Gb/s RDMA; {_PEAK}", 25 * GB)
IB_NDR = Link("InfiniBand NDR", 14 * US, 48 * GB, f"{_ALPHA}; {_GTC}, 400 Gb/s RDMA; {_PEAK}", 50 * GB)
ROCE_100G = Link(
    "RoCE 100 Gb/s", 14 * US, 12 * GB, f"{_ALPHA}; rate: NET_BW in NCCL 2.28.3 (2025) src/graph/topo.h", 12.5 * GB
)
ROCE_400G = Link("RoCE 400 Gb/s", 14 * US, 48 * GB, f"{_ALPHA}; {_GTC}, 400 Gb/s RDMA; {_PEAK}", 50 * GB)
ETHERNET_100G = Link(
    "Ethernet 100 Gb/s, TCP",
    30 * US,
    10 * GB,
    f"latency: order of magnitude for TCP, recalled in 2026; {_GTC}, 100GbE TCP",
    12.5 * GB,
    "tcp",
)
ETHERNET_10G = Link(
    "Ethernet 10 Gb/s, TCP",
    30 * US,
    1.17 * GB,
    "latency: order of magnitude for TCP, recalled in 2026; rate: 1448 of each 1538 bytes on the wire carry data "
    "(IEEE 802.3-2018 frame with a 1500-byte MTU, IP and TCP headers with time stamps)",
    1.25 * GB,
    "tcp",
)

_DGX = "8 GPUs a node on NVSwitch: NVIDIA DGX data sheets (2020 to 2024), recalled"
DGX_A100 = Cluster(name="dgx-a100", gpu=A100, gpus_per_node=8, intra=NVLINK3, source=_DGX)
DGX_H100 = Cluster(name="dgx-h100", gpu=H100, gpus_per_node=8, intra=NVLINK4, source=_DGX)
DGX_H200 = Cluster(name="dgx-h200", gpu=H200, gpus_per_node=8, intra=NVLINK4, source=_DGX)
DGX_B200 = Cluster(name="dgx-b200", gpu=B200, gpus_per_node=8, intra=NVLINK5, source=_DGX)
PCIE_BOX = Cluster(
    name="pcie-box",
    gpu=A100_PCIE,
    gpus_per_node=8,
    intra=PCIE4,
    is_switched=False,
    bridge_bytes_per_s=112 * GB,
    source="bridge: half of the 8 flows of 28 GB/s that 8 RTX 5090 reach on PCIe 5, NVIDIA/nccl issue 1639 (2025); "
    "the halving for PCIe 4 is ours",
)

_EIGHT_NICS = "8 GPUs and 8 NICs a node, rails: NVIDIA DGX SuperPOD reference architecture (2023), recalled"
_ONE_NIC = "an 8-GPU node with a single ordinary NIC: our example, 2026"
A100_HDR = replace(DGX_A100, name="a100-hdr", num_nodes=2, inter=IB_HDR, nics_per_node=8, source=_EIGHT_NICS)
H100_NDR = replace(DGX_H100, name="h100-ndr", num_nodes=2, inter=IB_NDR, nics_per_node=8, source=_EIGHT_NICS)
H200_NDR = replace(DGX_H200, name="h200-ndr", num_nodes=2, inter=IB_NDR, nics_per_node=8, source=_EIGHT_NICS)
B200_NDR = replace(DGX_B200, name="b200-ndr", num_nodes=2, inter=IB_NDR, nics_per_node=8, source=_EIGHT_NICS)
H100_ROCE = replace(H100_NDR, name="h100-roce", inter=ROCE_400G)
A100_100GBE = replace(DGX_A100, name="a100-100gbe", num_nodes=2, inter=ETHERNET_100G, source=_ONE_NIC)
A100_10GBE = replace(DGX_A100, name="a100-10gbe", num_nodes=2, inter=ETHERNET_10G, source=_ONE_NIC)
PCIE_BOX_10GBE = replace(PCIE_BOX, name="pcie-box-10gbe", num_nodes=2, inter=ETHERNET_10G)

_CLUSTERS = {
    found.name: found
    for found in (
        DGX_A100,
        DGX_H100,
        DGX_H200,
        DGX_B200,
        PCIE_BOX,
        A100_HDR,
        H100_NDR,
        H200_NDR,
        B200_NDR,
        H100_ROCE,
        A100_100GBE,
        A100_10GBE,
        PCIE_BOX_10GBE,
    )
}
