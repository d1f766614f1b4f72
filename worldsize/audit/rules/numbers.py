"""Rules on single numbers: the first that is not finite, recomputed ones that differ, and decisions by local ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from worldsize.audit import sketches
from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.notes import Note, RankNotes
from worldsize.audit.rules.evidence import Evidence, short


def not_finite(evidence: Evidence) -> Iterator[AuditFinding]:
    """The first NaN or infinity that reaches a loss or an optimizer."""
    bad = [note for note in evidence.all("loss") if not math.isfinite(note["value"])]
    names = [
        (note.step, name)
        for note in evidence.all("before step")
        for name, one in note["gradients"].items()
        if not sketches.is_finite(one)
    ]
    origin = evidence.first("not finite")
    if not (bad or names) or origin is None:
        return
    name = short(min(names)[1]) if names else "loss"
    yield AuditFinding(
        "not finite",
        Severity.WRONG,
        f"{origin['operator']} makes {'NaN' if math.isnan(origin['value']) else 'infinity'} from finite numbers on "
        f"rank {origin.rank}",
        f"{len(bad)} losses and {len(names)} gradients are not finite afterwards, on all ranks that it reaches",
        "look at this operator's inputs; keep it away from 0 and from overflow, and skip a step that is not finite",
        origin.line,
        (origin.rank,),
        origin.step,
        name,
        explains=frozenset({"weights differ", "decided by a local value", "changes nothing"}),
    )


def recomputed(evidence: Evidence) -> Iterator[AuditFinding]:
    """A checkpointed region whose second forward pass differs from the first."""
    for note in evidence.all("recomputed differently"):
        same = note["first"] == note["second"]
        how = (
            f"gives a different result in {note['first'].removeprefix('aten::')}"
            if same
            else (f"runs {note['second'].removeprefix('aten::')} where {note['first'].removeprefix('aten::')} was")
        )
        yield AuditFinding(
            "recomputed differently",
            Severity.WRONG,
            f"the recomputation of {note['function']} is not the forward pass that it stands for",
            f"operator {note['number']} of it {how}",
            "keep preserve_rng_state=True, and let nothing that changes between the two passes decide in it",
            note.line,
            (note.rank,),
            note.step,
            note["function"],
        )


def decisions(evidence: Evidence) -> Iterator[AuditFinding]:
    """Ranks that do different things after they have read a value that differs."""
    by_line: defaultdict[Any, dict[int, list[tuple[Note, Any]]]] = defaultdict(dict)
    for one in evidence.ranks:
        for note, following in _values(one):
            by_line[note.line].setdefault(one.rank, []).append((note, following))
    for line, of_ranks in by_line.items():
        if line is None or len(of_ranks) < evidence.world_size or evidence.world_size < 2:
            continue
        varies = any(len({following for _, following in seen}) > 1 for seen in of_ranks.values())
        for n in range(min(map(len, of_ranks.values()))):
            moment = {rank: seen[n] for rank, seen in of_ranks.items()}
            values = {rank: note["value"] for rank, (note, _) in moment.items()}
            if varies and len(set(values.values())) > 1 and len({following for _, following in moment.values()}) > 1:
                note = moment[min(moment)][0]
                yield AuditFinding(
                    "decided by a local value",
                    Severity.SUSPICIOUS,
                    "ranks read different values here and then do different things",
                    ", ".join(f"rank {rank}: {value:.4g}" for rank, value in values.items()),
                    "decide by a value that all ranks share: all_reduce it first, or let rank 0 decide and broadcast",
                    line,
                    tuple(moment),
                    note.step,
                )
                return


def _values(one: RankNotes) -> Iterator[tuple[Note, Any]]:
    """Each value that a rank read, and the kind and line of what it did next."""
    following: Any = ("end", None)
    for note in reversed(one.notes):
        if note.kind == "value":
            yield note, following
        elif note.kind in ("saved", "call", "forward", "loss", "loaded", "sampler", "before step"):
            following = (note.kind, note.line and note.line.number)


RULES = (not_finite, recomputed, decisions)
