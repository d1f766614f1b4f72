"""The kernel's word on the memory that ranks fill, read from outside, so that no rank can make itself look lean.

It sees what no count of tensors does: arrays of numpy, threads, child processes, shared memory and files in memory, and
what waits in pipes and sockets.
Source: proc(5), `/proc/PID/status`; kcmp(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
_REST = 9  # times as long as a look takes, between one and the next
_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())  # Linux's number of the call; Python has no name for it
_KCMP_VM = 1
# what a pipe holds, and about what a socket does, unless they are made larger, which a jail refuses
_CHANNEL_BYTES = {"pipe": 64 << 10, "socket": 256 << 10}


@dataclass(frozen=True)
class _Status:
    """A process as the kernel describes it; sizes are in bytes."""

    inner_pid: int  # in the innermost namespace
    private: int
    shared: int
    file: int
    most: int  # of all three


@dataclass
class _Rank:
    """A rank's processes at the beginning, and the most that they have held since, in bytes."""

    pid: int
    file: dict[int, int] = field(default_factory=dict)  # process -> the most of files' pages that it was seen to map
    base_bytes: int = 0
    most_bytes: int = 0


class KernelMemory:
    """The memory of ranks that descend from the process `root_pid`, each from when it is watched.

    A rank's are the private and shared pages of its process and of all below it, also those swapped out, and in a jail
    the files in memory of all ranks and the processes whose parents are gone. Between two looks, a process's own
    record of its peak counts, less the pages of files that it was seen to map. Memory that processes share as a whole
    counts once: between vfork and exec, a process that starts a program would otherwise seem to fill all of it again.
    Each pipe or socket that a rank has opened since counts as full, and in a jail all that is under way over TCP.
    """

    def __init__(self, root_pid: int, num_ranks: int = 1) -> None:
        self._root_pid, self._num_ranks = root_pid, num_ranks
        self._ranks: dict[int, _Rank] = {}
        self._others: set[int] = set()  # processes of the jail that are no rank's
        self._base_file_bytes = 0
        self._next_glance_s = 0.0

    def watch(self, rank: int, inner_pid: int) -> None:
        """Watch a rank from now on, whose process has this number in its own namespace."""
        children = _children()
        tree = _descendants(self._root_pid, children)
        found = [pid for pid in tree if (status := _status(pid)) and status.inner_pid == inner_pid]
        if not found:
            return
        watched = _Rank(found[0])
        if not self._ranks:
            self._base_file_bytes = _bytes_in_files(watched.pid)
        self._ranks[rank] = watched
        own = {pid for one in self._ranks.values() for pid in _descendants(one.pid, children)}
        self._others = set(tree) - own
        watched.base_bytes = watched.most_bytes = self._held_bytes(watched, _descendants(watched.pid, children), 0)

    def glance(self) -> None:
        """Look, unless looking would take more than a tenth of the time: on a busy machine ranks would wait for it."""
        if (start_s := time.monotonic()) >= self._next_glance_s:
            self.look()
            end_s = time.monotonic()
            self._next_glance_s = end_s + _REST * (end_s - start_s)

    def look(self) -> None:
        """Take note of what the ranks hold now."""
        alive = [rank for rank in self._ranks.values() if _status(rank.pid)]
        if not alive:
            return
        children = _children()  # once: there may be many processes, and a rank waits meanwhile
        trees = [_descendants(rank.pid, children) for rank in alive]
        own = {pid for tree in trees for pid in tree}
        orphans: list[int] = []
        if len(self._ranks) == self._num_ranks:  # until then a process may be a rank that has not joined yet
            orphans = [pid for pid in _descendants(self._root_pid, children) if pid not in own | self._others]
        in_files = max(0, _bytes_in_files(alive[0].pid) - self._base_file_bytes)
        in_tcp = _bytes_in_tcp(alive[0].pid)
        for rank, tree in zip(alive, trees, strict=True):
            held_bytes = self._held_bytes(rank, [*tree, *orphans], in_files) + in_tcp
            rank.most_bytes = max(rank.most_bytes, held_bytes)

    def grown_bytes(self, rank: int) -> int | None:
        """The bytes by which the rank's memory had grown at its most; None where the kernel does not say."""
        watched = self._ranks.get(rank)
        return watched and watched.most_bytes - watched.base_bytes

    def _held_bytes(self, rank: _Rank, processes: list[int], in_files: int) -> int:
        private = shared = 0
        counted: list[int] = []
        for pid in processes:
            # before it is read: once a process has memory of its own, it never shares its parent's again
            if any(_is_same_memory(pid, one) for one in counted):
                continue
            if status := _status(pid):
                counted.append(pid)
                file = rank.file[pid] = max(rank.file.get(pid, 0), status.file)
                private += max(status.private, status.most - status.shared - file)
                shared += status.shared
        in_channels = _bytes_in_channels(counted)
        return private + max(shared, in_files) + in_channels  # a file in memory may be mapped, too


