"""Rules on gradients: not reduced, reduced twice, summed, clipped wrongly, or of weights that no optimizer holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from worldsize.audit import sketches
from worldsize.audit.cures import CURES
from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.notes import Note
from worldsize.audit.rules.evidence import UNREDUCED, Evidence, is_equal, listed, module_of, short
from worldsize.audit.sketches import Sketch
from worldsize.source import Line

_DIFFER = frozenset({"weights differ", "gradients differ", "same weights trained apart"})


def without_sync(evidence: Evidence) -> Iterator[AuditFinding]:
    """The optimizer steps although the last forward pass was inside `no_sync`."""
    note = evidence.first("step after no_sync")
    if note and evidence.world_size > 1:
        different = [name for name, _ in _different(evidence) if name in evidence.of_ddp]
        if all(map(evidence.is_averaged, different)):
            return  # the program reduces gradients or averages weights by itself
    severity = Severity.WRONG if note else Severity.SUSPICIOUS
    if note is None:
        for one in evidence.ranks:
            last = one.of("gradients after backward")[-1:]
            if last and last[0].get("unsynchronised") and one.of("no_sync") and _differs_at_the_end(evidence):
                note = one.of("no_sync")[-1]
                break
    if note is None:
        return
    yield AuditFinding(
        "inside no_sync",
        severity,
        "the last forward pass before the step was inside no_sync, so DDP reduced nothing",
        "no_sync is read in the forward pass, not in backward()",
        CURES["inside no_sync"],
        note.line,
        tuple(sorted({n.rank for n in evidence.all("step after no_sync")})) or (note.rank,),
        note.step,
        explains=_DIFFER,
    )


def _differs_at_the_end(evidence: Evidence) -> bool:
    """Whether gradients differ between ranks at the end, of weights that no step has changed."""
    return any(
        len(of) > 1 and not is_equal(of, UNREDUCED) and evidence.is_unchanged(name)
        for name, moments in evidence.gradients.items()
        for _, of in moments[-1:]
    )


def past_ddp(evidence: Evidence) -> Iterator[AuditFinding]:
    """The module inside DDP is called, so that DDP prepares no reduction."""
    note = evidence.first("forward past DDP")
    different = [name for name, _ in _different(evidence) if name in evidence.of_ddp]
    if note is None or not different:
        return
    yield AuditFinding(
        "past DDP",
        Severity.WRONG,
        "the module inside DDP is called directly, so DDP reduces no gradient",
        f"gradients of {listed(different)} differ between ranks at the step",
        CURES["past DDP"],
        note.line,
        tuple(sorted({n.rank for n in evidence.all("forward past DDP")})),
        note.step,
        short(different[0]),
        explains=_DIFFER,
    )


def not_in_list(evidence: Evidence) -> Iterator[AuditFinding]:
    """A parameter that DDP did not know when it was made."""
    notes = [note for note in evidence.all("not in DDP's list") if note["name"]]
    names = list(dict.fromkeys(note["name"] for note in notes))
    if names:
        known = notes[0] if notes[0].line else evidence.first("DDP")
        yield AuditFinding(
            "not in DDP's list",
            Severity.WRONG,
            f"DDP does not reduce the gradient of {listed(names)}: made, replaced or unfrozen after DDP was",
            f"{len(evidence.of_ddp)} parameters were in DDP's list when it was made",
            CURES["not in DDP's list"],
            known.line if known else None,
            tuple(one.rank for one in evidence.ranks),
            None,
            short(names[0]),
            explains=_DIFFER,
        )


def lost_hooks(evidence: Evidence) -> Iterator[AuditFinding]:
    """A module in DDP that was moved or cast, after which DDP's hooks are on no parameter."""
    note = evidence.first("hooks lost")
    if note is None or not any(name in note["names"] for name, _ in _different(evidence)):
        return
    yield AuditFinding(
        "hooks lost",
        Severity.WRONG,
        f"DDP no longer reduces the gradient of {listed([name or 'a tensor' for name in note['names']])}: its dtype or "
        "device was changed after DDP was made",
        "the node that adds to the gradient, on which DDP has its hook, has been replaced",
        "move and cast the module first, then wrap it in DDP (again)",
        note.line,
        tuple(sorted({n.rank for n in evidence.all("hooks lost")})),
        note.step,
        short(note["names"][0] or ""),
        explains=_DIFFER,
    )


