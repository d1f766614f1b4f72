"""Which rank holds what: a mesh of ranks, its groups along one axis, and the nodes that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch, Rectangle

from worldsize.draw._annotations import white_box
from worldsize.draw._mesh_layout import DeviceMesh, RankMesh, mesh_of, rectangles
from worldsize.draw.picture import Picture, finish
from worldsize.palette import INK, PART_STYLES

_WIDTH_IN = 9.0
_MARGIN_IN = 0.9  # on the left, for the names of axes
_MOST_LISTED = 8  # groups, or ranks with contents, that the alt text lists one by one
_SMALLEST = 4.5  # points; a rank's number smaller than this is left out


@dataclass(frozen=True)
class _MeshLayout:
    """The start of each column and row, in cells, and the size of a cell."""

    x: list[float]
    y: list[float]
    width_in: float
    height_in: float

    def level_up(self, level: int) -> float:
        """Return how many cells above the first row the names of the axis at this level are."""
        return 0.08 + 0.2 / self.height_in * level


def mesh(
    axes: Mapping[str, int] | DeviceMesh,
    groups: str = "",
    ranks_per_node: int = 0,
    contents: Mapping[int, str] | None = None,
    title: str = "",
) -> Picture:
    """Draw one cell per rank of a device mesh, with the groups along one axis in colours and hatches, and nodes framed.

    `axes` gives the size of each axis by name, outermost first, as in `{"dp": 2, "pp": 2, "tp": 4}`; ranks count along
    the last one first, as in torch's `init_device_mesh`. A DeviceMesh shows its own ranks. `groups` is the axis whose
    groups are coloured, by default the last; rank r is on node r // `ranks_per_node`; `contents` is text by rank. More
    than 36 groups share colours and hatches.

    Raises:
        ValueError: there are no ranks or more than 1024, or the axis is unknown.
    """
    shape = mesh_of(axes)
    axis = groups or list(shape.sizes)[-1]
    if axis not in shape.sizes:
        raise ValueError(f"The mesh has no axis {axis!r}: choose one of {', '.join(shape.sizes)}.")
    in_groups, nodes = shape.groups(axis), shape.nodes(ranks_per_node)
    layout, texts = _layout(shape, contents or {}, has_nodes=bool(nodes))
    num_levels = (len(shape.sizes) + 1) // 2 if len(shape.sizes) > 1 else 0
    top, bottom = -0.04 - layout.level_up(num_levels), layout.y[-1] + 1.1

    picture = Picture(_WIDTH_IN, 0.5 + layout.height_in * (bottom - top))
    panel = picture.subplots()
    _draw_cells(panel, shape, in_groups, layout, texts)
    _draw_nodes(panel, shape, nodes, layout)
    _name_places(panel, shape, layout)
    left = -_MARGIN_IN / layout.width_in
    panel.set(xlim=(left, left + (_WIDTH_IN - 0.2) / layout.width_in), ylim=(bottom, top), xticks=[], yticks=[])
    summary = _count(in_groups, axis) + _crossing(in_groups, ranks_per_node, len(nodes))
    finish(panel, f"{title}: {summary}" if title else summary, frame=())
    picture.alt = (
        f"{title or 'Device mesh'}: {_describe(shape, nodes, ranks_per_node)}. {summary}: {_listed(in_groups)}."
    )
    if contents:
        held = [f"rank {rank} holds {text}" for rank, text in contents.items()]
        more = [f"and {len(held) - _MOST_LISTED} more"] if len(held) > _MOST_LISTED else []
        picture.alt += f" {'; '.join([*held[:_MOST_LISTED], *more])}."
    return picture


def _layout(shape: RankMesh, contents: Mapping[int, str], has_nodes: bool) -> tuple[_MeshLayout, dict[int, str]]:
    """Size the cells as their text needs and the width allows, and break the text in them into lines."""
    x, y = shape.edges(0), shape.edges(1)
    width_in = min(2.2 if contents else 1.15, (_WIDTH_IN - 1.1) / (x[-1] + 1.05))
    texts = {rank: fill(text, max(4, round(14 * width_in))) for rank, text in contents.items()}
    num_lines = max((1 + text.count("\n") for text in texts.values()), default=0)
    return _MeshLayout(x, y, width_in, (0.56 if has_nodes else 0.5) + 0.14 * num_lines), texts


def _draw_cells(
    axes: Axes, shape: RankMesh, groups: Sequence[Sequence[int]], layout: _MeshLayout, texts: Mapping[int, str]
) -> None:
    places = shape.places
    size = min(10.0, 90 * layout.width_in / len(str(max(shape.ranks))))
    for number, ranks in enumerate(groups):
        for rank in ranks:
            x, y = layout.x[places[rank][0]], layout.y[places[rank][1]]
            _draw_cell(axes, x, y, number)
            if size >= _SMALLEST:
                _write_cell(axes, x + 0.5, y, rank, size, texts.get(rank, ""))


def _draw_cell(axes: Axes, x: float, y: float, group: int) -> None:
    # colours and hatches repeat after different numbers of groups, so 36 groups look different
    colour = PART_STYLES[group % len(PART_STYLES)][0]
    hatch = PART_STYLES[(group + group // len(PART_STYLES)) % len(PART_STYLES)][1]
    tint = tuple(0.45 + 0.55 * part for part in to_rgb(colour))
    cell = Rectangle((x + 0.07, y + 0.12), 0.86, 0.76, facecolor=tint, hatch=hatch, edgecolor="white", linewidth=0)
    axes.add_patch(cell)


def _write_cell(axes: Axes, x: float, y: float, rank: int, size: float, text: str) -> None:
    style = {"ha": "center", "va": "center", "color": INK, "bbox": white_box(0.12 * size, alpha=0.85)}
    axes.text(x, y + (0.3 if text else 0.5), f"{rank}", fontsize=size, fontweight="bold", **style)
    if text:
        axes.text(x, y + 0.64, text, fontsize=7.5, **style)


def _draw_nodes(axes: Axes, shape: RankMesh, nodes: Mapping[int, Sequence[int]], layout: _MeshLayout) -> None:
    """Draw a frame around each node's cells, or around each part where they are not adjacent."""
    places = shape.places
    style = {"fontsize": 7.5, "color": INK, "ha": "left", "va": "center", "bbox": white_box(0.8), "zorder": 4}
    for node, ranks in nodes.items():
        for first, last in rectangles([places[rank] for rank in ranks]):
            left, top = layout.x[first[0]] + 0.025, layout.y[first[1]] + 0.04
            right, bottom = layout.x[last[0]] + 0.975, layout.y[last[1]] + 0.96
            frame = FancyBboxPatch(
                (left, top),
                right - left,
                bottom - top,
                boxstyle=f"round,pad=0,rounding_size={0.07 / layout.width_in:.3f}",
                mutation_aspect=layout.width_in / layout.height_in,
                facecolor="none",
                edgecolor=INK,
                linewidth=1.6,
                zorder=3,
            )
            axes.add_patch(frame)
            axes.text(left + 0.095, top, f"node {node}", **style)


