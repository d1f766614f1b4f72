"""A launcher's folder for its ranks' sockets and files; a killed launcher's folder is removed by the next launcher."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX, _LOCK = "worldsize-", "lock"


class ScratchFolder:
    """A new folder in `parent`, by default the system's temporary folder, that lasts as long as its process.

    A lock, which the kernel releases when the process ends, shows whether a folder is still in use.
    """

    def __init__(self, parent: str | None = None) -> None:
        parent = parent or tempfile.gettempdir()
        _remove_left(Path(parent))
        self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        draft = os.path.join(self.path, "draft")
        self._lock = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(draft, os.path.join(self.path, _LOCK))  # other launchers can see it from here on, already locked

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder and its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left(parent: Path) -> None:
    """Remove this user's folders that no process has locked."""
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # it is in use, or another process is removing it
            if lock.parent.lstat().st_uid != os.getuid():
                continue
            fd = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(fd)
