"""A folder that appears when all is in it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def in_place_of(out: Path) -> Iterator[Path]:
    """A folder to write in, which takes the place of `out` in the end, or is gone where that end is not reached."""
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
