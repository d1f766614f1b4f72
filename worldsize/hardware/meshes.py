"""Meshes: GPUs of a node connected pairwise by links, without a switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations
from typing import TypeAlias

from worldsize.hardware.devices import Link
from worldsize.hardware.validation import need_positive

MAX_GPUS = 8  # larger nodes have switches; the search for rings tries every order of the GPUs
_MAX_STEPS = 1 << 14  # NCCL gives up as early: NCCL_SEARCH_TIMEOUT in NCCL 2.28.3 (2025) src/graph/search.cc

Arc: TypeAlias = tuple[int, int]  # from one GPU of the node to another, over all links between them


@dataclass(frozen=True)
class Rings:
    """Concurrent rings through the same GPUs: their number, and the share of a link that each uses.

    `is_direct`: every step of a ring crosses one link; otherwise some cross two links and a GPU between them.
    """

    number: int
    link_fraction: float
    is_direct: bool


@dataclass(frozen=True)
class Mesh:
    """The links of one kind between each pair of a node's GPUs, as `nvidia-smi topo -m` shows them.

    `num_links[i][j]` is their number between GPUs i and j of a node, 0 if these are connected only through `intra`.

    Raises:
        ValueError: the numbers do not describe a mesh; the message says why.
    """

    link: Link
    num_links: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_links", tuple(tuple(row) for row in self.num_links))
        size = len(self.num_links)
        if self.link.kind != "nvlink":
            raise ValueError(f"a mesh needs links of kind='nvlink'; {self.link.name} is of kind {self.link.kind!r}")
        if not 2 <= size <= MAX_GPUS or any(len(row) != size for row in self.num_links):
            raise ValueError(
                f"num_links has rows of lengths {[*map(len, self.num_links)]}; give 2 to 8 rows as long as their number"
            )
        for i, row in enumerate(self.num_links):
            for j, number in enumerate(row):
                self._need_links(i, j, number)
        if not any(map(any, self.num_links)):
            raise ValueError("num_links connects no GPUs; leave the mesh out")

    def _need_links(self, i: int, j: int, number: int) -> None:
        if number < 0 or number % 1:
            raise ValueError(f"num_links[{i}][{j}] is {number!r}; it must be a number of links, 0 or more")
        if i == j and number:
            raise ValueError(f"num_links[{i}][{i}] is {number}; it must be 0, because no link connects a GPU to itself")
        if number != self.num_links[j][i]:
            raise ValueError(
                f"num_links[{i}][{j}] is {number} and num_links[{j}][{i}] is {self.num_links[j][i]}; "
                "give both the same number, because a link connects both ways"
            )

    @staticmethod
    def of_pairs(link: Link, num_gpus: int, num_links: Mapping[Arc, int]) -> Mesh:
        """Make the mesh of a node of `num_gpus` from the number of links of each connected pair."""
        need_positive("num_gpus", num_gpus)
        if unknown := [pair for pair in num_links if not all(0 <= gpu < num_gpus for gpu in pair)]:
            raise ValueError(f"{unknown[0]} is not a pair of GPUs of the node, which are 0 to {num_gpus - 1}")
        rows = [[0] * num_gpus for _ in range(num_gpus)]
        for (i, j), number in num_links.items():
            rows[i][j] = rows[j][i] = number
        return Mesh(link, tuple(map(tuple, rows)))

    @property
    def num_gpus(self) -> int:
        """The number of GPUs in a node."""
        return len(self.num_links)

    def path(self, src: int, dst: int, through: Sequence[int] | None = None) -> tuple[Arc, ...]:
        """Return the links from one GPU to another: direct, or else over the intermediate GPU with the most; or none.

        `through` are the GPUs that may be intermediate; None means any. Source: NCCL 2.28.3 (2025) src/graph/paths.cc,
        which passes at most one GPU (PATH_NVB).
        """
        if self.num_links[src][dst]:
            return ((src, dst),)
        between = range(self.num_gpus) if through is None else through
        widths = {gpu: min(self.num_links[src][gpu], self.num_links[gpu][dst]) for gpu in between}
        widest = max(widths, key=lambda gpu: widths[gpu], default=src)
        return ((src, widest), (widest, dst)) if widths.get(widest) else ()

    def rings(self, gpus: Sequence[int]) -> Rings | None:
        """Return the rings over the links among these GPUs with the highest total rate; None if there are none.

        No two rings use a link in the same direction, unless each has half. Steps over an intermediate GPU come second.

        Source: the search of NCCL 2.28.3 (2025) src/graph/search.cc, which tries half the rate and then a longer path.
        """
        return _rings(self, tuple(sorted(gpus)))

    def num_unlinked(self, gpus: Sequence[int]) -> int:
        """Return the smallest number of steps without a link in a ring through these GPUs."""
        first, *others = sorted(gpus)
        orders = ((first, *order, first) for order in permutations(others))
        return min(sum(not self.num_links[i][j] for i, j in pairwise(order)) for order in orders)


@lru_cache(maxsize=1024)
def _rings(mesh: Mesh, gpus: tuple[int, ...]) -> Rings | None:
    for is_direct in (True, False):
        cycles = _cycles(mesh, gpus, is_direct)
        whole = _most_at_once(cycles, mesh, gpus, 1)
        halves = _most_at_once(cycles, mesh, gpus, 2) if whole < _most_possible(mesh, gpus, 1) else 0
        if halves > 2 * whole:
            return Rings(halves, 0.5, is_direct)
        if whole:
            return Rings(whole, 1.0, is_direct)
    return None


def _cycles(mesh: Mesh, gpus: tuple[int, ...], is_direct: bool) -> list[tuple[Arc, ...]]:
    """List the links of every ring through all GPUs."""
    arcs = {(i, j): mesh.path(i, j, () if is_direct else gpus) for i, j in permutations(gpus, 2)}
    cycles: list[tuple[Arc, ...]] = []
    for order in permutations(gpus[1:]):
        steps = list(pairwise((gpus[0], *order, gpus[0])))
        if all(arcs[step] for step in steps):
            cycles.append(tuple(arc for step in steps for arc in arcs[step]))
    return cycles


def _most_possible(mesh: Mesh, gpus: tuple[int, ...], parts: int) -> int:
    """Bound the number of rings by the GPU with the fewest links, where a link is split into `parts`."""
    return parts * min(sum(mesh.num_links[gpu][other] for other in gpus) for gpu in gpus)


def _most_at_once(cycles: list[tuple[Arc, ...]], mesh: Mesh, gpus: tuple[int, ...], parts: int) -> int:
    """Return how many of these cycles, which may repeat, fit together when a link is split into `parts`."""
    left = {(i, j): parts * mesh.num_links[i][j] for i, j in permutations(gpus, 2)}
    for number in range(_most_possible(mesh, gpus, parts), 0, -1):
        if _Packing(left).fits(cycles, number):
            return number
    return 0


class _Packing:
    """A search for cycles that fit on the links together; like NCCL's, it gives up after `_MAX_STEPS`."""

    def __init__(self, left: dict[Arc, int]) -> None:
        self._left = dict(left)
        self._num_steps = 0

    def fits(self, cycles: list[tuple[Arc, ...]], number: int) -> bool:
        """Whether `number` of these cycles, which may repeat, fit on the remaining links."""
        self._num_steps += 1
        fitting = [cycle for cycle in cycles if self._has_room(cycle)]
        for place, cycle in enumerate(fitting):
            if number == 1:
                return True
            if self._num_steps > _MAX_STEPS:
                return False
            self._take(cycle, 1)
            if self.fits(fitting[place:], number - 1):
                return True
            self._take(cycle, -1)
        return False

    def _has_room(self, cycle: tuple[Arc, ...]) -> bool:
        return all(self._left[arc] >= cycle.count(arc) for arc in cycle)

    def _take(self, cycle: tuple[Arc, ...], number: int) -> None:
        for arc in cycle:
            self._left[arc] -= number
