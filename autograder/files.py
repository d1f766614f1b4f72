"""Writing files atomically, templates, zips, hashes of untrusted files, and CSV cells that spreadsheets do not run."""

from __future__ import annotations

import csv
import hashlib
import io
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from worldsize.files import replace_file

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_BYTES = 20 << 20
_EARLIEST = 315532800  # 1980, the earliest time that a zip can record, in seconds since 1970
# characters with which a spreadsheet begins a formula, or that it skips before one
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def templates() -> Environment:
    """The environment of page templates: it escapes values, and an unknown name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # most commands write no page

    return Environment(
        loader=PackageLoader("autograder"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def file_sha256(path: Path) -> str | None:
    """The hash of a plain file, or of its size and beginning if it is too large; None if it is not a plain file.

    None also for a file without permission to read, so that it fails only its own submission and not the whole class.
    """
    try:
        if path.is_symlink() or not path.is_file():
            return None
        size = path.stat().st_size
        with open(path, "rb") as file:
            if size <= MAX_BYTES:
                return hashlib.file_digest(file, "sha256").hexdigest()
            return hashlib.sha256(f"{size} bytes, ".encode() + file.read(MAX_BYTES)).hexdigest()  # it may be a terabyte
    except PermissionError:
        return None


def write_whole(path: Path, text: str) -> None:
    """Write a text with `replace_file`, and create its folder if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())


def packed(files: Mapping[str, str | bytes], changed_at: float = _EARLIEST) -> bytes:
    """Pack files, given by their paths, in a zip; the same files and time, in seconds, give the same bytes."""
    when = time.gmtime(max(changed_at, _EARLIEST))[:6]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, content in files.items():
            info = zipfile.ZipInfo(path, when)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system, info.external_attr = 3, 0o644 << 16  # as on Unix, on every system
            archive.writestr(info, content)
    return buffer.getvalue()


def neutral(value: object) -> object:
    """Escape a value as a CSV cell that no spreadsheet treats as a formula."""
    # spreadsheets themselves put an apostrophe before text that looks like a formula
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) else value


def write_csv(to: Path, lines: Iterable[Sequence[object]], are_all_quoted: bool = False) -> None:
    """Write a CSV file with cells that no spreadsheet treats as formulas."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with open(to, "w", newline="", encoding="utf-8") as file:
        quoting = csv.QUOTE_ALL if are_all_quoted else csv.QUOTE_MINIMAL
        csv.writer(file, quoting=quoting).writerows([map(neutral, line) for line in lines])


def shown(name: object) -> str:
    """An untrusted file name as text that is safe to print and write."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(name))