def unsynced(evidence: Evidence) -> Iterator[AuditFinding]:
    """The reduction by FSDP2 is off in the last backward pass before a step."""
    notes = list(evidence.all("step without reduction"))
    if notes and evidence.world_size > 1:
        yield AuditFinding(
            "not reduced by FSDP2",
            Severity.WRONG,
            "the reduction by FSDP2 was off in the last backward pass before the step, which is without its gradients",
            f"set_requires_gradient_sync was off before {len({note.step for note in notes})} steps",
            "call set_requires_gradient_sync(True) before the last micro-batch",
            notes[0].line,
            tuple(sorted({note.rank for note in notes})),
            min(note.step for note in notes),
            explains=_DIFFER,
        )


def changed_apart(evidence: Evidence) -> Iterator[AuditFinding]:
    """A gradient that was equal on all ranks once and is not at the step: after the backward pass, or a reduction."""
    if evidence.is_expected:
        return
    for name, (start, _) in sorted(evidence.drifted.items(), key=lambda one: one[1][0][0]):
        for step, of in evidence.gradients.get(name, []):
            if len(of) < 2 or step > start[0] or is_equal(of, UNREDUCED):
                continue
            local = [evidence.local.get((rank, step), {}).get(name) for rank in of]
            was_equal = None not in local and is_equal(dict(enumerate(filter(None, local))))
            calls = [n for n in evidence.all("call") if n.get("name") == f"gradient of {name}" and n.step == step]
            is_reduced = {n.rank for n in calls if n["op"] == "all_reduce"} >= set(of)
            if was_equal or is_reduced:
                yield AuditFinding(
                    "changed apart",
                    Severity.WRONG,
                    f"the gradient of {short(name)} is equal on all ranks after "
                    f"{'the backward pass' if was_equal else 'its all_reduce'}, and not at the step",
                    f"at step {step} it differs by {sketches.spread(list(of.values())):.0%} of its norm",
                    "clip and scale by the same number on all ranks that hold the same weight"
                    + ("" if was_equal else "; if nothing in the program does this, a transfer lost data"),
                    evidence.written("gradient", step)
                    or (calls[0].line if is_reduced else _line_of_step(evidence, step)),
                    tuple(of),
                    step,
                    short(name),
                    explains=_DIFFER,
                )
                return


def _line_of_step(evidence: Evidence, step: int) -> Line | None:
    return next((note.line for note in evidence.all("before step") if note.step == step), None)


def partly_reduced(evidence: Evidence) -> Iterator[AuditFinding]:
    """Some gradients are equal on all ranks and others, of equal weights, are not."""
    together = [{name for name in note["names"] if name} for note in evidence.all("before step")]
    known = set(evidence.reduced) | {name for names in together for name in names if "(shard" in name}
    roots = {name.partition(".")[0] for name in known}
    roots |= {name.partition(".")[0] for names in together if names & known for name in names}
    different = [
        (name, at)
        for name, at in _different(evidence)
        if name not in evidence.reduced and name in evidence.drifted and name.partition(".")[0] in roots
    ]
    if not different or evidence.is_expected:
        return
    name, (step, of) = different[0]
    sharding = evidence.first("fully_shard")
    yield AuditFinding(
        "gradients differ",
        Severity.WRONG,
        f"no reduction covers the gradient of {listed([one for one, _ in different])}",
        f"at step {step} it differs between ranks by {sketches.spread(list(of.values())):.0%} of its norm, while "
        f"{len(known)} other gradients are reduced",
        "reduce the gradient of every parameter that all ranks have; fully_shard the outermost module too",
        sharding.line if sharding else _line_of_step(evidence, step),
        tuple(of),
        step,
        short(name),
        explains=frozenset({"weights differ"}),
    )


def _different(evidence: Evidence) -> Iterator[tuple[str, tuple[int, dict[int, Sketch]]]]:
    """Weights that start equal on all ranks and whose gradients differ at a step, with the first such step."""
    for name, moments in evidence.gradients.items():
        starts = evidence.weights.get(name)
        if not starts or len(starts[0][1]) < 2 or not is_equal(starts[0][1]):
            continue
        if module_of(name) in evidence.differ_by_design:
            continue
        for step, of in moments:
            if len(of) > 1 and not is_equal(of, UNREDUCED):
                yield name, (step, dict(of))
                break


