"""A node of a described cluster: its GPUs and their interconnect, NICs, host and storage, and the path of a byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch, Rectangle

from worldsize import hardware, units
from worldsize.draw._node_layout import (
    FRAME_IN,
    MOST_GPUS,
    WIDTH_IN,
    NodeLayout,
    NodePart,
    layout_of,
    network_name,
    rate,
    store_name,
)
from worldsize.draw._node_path import Way, way
from worldsize.draw._outlined_text import width_in
from worldsize.draw.picture import Picture
from worldsize.hardware import Cluster
from worldsize.palette import BLUE, GREY, INK, VERMILLION

_TOP_IN, _BELOW_IN = 0.46, 0.12  # for the title; under everything
_PEER_X = WIDTH_IN - 0.1 - 0.5
_LISTED_IN, _PER_LINE, _HOP_SIZE = 0.24, 3, 9  # hops of a path under the picture: their lines, and the size of text
_FILLS = {  # light enough for text, in both themes
    "gpu": "#BFDDF0",
    "nic": "#F8DFA6",
    "switch": "#B5E3D3",
    "network": "#FBEFCB",
    "bridge": "#F3CDB3",
    "pcie": "#E4E4E4",
    "uplink": "#E4E4E4",
    "host": "#E9D3E0",
    "local": "#F4F4F4",
    "shared": "#F4F4F4",
}
_LINES = {"gpus": "#009E73", "network": "#B87F00", "pcie": GREY, "storage": GREY}
_BADGE_IN = 0.085


def node(cluster: str | Cluster, path: Sequence[str] | None = None, title: str = "") -> Picture:
    """Draw a node of a described cluster, with the rate of every link in one direction, and a byte's path, hop by hop.

    `path` is the two ends of that path: a GPU of node 0, and another, as "gpu5"; one of another node, as "node1.gpu0";
    "host"; "storage", which all nodes share; or "drives", the node's own. The hops are those that `Cluster.route` and
    `Cluster.transfer_route` price.

    Raises:
        ValueError: the cluster is unknown, has more GPUs in a node than can be drawn, or lacks such a path.
    """
    described = hardware.cluster(cluster) if isinstance(cluster, str) else cluster
    if described.gpus_per_node > MOST_GPUS:
        raise ValueError(f"{described.name} has {described.gpus_per_node} GPUs a node; {MOST_GPUS} can be drawn.")
    layout = layout_of(described)
    taken = way(layout, path, _PEER_X) if path is not None else None
    listed = _listed(taken) if taken else []
    height = _TOP_IN + layout.height + _BELOW_IN + (0.14 + _LISTED_IN * len(listed) if taken else 0.0)

    picture = Picture(WIDTH_IN, height, layout=None)
    axes = picture.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH_IN), ylim=(height - _TOP_IN, -_TOP_IN), xticks=[], yticks=[])
    axes.axis("off")
    heading = title or _heading(described, taken, path)
    axes.text(0.1, -_TOP_IN + 0.2, heading, fontsize=11, fontweight="bold", color=INK, va="center")
    _draw_links(axes, layout, is_faint=taken is not None)
    _draw_frames(axes, layout, taken)
    for part in layout.parts.values():
        _draw_part(axes, part)
    for row in layout.rows:
        style = {"fontsize": 9 if row.is_parts else 8, "color": INK, "va": "center", "linespacing": 1.1}
        axes.text(0.1, row.y, row.text, fontweight="bold" if row.is_parts else "normal", **style)
    if taken:
        _draw_way(axes, taken)
        _list_hops(axes, listed, layout.height + 0.26)
    picture.alt = _describe(layout, heading) + (_describe_way(taken) if taken else "")
    return picture


def _heading(cluster: Cluster, taken: Way | None, path: Sequence[str] | None) -> str:
    if taken is None or path is None:
        return f"A node of {cluster.name}, rates in one direction, published"
    least = min(rate for _, rate in taken.rates)
    return f"From {path[0]} to {path[1]} on {cluster.name}: {rate(least)}, computed from published rates"


def _draw_frames(axes: Axes, layout: NodeLayout, taken: Way | None) -> None:
    """Draw the frame of the node and, if there are others, of one more node next to it."""
    cluster = layout.cluster
    network = layout.parts.get("network")
    bottom = max(part.bottom for name, part in layout.parts.items() if name != "shared") + FRAME_IN
    top = network.bottom + 0.16 if network else min(part.top for part in layout.parts.values()) - 0.1
    if cluster.mesh and not network:
        top = -0.02
    style = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": "none", "edgecolor": INK, "linewidth": 1.2}
    edge = layout.left - 0.11
    axes.add_patch(FancyBboxPatch((edge, top), layout.right + 0.07 - edge, bottom - top, zorder=0.5, **style))
    if cluster.num_nodes > 1:
        left, width = _PEER_X - 0.42, 0.9
        axes.add_patch(FancyBboxPatch((left, top), width, bottom - top, zorder=0.5, linestyle="--", **style))
        _draw_peer(axes, layout, taken, bottom)


def _draw_peer(axes: Axes, layout: NodeLayout, taken: Way | None, bottom: float) -> None:
    """Draw what a path reaches on another node, or name the others."""
    network, nic, gpu = (layout.parts[name] for name in ("network", "nic0", "gpu0"))
    last = layout.cluster.num_nodes - 1
    name = "node 1" if last == 1 else f"nodes 1\nto {last}"
    if taken and taken.peer:
        name = f"node {taken.peer.node}"
        index = layout.cluster.nic_of(taken.peer.gpu)
        _draw_part(axes, nic._replace(x=_PEER_X, width=0.52, text=f"nic{index}"))
        _draw_part(axes, gpu._replace(x=_PEER_X, width=0.62, text=f"gpu{taken.peer.gpu}"))
        lines = [(network.bottom, nic.top), (nic.bottom, gpu.top)]
    else:
        lines = [(network.bottom, network.bottom + 0.16)]
    for start, end in lines:
        axes.plot([_PEER_X, _PEER_X], [start, end], color=_LINES["network"], linewidth=1.4, zorder=1)
    style = {"ha": "center", "va": "center", "fontsize": 8.5, "color": INK}
    axes.text(_PEER_X, (gpu.bottom + bottom) / 2, f"{name},\nlike node 0", linespacing=1.2, **style)


def _draw_links(axes: Axes, layout: NodeLayout, is_faint: bool) -> None:
    for line in layout.lines:
        xs, ys = zip(*line.points, strict=True)
        width = {"gpus": 1.4 + 1.0 * (line.num_links - 1) if line.num_links < 4 else 3.4}.get(line.kind, 1.2)
        axes.plot(xs, ys, color=_LINES[line.kind], linewidth=width, alpha=0.45 if is_faint else 1, zorder=1)
    if "switch" in layout.parts and layout.cluster.host:
        for gpu in range(layout.cluster.gpus_per_node):
            _draw_passing(axes, layout.parts["switch"], layout.host_x(gpu), is_faint)


def _draw_passing(axes: Axes, bar: NodePart, x: float, is_faint: bool) -> None:
    """Draw a link that passes a part through a gap in it."""
    axes.add_patch(Rectangle((x - 0.05, bar.top - 0.02), 0.1, bar.height + 0.04, color="white", zorder=2.5))
    ends, alpha = [bar.top - 0.03, bar.bottom + 0.03], 0.45 if is_faint else 1
    axes.plot([x, x], ends, color=GREY, linewidth=1.2, alpha=alpha, zorder=2.6)


def _draw_part(axes: Axes, part: NodePart) -> None:
    size = 8.5
    while size > 5.5 and max(width_in(line, size) for line in part.text.split("\n")) > part.width - 0.06:
        size -= 0.5
    box = Rectangle(
        (part.x - part.width / 2, part.top),
        part.width,
        part.height,
        facecolor=_FILLS[part.kind],
        edgecolor=GREY,
        linewidth=0.8,
        zorder=2,
    )
    axes.add_patch(box)
    behind = {"facecolor": _FILLS[part.kind], "linewidth": 0, "pad": 1}  # a path passes behind the text
    axes.text(
        part.x,
        part.y,
        part.text,
        ha="center",
        va="center",
        fontsize=size,
        color=INK,
        zorder=4,
        linespacing=1.15,
        bbox=behind,
    )


def _draw_way(axes: Axes, taken: Way) -> None:
    numbers = {hop: number for number, (hop, _) in enumerate(taken.rates, start=1)}
    points = [point for leg in taken.legs for point in leg.points]
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, color=BLUE, linewidth=3.2, solid_joinstyle="round", zorder=3.5)
    _draw_head(axes, points)
    for leg in taken.legs:
        places = [leg.beside] if leg.beside else _spaced(leg.points, len(leg.hops))
        for (x, y), hop in zip(places, leg.hops, strict=True):
            _draw_badge(axes, x, y, numbers[hop], hop.name in taken.slowest)


def _draw_head(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Draw the arrow's head at the end of a path."""
    end = points[-1]
    before = next((point for point in reversed(points) if math.dist(point, end) > 0.02), end)
    arrow = {"arrowstyle": "-|>", "color": BLUE, "linewidth": 3.2, "mutation_scale": 13, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, before, arrowprops=arrow, zorder=3.6)


