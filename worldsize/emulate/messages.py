"""Every message between a rank of an emulated cluster and the conductor, each with the parser that its receiver uses.

What comes from a rank may be forged or malformed: it is read in full here, or refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

from worldsize.emulate.record import COMPUTE, JOIN, KINDS, MAIN, MARK, WAIT, Step
from worldsize.fields import Fields, fields_of, finite, integer, items, number
from worldsize.hardware import Gpu
from worldsize.message import Message, read

_MAX_STEP_S = 1e9  # a rank might otherwise report work of any length
_MAX_LABEL, _MAX_NAME = 80, 200  # a label is cut, a name is refused: two that are cut may be one


# launcher to rank, with its job


@dataclass(frozen=True)
class Compute:
    """How a rank's own work is priced: on its GPU, or by measured time, which `scale` multiplies."""

    kind: str
    scale: float
    gpu: Gpu

    def to_fields(self) -> dict[str, Any]:
        """The prices as JSON fields."""
        return {"kind": self.kind, "scale": self.scale, "gpu": vars(self.gpu)}

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The prices of these fields.

        Raises:
            ValueError: they are not such prices.
        """
        kind = _name(fields, "kind")
        if kind not in KINDS:
            raise ValueError(f"work cannot be priced by {kind!r}")
        return cls(kind=kind, scale=number(fields, "scale"), gpu=_gpu(fields_of(fields.get("gpu"))))


@dataclass(frozen=True)
class Emulated(Message):
    """What a rank knows of its emulated cluster."""

    local_world_size: int
    compute: Compute
    allow: list[str] | None  # the operations that may be used; None for all

    def to_fields(self) -> dict[str, Any]:
        """The message as JSON fields."""
        return vars(self) | {"compute": self.compute.to_fields()}

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        return cls(
            local_world_size=integer(fields, "local_world_size"),
            compute=Compute.parse(fields_of(fields.get("compute"))),
            allow=None if fields.get("allow") is None else [str(op) for op in items(fields, "allow")],
        )


# rank to conductor; each brings what the rank did since its last message


@dataclass(frozen=True)
class Posted(Message):
    """The rank's part in an operation; the body is its data. `number` counts the rank's parts, from 1.

    A group's `ranks` come with the first message that names it.
    """

    number: int
    op: str
    group: str
    dtype: str
    num_items: int
    ranks: tuple[int, ...] | None = None
    peer: int | None = None
    tag: int = 0
    reduction: str = ""
    splits: tuple[int, ...] = ()
    lane: str = MAIN
    steps: list[Step] = field(default_factory=list[Step])

    def to_fields(self) -> dict[str, Any]:
        """The message as JSON fields, without those that a parser fills in."""
        fields = {name: getattr(self, name) for name in ("number", "op", "group", "dtype", "num_items", "peer")}
        if self.ranks is not None:
            fields["ranks"] = self.ranks
        rarely = {"tag": self.tag, "reduction": self.reduction, "splits": self.splits, "lane": self.lane}
        return fields | {name: value for name, value in rarely.items() if value} | {"steps": _rows(self.steps)}

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        num_items, splits = integer(fields, "num_items"), _integers(fields, "splits") or ()
        if num_items < 0 or min(splits, default=0) < 0:
            raise ValueError("a negative size")
        return cls(
            number=integer(fields, "number"),
            op=_name(fields, "op"),
            group=_name(fields, "group"),
            dtype=_name(fields, "dtype"),
            num_items=num_items,
            ranks=_integers(fields, "ranks"),
            peer=None if fields.get("peer") is None else integer(fields, "peer"),
            tag=integer(fields, "tag", 0),
            reduction=_name(fields, "reduction", ""),
            splits=splits,
            lane=_name(fields, "lane", MAIN),
            steps=_steps(fields),
        )


@dataclass(frozen=True)
class Blocked(Message):
    """The rank can do nothing until this part of its has an answer."""

    number: int
    steps: list[Step] = field(default_factory=list[Step])

    def to_fields(self) -> dict[str, Any]:
        """The message as JSON fields."""
        return {"number": self.number, "steps": _rows(self.steps)}

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        return cls(number=integer(fields, "number"), steps=_steps(fields))


@dataclass(frozen=True)
class _Bare(Message):
    """A message with no more than what the rank did."""

    steps: list[Step] = field(default_factory=list[Step])

    def to_fields(self) -> dict[str, Any]:
        """The message as JSON fields."""
        return {"steps": _rows(self.steps)}

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        return cls(steps=_steps(fields))


class Left(_Bare):
    """The rank posts no more."""


class Refused(_Bare):
    """The rank called an operation that may not be used, and the call was refused there."""


FromRank = Posted | Blocked | Left | Refused


def read_from_rank(header: Fields) -> FromRank:
    """The message of a rank.

    Raises:
        ValueError: it is another message, or malformed.
    """
    return read(header, Posted, Blocked, Left, Refused)


# conductor to rank


@dataclass(frozen=True)
class Hurry(Message):
    """Something depends on virtual time: report at once what the rank is blocked by."""


@dataclass(frozen=True)
class Answer(Message):
    """The answer to a rank's part; the body is the data that it receives, from `src` if that was left open."""

    number: int
    src: int | None = None

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        src = None if fields.get("src") is None else integer(fields, "src")
        return cls(number=integer(fields, "number"), src=src)


