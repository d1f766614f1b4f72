"""The lines of the program that made a tensor, as opposed to lines of libraries, as text."""

from __future__ import annotations

import functools
import linecache
import os

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_MODELS = os.path.join(_PACKAGE, "models") + os.sep


@functools.cache
def is_program(filename: str) -> bool:
    """Whether a file belongs to the program, or to the models that this package provides."""
    if filename.startswith(_PACKAGE + os.sep):
        return filename.startswith(_MODELS)
    return not filename.startswith("<frozen") and "site-packages" not in filename and "/lib/python" not in filename


def file_name(filename: str) -> str:
    """Return the name of a file without its folder; empty for a notebook cell."""
    return os.path.basename(filename) if filename.endswith(".py") and "ipykernel" not in filename else ""


def quote_line(filename: str, number: int) -> str:
    """Format a line's file, number and, if this machine has the file, text."""
    text = linecache.getline(filename, number).strip()
    return f"{file_name(filename)} line {number}".lstrip() + (f": {text}" if text else "")
