"""Files that several processes read and write: replaced whole, and locked while one of them changes a file."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a run that is cut off leaves either the old content or the new, each complete."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            if path.is_file():  # a group that shares it goes on reading it
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:  # a full disk must not collect partial files
            os.unlink(file.name)
            raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from reading a file, changing it and writing it back while this block does.

    The lock is a hidden file next to it, which stays: locks on folders do not work on NFS.
    """
    with FileLock(path.with_name(f".{path.name}.lock")):
        yield
