"""The programs of a project as students hand them in, read strictly."""

from __future__ import annotations

import os
from pathlib import Path

from autograder.submissions.malformed import Malformed

MAX_PROGRAM_BYTES = 1 << 20


def submitted(folder: Path, names: list[str]) -> dict[str, str]:
    """The sources of the programs of these names that a student handed in.

    Raises:
        Malformed: one is missing, not a plain file, too large, or not text.
    """
    return {name: read(folder / name) for name in names}


def read(path: Path) -> str:
    """The source of a program that was handed in.

    Raises:
        Malformed: as for `submitted`.
    """
    if not os.path.lexists(path):
        raise Malformed(f"The submission holds no {path.name}. Hand it in beside the notebook, under its own name.")
    if path.is_symlink() or not path.is_file():
        raise Malformed(f"{path.name} is not a plain file.")
    if (size := os.path.getsize(path)) > MAX_PROGRAM_BYTES:
        raise Malformed(f"{path.name} has {size >> 10} kB; at most {MAX_PROGRAM_BYTES >> 10} are read.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except ValueError:
        raise Malformed(f"{path.name} is not a text in UTF-8.") from None