def _name_places(panel: Axes, shape: RankMesh, layout: _MeshLayout) -> None:
    """Name the axes that run across along the top and those that run down on the left, inner ones nearer."""
    if len(shape.sizes) == 1:
        panel.text(-0.1, 0.5, next(iter(shape.sizes)), ha="right", va="center", fontsize=9, color=INK)
        return
    spans = [1, 1]
    for depth, (name, size) in enumerate(reversed(shape.sizes.items())):
        side, level = depth % 2, depth // 2
        edges, span = (layout.x, layout.y)[side], spans[side]
        is_narrow = side == 0 and span * layout.width_in < 0.4
        for start in range(0, len(edges), span):
            middle = (edges[start] + edges[start + span - 1] + 1) / 2
            position = {"x": middle, "y": -layout.level_up(level), "ha": "center", "va": "bottom"}
            if side == 1:
                position = {"x": (-0.08 - 0.42 * level) / layout.width_in, "y": middle, "ha": "right", "va": "center"}
            number = start // span % size
            text = f"{number}" if is_narrow and number else f"{name} {number}"
            panel.text(s=text, fontsize=9, color=INK, fontweight="bold" if level else "normal", **position)
        spans[side] *= size


def _count(groups: Sequence[Sequence[int]], axis: str) -> str:
    return f"{len(groups)} {axis} group{'s' if len(groups) > 1 else ''} of {len(groups[0])}"


def _crossing(groups: Sequence[Sequence[int]], ranks_per_node: int, num_nodes: int) -> str:
    """Say whether the groups stay within nodes; empty if there is only one node."""
    if num_nodes < 2 or len(groups[0]) == 1:
        return ""
    widths = {len({rank // ranks_per_node for rank in ranks}) for ranks in groups}
    if widths == {1}:
        return ", each inside one node"
    return f", {'each ' if len(groups) > 1 else ''}across {'up to ' if len(widths) > 1 else ''}{max(widths)} nodes"


def _describe(shape: RankMesh, nodes: Mapping[int, Sequence[int]], ranks_per_node: int) -> str:
    axes = " × ".join(f"{name} {size}" for name, size in shape.sizes.items())
    on = f" on {len(nodes)} node{'s' if len(nodes) > 1 else ''} of {ranks_per_node}" if nodes else ""
    return f"{axes}, {len(shape.ranks)} rank{'s' if len(shape.ranks) > 1 else ''}{on}"


def _listed(groups: Sequence[Sequence[int]]) -> str:
    shown = "; ".join(_ranks(ranks) for ranks in groups[:_MOST_LISTED])
    return shown + (f"; and {len(groups) - _MOST_LISTED} more" if len(groups) > _MOST_LISTED else "")


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    shown = ranks if len(ranks) <= 8 else [*ranks[:3], "…", ranks[-1]]
    return ", ".join(map(str, shown))
