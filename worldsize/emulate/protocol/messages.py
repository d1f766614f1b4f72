"""Every message between a rank of an emulated cluster and the conductor, each with the parser that its receiver uses.

A rank's messages may be forged or malformed: they are validated in full here, or refused. A message is a binary
header with little-endian numbers at fixed offsets; texts are JSON lists, which repeat and so are parsed once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Self

from worldsize.emulate.protocol.record import COMPUTE, JOIN, KINDS, MAIN, MARK, WAIT, Step
from worldsize.hardware import TRANSFERS, Gpu
from worldsize.message import Finite

_MAX_STEP_S = 1e9  # otherwise a rank could report work of any length
MAX_TRANSFER_BYTES = 1 << 50
# a long label is truncated; a long name is refused, because truncated names may collide
_MAX_LABEL, _MAX_NAME = 80, 200
_MAX_TEXT_BYTES = 1 << 14  # more than five names of this length take
# the conductor records what moves data itself, because a rank's report could be false
_KINDS: Mapping[int, str] = dict(enumerate((COMPUTE, WAIT, MARK, JOIN, *TRANSFERS)))
_CODES = {kind: code for code, kind in _KINDS.items()}
_NAMES = ("op", "group", "dtype", "reduction", "lane")  # of a post
_POSTED = struct.Struct("<BIQQqqqII")
_BLOCKED = struct.Struct("<BII?")
_BARE = struct.Struct("<BI")
_ANSWER = struct.Struct("<BQq")
_STEP = struct.Struct("<BQdI")
_AWAITED = struct.Struct("<BIQQdI")
_FAILED = struct.Struct("<BQdI")
_IS_POSTED, _IS_BLOCKED, _HAS_LEFT, _WAS_REFUSED, _IS_ANSWER, _IS_HURRY, _IS_AWAITED, _HAS_FAILED = range(8)
_NONE = -1  # in place of a rank


# launcher to rank, with its job


@dataclass(frozen=True)
class Compute:
    """How a rank's own work is priced: on its GPU, or as measured time multiplied by `scale`."""

    kind: str
    scale: Finite
    gpu: Gpu

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}; it must be one of {', '.join(KINDS)}")


@dataclass(frozen=True)
class Emulated:
    """A rank's view of its emulated cluster."""

    local_world_size: int
    compute: Compute
    allow: list[str] | None  # the operations that may be used; None for all
    # transfers that the cluster cannot carry out, and why
    missing: Mapping[str, str] = field(default_factory=dict[str, str])


# rank to conductor; each includes the rank's steps since its last message


