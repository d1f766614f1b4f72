"""Conversion of torch's snapshots of a GPU's memory to `MemoryUse`.

Source: `torch.cuda.memory._snapshot` (torch 2.13), and torch/csrc/cuda/memory_snapshot.cpp for undocumented details: a
block that waits for its last stream is "active_pending_free", and a trace has the requested sizes.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from msgspec import Struct

from worldsize.memory.program_lines import file_name, is_program, quote_line
from worldsize.memory.use import (
    ACTIVATIONS,
    GRADIENTS,
    MAX_POINTS,
    OPTIMIZER_STATE,
    TEMPORARIES,
    WEIGHTS,
    Holding,
    MemoryUse,
    select_largest,
    thinned,
)
from worldsize.message import parse

_CATEGORIES = {  # categories of torch.profiler's own snapshots
    "parameter": WEIGHTS,
    "gradient": GRADIENTS,
    "optimizer_state": OPTIMIZER_STATE,
    "activation": ACTIVATIONS,
    "input": ACTIVATIONS,
    "autograd_detail": TEMPORARIES,
    "temporary": TEMPORARIES,
}
_MAX_PARTS = 5  # distinguished in the picture
_OTHERS = "all others"
_EARLIER, _BACKWARD, _UNKNOWN = "before the recording", "the backward pass", "no line of the program"
_ENGINE = "torch::autograd::Engine"  # occurs in the names of C++ frames


# the parts of a snapshot that are read, with torch's names


class _Frame(Struct):
    filename: str = ""
    line: int = 0
    name: str = ""


class _Made(Struct, kw_only=True):
    frames: list[_Frame] | None = None
    category: Any = None
    user_metadata: Any = None


class _Entry(_Made, kw_only=True):
    action: str
    addr: int = 0  # an out-of-memory entry has none
    size: int = 0


class _SegmentBlock(_Made, kw_only=True):
    size: int
    requested_size: int | None = None
    state: str = ""


class _Segment(Struct, kw_only=True):
    address: int
    blocks: list[_SegmentBlock]
    device: int = 0


class _Snapshot(Struct):
    device_traces: list[list[_Entry]]
    segments: list[_Segment]


@dataclass(frozen=True)
class _Block:
    """One allocation: its size, its part of the picture, and the line that made it."""

    part: str
    kind: str  # empty if the snapshot has none
    line: str
    size_bytes: int


class _AllocatorStep(NamedTuple):
    """The blocks that one operation of the allocator made and released."""

    made: Sequence[_Block] = ()
    released: Sequence[_Block] = ()


def read_snapshot(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file written by `torch.cuda.memory._dump_snapshot`, without executing anything in it.

    Raises:
        OSError: the file does not exist.
        ValueError: the file is not a snapshot.
    """
    with open(path, "rb") as file:
        try:
            snapshot = _PlainUnpickler(file).load()
            if not isinstance(snapshot, dict):
                raise ValueError(f"expected named fields, got a {type(snapshot).__name__}")
            return snapshot
        except OSError:
            raise
        except Exception as error:  # corrupt bytes can cause any error
            raise ValueError(f"{os.fspath(path)} is not a snapshot of torch.cuda.memory: {error}") from None


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler of dicts, lists, tuples, strings and numbers that refuses anything that would be called."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which a snapshot never holds")


def of_snapshot(snapshot: Mapping[str, Any], device: int | None = None) -> MemoryUse:
    """Convert a `torch.cuda.memory._snapshot()` to the memory use over its recorded allocations.

    Call `torch.cuda.memory._record_memory_history()` first. `device` is needed if several GPUs were used. Memory counts
    from its allocation until all streams are done with it, in requested bytes without rounding. Its kind is the
    category from torch.profiler, the text given to `torch.cuda.memory._set_memory_metadata`, or otherwise the program's
    innermost line that allocated it. `operations` count allocations and frees.

    Raises:
        ValueError: this is not a snapshot, nothing was recorded on the device, or several devices were used.
    """
    whole = parse(snapshot, _Snapshot)
    traces, segments = whole.device_traces, whole.segments
    device = _only_device(traces, segments) if device is None else device
    if not 0 <= device < len(traces):
        raise ValueError(f"there is no device {device} in this snapshot; its devices are 0 to {len(traces) - 1}")
    in_use = [pair for segment in segments if segment.device == device for pair in _in_use(segment)]
    steps = _steps(traces[device], dict(in_use))
    if not any(step.made for step in steps):
        raise ValueError(
            f"nothing was recorded on device {device}: call torch.cuda.memory._record_memory_history() before the "
            "program allocates anything"
        )
    return _use(steps)


