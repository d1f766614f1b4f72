"""Rules on gradients: not reduced, reduced twice, summed, clipped wrongly, or of weights that no optimizer holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from worldsize.audit import sketches
from worldsize.audit.cures import CURES
from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.rules.evidence import UNREDUCED, Evidence, is_equal, listed, module_of, short
from worldsize.audit.sketches import Sketch

_DIFFER = frozenset({"weights differ", "gradients differ", "same weights trained apart"})


def without_sync(evidence: Evidence) -> Iterator[AuditFinding]:
    """The optimizer steps although the last forward pass was inside `no_sync`."""
    note = evidence.first("step after no_sync")
    if note and evidence.world_size > 1 and not any(name in evidence.of_ddp for name, _ in _different(evidence)):
        return  # the program reduces by itself
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
        tuple(n.rank for n in evidence.all("step after no_sync")) or (note.rank,),
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


def partly_reduced(evidence: Evidence) -> Iterator[AuditFinding]:
    """Some gradients are equal on all ranks and others, of equal weights, are not."""
    roots = {name.partition(".")[0] for name in evidence.reduced}
    different = [
        (name, at)
        for name, at in _different(evidence)
        if name not in evidence.reduced and name in evidence.drifted and name.partition(".")[0] in roots
    ]
    if not different or evidence.is_expected:
        return
    name, (step, of) = different[0]
    yield AuditFinding(
        "gradients differ",
        Severity.WRONG,
        f"no reduction covers the gradient of {listed([one for one, _ in different])}",
        f"at step {step} it differs between ranks by {sketches.spread(list(of.values())):.0%} of its norm, while "
        f"{len(evidence.reduced)} other gradients are reduced",
        "reduce the gradient of every parameter that all ranks have",
        None,
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
            if was_equal and abs(c * n - 1) < 1e-2 and not is_accumulated:
                found = _factor(evidence, "divided twice", name, step, f"1/{n} of", "already the mean over ranks")
                break
            if not was_equal and abs(c - 1) < 1e-2 and means and all(means) and is_shared:
                yield _factor(evidence, "sum for mean", name, step, f"{n} times", "a sum over ranks of mean losses")
                return
            if not was_equal and abs(c * n * n - 1) < 1e-2 and not is_accumulated:
                found = _factor(evidence, "divided twice", name, step, f"1/{n} of", "the mean over ranks before it")
                break
        divided += [found] * is_known
    if divided and divided[0] is not None and None not in divided:
        yield divided[0]


def _factor(evidence: Evidence, kind: str, name: str, step: int, times: str, because: str) -> AuditFinding:
    calls = [n for n in evidence.all("call") if n["op"] == "all_reduce" and not n.get("is_torchs") and n.step == step]
    named = [n for n in calls if n.get("name", "") == f"gradient of {name}"] or calls
    return AuditFinding(
        kind,
        Severity.WRONG,
        f"the gradient is {times} the mean over ranks",
        f"at step {step} the gradient of {short(name)} that the optimizer gets is {times} what it should be: it was "
        f"{because}",
        CURES[kind],
        named[0].line if named else None,
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


def evidence_index(evidence: Evidence, rank: int) -> int:
    """The position of a rank among those that left notes."""
    return [one.rank for one in evidence.ranks].index(rank)


RULES = (without_sync, past_ddp, not_in_list, factors, partly_reduced, orphans, clipping)
