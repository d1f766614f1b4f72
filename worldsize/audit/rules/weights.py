"""Rules on weights: replicas that start differently, or that drift apart."""

from __future__ import annotations

from collections.abc import Iterator

from worldsize.audit import sketches
from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.rules.evidence import Evidence, is_equal, listed, ranks_text, short
from worldsize.source import Line


def starts(evidence: Evidence) -> Iterator[AuditFinding]:
    """Replicas that start from different weights and then get the same gradients."""
    different = []
    for name, moments in evidence.weights.items():
        of = moments[0][1]
        if len(of) > 1 and name in evidence.reduced and not is_equal(of) and not any(is_equal(o) for _, o in moments):
            if evidence.is_unchanged(name):  # nothing is trained
                continue
            different.append((name, of))
    if different and not evidence.is_expected:
        name, of = different[0]
        note = evidence.first("before step") or evidence.first("loss")
        seeds = [one for one in evidence.all("optimizer") if one["seeded"]]
        is_by_seed = len({one["seed"] for one in seeds}) > 1
        yield AuditFinding(
            "different start",
            Severity.WRONG,
            f"ranks start from different weights: {listed([one for one, _ in different])}",
            f"{short(name)} differs by {sketches.spread(list(of.values())):.0%} of its norm; its gradient is reduced"
            + (", and this line seeds each rank differently" if is_by_seed else ""),
            "broadcast rank 0's weights before the first step, as DDP does"
            + (", or seed by rank only after the model has been made" if is_by_seed else ""),
            Line(*seeds[0]["seeded"]) if is_by_seed else (note.line if note else None),
            tuple(of),
            1,
            short(name),
        )


def drift(evidence: Evidence) -> Iterator[AuditFinding]:
    """Weights that were equal on all ranks and never are again."""
    if evidence.is_expected:
        return
    drifted = [(name, *ends) for name, ends in evidence.drifted.items()]
    if not drifted:
        return
    name, (step, of), (_, last) = min(drifted, key=lambda one: one[1][0])
    is_meant = not evidence.reduced
    note = evidence.first("before step")
    gradients = [of for one, moments in evidence.gradients.items() for at, of in moments if at == step - 1]
    is_after = bool(gradients) and all(is_equal(one) for one in gradients if len(one) > 1)
    writer = evidence.written("weight", step) if is_after or not gradients else None
    yield AuditFinding(
        "weights differ",
        Severity.SUSPICIOUS if is_meant else Severity.WRONG,
        f"weights that were equal on {ranks_text(sorted(of))} drift apart: {listed([one for one, *_ in drifted])}",
        f"before step {step} {short(name)} differs by {sketches.spread(list(of.values())):.2g} of its norm, at the end "
        f"by {sketches.spread(list(last.values())):.2g}"
        + ("; this line writes into weights outside the optimizer's steps" if writer else ""),
        "reduce every gradient before the step, and step with the same state on all ranks; if ranks are meant to "
        "differ, say so: with worldsize.audit.expect_different()",
        writer or (note.line if note else None),
        tuple(of),
        max(1, step - 1),
        short(name),
    )


def trained_apart(evidence: Evidence) -> Iterator[AuditFinding]:
    """Equal weights on several ranks, under any name, whose gradients are not added."""
    if evidence.reduced or evidence.is_expected or not any(n["op"] in ("send", "isend") for n in evidence.all("call")):
        return
    matrices = {name for note in evidence.all("weights before backward") for name in note["matrices"]}
    held = [
        (rank, name, moments[0][1][rank])
        for name, moments in evidence.weights.items()
        for rank in moments[0][1]
        if sketches.norm(moments[0][1][rank]) > 0 and name in matrices
    ]
    for i, (rank, name, one) in enumerate(held):
        for other_rank, other_name, other in held[i + 1 :]:
            if rank == other_rank or list(one) != list(other) or len(set(map(abs, one[1:]))) < 3:
                continue
            mine = [of[rank] for _, of in evidence.gradients.get(name, []) if rank in of][:1]
            theirs = [of[other_rank] for _, of in evidence.gradients.get(other_name, []) if other_rank in of][:1]
            if mine and theirs and sketches.difference(mine[0], theirs[0]) > 1e-3:
                line = evidence.first("loss") or next(iter(evidence.all("call")), None)
                yield AuditFinding(
                    "same weights trained apart",
                    Severity.SUSPICIOUS,
                    f"{short(name)} of rank {rank} and {short(other_name)} of rank {other_rank} start equal, and each "
                    "is trained by its own part of the gradient",
                    "their gradients differ by "
                    f"{sketches.difference(mine[0], theirs[0]):.0%} of the norm and are not added",
                    "if they are tied, add their gradients over these ranks before the step",
                    line.line if line else None,
                    (rank, other_rank),
                    1,
                    short(name),
                )
                return


RULES = (starts, trained_apart, drift)
