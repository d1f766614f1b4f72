"""The record of a rank on paper: its operators, its posts and waits, and the memory of its tensors.

The record does not depend on a cluster, so it can be priced on any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from worldsize.emulate.protocol.record import Step
from worldsize.memory.use import MemoryUse
from worldsize.operators import Operator

FORWARD, BACKWARD, RECOMPUTE, UPDATE, OTHER = "forward", "backward", "recompute", "update", "compute"
PHASES = (FORWARD, BACKWARD, RECOMPUTE, UPDATE, OTHER)
BEGIN, END = "begin", "end"


class OperatorCall(NamedTuple):
    """One of torch's operators on a rank, where in training it ran, and how often a batch has it."""

    name: str
    phase: str
    operator: Operator


class RecordedPost(NamedTuple):
    """A rank's part in an operation. `size_bytes` counts as in nccl-tests; `peer` is a message's other end, or a root.

    `group` indexes the record's groups. A send matches a receive with the same `tag`.
    """

    number: int
    op: str
    group: int
    size_bytes: int
    peer: int | None = None
    sequence: int = 0
    tag: int = 0


class RecordedGroup(NamedTuple):
    """A process group: its name, which begins with its axis if it is along a mesh, and its ranks."""

    name: str
    ranks: tuple[int, ...]


class OperatorLocation(NamedTuple):
    """An operator where it stands in the program: the phase, the module without its number, the line, its result."""

    name: str
    phase: str
    module: str
    line: str
    size_bytes: int


class MemoryLevel(NamedTuple):
    """The most bytes held at an operator that changed them, which stands at the `place`-th of the record's places.

    `sizes` are in the order of `memory.use.KINDS`.
    """

    place: int
    sizes: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all kinds."""
        return sum(self.sizes)


class Boundary(NamedTuple):
    """The first module's forward pass after an update, or the end of an update by the `optimizer`-th optimizer.

    `mark` is a mark among the rank's steps, and `num_batches` counts the batches of work before it.
    """

    kind: str
    mark: int
    num_batches: int
    optimizer: int = 0


@dataclass(frozen=True)
class RankRecord:
    """The record of one rank.

    A step of the kind "compute" with a number is a batch of work; `batches[number - 1]` maps indices of `works` to how
    often each occurs in the batch. A step without a number has a duration.

    `without_flops` counts the calls of custom operators without a formula for flops. `asked_at` is the first line that
    asked for a node's number of ranks, if any, and `local_world_size` the answer that it got; `asked_kind_at` and `gpu`
    are the same for its kind of GPU.
    """

    rank: int
    world_size: int
    steps: Sequence[Step]
    works: Sequence[OperatorCall]
    batches: Sequence[Mapping[int, int]]
    posts: Sequence[RecordedPost]
    groups: Sequence[RecordedGroup]
    boundaries: Sequence[Boundary]
    memory: MemoryUse
    places: Sequence[OperatorLocation] = ()
    levels: Sequence[MemoryLevel] = ()
    num_operators: int = 0
    without_flops: Mapping[str, int] = field(default_factory=dict)
    local_world_size: int = 0
    asked_at: str = ""
    gpu: str = ""
    asked_kind_at: str = ""
    cpu_s: float = 0.0
    peak_process_bytes: int = 0

    def is_like(self, other: RankRecord) -> bool:
        """Whether another rank's record is the same except for the ranks in its groups."""
        return self._content == other._content

    @property
    def _content(self) -> object:
        posts = [(one.op, one.size_bytes, one.number, len(self.groups[one.group].ranks)) for one in self.posts]
        return self.steps, self.works, self.batches, posts

    def to_json(self) -> str:
        """Convert the record to JSON; a group whose ranks form a range is stored as its ends."""
        fields = vars(self) | {
            "memory": self.memory.to_fields(),
            "groups": [(group.name, _packed(group.ranks)) for group in self.groups],
            "batches": [list(batch.items()) for batch in self.batches],
        }
        return json.dumps(fields)

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> RankRecord:
        """Make a record from fields that `to_json` wrote.

        Raises:
            ValueError: a group has more ranks than the job. Other invalid fields may raise anything.
        """
        return cls(
            **dict(fields)
            | {
                "steps": [Step(*one) for one in fields["steps"]],
                "works": [OperatorCall(name, phase, Operator(*operator)) for name, phase, operator in fields["works"]],
                "batches": [dict(map(tuple, batch)) for batch in fields["batches"]],
                "posts": [RecordedPost(*one) for one in fields["posts"]],
                "groups": [
                    RecordedGroup(name, _unpacked(ranks, fields["world_size"])) for name, ranks in fields["groups"]
                ],
                "boundaries": [Boundary(*one) for one in fields["boundaries"]],
                "memory": MemoryUse.parse(fields["memory"]),
                "places": [OperatorLocation(*one) for one in fields["places"]],
                "levels": [MemoryLevel(place, tuple(sizes)) for place, sizes in fields["levels"]],
            }
        )


def _packed(ranks: Sequence[int]) -> list[Any]:
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    is_range = stride > 0 and list(ranks) == list(range(ranks[0], ranks[-1] + 1, stride))
    return ["range", ranks[0], ranks[-1] + 1, stride] if is_range else list(ranks)


def _unpacked(ranks: list[Any], world_size: int) -> tuple[int, ...]:
    found = range(*ranks[1:]) if ranks[:1] == ["range"] else ranks
    if len(found) > world_size:
        raise ValueError(f"a group has {len(found)} ranks, but the job has {world_size}")
    return tuple(found)