def read_from_conductor(header: Fields) -> Hurry | Answer:
    """The message of the conductor.

    Raises:
        ValueError: it is another message, or malformed.
    """
    return read(header, Answer, Hurry)


# parts of messages


def _gpu(fields: Fields) -> Gpu:
    peaks = fields_of(fields.get("peak_flops_per_s"))
    return Gpu(
        name=str(fields.get("name")),
        architecture=str(fields.get("architecture")),
        memory_bytes=integer(fields, "memory_bytes"),
        memory_bandwidth_bytes_per_s=number(fields, "memory_bandwidth_bytes_per_s"),
        peak_flops_per_s={dtype: finite(peak, dtype) for dtype, peak in peaks.items()},
        source=str(fields.get("source")),
        launch_s=number(fields, "launch_s"),
    )


def _rows(steps: Sequence[Step]) -> list[tuple[Any, ...]]:
    return [
        (one.kind, one.number, one.duration_s, one.name, one.work, *([one.lane] if one.lane else ())) for one in steps
    ]


def _steps(fields: Fields) -> list[Step]:
    return [_step(row) for row in items(fields, "steps")]


def _step(row: Any) -> Step:
    if not isinstance(row, list) or len(cast("list[Any]", row)) not in (5, 6):
        raise ValueError("a step is a kind, a number, a duration, a name, the kind of the work and perhaps a lane")
    kind, of_post, duration_s, name, work, lane = [*cast("list[Any]", row), MAIN][:6]
    if type(duration_s) is not float:
        duration_s = finite(duration_s, "a duration")
    # what moves data is recorded by the conductor: it is not left to the rank to report
    if kind not in (COMPUTE, WAIT, MARK, JOIN) or not 0 <= duration_s <= _MAX_STEP_S:
        raise ValueError(f"a step of kind {kind!r:.80} that takes {duration_s:g} s")
    if type(of_post) is not int or type(name) is not str or type(work) is not str:
        raise ValueError("a step has a whole number, and its labels are text")
    if type(lane) is not str or len(lane) > _MAX_NAME:
        raise ValueError(f"the name of a lane has more than {_MAX_NAME} characters, or is not text")
    return Step(kind, of_post, duration_s, name[:_MAX_LABEL], work[:_MAX_LABEL], lane)


def _name(fields: Fields, name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if type(value) is str and len(value) <= _MAX_NAME:  # first what nearly always is so: a post has five of them
        return value
    raise ValueError(f"{name} has more than {_MAX_NAME} characters, or is not text")


def _integers(fields: Fields, name: str) -> tuple[int, ...] | None:
    if name not in fields:
        return None
    values = tuple(items(fields, name))
    if any(type(value) is not int for value in values):
        raise ValueError(f"{name} has something other than whole numbers")
    return values
