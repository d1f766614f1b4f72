"""A finding of an audit: what is wrong, where, how it is known, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from worldsize.source import Line


class Severity(Enum):
    """How sure an audit is that the program is wrong."""

    WRONG = "wrong"  # the program does not compute what its structure says that it should
    SUSPICIOUS = "suspicious"  # it may be meant
    NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class AuditFinding:
    """One fault: its kind, in a few fixed words; what happens; the evidence, in numbers; and the cure.

    `name` is the tensor or the setting concerned, `step` the optimizer step, counted from 1, at which it first shows.
    `explains` are kinds of findings that this one is the cause of, which are then not reported by themselves.
    """

    kind: str
    severity: Severity
    what: str
    evidence: str
    cure: str
    line: Line | None = None
    ranks: tuple[int, ...] = ()
    step: int | None = None
    name: str = ""
    explains: frozenset[str] = frozenset()