def _status(pid: int) -> _Status | None:
    """What the kernel says of a process; None of one that is gone, and where it says nothing."""
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
        fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        private = _bytes(fields, "RssAnon") + _bytes(fields, "VmSwap")
        shared, file, most = (_bytes(fields, name) for name in ("RssShmem", "RssFile", "VmHWM"))
        return _Status(int(fields["NSpid"][-1]), private, shared, file, most)
    except (OSError, KeyError, ValueError):
        return None


def _is_same_memory(pid: int, other_pid: int) -> bool:
    """True where two processes share all their memory, as one that is about to start a program does with its parent.

    False where the kernel does not say.
    """
    if _KCMP is None or sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(_KCMP, pid, other_pid, _KCMP_VM, 0, 0) == 0


def _bytes(fields: Mapping[str, list[str]], name: str) -> int:
    return 1024 * int(fields[name][0])


def _children() -> dict[int, list[int]]:
    """The children of every process that has some."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    return children


def _descendants(root_pid: int, children: Mapping[int, list[int]]) -> list[int]:
    """A process and all below it, parents first."""
    found = [root_pid]
    for pid in found:
        found += children.get(pid, ())
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Every process that can be seen, with its parent."""
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir(_PROC)):
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (_PROC / name / "stat").read_text()
                yield int(name), int(stat.rpartition(")")[2].split()[1])  # its name, in brackets, may hold anything


def _bytes_in_files(pid: int) -> int:
    """The bytes of files in memory that a process sees and this one does not."""
    sizes: dict[int, int] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        ours = {line.split()[2] for line in (_PROC / "self/mountinfo").read_text().splitlines()}
        for line in (_PROC / str(pid) / "mountinfo").read_text().splitlines():
            fields = line.split()
            if fields[fields.index("-") + 1] == "tmpfs" and fields[2] not in ours:
                usage = os.statvfs(f"/proc/{pid}/root{fields[4]}")
                sizes[usage.f_fsid] = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    return sum(sizes.values())


def _bytes_in_channels(processes: Iterable[int]) -> int:
    """The bytes that all pipes and sockets of processes hold when they are full."""
    channels = {channel for pid in processes for channel in _channels(pid)}
    return sum(_CHANNEL_BYTES[channel.partition(":")[0]] for channel in channels)


def _channels(pid: int) -> Iterator[str]:
    """The pipes and sockets that a process has open, as the kernel calls them; none where it does not say."""
    files = _PROC / str(pid) / "fd"
    with contextlib.suppress(OSError):
        for fd in os.listdir(files):
            with contextlib.suppress(OSError):
                channel = os.readlink(files / fd)
                if channel.partition(":")[0] in _CHANNEL_BYTES:
                    yield channel


def _bytes_in_tcp(pid: int) -> int:
    """The bytes under way over TCP in a process's network, unless that is this one's too."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        if os.readlink(_PROC / str(pid) / "ns/net") != os.readlink(_PROC / "self/ns/net"):
            for table in ("tcp", "tcp6"):
                for line in (_PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                    sent, received = line.split()[4].split(":")
                    total += int(sent, 16) + int(received, 16)
    return total
