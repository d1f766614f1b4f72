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
from worldsize.source import Line

_TRAINS = ("call", "forward", "loss", "before step", "loaded")


def not_finite(evidence: Evidence) -> Iterator[AuditFinding]:
    """The first NaN or infinity that reaches a loss or an optimizer."""
    bad = [note for note in evidence.all("loss") if not math.isfinite(note["value"])]
    yield from _cleaned(evidence)
    names = [
        (note.step, name)
        for note in evidence.all("before step")
        for name, one in note["gradients"].items()
        if not sketches.is_finite(one)
    ]
    if evidence.steps and not names:  # every such step was skipped, as a GradScaler does
        return
    origin = evidence.first("not finite")
    if not (bad or names) or origin is None:
        return
    name = short(min(names)[1]) if names else "loss"
    yield AuditFinding(
        "not finite",
        Severity.WRONG,
        f"{origin['operator']} makes {'NaN' if origin['is_nan'] else 'infinity'} from finite numbers on "
        f"rank {origin.rank}",
        f"{len(bad)} losses and {len(names)} gradients are not finite afterwards, on all ranks that it reaches",
        "look at this operator's inputs; keep it away from 0 and from overflow, and skip a step that is not finite",
        origin.line,
        (origin.rank,),
        origin.step,
        name,
        explains=frozenset({"weights differ", "decided by a local value", "changes nothing"}),
    )


def _cleaned(evidence: Evidence) -> Iterator[AuditFinding]:
    """Gradients that are not finite after the backward pass, and finite at the step."""
    origin = evidence.first("not finite")
    steps = {(note.rank, note.step): note for note in evidence.all("before step")}
    cleaned = [
        (step, name)
        for (rank, step), of in evidence.local.items()
        for name, one in of.items()
        if (rank, step) in steps and not sketches.is_finite(one)
        if sketches.is_finite(steps[rank, step]["gradients"].get(name, [math.inf]))
    ]
    if origin and cleaned:
        yield AuditFinding(
            "not finite",
            Severity.SUSPICIOUS,
            f"{origin['operator']} makes {'NaN' if origin['is_nan'] else 'infinity'} from finite numbers on "
            f"rank {origin.rank}, and gradients are made finite again before the step",
            f"{len(cleaned)} gradients were not finite after the backward pass, on all ranks and in all steps",
            "keep this operator's inputs, or those of its forward pass, away from 0 and from overflow",
            origin.line,
            (origin.rank,),
            origin.step,
            short(min(cleaned)[1]),
        )


def recomputed(evidence: Evidence) -> Iterator[AuditFinding]:
    """A checkpointed region whose second forward pass differs from the first."""
    for note in evidence.all("recomputed differently"):
        same, is_drawn = note["first"] == note["second"], not note["number"]
        how = (
            f"gives a different result in {note['first'].removeprefix('aten::')}"
            if same
            else (f"runs {note['second'].removeprefix('aten::')} where {note['first'].removeprefix('aten::')} was")
        )
        yield AuditFinding(
            "recomputed differently",
            Severity.WRONG,
            f"the recomputation of {note['function']} is not the forward pass that it stands for",
            f"it draws from {note['first']}, which is not restored for the second pass"
            if is_drawn
            else f"operator {note['number']} of it {how}",
            "keep preserve_rng_state=True, draw from torch's generator only, and let nothing that changes between the "
            "two passes decide in it",
            note.line,
            (note.rank,),
            note.step,
            note["function"],
        )


def decisions(evidence: Evidence) -> Iterator[AuditFinding]:
    """Ranks that do different things after they have read a value that differs."""
    by_line: defaultdict[Any, dict[int, list[tuple[Note, Any]]]] = defaultdict(dict)
    shared = set.intersection(*({note.line for note in one.of("saved")} for one in evidence.ranks))
    for one in evidence.ranks:
        for note, following in _values(one, shared):
            by_line[note.line].setdefault(one.rank, []).append((note, following))
    for line, of_ranks in by_line.items():
        if line is None or len(of_ranks) < evidence.world_size or evidence.world_size < 2:
            continue
        varies = any(len({following for _, following in seen}) > 1 for seen in of_ranks.values())
        drift = min((first[0] for first, _ in evidence.drifted.values()), default=None)
        for n in range(min(map(len, of_ranks.values()))):
            moment = {rank: seen[n] for rank, seen in of_ranks.items()}
            values = {rank: note["value"] for rank, (note, _) in moment.items()}
            if varies and len(set(values.values())) > 1 and len({following for _, following in moment.values()}) > 1:
                note = moment[min(moment)][0]
                trains = any(kind in _TRAINS for _, (kind, _) in moment.values())
                is_cause = trains and drift is not None and 0 <= drift - note.step <= 1
                yield AuditFinding(
                    "decided by a local value",
                    Severity.WRONG if is_cause else Severity.SUSPICIOUS,
                    "ranks read different values here and then do different things",
                    ", ".join(f"rank {rank}: {value:.4g}" for rank, value in values.items()),
                    "decide by a value that all ranks share: all_reduce it first, or let rank 0 decide and broadcast",
                    line,
                    tuple(moment),
                    note.step,
                    explains=frozenset({"weights differ"} if is_cause else ()),
                )
                return


def _values(one: RankNotes, shared: set[Line | None]) -> Iterator[tuple[Note, Any]]:
    """Each value that a rank read, and the kind and line of what it did next; saves count where all ranks save."""
    following: Any = ("end", None)
    for note in reversed(one.notes):
        if note.kind == "value":
            yield note, following
        elif note.kind == "saved" and note.line not in shared:
            continue
        elif note.kind in ("saved", "call", "forward", "loss", "loaded", "sampler", "before step"):
            following = (note.kind, note.line and note.line.number)


def uncast(evidence: Evidence) -> Iterator[AuditFinding]:
    """An operator of the program's own that autocast leaves in float32."""
    note = evidence.first("not cast")
    if note is not None:
        yield AuditFinding(
            "not cast",
            Severity.NOTE,
            f"{note['operator']} runs in float32 inside autocast, which casts only the operators that it knows",
            "all tensors that it reads are float32 and need a gradient",
            "register a rule with torch.library.register_autocast, or cast its inputs",
            note.line,
            tuple(sorted({n.rank for n in evidence.all("not cast")})),
            note.step,
            note["operator"],
        )


RULES = (not_finite, recomputed, decisions, uncast)
