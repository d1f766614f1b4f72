"""Writing a folder that appears only when it is complete, and files that only their owner can read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


@contextmanager
def in_place_of(out: Path) -> Iterator[Path]:
    """A temporary folder that replaces `out` at the end of the block, or is removed if the block fails."""
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent, ignore_cleanup_errors=True) as parent:
        folder = Path(parent, "new")
        folder.mkdir()
        yield folder
        before = Path(parent, "old")
        if out.exists():
            out.rename(before)
        try:
            folder.rename(out)
        except BaseException:
            if before.exists():
                before.rename(out)
            raise


def write_private(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read, from the moment it exists."""
    path.touch(PRIVATE_FILE, exist_ok=False)
    path.write_bytes(content)
