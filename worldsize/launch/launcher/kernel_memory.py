"""The ranks' memory as the kernel counts it, read from outside so that no rank can understate it.

Unlike a count of tensors it includes NumPy arrays, threads, child processes, shared memory, files in memory, and data
in pipes and sockets.
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
_REST = 9  # pause between two measurements, as a multiple of how long one takes
_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())  # the system call's number on Linux; Python lacks it
_KCMP_VM = 1
# the capacity of a pipe and roughly that of a socket; a jail prevents making them larger
_CHANNEL_BYTES = {"pipe": 64 << 10, "socket": 256 << 10}


@dataclass(frozen=True)
class _Status:
    """Memory of a process in bytes, as the kernel reports it."""

    inner_pid: int  # its process ID in the innermost namespace
    private: int
    shared: int
    file: int
    most: int  # peak of the sum of all three


@dataclass
class _Rank:
    """A rank's processes when it was first watched, and their peak memory since, in bytes."""

    pid: int
    file: dict[int, int] = field(default_factory=dict)  # process -> the most file pages that it was seen to map
    base_bytes: int = 0
    most_bytes: int = 0


class KernelMemory:
    """The memory of ranks that descend from the process `root_pid`, each since it was first watched.

    A rank's memory is the private and shared pages of its process and all descendants, including swapped pages; in a
    jail, also all ranks' files in memory and all orphaned processes. Between two measurements, the kernel's own record
    of a process's peak counts, less the file pages that it was seen to map. Processes that share an address space
    count once: otherwise a process between vfork and exec would count its parent's memory again.
    Each pipe or socket that a rank has opened since counts as full, and in a jail so does all data in transit over TCP.
    """

    def __init__(self, root_pid: int, num_ranks: int = 1) -> None:
        self._root_pid, self._num_ranks = root_pid, num_ranks
        self._ranks: dict[int, _Rank] = {}
        self._others: set[int] = set()  # processes of the jail that belong to no rank
        self._base_file_bytes = 0
        self._next_glance_s = 0.0

    def watch(self, rank: int, inner_pid: int) -> None:
        """Start to watch a rank; `inner_pid` is its process ID in its own namespace."""
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
        """Measure, but spend at most a tenth of the time on it: on a busy machine ranks would wait."""
        if (start_s := time.monotonic()) >= self._next_glance_s:
            self.look()
            end_s = time.monotonic()
            self._next_glance_s = end_s + _REST * (end_s - start_s)

    def look(self) -> None:
        """Measure the ranks' memory now."""
        alive = [rank for rank in self._ranks.values() if _status(rank.pid)]
        if not alive:
            return
        children = _children()  # once: there may be many processes, and a rank waits meanwhile
        trees = [_descendants(rank.pid, children) for rank in alive]
        own = {pid for tree in trees for pid in tree}
        orphans: list[int] = []
        if len(self._ranks) == self._num_ranks:  # before that, a process may be a rank that has not joined yet
            orphans = [pid for pid in _descendants(self._root_pid, children) if pid not in own | self._others]
        in_files = max(0, _bytes_in_files(alive[0].pid) - self._base_file_bytes)
        in_tcp = _bytes_in_tcp(alive[0].pid)
        for rank, tree in zip(alive, trees, strict=True):
            held_bytes = self._held_bytes(rank, [*tree, *orphans], in_files) + in_tcp
            rank.most_bytes = max(rank.most_bytes, held_bytes)

    def grown_bytes(self, rank: int) -> int | None:
        """The growth of the rank's memory at its peak, in bytes; None if the kernel does not report it."""
        watched = self._ranks.get(rank)
        return watched and watched.most_bytes - watched.base_bytes

    def _held_bytes(self, rank: _Rank, processes: list[int], in_files: int) -> int:
        private = shared = 0
        counted: list[int] = []
        for pid in processes:
            # before it is read: once a process has its own memory, it never shares its parent's again
            if any(_is_same_memory(pid, other) for other in counted):
                continue
            if status := _status(pid):
                counted.append(pid)
                file = rank.file[pid] = max(rank.file.get(pid, 0), status.file)
                private += max(status.private, status.most - status.shared - file)
                shared += status.shared
        in_channels = _bytes_in_channels(counted)
        return private + max(shared, in_files) + in_channels  # a file in memory may be mapped, too


def _status(pid: int) -> _Status | None:
    """Read a process's memory; None if the process has ended or the kernel reports nothing."""
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
        fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        private = _bytes(fields, "RssAnon") + _bytes(fields, "VmSwap")
        shared, file, most = (_bytes(fields, name) for name in ("RssShmem", "RssFile", "VmHWM"))
        return _Status(int(fields["NSpid"][-1]), private, shared, file, most)
    except (OSError, KeyError, ValueError):
        return None


def _is_same_memory(pid: int, other_pid: int) -> bool:
    """Whether two processes share an address space, as between vfork and exec; False if the kernel does not say."""
    if _KCMP is None or sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(_KCMP, pid, other_pid, _KCMP_VM, 0, 0) == 0


def _bytes(fields: Mapping[str, list[str]], name: str) -> int:
    return 1024 * int(fields[name][0])


def _children() -> dict[int, list[int]]:
    """Map each process to its children."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    return children


def _descendants(root_pid: int, children: Mapping[int, list[int]]) -> list[int]:
    """List a process and all its descendants, parents first."""
    pids = [root_pid]
    for pid in pids:
        pids += children.get(pid, ())
    return pids


def _parents() -> Iterator[tuple[int, int]]:
    """Yield every visible process with its parent."""
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir(_PROC)):
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (_PROC / name / "stat").read_text()
                yield int(name), int(stat.rpartition(")")[2].split()[1])  # its name, in brackets, may hold anything


def _bytes_in_files(pid: int) -> int:
    """The bytes of in-memory files that a process sees and this one does not."""
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
    """The capacity in bytes of all pipes and sockets of these processes."""
    channels = {channel for pid in processes for channel in _channels(pid)}
    return sum(_CHANNEL_BYTES[channel.partition(":")[0]] for channel in channels)


def _channels(pid: int) -> Iterator[str]:
    """Yield the kernel's names of a process's open pipes and sockets, if it reports them."""
    files = _PROC / str(pid) / "fd"
    with contextlib.suppress(OSError):
        for fd in os.listdir(files):
            with contextlib.suppress(OSError):
                channel = os.readlink(files / fd)
                if channel.partition(":")[0] in _CHANNEL_BYTES:
                    yield channel


def _bytes_in_tcp(pid: int) -> int:
    """The bytes in transit over TCP in a process's network namespace; 0 if it shares this process's."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        if os.readlink(_PROC / str(pid) / "ns/net") != os.readlink(_PROC / "self/ns/net"):
            for table in ("tcp", "tcp6"):
                for line in (_PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                    sent, received = line.split()[4].split(":")
                    total += int(sent, 16) + int(received, 16)
    return total