@dataclass(slots=True)
class Posted:
    """The rank's part in an operation; the body is its data. `number` counts the rank's parts from 1.

    `ranks` are included in the first message that names their group.
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

    def to_bytes(self) -> bytes:
        """The message as a header."""
        names = _packed_names(self.op, self.group, self.dtype, self.reduction, self.lane)
        ranks, splits, steps = self.ranks or (), self.splits, self.steps
        fixed = _POSTED.pack(
            _IS_POSTED,
            len(steps),
            self.number,
            self.num_items,
            _NONE if self.peer is None else self.peer,
            self.tag,
            _NONE if self.ranks is None else len(ranks),
            len(splits),
            len(names),
        )
        if ranks or splits:
            names += struct.pack(f"<{len(ranks) + len(splits)}q", *ranks, *splits)
        return fixed + names + _packed_steps(steps)

    @classmethod
    def parse(cls, header: bytes) -> Self:
        """The message of this header.

        Raises:
            ValueError: it is not such a message.
        """
        _, num_steps, number, num_items, peer, tag, num_ranks, num_splits, names_bytes = _fixed(_POSTED, header)
        start = _POSTED.size
        op, group, dtype, reduction, lane = _names(_part(header, start, names_bytes))
        start += names_bytes
        ranks = None if num_ranks < 0 else _integers(header, start, num_ranks)
        start += 8 * max(0, num_ranks)
        splits = _integers(header, start, num_splits) if num_splits else ()
        if min(splits, default=0) < 0:
            raise ValueError("splits must not contain a negative size")
        return cls(
            number=number,
            op=op,
            group=group,
            dtype=dtype,
            num_items=num_items,
            ranks=ranks,
            peer=None if peer < 0 else peer,
            tag=tag,
            reduction=reduction,
            splits=splits,
            lane=lane,
            steps=_steps(header, start + 8 * num_splits, num_steps),
        )


@dataclass(slots=True)
class Blocked:
    """The rank is blocked until one of these parts has an answer or, if `is_limited`, a wait times out."""

    numbers: tuple[int, ...]
    is_limited: bool = False
    steps: list[Step] = field(default_factory=list[Step])

    def to_bytes(self) -> bytes:
        """The message as a header."""
        numbers = struct.pack(f"<{len(self.numbers)}q", *self.numbers)
        fixed = _BLOCKED.pack(_IS_BLOCKED, len(self.steps), len(self.numbers), self.is_limited)
        return fixed + numbers + _packed_steps(self.steps)

    @classmethod
    def parse(cls, header: bytes) -> Self:
        """The message of this header.

        Raises:
            ValueError: it is not such a message.
        """
        _, num_steps, num_numbers, is_limited = _fixed(_BLOCKED, header)
        numbers = _integers(header, _BLOCKED.size, num_numbers)
        return cls(numbers, is_limited, _steps(header, _BLOCKED.size + 8 * num_numbers, num_steps))


@dataclass(slots=True)
class Awaited:
    """The rank waits for its part `awaited`, for at most `timeout_s` of virtual time.

    The wait counts as a part with its own `number` and its own answer.
    """

    number: int
    awaited: int
    timeout_s: float
    lane: str = MAIN
    steps: list[Step] = field(default_factory=list[Step])

    def to_bytes(self) -> bytes:
        """The message as a header."""
        lane = _packed_labels("", COMPUTE, self.lane)
        fixed = _AWAITED.pack(
            _IS_AWAITED, len(self.steps), self.number, self.awaited, min(self.timeout_s, _MAX_STEP_S), len(lane)
        )
        return fixed + lane + _packed_steps(self.steps)

    @classmethod
    def parse(cls, header: bytes) -> Self:
        """The message of this header.

        Raises:
            ValueError: it is not such a message.
        """
        _, num_steps, number, awaited, timeout_s, lane_bytes = _fixed(_AWAITED, header)
        if not 0 <= timeout_s <= _MAX_STEP_S:
            raise ValueError(f"timeout_s is {timeout_s:g}; it must be 0 to {_MAX_STEP_S:g} seconds")
        lane = _labels(_part(header, _AWAITED.size, lane_bytes))[2] if lane_bytes else MAIN
        return cls(number, awaited, timeout_s, lane, _steps(header, _AWAITED.size + lane_bytes, num_steps))


@dataclass(slots=True)
class _Bare:
    """A message that holds only the rank's steps."""

    code: ClassVar[int]
    steps: list[Step] = field(default_factory=list[Step])

    def to_bytes(self) -> bytes:
        """The message as a header."""
        return _BARE.pack(self.code, len(self.steps)) + _packed_steps(self.steps)

    @classmethod
    def parse(cls, header: bytes) -> Self:
        """The message of this header.

        Raises:
            ValueError: it is not such a message.
        """
        _, num_steps = _fixed(_BARE, header)
        return cls(_steps(header, _BARE.size, num_steps))


class Left(_Bare):
    """The rank posts no more."""

    __slots__ = ()
    code = _HAS_LEFT


class Refused(_Bare):
    """The rank called an operation that is not allowed, and refused the call itself."""

    __slots__ = ()
    code = _WAS_REFUSED


FromRank = Posted | Awaited | Blocked | Left | Refused
_FROM_RANK: Mapping[int, Any] = {
    _IS_POSTED: Posted,
    _IS_AWAITED: Awaited,
    _IS_BLOCKED: Blocked,
    _HAS_LEFT: Left,
    _WAS_REFUSED: Refused,
}


def read_from_rank(header: bytes) -> FromRank:
    """Read a message of a rank.

    Raises:
        ValueError: the message has a different type, or is malformed.
    """
    return _class_of(header, _FROM_RANK).parse(header)


# conductor to rank


@dataclass(slots=True)
class Hurry:
    """A decision depends on virtual time: report at once what blocks the rank."""

    def to_bytes(self) -> bytes:
        """The message as a header."""
        return bytes([_IS_HURRY])

    @classmethod
    def parse(cls, header: bytes) -> Self:
        """The message of this header."""
        return cls()


@dataclass(slots=True)
class OperationResult:
    """The answer to a rank's part; the body is the data that it receives, from `src` if that was left open."""

    number: int
    src: int | None = None

    def to_bytes(self) -> bytes:
        """The message as a header."""
        return _ANSWER.pack(_IS_ANSWER, self.number, _NONE if self.src is None else self.src)

    @classmethod
    def parse(cls, header: bytes) -> Self:
        """The message of this header.

        Raises:
            ValueError: it is not such a message.
        """
        _, number, src = _fixed(_ANSWER, header)
        return cls(number, None if src < 0 else src)


@dataclass(slots=True)
class OperationFailed:
    """The failure of a rank's part at `time_s`: because `ranks` are lost, or had not come when its time was over."""

    number: int
    time_s: float
    ranks: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """The message as a header."""
        count = len(self.ranks)
        return _FAILED.pack(_HAS_FAILED, self.number, self.time_s, count) + struct.pack(f"<{count}q", *self.ranks)

    @classmethod
    def parse(cls, header: bytes) -> Self:
        """The message of this header.

        Raises:
            ValueError: it is not such a message.
        """
        _, number, time_s, count = _fixed(_FAILED, header)
        return cls(number, time_s, _integers(header, _FAILED.size, count))


