"""The operations of an emulated cluster, and the refusal of those that a run does not allow."""

from __future__ import annotations

from collections.abc import Iterable

COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
)
OPERATIONS = frozenset({"send", "recv", *COLLECTIVES})
ASK = "ask the time"  # what a rank posts to learn its virtual time, which every run allows
MONITORED = (
    1  # the tag of a barrier that fails for all members if some have not come when its first rank's time is over
)
OF_BITS = ("BAND", "BOR", "BXOR")  # reductions for integers only
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", *OF_BITS)


class Forbidden(RuntimeError):
    """The program made a call that this run does not allow."""


def refuse_unknown(allow: Iterable[str]) -> None:
    """Raise ValueError if a name is not an operation.

    Raises:
        ValueError: a name is not an operation.
    """
    if unknown := sorted(set(allow) - OPERATIONS):
        raise ValueError(f"there is no operation {', '.join(unknown)}; known are {', '.join(sorted(OPERATIONS))}")


def refusal(op: str, allow: Iterable[str]) -> str:
    """Write the message for a call that is not allowed."""
    return f"{op} is not allowed here: this run is to be built from {', '.join(sorted(allow))} alone"
