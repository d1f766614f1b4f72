"""The path of a byte between two parts of a described cluster: its hops, their rates and positions in a picture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from worldsize.draw._node_layout import NodeLayout, Point
from worldsize.hardware import Cluster, Hop

_STORES = {"storage": "shared", "drives": "local"}  # end of a path -> part of the picture

_BESIDE_IN = 0.2


@dataclass(frozen=True)
class PathEnd:
    """An end of a path: a GPU, which may be on another node, or the host or a store of node 0."""

    name: str
    gpu: int = 0
    node: int = 0

    @property
    def is_gpu(self) -> bool:
        return self.name.endswith(f"gpu{self.gpu}")


@dataclass
class Leg:
    """A part of a path, the hops that it represents, and the position of their number if not on the path itself."""

    points: list[Point]
    hops: list[Hop] = field(default_factory=list)
    beside: Point | None = None


@dataclass
class Way:
    """A path: its legs in order, the time before its first byte, and the other end if it leaves the node."""

    cluster: Cluster
    legs: list[Leg]
    latency_s: float
    peer: PathEnd | None = None

    @cached_property
    def rates(self) -> list[tuple[Hop, float]]:
        """Every hop in the order of the path, with its rate in bytes per second."""
        hops = dict.fromkeys(hop for leg in self.legs for hop in leg.hops)
        return [(hop, self.cluster.capacity_bytes_per_s(hop)) for hop in hops]

    @property
    def slowest(self) -> list[str]:
        """The names of the slowest hops."""
        least = min(rate for _, rate in self.rates)
        return [hop.name for hop, rate in self.rates if rate == least]


def way(layout: NodeLayout, path: Sequence[str], peer_x: float) -> Way:
    """Find the path between two ends, such as ("gpu0", "gpu5"), ("gpu0", "node1.gpu0"), ("storage", "gpu3").

    Raises:
        ValueError: the cluster has no such ends, or no path connects them.
    """
    cluster = layout.cluster
    ends = [_end(name, cluster) for name in path]
    if len(ends) != 2 or ends[0] == ends[1]:
        raise ValueError(f'path is {tuple(path)}; give its two ends, as in ("gpu0", "gpu5").')
    if not any(end.is_gpu and end.node == 0 for end in ends):
        raise ValueError(f"path is {tuple(path)}; one of its ends must be a GPU of node 0.")
    src, dst = ends
    if not (src.is_gpu and dst.is_gpu):
        is_out = src.is_gpu
        return _way_to_host(layout, *((src, dst) if is_out else (dst, src)), is_out)
    ranks = [end.node * cluster.gpus_per_node + end.gpu for end in ends]
    route = cluster.route(*ranks)
    if src.node == dst.node:
        return Way(cluster, _within_node(layout, src.gpu, dst.gpu, route.hops), route.latency_s)
    is_back = src.node != 0
    home, peer = (dst, src) if is_back else (src, dst)
    hops = tuple(reversed(route.hops)) if is_back else route.hops
    legs = _to_peer(layout, home.gpu, hops, peer_x)
    return Way(cluster, _reversed(legs) if is_back else legs, route.latency_s, peer)


def _end(name: str, cluster: Cluster) -> PathEnd:
    if name in ("host", *_STORES):
        return PathEnd(name)
    if not (match := re.fullmatch(r"(?:node(\d+)\.)?gpu(\d+)", str(name))):
        raise ValueError(f'{name!r} is not an end of a path; give "gpu0", "node1.gpu0", "host", "storage" or "drives".')
    node, gpu = int(match[1] or 0), int(match[2])
    if node >= cluster.num_nodes or gpu >= cluster.gpus_per_node:
        raise ValueError(
            f"{cluster.name} has no {name}; it has {cluster.num_nodes} node{'s' * (cluster.num_nodes > 1)} of "
            f"{cluster.gpus_per_node} GPUs, counted from 0 in each node."
        )
    return PathEnd(name, gpu, node)


def _within_node(layout: NodeLayout, src: int, dst: int, hops: Sequence[Hop]) -> list[Leg]:
    if hops[0].kind == "link":
        ends = [[int(gpu) for gpu in re.findall(r"\d+", hop.name)] for hop in hops]
        return [Leg(list(layout.arc(*pair)), [hop]) for pair, hop in zip(ends, hops, strict=True)]
    up, down = _to_joint(layout, src, dst), _to_joint(layout, dst, src)
    out, *between, into = hops
    return [Leg(up, [out]), Leg([up[-1], down[-1]], between), Leg(down[::-1], [into])]


def _to_joint(layout: NodeLayout, gpu: int, other: int) -> list[Point]:
    """Route from a GPU to its connection to another: a switch, a bridge, or the PCIe switch or host above both."""
    parts = layout.parts
    names = [name for name in ("switch", "bridge", "pcie") if name in parts]
    uplink = layout.uplink_of(gpu)
    if not names and uplink and uplink == layout.uplink_of(other):
        names = [uplink]
    joint = parts[names[0] if names else "host"]
    start = (layout.gpu_x(gpu), parts["gpu0"].bottom)
    if not names and uplink:
        x = parts[uplink].x
        return [start, (start[0], parts[uplink].top), (x, parts[uplink].top), (x, joint.top)]
    return [start, (start[0], joint.top)]


def _to_peer(layout: NodeLayout, gpu: int, hops: Sequence[Hop], peer_x: float) -> list[Leg]:
    """Route from a GPU over a NIC and the network to a NIC and a GPU of another node, drawn at `peer_x`."""
    parts = layout.parts
    nic, network = layout.cluster.nic_of(gpu), parts["network"]
    own = parts[f"nic{nic}"]
    nics = [index for index, hop in enumerate(hops) if hop.kind == "nic"]
    before, through, after = hops[: nics[0]], hops[nics[0] + 1 : nics[1]], hops[nics[1] + 1 :]
    return [
        Leg(_to_nic(layout, gpu, nic), list(before)),
        Leg([(own.x, own.top), (own.x, network.bottom)], [hops[nics[0]]]),
        Leg([(own.x, network.bottom), (peer_x, network.bottom)], list(through)),
        Leg([(peer_x, network.bottom), (peer_x, own.top)], [hops[nics[1]]]),
        Leg([(peer_x, own.bottom), (peer_x, parts["gpu0"].top)], list(after)),
    ]


def _to_nic(layout: NodeLayout, gpu: int, nic: int) -> list[Point]:
    part, own = layout.parts[f"nic{nic}"], layout.parts["gpu0"]
    x = layout.gpu_x(gpu)
    if "bridge" not in layout.parts:
        return [(x, own.top), (part.x, part.bottom)]
    return [(x, own.bottom), (x, layout.parts["bridge"].top), *reversed(layout.nic_to_bridge(nic))]


def _way_to_host(layout: NodeLayout, home: PathEnd, other: PathEnd, is_out: bool) -> Way:
    cluster = layout.cluster
    copy = cluster.transfer_route(home.gpu, "to host" if is_out else "to device")
    legs, latency_s = _copy_legs(layout, home.gpu, copy.hops), copy.latency_s
    if store := _STORES.get(other.name):
        transfer = ("write" if is_out else "read") + (" local" if store == "local" else "")
        file = cluster.transfer_route(home.gpu, transfer)
        legs += _file_legs(layout, home.gpu, store, [hop for hop in file.hops if hop.kind != "memory"])
        latency_s += file.latency_s
    return Way(cluster, legs if is_out else _reversed(legs), latency_s)


def _copy_legs(layout: NodeLayout, gpu: int, hops: Sequence[Hop]) -> list[Leg]:
    parts, x = layout.parts, layout.host_x(gpu)
    kinds = {hop.kind: hop for hop in hops}
    host, start = parts["host"], (x, parts["gpu0"].bottom)
    first = [kinds[kind] for kind in ("gpu", "host link") if kind in kinds]
    if "bridge" in parts:
        bridge = parts["bridge"]
        legs = [
            Leg([start, (x, bridge.top)], first),
            Leg([(x, bridge.top), (bridge.x, bridge.top)], [kinds["bridge"]]),
            Leg([(bridge.x, bridge.top), (host.x, host.top)]),
        ]
    elif uplink := layout.uplink_of(gpu):
        switch = parts[uplink]
        legs = [
            Leg([start, (x, switch.top)], first),
            Leg([(x, switch.top), (switch.x, switch.top), (switch.x, switch.bottom)]),
            Leg([(switch.x, switch.bottom), (switch.x, host.top)], [kinds["uplink"]]),
        ]
    else:
        legs = [Leg([start, (x, host.top)], first)]
    x, y = legs[-1].points[-1]
    return [*legs, Leg([(x, y)], [kinds["memory"]], beside=(x + _BESIDE_IN, y))]


def _file_legs(layout: NodeLayout, gpu: int, store: str, hops: Sequence[Hop]) -> list[Leg]:
    parts = layout.parts
    host, target = parts["host"], parts[store]
    last = [hop for hop in hops if hop.kind not in ("bridge", "nic")]
    if "network" in parts and target.y < parts["network"].y:  # which NICs carry
        nic = layout.cluster.nic_of(gpu)
        own, network, edge = parts[f"nic{nic}"], parts["network"], layout.left - 0.06
        turn = own.bottom + 0.09
        way = [(edge, host.top), (edge, turn), (own.x, turn), (own.x, own.bottom)]
        if "bridge" in parts:
            way = [(host.x, host.top), (host.x, parts["bridge"].top), *reversed(layout.nic_to_bridge(nic))]
        return [
            Leg(way, [hop for hop in hops if hop.kind == "bridge"]),
            Leg([(own.x, own.top), (own.x, network.bottom)], [hop for hop in hops if hop.kind == "nic"]),
            Leg([(own.x, network.bottom), (target.x, network.bottom)], last[:1]),
            Leg([(target.x, network.bottom), (target.x, network.top)]),
            Leg([(target.x, network.top), (target.x, target.bottom)], last[1:]),
        ]
    x = next(line.points[0][0] for line in layout.lines if line.kind == "storage" and line.points[1][1] == target.top)
    return [Leg([(x, host.top), (x, host.bottom)]), Leg([(x, host.bottom), (x, target.top)], last)]


def _reversed(legs: Iterable[Leg]) -> list[Leg]:
    return [Leg(leg.points[::-1], leg.hops[::-1], leg.beside) for leg in reversed(list(legs))]
