"""Files that several processes read and write: replaced atomically, and locked while a process changes them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: an interruption leaves either the complete old content or the complete new one."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            if path.is_file():  # keep its permissions, so that a group can still read it
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:  # leave no partial files on a full disk
            os.unlink(file.name)
            raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Prevent other processes from updating a file while this block does.

    The lock is a hidden file next to it, which is not removed: locks on folders do not work on NFS.
    """
    with FileLock(path.with_name(f".{path.name}.lock")):
        yield