def _spaced(points: Sequence[tuple[float, float]], number: int) -> list[tuple[float, float]]:
    """Return points that divide a line evenly."""
    lengths = [math.dist(one, other) for one, other in pairwise(points)]
    spaced = []
    for index in range(1, number + 1):
        left = sum(lengths) * index / (number + 1)
        for (x0, y0), (x1, y1), length in [
            (*ends, length) for ends, length in zip(pairwise(points), lengths, strict=True)
        ]:
            if left <= length or (x1, y1) == tuple(points[-1]):
                part = min(1.0, left / length) if length else 0.0
                spaced.append((x0 + part * (x1 - x0), y0 + part * (y1 - y0)))
                break
            left -= length
    return spaced


def _draw_badge(axes: Axes, x: float, y: float, number: int, is_slowest: bool) -> None:
    colour = VERMILLION if is_slowest else BLUE
    axes.add_patch(Circle((x, y), _BADGE_IN, facecolor=colour, edgecolor="white", linewidth=1, zorder=5))
    style = {"ha": "center", "va": "center_baseline", "fontsize": 7.5, "fontweight": "bold", "color": "white"}
    axes.text(x, y, f"{number}", zorder=6, **style)


def _listed(taken: Way) -> list[list[tuple[int, str, bool]]]:
    """Arrange hops in lines: the number of each, its rate in words, and whether it is the slowest."""
    texts = []
    for number, (hop, bytes_per_s) in enumerate(taken.rates, start=1):
        is_slowest = hop.name in taken.slowest
        texts.append((number, f"{hop.name}: {rate(bytes_per_s)}{', slowest' if is_slowest else ''}", is_slowest))
    widest = max(width_in(text, _HOP_SIZE, "bold") for _, text, _ in texts)
    per_line = _PER_LINE if widest < WIDTH_IN / _PER_LINE - 0.55 else _PER_LINE - 1
    return [texts[start : start + per_line] for start in range(0, len(texts), per_line)]


