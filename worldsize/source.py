"""Lines of source files, including notebook cells, as reports quote them."""

from __future__ import annotations

import functools
import linecache
import os
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Annotated

from msgspec import Meta

CELL_FILE = "torchrun_cell.py"  # the file name of a saved %%torchrun cell
MAX_LINES, _MAX_TEXT, _MAX_NAME = (
    20,
    200,
    1000,
)  # lines and characters; a deep recursion would hide the rest of a report
_MAX_SOURCES = 1 << 19  # characters of cells sent to each rank, in one header
_PACKAGE = os.path.dirname(__file__) + os.sep


@dataclass(frozen=True)
class Line:
    """One line of a source file, as in a traceback; made by `cut_line`."""

    filename: Annotated[str, Meta(max_length=_MAX_NAME)]
    number: int
    function: Annotated[str, Meta(max_length=_MAX_TEXT)]
    text: Annotated[str, Meta(max_length=_MAX_TEXT)]

    def __str__(self) -> str:
        name = _name_of_cell(self.filename) if is_cell(self.filename) else os.path.basename(self.filename)
        place = f"{name}, line {self.number}"
        return place + (f", in {self.function}" if self.function.isidentifier() else "")


def cut_line(filename: str, number: int | None, function: str, text: str | None) -> Line:
    """Make a `Line`, truncating its texts to what may be sent."""
    return Line(filename[:_MAX_NAME], number or 0, function[:_MAX_TEXT], (text or "")[:_MAX_TEXT])


def own_lines(frames: Iterable[traceback.FrameSummary]) -> list[Line]:
    """Select the last frames outside the launcher and libraries; if there are none, a library's innermost frame."""
    lines = [cut_line(f.filename, f.lineno, f.name, f.line) for f in frames if not is_ours(f.filename)]
    return [line for line in lines if _is_own(line.filename)][-MAX_LINES:] or lines[-1:]


def lines_of(frame: FrameType) -> list[Line]:
    """The student's lines in the stack of a running frame, outermost first."""
    return own_lines(traceback.extract_stack(frame))


def line_of(frame: FrameType | None) -> Line | None:
    """The student's innermost line in the stack of a running frame; None without one."""
    while frame is not None:
        filename, number = frame.f_code.co_filename, frame.f_lineno
        if _is_students(filename):
            return _line_at(filename, number, frame.f_code.co_name)
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=256)  # calls in a loop come from the same line
def _line_at(filename: str, number: int, function: str) -> Line:
    return cut_line(filename, number, function, linecache.getline(filename, number).strip())


def is_cell(filename: str) -> bool:
    """Whether this is the invented file name of a notebook cell."""
    return (
        (filename.startswith("<") and not filename.startswith("<frozen"))
        or "ipykernel_" in filename
        or os.path.basename(filename) == CELL_FILE
    )


def cell_sources(filenames: Collection[str]) -> dict[str, str]:
    """Map the cells among these files to their text, for a rank's traceback to quote; very long ones are skipped."""
    sources: dict[str, str] = {}
    left = _MAX_SOURCES
    for name in filter(is_cell, filenames):
        source = "".join(linecache.getlines(name))
        if 0 < len(source) <= left:
            sources[name] = source
            left -= len(source)
    return sources


def remember_sources(sources: Mapping[str, str]) -> None:
    """Let tracebacks of this process quote these cells."""
    for name, source in sources.items():
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def quote(lines: Sequence[Line]) -> list[str]:
    """Format the lines of a traceback, indented."""
    quoted: list[str] = []
    for line in lines:
        quoted.append(f"  {line}")
        if line.text:
            quoted.append(f"    {line.text.strip()}")
    return quoted


@functools.cache
def _is_students(filename: str) -> bool:
    return not is_ours(filename) and _is_own(filename)


def is_ours(filename: str) -> bool:
    """Whether a file belongs to this package or to the interpreter."""
    return filename.startswith((_PACKAGE, "<frozen"))


def _is_own(filename: str) -> bool:
    return "site-packages" not in filename and "/lib/python" not in filename


def _name_of_cell(filename: str) -> str:
    return filename.strip("<>") if filename.startswith("<cell ") else "the cell"
