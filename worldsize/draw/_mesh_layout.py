"""The layout of a mesh, as pure data: the cells of ranks, groups along a mesh dimension, nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

MOST_RANKS = 1024
_GAP = 0.45  # between blocks, in cells
_WRAP = 16  # a mesh of one axis continues in the next row after this many ranks

Place = tuple[int, int]  # column and row of a cell, gaps not counted


class DeviceMesh(Protocol):
    """The part of torch's DeviceMesh that is used here."""

    mesh_dim_names: tuple[str, ...] | None

    @property
    def mesh(self) -> object: ...


@dataclass(frozen=True)
class RankMesh:
    """Axis sizes by name, and the ranks in row-major order: the last axis varies fastest."""

    sizes: dict[str, int]
    ranks: list[int]

    @property
    def coordinates(self) -> list[tuple[int, ...]]:
        """The coordinates of each rank on every axis, in the order of `ranks`."""
        return list(product(*(range(size) for size in self.sizes.values())))

    @property
    def places(self) -> dict[int, Place]:
        """The cell of every rank: axes alternate between running across and down; the last one runs across."""
        return {rank: self._place(where) for where, rank in zip(self.coordinates, self.ranks, strict=True)}

    def groups(self, axis: str) -> list[list[int]]:
        """The groups of ranks that differ only in their coordinate on this axis."""
        at = list(self.sizes).index(axis)
        groups: dict[tuple[int, ...], list[int]] = {}
        for where, rank in zip(self.coordinates, self.ranks, strict=True):
            groups.setdefault(where[:at] + where[at + 1 :], []).append(rank)
        return list(groups.values())

    def nodes(self, ranks_per_node: int) -> dict[int, list[int]]:
        """The ranks of each node; empty if `ranks_per_node` is 0."""
        nodes: dict[int, list[int]] = {}
        for rank in sorted(self.ranks) if ranks_per_node else []:
            nodes.setdefault(rank // ranks_per_node, []).append(rank)
        return nodes

    def edges(self, side: int) -> list[float]:
        """The start of each column (side 0) or row (side 1), in cells: blocks of the outer axes are set apart."""
        count = 1 + max(cell[side] for cell in self.places.values())
        sizes = list(reversed(self.sizes.values()))[side::2] if len(self.sizes) > 1 else []
        spans = [math.prod(sizes[:depth]) for depth in range(1, len(sizes))]
        return [index + _GAP * sum(index // span for span in spans) for index in range(count)]

    def _place(self, where: tuple[int, ...]) -> Place:
        if len(where) == 1:
            return where[0] % _WRAP, where[0] // _WRAP
        cell, spans = [0, 0], [1, 1]
        for depth, (at, size) in enumerate(zip(reversed(where), reversed(self.sizes.values()), strict=True)):
            cell[depth % 2] += at * spans[depth % 2]
            spans[depth % 2] *= size
        return cell[0], cell[1]


def mesh_of(axes: Mapping[str, int] | DeviceMesh) -> RankMesh:
    """Make the mesh of these axes, or of torch's DeviceMesh with its own ranks.

    Raises:
        ValueError: there are no axes, an axis is below 1, or there are too many ranks to draw.
    """
    if isinstance(axes, Mapping):
        sizes, ranks = dict(axes), None
    else:
        shape = tuple(axes.mesh.shape)  # type: ignore[attr-defined]
        names = axes.mesh_dim_names or tuple(f"axis {number}" for number in range(len(shape)))
        sizes, ranks = dict(zip(names, shape, strict=True)), axes.mesh.flatten().tolist()  # type: ignore[attr-defined]
    num_ranks = math.prod(sizes.values())
    if not sizes or min(sizes.values()) < 1 or num_ranks > MOST_RANKS:
        raise ValueError(f'A mesh has 1 to {MOST_RANKS} ranks, as in {{"dp": 2, "tp": 4}}; got {sizes}.')
    return RankMesh(sizes, ranks or list(range(num_ranks)))


def rectangles(places: Sequence[Place]) -> list[tuple[Place, Place]]:
    """Cover exactly these cells with rectangles, each given by its first and last cell."""
    left, covered = set(places), []
    while left:
        column, row = first = min(left, key=lambda cell: (cell[1], cell[0]))
        while (column + 1, row) in left:
            column += 1
        across = range(first[0], column + 1)
        while all((one, row + 1) in left for one in across):
            row += 1
        left -= set(product(across, range(first[1], row + 1)))
        covered.append((first, (column, row)))
    return covered
