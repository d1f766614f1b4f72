"""How much the ranks of a run may hand to the launcher."""

from __future__ import annotations

from dataclasses import dataclass

EXCEEDED = "output limit"  # the kind of a failure by exceeding the quota; decide by its cause


@dataclass(frozen=True)
class Quota:
    """Bytes that one rank may hand back as its value (and post at once to an emulated cluster), and may print."""

    value_bytes: int = 1 << 34
    printed_bytes: int | None = None
