"""The storages of this process's tensors: the line that made each, its size, and its kind."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from worldsize.memory import host
from worldsize.memory.program_lines import is_program, quote_line
from worldsize.memory.use import KINDS, MAX_POINTS, TEMPORARIES, Holding, MemoryUse, select_largest, thinned
from worldsize.message import MAX_NAME

# of all kinds that a storage has had, the first in this order counts
_ORDER = {kind: place for place, kind in enumerate(KINDS)}
_MAX_CHANGES = 200_000  # kept before they are merged into the curve


class StorageRef(weakref.ref[torch.UntypedStorage]):
    """A storage, live or gone; the line is that of the program which made it."""

    __slots__ = ("address", "filename", "kind", "line_number", "module", "size_bytes")

    def __new__(cls, storage: torch.UntypedStorage, when_gone: Callable[[Any], None], module: str) -> Self:
        made = super().__new__(cls, storage, when_gone)
        made.address, made.module = storage._cdata, module
        made.filename, made.line_number = line_of_program()
        made.size_bytes, made.kind = 0, TEMPORARIES
        return made

    def __init__(self, *_: object) -> None:
        pass  # a weak reference is made by `__new__`

    __eq__, __hash__ = object.__eq__, object.__hash__  # not those of the torch storage, which may be freed

    @property
    def line(self) -> str:
        """The line with its text, and its file unless it is a notebook cell; empty if unknown."""
        return quote_line(self.filename, self.line_number) if self.line_number else ""


class Ledger:
    """The bytes of all recorded storages, now and at the peak; each storage counts once, and host copies do not count.

    A storage counts with its current size until nothing refers to it; an autograd graph that saved it does. Its kind is
    determined in hindsight: a storage that becomes a parameter's gradient counts as a gradient from its creation.
    """

    def __init__(self, counts_read: bool = True, counts_fake: bool = False) -> None:
        self._counts_read = counts_read  # False: a storage counts only if it was recorded as made
        self._counts_fake = counts_fake  # True: fake tensors, which have sizes but no data, count too
        self.held_bytes = self.most_bytes = self.num_operations = 0
        self._lock = threading.RLock()
        self._storages: dict[int, StorageRef] = {}  # the live ones, by the address of torch's own object
        self._gone: deque[StorageRef] = deque()  # a storage may go in any thread, at any time
        self._start: list[tuple[StorageRef, int]] = []  # the storages and sizes from which the changes lead on
        self._changes = _Changes()
        self._curve: list[tuple[int, list[int]]] = []  # operation, bytes by kind
        self._peak_bytes, self._peak = 0, list[tuple[StorageRef, int]]()  # of the curve

    def begin_operation(self) -> None:
        """Count an operation that has run, whose tensors are about to be recorded."""
        with self._lock:
            self._take_ends()
            self.num_operations += 1

    def note(
        self, tensors: Iterable[torch.Tensor], kind: str = TEMPORARIES, module: str = "", is_made: bool = False
    ) -> None:
        """Record live tensors with their current sizes and their kind."""
        self.note_storages(
            (one.untyped_storage() for tensor in tensors for one in _plain(tensor, self._counts_fake)),
            kind,
            module,
            is_made,
        )

    def note_storages(
        self,
        storages: Iterable[torch.UntypedStorage],
        kind: str = TEMPORARIES,
        module: str = "",
        is_made: bool = False,
    ) -> None:
        """Record live storages with their current sizes and their kind."""
        with self._lock:
            self._take_ends()
            for storage in storages:
                if host.holds(storage):
                    continue
                known = self._storages.get(storage._cdata)
                if known is None or known() is not storage:
                    if not (self._counts_read or is_made):
                        continue
                    known = self._storages[storage._cdata] = StorageRef(storage, self._gone.append, module)
                if _ORDER[kind] < _ORDER[known.kind]:
                    known.kind = kind
                self._resize(known, storage.nbytes())
            self.most_bytes = max(self.most_bytes, self.held_bytes)

    def reset_peak(self) -> None:
        """Restart `most_bytes` from what is held now; the curve goes on."""
        with self._lock:
            self._take_ends()
            self.most_bytes = self.held_bytes

    def restart(self) -> None:
        """Restart the curve and its peak from what is held now."""
        with self._lock:
            self._take_ends()
            self._curve.clear()
            self._begin_changes()
            self.most_bytes, self._peak_bytes, self._peak = self.held_bytes, self.held_bytes, self._start

    def held(self) -> dict[str, int]:
        """Return the bytes held now, by kind."""
        with self._lock:
            self._take_ends()
            return dict(zip(KINDS, _by_kind((one, one.size_bytes) for one in self._storages.values()), strict=True))

    def use(self, capacity_bytes: int | None = None) -> MemoryUse:
        """Return the memory use recorded so far."""
        with self._lock:
            self._take_ends()
            self._write_curve()
            curve = thinned(self._curve, MAX_POINTS - 1)
            curve.append((self.num_operations, list(self.held().values())))
            sizes = {kind: [row[place] for _, row in curve] for kind, place in _ORDER.items()}
            return MemoryUse([operation for operation, _ in curve], sizes, _holdings(self._peak), capacity_bytes)

    def levels(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the operations at which sizes changed, with the most bytes held by kind, in the order of `KINDS`.

        If there are very many, only the highest are returned.
        """
        with self._lock:
            self._take_ends()
            self._write_curve()
            return [(operation, tuple(sizes)) for operation, sizes in self._curve]

    def _take_ends(self) -> None:
        while self._gone:
            storage = self._gone.popleft()
            if self._storages.get(storage.address) is storage:  # another storage may already have the address
                del self._storages[storage.address]
            self._resize(storage, 0)

    def _resize(self, storage: StorageRef, size_bytes: int) -> None:
        change = size_bytes - storage.size_bytes
        if not change:
            return
        storage.size_bytes = size_bytes
        self.held_bytes += change
        self._changes.append(self.num_operations, storage, change)
        if len(self._changes.sizes_bytes) > _MAX_CHANGES:
            self._write_curve()
            self._curve = thinned(self._curve, MAX_POINTS)

    def _write_curve(self) -> None:
        """Merge the changes into the curve, with the peak within each operation, and drop them."""
        sizes, peak_at = _by_kind(self._start), None
        total = sum(sizes)
        for number, (operation, storage, change) in enumerate(self._changes.rows(), 1):
            sizes[_ORDER[storage.kind]] += change
            total += change
            if not self._curve or self._curve[-1][0] != operation:
                self._curve.append((operation, list(sizes)))
            elif total > sum(self._curve[-1][1]):
                self._curve[-1] = operation, list(sizes)
            if total > self._peak_bytes:
                self._peak_bytes, peak_at = total, number
        if peak_at is not None:
            self._peak = _sizes_after(self._start, islice(self._changes.rows(), peak_at))
        self._begin_changes()

    def _begin_changes(self) -> None:
        self._changes = _Changes()
        self._start = [(storage, storage.size_bytes) for storage in self._storages.values()]


