"""A rank's memory use: bytes by kind over its operations, and the composition of the peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from msgspec import Meta

from worldsize import units
from worldsize.message import Count, Name, parse, to_fields

WEIGHTS, GRADIENTS, OPTIMIZER_STATE = "weights", "gradients", "optimizer state"
ACTIVATIONS, COMMUNICATION, TEMPORARIES = "activations", "communication", "temporaries"
KINDS = (WEIGHTS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, COMMUNICATION, TEMPORARIES)
MAX_POINTS = 4_000  # per curve
MAX_HOLDINGS = 20  # per peak
_MAX_CHARS = 200  # per module name or line
_NUM_EXPLAINED = 3  # holdings that an explanation names


@dataclass(frozen=True)
class Holding:
    """Storages of one kind, made in one module by one line and held at the same time.

    `kind` is empty if unknown, as in most snapshots of a GPU.
    """

    kind: Name
    module: Name
    line: Name
    size_bytes: Count
    num_storages: int = 1

    def __str__(self) -> str:
        where = ", ".join(filter(None, [self.module, self.line])) or "before the measurement"
        many = f" in {self.num_storages} storages" if self.num_storages > 1 else ""
        size = f"{self.kind} {units.format_bytes(self.size_bytes)}".lstrip()
        return f"{size}{many} ({where})"


@dataclass(frozen=True)
class MemoryUse:
    """The bytes that a rank's tensors held: by kind after each of `operations`, and by origin at the peak.

    `operations` are the numbers of torch's operations on the rank, from 1, or of the allocator's for a snapshot, whose
    kinds may be lines of the program. If there are very many, only the highest of several neighbours is kept.
    `holdings` are the largest at the peak and the largest of the kind that holds most, largest first.
    """

    operations: Annotated[Sequence[Count], Meta(max_length=MAX_POINTS)]
    sizes: Mapping[str, Annotated[Sequence[Count], Meta(max_length=MAX_POINTS)]]  # kind -> bytes after each operation
    holdings: Annotated[Sequence[Holding], Meta(max_length=MAX_HOLDINGS)] = ()
    capacity_bytes: Count | None = None

    @property
    def totals(self) -> list[int]:
        """The bytes held after each operation."""
        return [sum(column) for column in zip(*self.sizes.values(), strict=True)]

    @property
    def most_bytes(self) -> int:
        """The most bytes held at once."""
        return max(self.totals, default=0)

    @property
    def peak(self) -> dict[str, int]:
        """The bytes by kind when most were held."""
        totals = self.totals
        place = totals.index(max(totals)) if totals else 0
        return {kind: sizes[place] for kind, sizes in self.sizes.items() if totals}

    @property
    def held(self) -> dict[str, int]:
        """The bytes by kind at the end."""
        return {kind: sizes[-1] for kind, sizes in self.sizes.items() if sizes}

    def explain(self) -> str:
        """Describe the peak in a sentence or two: its kinds, and the largest holdings of the largest kinds."""
        peak = self.peak
        kinds = describe_kinds(peak)
        ordered = sorted(self.holdings, key=lambda one: (-peak.get(one.kind, 0), -one.size_bytes))
        largest = "; ".join(map(str, ordered[:_NUM_EXPLAINED]))
        where = f" Where, largest kind first: {largest}." if largest else ""
        return f"The peak is {units.format_bytes(self.most_bytes)}: {kinds or 'nothing'}.{where}"

    def to_fields(self) -> dict[str, Any]:
        """Convert to JSON fields."""
        return to_fields(self)

    @classmethod
    def parse(cls, fields: Any) -> Self:
        """Parse the JSON fields that a rank sent.

        Raises:
            ValueError: they are invalid.
        """
        use = parse(fields, cls)
        use.refuse_unless_counted()
        return use

    def refuse_unless_counted(self) -> None:
        """Raise ValueError if no meter can have counted this.

        Raises:
            ValueError: a kind is unknown or missing, or a curve is too long.
        """
        if self.sizes.keys() != set(KINDS) or any(holding.kind not in KINDS for holding in self.holdings):
            raise ValueError(
                f"the kinds of memory must be {', '.join(KINDS)}; got {', '.join(map(repr, self.sizes))}"[:_MAX_CHARS]
            )
        if any(len(row) != len(self.operations) for row in self.sizes.values()):
            raise ValueError("the curve of each kind of memory must have as many points as operations")


def thinned(curve: list[tuple[int, list[int]]], max_points: int) -> list[tuple[int, list[int]]]:
    """Thin a curve to at most `max_points`, keeping the highest of neighbouring points."""
    width = -(-len(curve) // max_points) or 1
    groups = (curve[start : start + width] for start in range(0, len(curve), width))
    return [max(group, key=lambda point: sum(point[1])) for group in groups]


def select_largest(holdings: Sequence[Holding]) -> list[Holding]:
    """Return the largest holdings, largest first, among them some of the kind that holds most.

    Many layers may hold most of it together, each of them less than any single holding of the other kinds.
    """
    ordered = sorted(holdings, key=lambda one: one.size_bytes, reverse=True)
    of_kinds = Counter[str]()
    for one in ordered:
        of_kinds[one.kind] += one.size_bytes
    most = max(of_kinds, key=lambda kind: of_kinds[kind], default="")
    named = [one for one in ordered if one.kind == most][:_NUM_EXPLAINED]
    others = [one for one in ordered if one not in named][: MAX_HOLDINGS - len(named)]
    return sorted([*named, *others], key=lambda one: one.size_bytes, reverse=True)


def describe_kinds(sizes: Mapping[str, int]) -> str:
    """Describe bytes by kind, largest first."""
    held = sorted(((size, kind) for kind, size in sizes.items() if size), reverse=True)
    return ", ".join(f"{kind} {units.format_bytes(size)}" for size, kind in held)
