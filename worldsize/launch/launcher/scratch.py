"""A launcher's folder for its ranks' sockets and files; one that a killed launcher has left is removed by the next."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX, _LOCK = "worldsize-", "lock"


class ScratchFolder:
    """A new folder in the system's folder for temporary files, or in another, for as long as its process lives.

    A lock, which the kernel releases when the process ends, tells a folder in use from one that was left.
    """

    def __init__(self, parent: str | None = None) -> None:
        parent = parent or tempfile.gettempdir()
        _remove_left(Path(parent))
        self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        draft = os.path.join(self.path, "draft")
        self._lock = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(draft, os.path.join(self.path, _LOCK))  # from here on it is seen, and locked already

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder with what it holds."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left(parent: Path) -> None:
    """Remove the folders of this user that no process holds any more."""
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # it is in use, or another process removes it
            if lock.parent.lstat().st_uid != os.getuid():
                continue
            fd = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(fd)
