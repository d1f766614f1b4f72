"""Validation of described hardware."""

from __future__ import annotations

import re


def need_positive(what: str, value: float) -> None:
    """Raise ValueError unless the value is positive."""
    if not value > 0:
        raise ValueError(f"{what} is {value}; it must be more than 0")


def need_one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    """Raise ValueError unless the value is a known one."""
    if value not in known:
        raise ValueError(f"{what} is {value!r}; it must be one of {', '.join(known)}")


def need_source(name: str, source: str) -> None:
    """Raise ValueError unless the source names its year."""
    if not re.search(r"\b(19|20)\d\d\b", source):
        raise ValueError(f"{name}: the source {source!r} names no year; say where the numbers come from, and when")
