"""A folder of checkpoints, watched and damaged through an open descriptor: the program writing there is untrusted."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Literal

_MAX_FILES, _MAX_DEPTH = 2000, 8  # examined at most: a program may write any number
_BAD_BYTES = 1024
_FLIPPED_BIT = 0x40  # in the highest byte of a float32 it makes a small number huge
_MAX_DISK_BYTES = 1 << 30  # of a file system that may be filled up: only a sandbox's is so small

# a file's inode, time of change in ns, and size, which stay the same until it is rewritten
Written = tuple[int, int, int]


class CheckpointFolder:
    """The folder behind an open file, which is closed with it; `saved_before` are the steps before which it changed.

    `held_bytes` maps each step to the size of all files before its samples were first taken.

    Links in it are not followed. A disk is filled with an unnamed file, which only this process can free.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._known: set[Written] = set()
        self._newest: set[Written] = set()
        self._filler: int | None = None
        self.saved_before: list[int] = []
        self.held_bytes: dict[int, int] = {}

    def look(self, step: int) -> None:
        """Note whether files have been written since the last look; `step` is the next one."""
        files = {written for _, _, written in self._files()}
        if new := files - self._known:
            if self.saved_before[-1:] != [step]:
                self.saved_before.append(step)
                self._newest = set()
            self._newest |= new
        self._known = files
        self.held_bytes.setdefault(step, sum(size_bytes for _, _, size_bytes in files))

    def damage(self, kind: Literal["truncate", "corrupt"]) -> None:
        """Cut every file of the newest checkpoint in half, or flip bits in a block of each of its large ones."""
        largest_bytes = max((size_bytes for _, _, size_bytes in self._newest), default=0)
        for folder, name, written in self._files():
            if written in self._newest and (kind == "truncate" or 2 * written[2] >= largest_bytes):
                self._damage(folder, name, kind)

    def _damage(self, folder: int, name: str, kind: Literal["truncate", "corrupt"]) -> None:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return
            if kind == "truncate":
                os.ftruncate(fd, status.st_size // 2)
            else:
                # if weights and moments are saved one after the other, this is inside one of them
                place = status.st_size // 3
                block = os.pread(fd, _BAD_BYTES, place)
                os.pwrite(fd, bytes(byte ^ _FLIPPED_BIT for byte in block), place)
        finally:
            os.close(fd)

    @property
    def is_on_small_disk(self) -> bool:
        """True if the folder's file system is small enough to be a sandbox's, so that it may be filled up."""
        disk = os.fstatvfs(self._fd)
        return disk.f_blocks * disk.f_frsize <= _MAX_DISK_BYTES

    def fill_disk(self, left_bytes: int) -> None:
        """Fill the folder's file system, a small one, up to this many free bytes."""
        assert self.is_on_small_disk
        disk = os.fstatvfs(self._fd)
        self._filler = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, dir_fd=self._fd)
        os.posix_fallocate(self._filler, 0, max(1, disk.f_bavail * disk.f_frsize - left_bytes))

    def free_disk(self) -> None:
        """Free the space that `fill_disk` took, if any."""
        if self._filler is not None:
            os.close(self._filler)
            self._filler = None

    def close(self) -> None:
        """Close the folder, and free its disk."""
        self.free_disk()
        os.close(self._fd)

    def _files(self) -> Iterator[tuple[int, str, Written]]:
        """Yield every file: the open folder that holds it, its name, and its inode, time and size."""
        num_left = _MAX_FILES
        for path, folders, names, at in os.fwalk(".", dir_fd=self._fd):
            if path.count(os.sep) >= _MAX_DEPTH:
                folders.clear()
            for name in names[:num_left]:
                with contextlib.suppress(OSError):  # it has just been renamed or removed
                    status = os.stat(name, dir_fd=at, follow_symlinks=False)
                    yield at, name, (status.st_ino, status.st_mtime_ns, status.st_size)
            num_left -= len(names[:num_left])
