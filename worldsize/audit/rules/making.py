"""Rules on how weights are made: memory that nothing is written to, ties that are lost, layers that nothing fills."""

from __future__ import annotations

from collections.abc import Iterator

from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.rules.evidence import Evidence, listed, short


def unmade(evidence: Evidence) -> Iterator[AuditFinding]:
    """Memory from `to_empty` that nothing was written to, and tied weights that it made two of."""
    notes = list(evidence.all("never written"))
    if notes:
        names = list(dict.fromkeys(note["name"] for note in notes))
        yield AuditFinding(
            "never written",
            Severity.WRONG,
            f"the first forward pass reads {listed(names)}, which nothing has written since to_empty()",
            "it holds what was in memory before",
            "initialise it after to_empty(); a buffer with persistent=False is in no state that is loaded",
            notes[0].line,
            tuple(sorted({note.rank for note in notes})),
            notes[0].step,
            short(names[0]),
            explains=frozenset({"not finite"}),
        )
    notes = list(evidence.all("untied"))
    if notes:
        yield AuditFinding(
            "untied",
            Severity.WRONG,
            f"{' and '.join(map(short, notes[0]['names']))} were one tensor, and are two",
            "one parameter was in both places, and now each has one of its own",
            "tie them again afterwards: module.weight = other.weight",
            notes[0].line,
            tuple(sorted({note.rank for note in notes})),
            notes[0].step,
            short(notes[0]["names"][0]),
        )


def new_and_frozen(evidence: Evidence) -> Iterator[AuditFinding]:
    """A layer that came after the state was loaded, and is not trained either."""
    notes = list(evidence.all("new and frozen"))
    if notes and evidence.steps:
        names = list(dict.fromkeys(note["name"] for note in notes))
        yield AuditFinding(
            "neither loaded nor trained",
            Severity.SUSPICIOUS,
            f"{listed(names)} is in no state that was loaded, and is frozen",
            "it keeps the random numbers that it was made with",
            "freeze only what has been loaded, before a new layer is put in, or unfreeze the new one",
            notes[0].line,
            tuple(sorted({note.rank for note in notes})),
            notes[0].step,
            short(names[0]),
        )


RULES = (unmade, new_and_frozen)
