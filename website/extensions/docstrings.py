"""Docstrings as they are written here: sections such as `Raises:`, and no type before a colon."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring


def setup(app: Sphinx) -> dict[str, Any]:
    """Read every docstring; napoleon itself takes the first words of a property for its type."""
    app.connect("autodoc-process-docstring", _read)
    app.connect("autodoc-skip-member", _is_foreign)
    return {"parallel_read_safe": True}


def _is_foreign(app: Sphinx, kind: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """True for what a base class of another library adds to a class, as matplotlib's does."""
    return True if not str(getattr(member, "__module__", None) or "worldsize").startswith("worldsize") else None


def _read(app: Sphinx, kind: str, name: str, what: object, options: object, lines: list[str]) -> None:
    lines[:] = GoogleDocstring(lines, what="function").lines()
