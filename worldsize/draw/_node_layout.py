"""Positions of the parts of a node in a picture, and the links between them. Uses no drawing library.

Lengths are inches; y grows downwards. From the top: network, NICs, GPUs, their interconnect, PCIe switches, host,
storage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import combinations
from statistics import mean
from typing import NamedTuple

from worldsize import units
from worldsize.hardware import Cluster, Dragonfly, FatTree, StorageSystem

Point = tuple[float, float]

WIDTH_IN = 9.0
MOST_GPUS = 24
_LEFT_IN, _RIGHT_IN, _PEER_IN = 2.3, 0.1, 1.15  # room for the names of rows; the margin; room for the other nodes
_PART_IN, _BAR_IN, _TALL_IN, _GAP_IN, _ARCS_IN = 0.3, 0.36, 0.42, 0.44, 1.0
_PORT_IN = 0.56  # if the numbers of two hops need room
_FAN_IN = 0.55  # between a NIC and several GPUs
_NARROW_IN = 0.45  # a column with room for only a number
FRAME_IN = 0.1  # between the parts of a node and its edge
_TURN_IN = 0.12  # below a NIC, where its link to the bridge turns
_SLOT = 0.27  # of a column: how far left of a GPU's middle its link to the host runs
_STEP_IN = 0.24  # between the host and its storage


class NodePart(NamedTuple):
    """A box: its centre, its size and its text."""

    x: float
    y: float
    width: float
    height: float
    text: str
    kind: str

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2


class LinkLine(NamedTuple):
    """A link, or `num_links` of them, between two parts."""

    points: tuple[Point, ...]
    kind: str
    num_links: int = 1


class RowLabel(NamedTuple):
    """The label next to a row of parts or of links."""

    y: float
    text: str
    is_parts: bool


@dataclass
class NodeLayout:
    """All parts by name, all links, and the names of the rows."""

    cluster: Cluster
    parts: dict[str, NodePart] = field(default_factory=dict)
    lines: list[LinkLine] = field(default_factory=list)
    rows: list[RowLabel] = field(default_factory=list)
    height: float = 0.0

    @property
    def left(self) -> float:
        """The left edge of the columns of GPUs."""
        return _LEFT_IN

    @property
    def right(self) -> float:
        """The right edge of the columns of GPUs."""
        return WIDTH_IN - _RIGHT_IN - (_PEER_IN if self.cluster.num_nodes > 1 else 0.0)

    @property
    def column(self) -> float:
        """The width of a GPU's column."""
        return (self.right - self.left) / self.cluster.gpus_per_node

    def gpu_x(self, gpu: int) -> float:
        """Return the middle of a GPU's column."""
        return self.left + (gpu + 0.5) * self.column

    def host_x(self, gpu: int) -> float:
        """Return x of a GPU's link to its host, which runs next to the link to an NVLink switch if there is one."""
        return self.gpu_x(gpu) - (_SLOT * self.column if "switch" in self.parts else 0.0)

    def bridge_x(self, nic: int) -> float:
        """Return x of a NIC's link to the bridge, which runs between two GPUs."""
        gpus = self.gpus_of(nic)
        return mean(map(self.gpu_x, gpus)) + (self.column / 2 if len(gpus) % 2 else 0.0)

    def nic_to_bridge(self, nic: int) -> tuple[Point, ...]:
        """Return the points of a NIC's link to the bridge."""
        part, x = self.parts[f"nic{nic}"], self.bridge_x(nic)
        turn = part.bottom + _TURN_IN
        return (part.x, part.bottom), (part.x, turn), (x, turn), (x, self.parts["bridge"].top)

    def gpus_of(self, nic: int) -> list[int]:
        """List the GPUs that reach the network through a NIC."""
        return [gpu for gpu in range(self.cluster.gpus_per_node) if self.cluster.nic_of(gpu) == nic]

    def uplink_of(self, gpu: int) -> str:
        """Return the PCIe switch of a GPU; empty if none is described."""
        name = f"uplink{gpu // self.cluster.host.gpus_per_uplink}" if self.cluster.host else ""
        return name if name in self.parts else ""

    def arc(self, src: int, dst: int, num_points: int = 25) -> tuple[Point, ...]:
        """Return a mesh's link as half an ellipse above the GPUs, starting at its source."""
        x0, x1, top = self.gpu_x(src), self.gpu_x(dst), self.parts["gpu0"].top
        height = _ARCS_IN * (0.18 + 0.77 * abs(dst - src) / (self.cluster.gpus_per_node - 1))
        angles = [math.pi * step / (num_points - 1) for step in range(num_points)]
        return tuple(((x0 + x1) / 2 - (x1 - x0) / 2 * math.cos(a), top - height * math.sin(a)) for a in angles)

    def bar(self, name: str, y: float, text: str, height: float = _BAR_IN, right: float | None = None) -> NodePart:
        """Add a part that is as wide as the node."""
        end = self.right if right is None else right
        self.parts[name] = NodePart((self.left + end) / 2, y, end - self.left, height, text, name)
        return self.parts[name]