def factors(evidence: Evidence) -> Iterator[AuditFinding]:
    """Gradients that are summed without a division, or reduced or divided twice."""
    n = evidence.world_size
    means = [note["is_mean"] for note in evidence.all("loss")]
    is_shared = len({len(one.of("loss")) for one in evidence.ranks}) == 1 and not evidence.differ_by_design
    passes = Counter((note.rank, note.step) for note in evidence.all("gradients after backward"))
    hooks = [note for note in evidence.all("gradients before hook") if not note["is_ddps"]]
    scaled = {name for note in hooks for name in note["of"]}  # a hook may scale a gradient on purpose
    divided: list[AuditFinding | None] = []  # for each step: by chance, clipping can look like it in one
    for moment in evidence.steps:
        if len(moment) < n or n < 2:
            continue
        found, is_known = None, False
        is_accumulated = any(passes[note.rank, note.step] == n for note in moment.values())
        step = next(iter(moment.values())).step
        for name in sorted(set.intersection(*(set(note["gradients"]) for note in moment.values()))):
            local = [evidence.local.get((rank, note.step), {}).get(name) for rank, note in moment.items()]
            final = [note["gradients"][name] for note in moment.values()]
            known = [one for one in local if one is not None]
            if len(known) < n or sketches.spread(final) > UNREDUCED or not sketches.norm(final[0]):
                continue
            total = [0.0, *(sum(parts) for parts in zip(*(one[1:] for one in known), strict=True))]
            was_equal = sketches.spread(known) < 1e-5
            c = sketches.factor(final[0], known[0] if was_equal else [1.0, *total[1:]])
            if c is None:
                continue
            is_known = True
            if was_equal and abs(c - n) < 1e-2 * n:
                yield _factor(
                    evidence, "reduced twice", name, step, f"{n} times", "already equal on all ranks before it"
                )
                return
            if was_equal and abs(c * n - 1) < 1e-2 and not is_accumulated and name not in scaled:
                found = _factor(evidence, "divided twice", name, step, f"1/{n} of", "already the mean over ranks")
                break
            if not was_equal and abs(c - 1) < 1e-2 and means and all(means) and is_shared:
                yield _factor(evidence, "sum for mean", name, step, f"{n} times", "a sum over ranks of mean losses")
                return
            if not was_equal and abs(c * n * n - 1) < 1e-2 and not is_accumulated and name not in scaled:
                found = _factor(evidence, "divided twice", name, step, f"1/{n} of", "the mean over ranks before it")
                break
        divided += [found] * is_known
    if divided and divided[0] is not None and None not in divided:
        yield divided[0]


def divided_loss(evidence: Evidence) -> Iterator[AuditFinding]:
    """A mean loss that is divided by the number of ranks, whose gradients DDP averages as well."""
    n = evidence.world_size
    if n < 2 or not evidence.of_ddp:
        return
    for one in evidence.ranks:
        by_step = {note.step: [] for note in one.of("before step")}
        for note in one.of("loss"):
            by_step.get(note.step, []).append(note)
        parts = [notes for notes in by_step.values() if notes]
        if not parts or not all(_is_divided(notes, n) for notes in parts):
            continue
        line = parts[0][0].line
        if n > 2 or (line and "world" in line.text):  # half a loss is common, and two ranks are
            yield AuditFinding(
                "divided twice",
                Severity.SUSPICIOUS,
                f"the loss is divided by {n}, as many as there are ranks, and DDP averages its gradients as well",
                f"each of {len(parts)} steps adds up mean losses, times {parts[0][0]['micro'][1] * len(parts[0]):g}",
                CURES["divided twice"],
                line,
                (one.rank,),
                parts[0][0].step,
                "loss",
            )


def _is_divided(notes: list[Note], by: int) -> bool:
    """Whether the mean losses of a step are added up with weights whose sum is one over this number."""
    scales = [note["micro"][1] if note["micro"] else None for note in notes]
    return None not in scales and abs(sum(map(abs, filter(None, scales))) * by - 1) < 1e-3


def _factor(evidence: Evidence, kind: str, name: str, step: int, times: str, because: str) -> AuditFinding:
    calls = [n for n in evidence.all("call") if n["op"] == "all_reduce" and not n.get("is_torchs") and n.step == step]
    named = [n for n in calls if n.get("name", "") == f"gradient of {name}"] or calls
    cause = next(iter(named), evidence.first("gradients before hook"))
    line = cause.line if cause else None
    if kind == "divided twice":
        line = evidence.written("gradient", step) or line
    return AuditFinding(
        kind,
        Severity.WRONG,
        f"the gradient is {times} the mean over ranks",
        f"at step {step} the gradient of {short(name)} that the optimizer gets is {times} what it should be: it was "
        f"{because}",
        CURES[kind],
        line,
        tuple(one.rank for one in evidence.ranks),
        step,
        short(name),
    )