def _only_device(traces: Sequence[Sequence[_Entry]], segments: Sequence[_Segment]) -> int:
    used = {number for number, trace in enumerate(traces) if trace}
    used = used or {segment.device for segment in segments}
    if len(used) > 1:
        raise ValueError(f"this snapshot has devices {', '.join(map(str, sorted(used)))}: choose one with device=")
    return next(iter(used), 0)


def _in_use(segment: _Segment) -> Iterator[tuple[int, _Block]]:
    """Yield the blocks in use when the snapshot was taken, each with its address."""
    address = segment.address
    for block in segment.blocks:
        if block.state != "inactive":
            yield address, _block(block, block.size if block.requested_size is None else block.requested_size)
        address += block.size


def _steps(trace: Sequence[_Entry], in_use: Mapping[int, _Block]) -> list[_AllocatorStep]:
    """What each operation did; the first step holds what was there before the recording."""
    steps: list[_AllocatorStep] = []
    before: list[_Block] = []
    live: dict[int, _Block] = {}
    for entry in trace:
        if entry.action == "alloc":
            live[entry.addr] = block = _block(entry, entry.size)
            steps.append(_AllocatorStep(made=[block]))
        elif entry.action in ("free_completed", "free"):  # the latter in old versions of torch
            block = live.pop(entry.addr, None)
            if block is None:
                block = _Block(_EARLIER, "", _EARLIER, entry.size)
                before.append(block)
            steps.append(_AllocatorStep(released=[block]))
    before += [block for address, block in in_use.items() if address not in live]
    return [_AllocatorStep(made=before), *steps]


def _block(made: _Made, size_bytes: int) -> _Block:
    """Make the block of an entry of a trace or a segment."""
    frames = made.frames or []
    own = next(filter(_is_own, frames), None)  # the innermost frame is first
    if own:
        name = f"{file_name(own.filename) or 'cell'}:{own.line}"
        line = quote_line(own.filename, own.line)
    else:
        is_backward = any(_ENGINE in frame.name for frame in frames)
        name = line = _BACKWARD if is_backward else _UNKNOWN
    metadata = made.user_metadata
    kind = _CATEGORIES.get(str(made.category), metadata if isinstance(metadata, str) else "")
    return _Block(kind or name, kind, line, size_bytes)


def _is_own(frame: _Frame) -> bool:
    """Whether this is a Python frame of the program."""
    name = frame.filename
    return (name.endswith(".py") or name.startswith("<")) and is_program(name)


def _use(steps: Sequence[_AllocatorStep]) -> MemoryUse:
    peak = _peak(steps)
    parts = [*_largest_parts(peak, steps), _OTHERS]
    place_of = {part: place for place, part in enumerate(parts)}
    sizes, curve = [0] * len(parts), list[tuple[int, list[int]]]()
    for operation, step in enumerate(steps):
        for block in step.made:
            sizes[place_of.get(block.part, -1)] += block.size_bytes
        for block in step.released:
            sizes[place_of.get(block.part, -1)] -= block.size_bytes
        curve.append((operation, list(sizes)))
    curve = [*thinned(curve[:-1], MAX_POINTS - 1), curve[-1]]
    by_part = {part: [row[place] for _, row in curve] for part, place in place_of.items()}
    return MemoryUse([operation for operation, _ in curve], by_part, _holdings(peak))


def _peak(steps: Sequence[_AllocatorStep]) -> list[_Block]:
    """The blocks held when most was."""
    total = most = num_steps = 0
    for number, step in enumerate(steps, 1):
        total += sum(block.size_bytes for block in step.made) - sum(block.size_bytes for block in step.released)
        if total > most:
            most, num_steps = total, number
    live: dict[int, _Block] = {}
    for step in steps[:num_steps]:
        live |= {id(block): block for block in step.made}
        for block in step.released:
            del live[id(block)]
    return list(live.values())


def _largest_parts(peak: Sequence[_Block], steps: Sequence[_AllocatorStep]) -> list[str]:
    """The parts that are told apart: those that hold most at the peak, kinds before lines."""
    held = Counter[str]()
    for block in peak:
        held[block.part] += block.size_bytes
    is_kind = {block.part: bool(block.kind) for step in steps for block in step.made}
    return sorted(is_kind, key=lambda part: (not is_kind[part], -held[part]))[:_MAX_PARTS]


def _holdings(blocks: Sequence[_Block]) -> list[Holding]:
    """The largest holdings, the largest first."""
    alike: dict[tuple[str, str], list[int]] = {}
    for block in blocks:
        alike.setdefault((block.kind, block.line), []).append(block.size_bytes)
    found = [Holding(kind, "", line, sum(sizes), len(sizes)) for (kind, line), sizes in alike.items()]
    return select_largest(found)
