"""A rank's torch.distributed calls, in a file that its launcher can read while the rank hangs or after it has died."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard

from worldsize.framing import read_fields
from worldsize.message import Word, parse, to_fields
from worldsize.source import Line

ISSUED, WAITING, DONE, BROKEN = "issued", "waiting", "done", "broken off"
POINT_TO_POINT = ("send", "recv", "isend", "irecv")
NEW_GROUP = "new_group"  # also stands for the group of these calls, which all ranks make in the same order
_MARKS = {ISSUED: b"i", WAITING: b"w", DONE: b"d", BROKEN: b"b"}
_STATES = {mark: state for state, mark in _MARKS.items()}
_SLOT_BYTES, _NUM_SLOTS = 1024, 64  # the last 64 calls are kept
_HEAD_BYTES = 19  # a letter, and nine digits each for number and sequence
_CALLS_BYTES = _SLOT_BYTES * _NUM_SLOTS
STACK_START, STACK_BYTES = _CALLS_BYTES, 1 << 14  # the rest of the file, for `stack_dump`


@dataclass(frozen=True)
class Call:
    """One call: its rank's `number`-th (-1 if only a stack shows it), and its group's `sequence`-th collective.

    `sequence` is 0 for a send or receive, and for a call in which this rank takes no part.

    `ranks` are the group's members (None for the default group), and `group` is torch's name for the group: two groups
    may have the same members, and each counts its own collectives. `state` is issued (not waited for yet), waiting,
    done, or broken off by an exception.
    """

    number: int
    op: Word
    ranks: tuple[int, ...] | None = None
    sequence: int = 0
    dtype: Word = ""
    shape: tuple[int, ...] | None = None
    peer: int | None = None  # the peer of a send or receive, or the root of a collective that has one
    tag: int = 0
    reduction: Word = ""
    line: Line | None = None
    state: str = WAITING
    group: Word = ""  # empty for the default group
    members: Word = ""  # the ranks of the group that `new_group` makes

    def to_fields(self) -> dict[str, Any]:
        """Convert to JSON fields, without the state and empty fields."""
        fields: dict[str, Any] = to_fields(self)
        return {name: value for name, value in fields.items() if value not in (None, "") and name != "state"}

    @property
    def is_point_to_point(self) -> bool:
        """Whether the call is a send or a receive."""
        return self.op in POINT_TO_POINT

    @property
    def sends(self) -> bool:
        """Whether the call is a send."""
        return self.op in ("send", "isend")

    def __str__(self) -> str:
        if self.op == NEW_GROUP:
            return f"new_group({self.members})"
        name = f"collective {self.sequence}, {self.op}" if self.sequence else self.op
        notes = [self.what] if self.what else []
        if self.is_point_to_point:
            peer = f"rank {self.peer}" if self.peer is not None else "any rank" if self.number >= 0 else ""
            name += f" {'to' if self.sends else 'from'} {peer}" if peer else ""
            notes += [f"tag {self.tag}"] if self.tag else []
        else:
            notes += [f"root {self.peer}"] if self.peer is not None else []
            notes += [self.reduction] if self.reduction not in ("", "SUM") else []
            notes += [f"group {list(self.ranks)}"] if self.ranks is not None else []
        return name + (f" ({', '.join(notes)})" if notes else "")

    @property
    def what(self) -> str:
        """The type and shape of the tensor that it moves, such as 'float32 [4, 2]'."""
        return f"{self.dtype} {list(self.shape)}" if self.shape is not None else ""


class CallLog:
    """A file with a ring of slots, each holding a letter for a call's state, its number, and the call as JSON.

    The rest of the file is for a dump of the rank's stack.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page: mmap.mmap | None = None
        self._newest = [-1] * _NUM_SLOTS  # the number of the call in each slot, as the writer knows it

    @staticmethod
    def make() -> CallLog:
        """Make an empty log, in memory if the system allows it; an untrusted rank then cannot change its size."""
        size = STACK_START + STACK_BYTES
        try:
            fd = os.memfd_create("calls", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError):  # not Linux, or a jail
            fd, path = tempfile.mkstemp(prefix="worldsize-")
            os.unlink(path)
            os.ftruncate(fd, size)
            return CallLog(fd)
        import fcntl

        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return CallLog(fd)

    def close(self) -> None:
        """Close the file if it is open."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def write(self, call: Call) -> None:
        """Add a call, overwriting the 64th before it."""
        line = call.line and (call.line.filename, call.line.number, call.line.function, call.line.text)
        text = _text_of(
            call.op,
            call.ranks,
            call.dtype,
            call.shape,
            call.peer,
            call.tag,
            call.reduction,
            line,
            call.group,
            call.members,
        )
        if len(text) < _SLOT_BYTES - _HEAD_BYTES:
            head = b"%c%09d%09d" % (_MARKS[call.state], call.number, call.sequence)
            self._put(_place(call.number), head + text + b"\n")
            self._newest[call.number % _NUM_SLOTS] = call.number

    def mark(self, number: int, state: str) -> None:
        """Change the state of a call, unless a later call has overwritten it."""
        if self._page is not None and self._newest[number % _NUM_SLOTS] == number:
            self._page[_place(number)] = _MARKS[state][0]

    def read(self) -> list[Call]:
        """Read the calls, oldest first, skipping malformed slots: a rank may write anything."""
        return sorted(filter(_is_call, map(_read, self._slots())), key=lambda call: call.number)

    def current(self) -> Call | None:
        """Read the call in which the rank waits, or else its last call; None without calls. Far cheaper than `read`."""
        slots = [slot for slot in self._slots() if slot[:1] in _STATES and slot[1:_HEAD_BYTES].isdigit()]
        newest = max(slots, key=lambda slot: (slot[:1] == _MARKS[WAITING], slot[1:10]), default=None)
        return _read(newest) if newest else None

    def issued(self) -> list[Call]:
        """Read the calls that have not been waited for, oldest first; cheap if there are none."""
        slots = (slot for slot in self._slots() if slot[:1] == _MARKS[ISSUED])
        return sorted(filter(_is_call, map(_read, slots)), key=lambda call: call.number)

    def _put(self, place: int, data: bytes) -> None:
        if self._page is None:  # the writer maps the file: four writes per call are too many for system calls
            self._page = mmap.mmap(self.fd, _CALLS_BYTES)
        self._page[place : place + len(data)] = data

    def _slots(self) -> Iterator[bytes]:
        data = os.pread(self.fd, _CALLS_BYTES, 0) if self.fd >= 0 else b""
        return (data[start : start + _SLOT_BYTES] for start in range(0, len(data), _SLOT_BYTES))


@lru_cache(maxsize=256)  # the same calls repeat
def _text_of(
    op: str,
    ranks: tuple[int, ...] | None,
    dtype: str,
    shape: tuple[int, ...] | None,
    peer: int | None,
    tag: int,
    reduction: str,
    line: tuple[str, int, str, str] | None,
    group: str,
    members: str,
) -> bytes:
    """Encode a call as JSON, without the fields that change each time: its number, sequence and state."""
    at = Line(*line) if line else None
    call = Call(0, op, ranks, 0, dtype, shape, peer, tag, reduction, at, group=group, members=members)
    return json.dumps(call.to_fields()).encode()


def _place(number: int) -> int:
    return number % _NUM_SLOTS * _SLOT_BYTES


def _is_call(call: Call | None) -> TypeGuard[Call]:
    return call is not None


def _read(slot: bytes) -> Call | None:
    if slot[:1] not in _STATES:
        return None
    try:
        head = {"state": _STATES[slot[:1]], "number": int(slot[1:10]), "sequence": int(slot[10:_HEAD_BYTES])}
        return parse(read_fields(slot[_HEAD_BYTES : slot.index(b"\n")]) | head, Call)
    except ValueError:
        return None