def orphans(evidence: Evidence) -> Iterator[AuditFinding]:
    """Gradients of parameters that no optimizer holds, and optimizers whose parameters get none."""
    held = {name for note in evidence.all("before step") for name in note["names"]}
    roots = {name.partition(".")[0] for name in held if name and "." in name}
    outside = sorted({name for note in evidence.all("before step") for name in note["outside"] if name not in held})
    outside = [name for name in outside if name.partition(".")[0] in roots]
    outside = [name for name in outside if evidence.is_unchanged(name)]
    first = evidence.first("before step")
    empty = [
        one.of("before step")[0]
        for one in evidence.ranks
        if one.of("before step") and all(not note["gradients"] for note in one.of("before step"))
    ]
    if first is None or not (outside or empty):
        return
    if empty:
        note = empty[0]
        yield AuditFinding(
            "not the model's",
            Severity.WRONG,
            f"{note['kind']} holds {len(note['names'])} parameters, and none of them ever gets a gradient",
            f"{listed(outside)} have gradients and are in no optimizer"
            if outside
            else "no step of it changes anything",
            "make the optimizer after the model has its last parameters: after fully_shard, .to() and load",
            (evidence.made(note) or note).line,
            tuple(n.rank for n in empty),
            note.step,
            short(outside[0] if outside else (note["names"] or [""])[0] or ""),
            explains=frozenset({"changes nothing", "never a gradient", "in no optimizer"}),
        )
    elif outside:
        yield AuditFinding(
            "in no optimizer",
            Severity.WRONG,
            f"{listed(outside)} get gradients and are in no optimizer, so they never change",
            f"{len(held)} other parameters are in one",
            "make the optimizer after the last parameter, or add these by add_param_group",
            (evidence.made(first) or first).line,
            tuple(one.rank for one in evidence.ranks),
            first.step,
            short(outside[0]),
        )


def clipping(evidence: Evidence) -> Iterator[AuditFinding]:
    """Clipping while gradients are scaled, or by the norm of a local shard."""
    for note in evidence.all("clipped while scaled"):
        yield AuditFinding(
            "clipped while scaled",
            Severity.WRONG,
            f"{note['function']} clips gradients that are still multiplied by the loss scale",
            "scaler.scale() came before it, and scaler.unscale_(optimizer) did not",
            CURES["clipped while scaled"],
            note.line,
            (note.rank,),
            note.step,
        )
    for note in evidence.all("norm of shards"):
        summed = any(
            call["op"] == "all_reduce" and call.step == note.step and len(call.get("shape", [9, 9])) < 2
            for call in evidence.ranks[evidence_index(evidence, note.rank)].of("call")
        )
        if not summed:
            yield AuditFinding(
                "norm of shards",
                Severity.WRONG,
                f"{note['function']} takes the norm of this rank's shard, not of the whole gradient",
                f"{listed(note['names'])}: a different norm on each rank, and too small",
                CURES["norm of shards"],
                note.line,
                (note.rank,),
                note.step,
                short(note["names"][0]),
            )


def stages(evidence: Evidence) -> Iterator[AuditFinding]:
    """Ranks that hold parts of one model, and clip each by the norm of its own part."""
    for moment in evidence.together("clipped"):
        notes = list(moment.values())
        if len(notes) < 2 or evidence.is_data_parallel or evidence.is_expected:
            return
        is_clipped = any(note["norm"] > note["most"] for note in notes)
        if not is_clipped or max(n["norm"] for n in notes) < 1.001 * min(n["norm"] for n in notes):
            continue
        sent = {note.rank for note in evidence.all("call") if note["op"] in ("send", "isend", "batch_isend_irecv")}
        reduced = any(n["op"] == "all_reduce" and n.step == notes[0].step for n in evidence.all("call"))
        if sent >= set(moment) and not reduced:
            yield AuditFinding(
                "norm of a stage",
                Severity.SUSPICIOUS,
                "each rank clips by the norm of its own stage's gradients, not of the whole model's",
                ", ".join(f"rank {note.rank}: {note['norm']:.3g}" for note in notes),
                "all_reduce the sum of squares over the stages first, then clip all by the same norm",
                notes[0].line,
                tuple(moment),
                notes[0].step,
            )
            return


def evidence_index(evidence: Evidence, rank: int) -> int:
    """The position of a rank among those that left notes."""
    return [one.rank for one in evidence.ranks].index(rank)


RULES = (
    without_sync,
    unsynced,
    past_ddp,
    not_in_list,
    lost_hooks,
    factors,
    divided_loss,
    changed_apart,
    partly_reduced,
    orphans,
    clipping,
    stages,
)
