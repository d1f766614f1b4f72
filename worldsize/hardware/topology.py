"""Clusters: identical nodes of GPUs, the network between them, and the routes of messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

from worldsize.hardware.devices import Gpu, Link
from worldsize.hardware.meshes import Mesh
from worldsize.hardware.networks import Dragonfly, FatTree, Hop, Level, Network, Nic, Nics
from worldsize.hardware.storage import COPIES, TRANSFERS, Host, StorageSystem
from worldsize.hardware.validation import need_one_of, need_positive

LIBRARIES = ("nccl", "gloo")


@dataclass(frozen=True)
class Route:
    """A message's or transfer's latency in seconds, and the hops that it occupies."""

    latency_s: float
    hops: tuple[Hop, ...]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Identical nodes of GPUs on `intra` links, connected by NICs on `inter` links.

    `intra` is a GPU's port, through which it reaches all others of its node. With a `mesh`, GPUs that its links connect
    use these instead. `is_switched=False`: the node's GPUs and NICs share one host bridge of `bridge_bytes_per_s`.

    `is_rail`: NIC i of every node is on leaf switch i. Otherwise all NICs of a node are on one leaf switch. Either way
    a leaf connects `nodes_per_leaf` nodes (None: all), and `oversubscription` is the ratio of its downlinks to its
    uplinks. `network` is a larger network in place of these leaves. `library` is the library of the collectives, "nccl"
    or "gloo". Every node has `host` and `local_storage`, and all share one `shared_storage`; without one of these
    (None), its transfers are impossible.
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
    mesh: Mesh | None = None
    network: Network | None = None
    library: str = "nccl"
    host: Host | None = None
    local_storage: StorageSystem | None = None
    shared_storage: StorageSystem | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for count in ("gpus_per_node", "num_nodes", "nics_per_node"):
            need_positive(f"{self.name}: {count}", getattr(self, count))
        need_one_of(f"{self.name}: library", self.library, LIBRARIES)
        if self.intra.kind not in ("nvlink", "pcie"):
            raise ValueError(
                f"{self.name}: intra is {self.intra.name}, of kind {self.intra.kind!r}; a node's GPUs are connected "
                "by a "
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
                f"{self.name}: oversubscription is {self.oversubscription}; it must be the downlinks per uplink, "
                "1 or more"
            )
        if self.nodes_per_leaf is not None:
            need_positive(f"{self.name}: nodes_per_leaf", self.nodes_per_leaf)
        if self.is_switched != (self.bridge_bytes_per_s is None):
            raise ValueError(
                f"{self.name}: bridge_bytes_per_s is {self.bridge_bytes_per_s} and is_switched is {self.is_switched}; "
                "give the bridge's capacity if is_switched=False, and only then"
            )
        if self.bridge_bytes_per_s is not None:
            need_positive(f"{self.name}: bridge_bytes_per_s", self.bridge_bytes_per_s)
        if self.mesh is not None and self.mesh.num_gpus != self.gpus_per_node:
            raise ValueError(
                f"{self.name}: the mesh has {self.mesh.num_gpus} GPUs, but a node has {self.gpus_per_node}"
            )
        if self.network is not None:
            self._check_network(self.network)
        if self.local_storage is not None and self.local_storage.is_shared:
            raise ValueError(
                f"{self.name}: local_storage is {self.local_storage.name}, which all nodes share; give it as "
                "shared_storage"
            )
        if self.shared_storage is not None and not self.shared_storage.is_shared:
            raise ValueError(
                f"{self.name}: shared_storage is {self.shared_storage.name}, of which each node has its own; give the "
                "rates that all nodes share as total_read_bytes_per_s and total_write_bytes_per_s"
            )
        if self.shared_storage is not None and self.shared_storage.is_on_nics and self.inter is None:
            raise ValueError(
                f"{self.name}: {self.shared_storage.name} is reached over the nodes' NICs; give inter=, their Link"
            )

    def _check_network(self, network: Network) -> None:
        if self.inter is None:
            raise ValueError(f"{self.name}: a network needs inter=, the Link of its NICs")
        if (self.is_rail, self.oversubscription, self.nodes_per_leaf) != (True, 1.0, None):
            raise ValueError(
                f"{self.name}: is_rail, oversubscription and nodes_per_leaf describe a network of leaves; "
                "with network=, describe its levels there"
            )
        if isinstance(network, Dragonfly):
            network.check(self._nics)

    @property
    def world_size(self) -> int:
        """The number of GPUs, which is the number of ranks."""
        return self.num_nodes * self.gpus_per_node

    def with_nodes(self, num_nodes: int) -> Cluster:
        """Return the same cluster with this many nodes."""
        return replace(self, num_nodes=num_nodes)

    def without_latency(self) -> Cluster:
        """Return the same cluster with links and storage without latency."""
        inter = self.inter and replace(self.inter, latency_s=0.0)
        mesh = self.mesh and replace(self.mesh, link=replace(self.mesh.link, latency_s=0.0))
        return replace(
            self,
            intra=replace(self.intra, latency_s=0.0),
            inter=inter,
            mesh=mesh,
            host=self.host and replace(self.host, link=replace(self.host.link, latency_s=0.0)),
            local_storage=self.local_storage and replace(self.local_storage, latency_s=0.0),
            shared_storage=self.shared_storage and replace(self.shared_storage, latency_s=0.0),
        )

    def node_of(self, rank: int) -> int:
        """Return the node that holds this rank.

        Raises:
            ValueError: the cluster has no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not on {self.name}; its ranks are 0 to {self.world_size - 1}")
        return rank // self.gpus_per_node

    def nic_of(self, rank: int) -> int:
        """Return the number, within its node, of the NIC through which this rank leaves the node.

        Raises:
            ValueError: the cluster has no such rank.
        """
        self.node_of(rank)
        return self._nic_of_gpu(self._index(rank))

    def route(self, src_rank: int, dst_rank: int) -> Route:
        """Return the latency in seconds and the hops of a message; messages that share a hop share its capacity.

        Raises:
            ValueError: the cluster has no such rank.
        """
        src_node, dst_node = self.node_of(src_rank), self.node_of(dst_rank)
        if src_rank == dst_rank:
            return Route(0.0, ())
        if src_node == dst_node:
            return self._route_within_node(src_rank, dst_rank)
        assert self.inter is not None
        return Route(
            self.inter.latency_s,
            (
                *self._bridge(src_node),
                self._nic(src_rank, "out"),
                *self.network_hops(self._place(src_rank), self._place(dst_rank)),
                self._nic(dst_rank, "in"),
                *self._bridge(dst_node),
            ),
        )

    def network_hops(self, src: Nic, dst: Nic) -> tuple[Hop, ...]:
        """Return the hops of a message from a NIC to one of another node, without the NICs themselves."""
        return self._network.hops(src, dst, self._nics)

    @property
    def has_full_network(self) -> bool:
        """Whether nodes share nothing between their NICs that limits them."""
        return self.inter is None or self._network.is_full

    @property
    def transfers(self) -> tuple[str, ...]:
        """The transfers, from `TRANSFERS`, for which this cluster has the hardware."""
        has = {"to host": self.host, "to device": self.host, "read": self.shared_storage, "write": self.shared_storage}
        has |= {"read local": self.local_storage, "write local": self.local_storage}
        return tuple(transfer for transfer in TRANSFERS if has[transfer] is not None)

    def missing_transfers(self) -> dict[str, str]:
        """Map each transfer that the cluster cannot carry out to the reason."""
        missing: dict[str, str] = {}
        for transfer in TRANSFERS:
            try:
                self.transfer_route(0, transfer)
            except ValueError as error:
                missing[transfer] = str(error)
        return missing

    def transfer_route(self, rank: int, transfer: str) -> Route:
        """Return the latency in seconds and the hops of a rank's transfer, one of `TRANSFERS`.

        Raises:
            ValueError: the cluster has no such rank, or lacks the hardware for the transfer.
        """
        need_one_of("a transfer", transfer, TRANSFERS)
        node = self.node_of(rank)
        if transfer in COPIES:
            if self.host is None:
                raise ValueError(f"{self.name} has no host; give host=, a Host such as hardware.HOST_DDR5")
            return Route(self.host.link.latency_s, (*self._copy_hops(rank, transfer), _memory(node)))
        direction, is_local = transfer.split()[0], transfer.endswith("local")
        storage = self.local_storage if is_local else self.shared_storage
        if storage is None:
            field, example = ("local_storage", "NVME_8") if is_local else ("shared_storage", "LUSTRE")
            what = field.replace("_", " ")
            raise ValueError(f"{self.name} has no {what}; give {field}=, a StorageSystem such as hardware.{example}")
        hops = [_memory(node)] if self.host else []
        if storage.is_on_nics:
            hops += [*self._bridge(node), self._nic(rank, "in" if direction == "read" else "out")]
        place = "local" if is_local else "shared"
        hops += [Hop(f"{place} {direction}", f"node{node} {place} {direction}")]
        hops += [] if is_local else [Hop(f"all {direction}", f"all shared {direction}")]
        return Route(storage.latency_s, tuple(hops))

    def _copy_hops(self, rank: int, transfer: str) -> list[Hop]:
        """Return the hops of a copy between a GPU and its host; on PCIe, copies and messages share the GPU's port."""
        assert self.host is not None
        node, gpus = self.node_of(rank), self.host.gpus_per_uplink
        hops = [_gpu(rank, "out" if transfer == "to host" else "in")] if self.intra.kind == "pcie" else []
        hops += [Hop("host link", f"gpu{rank} {transfer}"), *self._bridge(node)]
        if gpus > 1:
            hops += [Hop("uplink", f"node{node} uplink{rank % self.gpus_per_node // gpus} {transfer}")]
        return hops

    def busiest_of_all_pairs(self, ranks: Sequence[int]) -> list[tuple[Hop, int]]:
        """Find, for each capacity, the hop with the most messages when every rank sends to every other; count them.

        The result is that of counting the hops of every `route`, in time linear rather than quadratic in the ranks.
        """
        on_node: dict[int, list[int]] = {}
        for rank in ranks:
            on_node.setdefault(self.node_of(rank), []).append(self._index(rank))
        loads: Counter[Hop] = Counter()
        # nodes whose ranks are on the same GPUs have the same loads, so one of them suffices
        for gpus, node in {tuple(gpus): node for node, gpus in on_node.items()}.items():
            loads += self._all_pairs_of_node(node, gpus, len(ranks) - len(gpus))
        if len(on_node) > 1:
            places = [(node, self._nic_of_gpu(gpu)) for node, gpus in on_node.items() for gpu in gpus]
            loads.update(dict(self._network.busiest_of_all_pairs(places, self._nics)))
        most: dict[tuple[str, float], tuple[Hop, int]] = {}
        for hop, load in loads.items():
            # links may be multiple; the other hops of a kind are identical
            alike = hop.kind, self.capacity_bytes_per_s(hop) if hop.kind == "link" else 0.0
            if load > most.get(alike, (hop, 0))[1]:
                most[alike] = hop, load
        return list(most.values())

    def _all_pairs_of_node(self, node: int, gpus: tuple[int, ...], beyond: int) -> Counter[Hop]:
        """Count messages on a node's hops if each of these GPUs sends to each other and to `beyond` on other nodes."""
        loads: Counter[Hop] = Counter()
        first, mesh = node * self.gpus_per_node, self.mesh
        through_ports = dict.fromkeys(gpus, len(gpus) - 1)
        if mesh is not None:
            for src, dst in permutations(gpus, 2):
                arcs = mesh.path(src, dst)
                loads.update(_link(first + i, first + j) for i, j in arcs)
                through_ports[src] -= bool(arcs)
        for src in gpus:
            loads[_gpu(first + src, "out")] += through_ports[src]
            loads[self._nic(first + src, "out")] += beyond
            for bridge in self._bridge(node):
                loads[bridge] += through_ports[src] + 2 * beyond
        return loads

    def hop(self, name: str) -> Hop:
        """Return the hop of this name.

        Raises:
            ValueError: the cluster has no such hop.
        """
        found = self._network.hop(name, self._nics) if self.inter is not None else None
        at_ranks = (hop for rank in range(self.world_size) for hop in self._hops_at(rank))
        found = found or next((hop for hop in at_ranks if hop.name == name), None)
        if found is None:
            raise ValueError(
                f"{self.name} has no hop {name!r}; take the names from route(src_rank, dst_rank).hops or "
                "transfer_route(rank, transfer).hops"
            )
        return found

    def capacity_bytes_per_s(self, hop: Hop) -> float:
        """Return the capacity that messages and transfers on a hop share, in bytes per second.

        Raises:
            ValueError: the cluster has no hop of this kind.
        """
        if hop.kind == "gpu":
            return self.intra.bandwidth_bytes_per_s
        if hop.kind == "bridge" and self.bridge_bytes_per_s is not None:
            return self.bridge_bytes_per_s
        if hop.kind == "link" and self.mesh is not None:
            src, dst = (int(gpu) % self.gpus_per_node for gpu in re.findall(r"\d+", hop.name))
            return self.mesh.num_links[src][dst] * self.mesh.link.bandwidth_bytes_per_s
        if hop.kind == "nic" and self.inter is not None:
            return self.inter.bandwidth_bytes_per_s
        if self.inter is not None and (capacity := self._network.capacity_bytes_per_s(hop, self._nics)):
            return capacity
        if self.host is not None and hop.kind in ("host link", "uplink"):
            return self.host.link.bandwidth_bytes_per_s
        if self.host is not None and hop.kind == "memory":
            return self.host.memory_bandwidth_bytes_per_s
        if hop.kind in (rates := self._storage_rates()):
            return rates[hop.kind]
        raise ValueError(f"{self.name} has no {hop.kind}, so it has no hop {hop.name!r}")

    def links_among(self, ranks: Sequence[int]) -> set[Hop]:
        """Return the links of the mesh, in both directions, between two of these ranks."""
        if self.mesh is None:
            return set()
        on_node: dict[int, list[int]] = {}
        for rank in ranks:
            on_node.setdefault(self.node_of(rank), []).append(rank)
        pairs = [(i, j) for local in on_node.values() for i in local for j in local]
        return {_link(i, j) for i, j in pairs if self.mesh.num_links[self._index(i)][self._index(j)]}

    @cached_property
    def _network(self) -> Network:
        leaves = Level("leaf", self.nodes_per_leaf, self.oversubscription)
        return self.network or FatTree((leaves,), self.is_rail)

    @cached_property
    def _nics(self) -> Nics:
        assert self.inter is not None
        return Nics(self.num_nodes, self.nics_per_node, self.inter.bandwidth_bytes_per_s)

    def _place(self, rank: int) -> Nic:
        return self.node_of(rank), self.nic_of(rank)

    def _nic_of_gpu(self, gpu: int) -> int:
        return gpu * self.nics_per_node // self.gpus_per_node

    def _index(self, rank: int) -> int:
        """Return the GPU's number within its node."""
        return rank % self.gpus_per_node

    def _route_within_node(self, src_rank: int, dst_rank: int) -> Route:
        arcs = self.mesh.path(self._index(src_rank), self._index(dst_rank)) if self.mesh else ()
        if self.mesh and arcs:
            # over an intermediate GPU it is still one step: that GPU holds the buffer (NCCL 2.28.3, 2025,
            # transport/p2p.cc)
            first = src_rank - self._index(src_rank)
            return Route(self.mesh.link.latency_s, tuple(_link(first + i, first + j) for i, j in arcs))
        hops = (_gpu(src_rank, "out"), *self._bridge(self.node_of(src_rank)), _gpu(dst_rank, "in"))
        return Route(self.intra.latency_s, hops)

    def _storage_rates(self) -> dict[str, float]:
        """The capacity of each kind of storage hop, in bytes per second."""
        rates: dict[str, float] = {}
        if (local := self.local_storage) is not None:
            rates |= {"local read": local.read_bytes_per_s, "local write": local.write_bytes_per_s}
        if (shared := self.shared_storage) is not None:
            assert shared.total_read_bytes_per_s is not None and shared.total_write_bytes_per_s is not None
            rates |= {"shared read": shared.read_bytes_per_s, "shared write": shared.write_bytes_per_s}
            rates |= {"all read": shared.total_read_bytes_per_s, "all write": shared.total_write_bytes_per_s}
        return rates

    def _hops_at(self, rank: int) -> list[Hop]:
        """Return every hop on its node that a message or transfer from or to this rank may use."""
        hops = [_gpu(rank, "out"), _gpu(rank, "in"), *self._bridge(self.node_of(rank))]
        if self.mesh is not None:
            first = rank - self._index(rank)
            hops += self.links_among(range(first, first + self.gpus_per_node))
        if self.inter is not None:
            hops += [self._nic(rank, "out"), self._nic(rank, "in")]
        for transfer in self.transfers:
            hops += self.transfer_route(rank, transfer).hops
        return hops

    def _nic(self, rank: int, direction: str) -> Hop:
        return Hop("nic", f"node{self.node_of(rank)} nic{self.nic_of(rank)} {direction}")

    def _bridge(self, node: int) -> tuple[Hop, ...]:
        return () if self.is_switched else (Hop("bridge", f"node{node} bridge"),)


def _gpu(rank: int, direction: str) -> Hop:
    return Hop("gpu", f"gpu{rank} {direction}")


def _link(src_rank: int, dst_rank: int) -> Hop:
    return Hop("link", f"gpu{src_rank} to gpu{dst_rank}")


def _memory(node: int) -> Hop:
    return Hop("memory", f"node{node} memory")