def layout_of(cluster: Cluster) -> NodeLayout:
    """Lay out everything in a cluster's description of a node and of what the node is connected to."""
    layout = NodeLayout(cluster)
    y = _add_network(layout, 0.0)
    y = _add_gpus(layout, y)
    y = _add_intra(layout, y)
    y = _add_host(layout, y)
    layout.height = _add_storage(layout, y)
    return layout


def rate(bytes_per_s: float) -> str:
    """Format a rate, such as `371 GB/s`."""
    return units.format_as("x_bytes_per_s", bytes_per_s)


def network_name(cluster: Cluster) -> str:
    """Name the network between the nodes."""
    network = cluster.network
    if isinstance(network, Dragonfly):
        return f"dragonfly: groups of {network.routers_per_group} routers, {network.nics_per_router} NICs on each"
    if isinstance(network, FatTree):
        levels = [f"{level.name} switches{_ratio(level.oversubscription)}" for level in network.levels]
        return f"fat tree: {', '.join(levels)}"
    rails = (
        "one for each NIC of a node" if cluster.is_rail and cluster.nics_per_node > 1 else "all NICs of a node on one"
    )
    return f"leaf switches, {rails}{_ratio(cluster.oversubscription)}"


def store_name(store: StorageSystem) -> str:
    """Name a store, with its rates."""
    text = f"{store.name}: reads {rate(store.read_bytes_per_s)}, writes {rate(store.write_bytes_per_s)}"
    if store.total_read_bytes_per_s and store.total_write_bytes_per_s:
        total = f"{rate(store.total_read_bytes_per_s)} and {rate(store.total_write_bytes_per_s)}"
        return f"{text} a node;\n{total} for all nodes together"
    return text


def _ratio(oversubscription: float) -> str:
    return f", {oversubscription:g}:1" if oversubscription != 1 else ""


def _add_network(layout: NodeLayout, y: float) -> float:
    cluster = layout.cluster
    if cluster.inter is None:
        return y
    end = WIDTH_IN - _RIGHT_IN
    store = cluster.shared_storage
    if store and store.is_on_nics:
        bar = layout.bar("shared", y + _TALL_IN / 2, store_name(store), _TALL_IN, end)
        layout.rows.append(RowLabel(bar.y, "shared storage", True))
        y = bar.bottom + _STEP_IN
        layout.lines.append(LinkLine(((bar.x, bar.bottom), (bar.x, y)), "network"))
    network = layout.bar("network", y + _BAR_IN / 2, network_name(cluster), right=end)
    layout.rows.append(RowLabel(network.y, f"network of {cluster.num_nodes} node{'s' * (cluster.num_nodes > 1)}", True))
    y = network.bottom + _GAP_IN
    layout.rows.append(
        RowLabel(
            network.bottom + _GAP_IN / 2,
            f"{cluster.inter.name}\n{rate(cluster.inter.bandwidth_bytes_per_s)} a NIC",
            False,
        )
    )
    for nic in range(cluster.nics_per_node):
        x = mean(map(layout.gpu_x, layout.gpus_of(nic)))
        text = f"nic{nic}" if layout.column > _NARROW_IN else f"{nic}"
        part = NodePart(x, y + _PART_IN / 2, 0.62 * layout.column, _PART_IN, text, "nic")
        layout.parts[f"nic{nic}"] = part
        layout.lines.append(LinkLine(((x, network.bottom), (x, part.top)), "network"))
    layout.rows.append(
        RowLabel(y + _PART_IN / 2, f"{cluster.nics_per_node} NIC{'s' * (cluster.nics_per_node > 1)}", True)
    )
    is_fan = cluster.is_switched and cluster.nics_per_node < cluster.gpus_per_node
    return y + _PART_IN + (_FAN_IN if is_fan else 0.26)


