"""Limits on the output of a run's ranks."""

from __future__ import annotations

from dataclasses import dataclass

EXCEEDED = "output limit"  # the kind of the failure; code must check its cause instead


@dataclass(frozen=True)
class Quota:
    """The bytes that one rank may return (and have posted at a time on an emulated cluster), and may print."""

    value_bytes: int = 1 << 34
    printed_bytes: int | None = None