def _list_hops(axes: Axes, listed: Sequence[Sequence[tuple[int, str, bool]]], y: float) -> None:
    """Write the hops with their rates in columns."""
    for line, hops in enumerate(listed):
        for column, (number, text, is_slowest) in enumerate(hops):
            x, at = 0.2 + (WIDTH_IN - 0.2) / len(listed[0]) * column, y + _LISTED_IN * line
            _draw_badge(axes, x, at, number, is_slowest)
            weight = "bold" if is_slowest else "normal"
            axes.text(x + 0.15, at, text, va="center", fontsize=_HOP_SIZE, color=INK, fontweight=weight)


def _describe(layout: NodeLayout, heading: str) -> str:
    cluster = layout.cluster
    gpu, mesh, host = cluster.gpu, cluster.mesh, cluster.host
    joined = f"on {cluster.intra.name}, {rate(cluster.intra.bandwidth_bytes_per_s)} each"
    if "switch" in layout.parts:
        joined = f"on an NVLink switch, {cluster.intra.name}, {rate(cluster.intra.bandwidth_bytes_per_s)} each"
    if cluster.bridge_bytes_per_s:
        joined += f", behind one host bridge of {rate(cluster.bridge_bytes_per_s)}"
    says = [f"{cluster.gpus_per_node} GPUs ({gpu.name}) {joined}"]
    if mesh:
        pairs = sum(map(bool, sum(mesh.num_links, ()))) // 2
        says.append(f"{pairs} pairs of GPUs joined by {mesh.link.name}, {rate(mesh.link.bandwidth_bytes_per_s)} a link")
    if host:
        shared = f", {host.gpus_per_uplink} GPUs on one uplink" if host.gpus_per_uplink > 1 else ""
        says.append(f"copies to the host {rate(host.link.bandwidth_bytes_per_s)} a GPU{shared}")
        says.append(f"host memory {rate(host.memory_bandwidth_bytes_per_s)}")
    if cluster.inter:
        nics = f"{cluster.nics_per_node} NIC{'s' * (cluster.nics_per_node > 1)} a node"
        says.append(f"{nics}, {cluster.inter.name}, {rate(cluster.inter.bandwidth_bytes_per_s)} each")
        says.append(f"{cluster.num_nodes} nodes on {network_name(cluster)}")
    stores = {"drives": cluster.local_storage, "shared storage": cluster.shared_storage}
    says += [f"{name} {store_name(store)}".replace(";\n", ", ") for name, store in stores.items() if store]
    return f"{heading}. {'; '.join(says)}."


def _describe_way(taken: Way) -> str:
    hops = ", ".join(f"{hop.name} {rate(bytes_per_s)}" for hop, bytes_per_s in taken.rates)
    slowest = " and ".join(taken.slowest)
    start = units.format_as("time_s", taken.latency_s)
    verb = "is" if len(taken.slowest) == 1 else "are"
    return f" A small message takes {start}; the hops carry: {hops}. The slowest {verb} {slowest}."