FromConductor = Hurry | OperationResult | OperationFailed
_FROM_CONDUCTOR: Mapping[int, Any] = {_IS_ANSWER: OperationResult, _IS_HURRY: Hurry, _HAS_FAILED: OperationFailed}


def read_from_conductor(header: bytes) -> FromConductor:
    """Read a message of the conductor.

    Raises:
        ValueError: the message has a different type, or is malformed.
    """
    return _class_of(header, _FROM_CONDUCTOR).parse(header)


# parts of messages


def _class_of(header: bytes, expected: Mapping[int, Any]) -> Any:
    found = expected.get(header[0]) if header else None
    if found is None:
        raise ValueError(f"a message begins with {header[:1]!r}, which is not a type expected here")
    return found


def _fixed(layout: struct.Struct, header: bytes) -> tuple[Any, ...]:
    if len(header) < layout.size:
        raise ValueError("the message is truncated")
    return layout.unpack_from(header)


def _part(header: bytes, start: int, num_bytes: int) -> bytes:
    if start + num_bytes > len(header):
        raise ValueError("the message is truncated")
    return header[start : start + num_bytes]


def _integers(header: bytes, start: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}q", _part(header, start, 8 * count))


def _packed_steps(steps: Sequence[Step]) -> bytes:
    parts: list[bytes] = []
    for one in steps:
        labels = _packed_labels(one.name, one.work, one.lane)
        parts += _STEP.pack(_CODES[one.kind], one.number, one.duration_s, len(labels)), labels
    return b"".join(parts)


def _steps(header: bytes, start: int, count: int) -> list[Step]:
    """Parse the steps that fill the rest of a header."""
    found: list[Step] = []
    for _ in range(count):
        if start + _STEP.size > len(header):
            raise ValueError("the message is truncated")
        code, number, duration_s, labels_bytes = _STEP.unpack_from(header, start)
        start += _STEP.size
        kind = _KINDS.get(code)
        if kind is None:
            raise ValueError(f"a step has the unknown kind {code}")
        if not 0 <= duration_s <= _MAX_STEP_S:
            raise ValueError(f"a step takes {duration_s:g} s; it must take 0 to {_MAX_STEP_S:g} s")
        if number > MAX_TRANSFER_BYTES and kind in TRANSFERS:
            raise ValueError(f"a transfer has {number} bytes; the limit is {MAX_TRANSFER_BYTES}")
        name, work, lane = _labels(_part(header, start, labels_bytes)) if labels_bytes else _UNLABELLED
        start += labels_bytes
        found.append(Step(kind, number, duration_s, name, work, lane))
    if start != len(header):
        raise ValueError("the message is longer than its fields")
    return found


_UNLABELLED = ("", COMPUTE, MAIN)


@lru_cache(maxsize=1024)
def _packed_labels(name: str, work: str, lane: str) -> bytes:
    labels = name[:_MAX_LABEL], work[:_MAX_LABEL], lane
    return b"" if labels == _UNLABELLED else json.dumps(labels).encode()


def _labels(packed: bytes) -> tuple[str, str, str]:
    """Parse the name of a step, the kind of its work, and its lane."""
    if len(packed) > _MAX_TEXT_BYTES:
        raise ValueError(f"the name of a lane has more than {_MAX_NAME} characters, or is not text")
    return _read_labels(packed)


@lru_cache(maxsize=1024)
def _read_labels(packed: bytes) -> tuple[str, str, str]:
    name, work, lane = _texts(packed, 3)
    if len(lane) > _MAX_NAME:
        raise ValueError(f"the name of a lane has more than {_MAX_NAME} characters, or is not text")
    return name[:_MAX_LABEL], work[:_MAX_LABEL], lane


@lru_cache(maxsize=1024)
def _packed_names(*names: str) -> bytes:
    return json.dumps(names).encode()


def _names(packed: bytes) -> Sequence[str]:
    """Parse the names of a post."""
    if len(packed) > _MAX_TEXT_BYTES:
        raise ValueError(f"a name has more than {_MAX_NAME} characters")
    return _read_names(packed)


@lru_cache(maxsize=1024)
def _read_names(packed: bytes) -> Sequence[str]:
    names = _texts(packed, len(_NAMES))
    for what, name in zip(_NAMES, names, strict=True):
        if len(name) > _MAX_NAME:
            raise ValueError(f"{what} has more than {_MAX_NAME} characters")
    return names


def _texts(packed: bytes, count: int) -> list[str]:
    try:
        found = json.loads(packed)
    except RecursionError:
        raise ValueError("the names are nested too deeply") from None
    if not isinstance(found, list) or len(found) != count or any(type(one) is not str for one in found):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        raise ValueError(f"the names must be a list of {count} strings")
    return found  # pyright: ignore[reportUnknownVariableType]
