"""A folder that appears when it is complete."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def in_place_of(out: Path) -> Iterator[Path]:
    """A folder to write in, which replaces `out` at the end of the block, or is removed if the block fails."""
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
