"""Escaping text for Typst's source."""

from __future__ import annotations

import re

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")


def escaped(text: str) -> str:
    """Escape text so that Typst shows it unchanged, in markup and in formulas."""
    return _PUNCTUATION.sub(r"\\\1", text)


def quoted(text: str) -> str:
    """Text as a string of Typst's code."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