class _Changes:
    """Changes of storages' sizes, as lists: hundreds of thousands of tuples would slow the garbage collector."""

    def __init__(self) -> None:
        self.operations: list[int] = []
        self.storages: list[StorageRef] = []
        self.sizes_bytes: list[int] = []

    def append(self, operation: int, storage: StorageRef, size_bytes: int) -> None:
        """Add a change of this many bytes after an operation."""
        self.operations.append(operation)
        self.storages.append(storage)
        self.sizes_bytes.append(size_bytes)

    def rows(self) -> Iterator[tuple[int, StorageRef, int]]:
        """Operation, storage and change in bytes, in the order in which they came."""
        return zip(self.operations, self.storages, self.sizes_bytes, strict=True)


def _plain(tensor: torch.Tensor, counts_fake: bool) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that a tensor consists of, such as a DTensor's shard; none if it has no memory."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            if isinstance(part := getattr(tensor, name), torch.Tensor):  # it may also be a mesh
                yield from _plain(part, counts_fake)
    elif tensor.device.type == "meta" or (isinstance(tensor, FakeTensor) and not counts_fake):
        return
    elif tensor.layout is torch.strided:
        yield tensor


def _by_kind(sizes: Iterable[tuple[StorageRef, int]]) -> list[int]:
    """Bytes in the order of `KINDS`."""
    total = [0] * len(KINDS)
    for storage, size_bytes in sizes:
        total[_ORDER[storage.kind]] += size_bytes
    return total


def _sizes_after(
    start: Iterable[tuple[StorageRef, int]], changes: Iterable[tuple[int, StorageRef, int]]
) -> list[tuple[StorageRef, int]]:
    sizes = Counter(dict(start))
    for _, storage, change in changes:
        sizes[storage] += change
    return [(storage, size_bytes) for storage, size_bytes in sizes.items() if size_bytes]


def _holdings(sizes: Iterable[tuple[StorageRef, int]]) -> list[Holding]:
    """The largest holdings, the largest first."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for storage, size_bytes in sizes:
        alike.setdefault((storage.kind, storage.module, storage.line), []).append(size_bytes)
    found = [
        Holding(kind, module[:MAX_NAME], line[:MAX_NAME], sum(together), len(together))
        for (kind, module, line), together in alike.items()
    ]
    return select_largest(found)


def line_of_program() -> tuple[str, int]:
    """Return the file and number of the program's innermost running line; empty and 0 without one."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_program(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0