def _add_gpus(layout: NodeLayout, y: float) -> float:
    cluster, mesh = layout.cluster, layout.cluster.mesh
    if mesh:
        most = max(map(max, mesh.num_links))
        many = f", up to {most} a pair" if most > 1 else ""
        text = f"{mesh.link.name}{many}\n{rate(mesh.link.bandwidth_bytes_per_s)} a link"
        layout.rows.append(RowLabel(y + _ARCS_IN / 2, text, False))
        y += _ARCS_IN
    for gpu in range(cluster.gpus_per_node):
        text = f"gpu{gpu}" if layout.column > _NARROW_IN else f"{gpu}"
        layout.parts[f"gpu{gpu}"] = NodePart(
            layout.gpu_x(gpu), y + _PART_IN / 2, 0.76 * layout.column, _PART_IN, text, "gpu"
        )
    layout.rows.append(RowLabel(y + _PART_IN / 2, f"{cluster.gpus_per_node} × {cluster.gpu.name}", True))
    for i, j in combinations(range(cluster.gpus_per_node), 2) if mesh else ():
        if mesh and mesh.num_links[i][j]:
            layout.lines.append(LinkLine(layout.arc(i, j), "gpus", mesh.num_links[i][j]))
    if cluster.is_switched:
        for nic in range(cluster.nics_per_node if cluster.inter else 0):
            part = layout.parts[f"nic{nic}"]
            for one in layout.gpus_of(nic):
                layout.lines.append(LinkLine(((part.x, part.bottom), (layout.gpu_x(one), y)), "pcie"))
    return y + _PART_IN


def _add_intra(layout: NodeLayout, y: float) -> float:
    """Add the interconnect of the node's GPUs, unless it is their host."""
    cluster, intra = layout.cluster, layout.cluster.intra
    if intra.kind == "pcie" and cluster.is_switched and cluster.host:
        return y
    name, heading, text = "switch", "NVLink switch", ""
    if not cluster.is_switched:
        assert cluster.bridge_bytes_per_s is not None
        name, heading = "bridge", "host bridge"
        text = f"{rate(cluster.bridge_bytes_per_s)}, shared by all GPUs{' and NICs' if cluster.inter else ''}"
    elif intra.kind == "pcie":
        name, heading, text = "pcie", "PCIe", "where GPUs without a link between them meet"
    gap = _GAP_IN if intra.kind == "nvlink" else _PORT_IN
    layout.rows.append(RowLabel(y + gap / 2, f"{intra.name}\n{rate(intra.bandwidth_bytes_per_s)} a GPU", False))
    bar = layout.bar(name, y + gap + _BAR_IN / 2, text)
    layout.rows.append(RowLabel(bar.y, heading, True))
    kind = "gpus" if intra.kind == "nvlink" else "pcie"
    for gpu in range(cluster.gpus_per_node):
        layout.lines.append(LinkLine(((layout.gpu_x(gpu), y), (layout.gpu_x(gpu), bar.top)), kind))
    if name == "bridge" and cluster.inter:
        for nic in range(cluster.nics_per_node):
            layout.lines.append(LinkLine(layout.nic_to_bridge(nic), "pcie"))
    return bar.bottom


