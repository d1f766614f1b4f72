"""Lines of the program that made a tensor, told from those of libraries, as text."""

from __future__ import annotations

import functools
import linecache
import os

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_MODELS = os.path.join(_PACKAGE, "models") + os.sep


@functools.cache
def is_program(filename: str) -> bool:
    """True for a file of the program, and for the models that this package gives it."""
    if filename.startswith(_PACKAGE + os.sep):
        return filename.startswith(_MODELS)
    return not filename.startswith("<frozen") and "site-packages" not in filename and "/lib/python" not in filename


def file_name(filename: str) -> str:
    """The name of a file without its folder; empty for a notebook's cell."""
    return os.path.basename(filename) if filename.endswith(".py") and "ipykernel" not in filename else ""


def quote_line(filename: str, number: int) -> str:
    """The line's file, number and, as far as this machine has the file, text."""
    text = linecache.getline(filename, number).strip()
    return f"{file_name(filename)} line {number}".lstrip() + (f": {text}" if text else "")