def _add_host(layout: NodeLayout, y: float) -> float:
    cluster, host = layout.cluster, layout.cluster.host
    if host is None:
        return y
    gap, copies = _GAP_IN, f"{host.link.name}\n{rate(host.link.bandwidth_bytes_per_s)} a GPU"
    if cluster.intra.kind == "pcie" and cluster.is_switched:
        messages = f"{cluster.intra.name}, {rate(cluster.intra.bandwidth_bytes_per_s)} a GPU"
        gap, copies = _PORT_IN, f"{messages}\n{rate(host.link.bandwidth_bytes_per_s)} for copies to the host"
    layout.rows.append(RowLabel(y + gap / 2, copies, False))
    start, y = y, y + gap
    if host.gpus_per_uplink > 1:
        _add_uplinks(layout, y)
        y += _PART_IN + _GAP_IN
    text = f"{host.name}: {units.format_as('x_bytes', host.memory_bytes)}, {rate(host.memory_bandwidth_bytes_per_s)}"
    bar = layout.bar("host", y + _BAR_IN / 2, text)
    layout.rows.append(RowLabel(bar.y, "host: CPUs and memory", True))
    if "bridge" in layout.parts:
        layout.lines.append(LinkLine(((bar.x, start), (bar.x, bar.top)), "pcie", 2))
        return bar.bottom
    for gpu in range(cluster.gpus_per_node):
        uplink = layout.uplink_of(gpu)
        end = layout.parts[uplink].top if uplink else bar.top
        begin = start if "pcie" in layout.parts else layout.parts["gpu0"].bottom
        layout.lines.append(LinkLine(((layout.host_x(gpu), begin), (layout.host_x(gpu), end)), "pcie"))
    for name in {layout.uplink_of(gpu) for gpu in range(cluster.gpus_per_node)} - {""}:
        part = layout.parts[name]
        layout.lines.append(LinkLine(((part.x, part.bottom), (part.x, bar.top)), "pcie"))
    return bar.bottom


def _add_uplinks(layout: NodeLayout, y: float) -> None:
    cluster, host = layout.cluster, layout.cluster.host
    assert host is not None
    for first in range(0, cluster.gpus_per_node, host.gpus_per_uplink):
        gpus = range(first, min(first + host.gpus_per_uplink, cluster.gpus_per_node))
        width = (len(gpus) - 0.3) * layout.column
        text = "PCIe switch" if width > 0.9 else "PCIe"
        name = f"uplink{first // host.gpus_per_uplink}"
        layout.parts[name] = NodePart(mean(map(layout.gpu_x, gpus)), y + _PART_IN / 2, width, _PART_IN, text, "uplink")
    layout.rows.append(RowLabel(y + _PART_IN / 2, "PCIe switches", True))
    shared = f"uplink: {rate(host.link.bandwidth_bytes_per_s)}\nfor {host.gpus_per_uplink} GPUs together"
    layout.rows.append(RowLabel(y + _PART_IN + _GAP_IN / 2, shared, False))


def _add_storage(layout: NodeLayout, y: float) -> float:
    cluster = layout.cluster
    for name, store, heading in (
        ("local", cluster.local_storage, "the node's drives"),
        ("shared", cluster.shared_storage, "shared storage"),
    ):
        if store is None or name in layout.parts:
            continue
        width = layout.right - layout.left
        is_local = name == "local"  # narrower, so that the link to the shared store passes beside it
        x, end = layout.left + (0.3 if is_local else 0.85) * width, layout.left + (0.7 if is_local else 1.0) * width
        text, height = store_name(store), _PART_IN if is_local else _TALL_IN
        y += _STEP_IN if is_local or "local" in layout.parts else _PORT_IN
        bar = layout.bar(name, y + height / 2, text, height, end)
        layout.rows.append(RowLabel(bar.y, heading, True))
        above = layout.parts.get("host")
        if above:
            layout.lines.append(LinkLine(((x, above.bottom), (x, bar.top)), "storage"))
        y = bar.bottom
    return y if y == layout.parts.get("shared", layout.parts["gpu0"]).bottom else y + FRAME_IN
