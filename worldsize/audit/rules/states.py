"""Rules on states: optimizer settings, saved and loaded states, buffers, and work that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from worldsize.audit import sketches
from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.notes import Note
from worldsize.audit.rules.evidence import ROUNDING, Evidence, is_equal, listed, ranks_text, short


def settings(evidence: Evidence) -> Iterator[AuditFinding]:
    """Optimizer settings that differ between ranks."""
    plateau = next((note for note in evidence.all("schedule") if note["kind"] == "ReduceLROnPlateau"), None)
    for moment in evidence.steps:
        if len(moment) < 2 or len({len(note["options"]) for note in moment.values()}) > 1:
            continue
        notes = list(moment.values())
        if any(note["names"] != notes[0]["names"] for note in notes) or not _is_replicated(evidence, notes):
            continue
        for group, options in enumerate(notes[0]["options"]):
            for name in options:
                values = {note.rank: note["options"][group].get(name) for note in notes}
                if None not in values.values() and len(set(values.values())) > 1:
                    yield AuditFinding(
                        "settings differ",
                        Severity.WRONG,
                        f"ranks step with a different {name}",
                        ", ".join(f"rank {rank}: {value:.4g}" for rank, value in values.items()),
                        "let all ranks compute it from the same values; a scheduler needs an all-reduced loss",
                        ((name == "lr" and plateau) or notes[0]).line,
                        tuple(moment),
                        notes[0].step,
                        name,
                        explains=frozenset({"weights differ"}),
                    )
                    return


def _is_replicated(evidence: Evidence, notes: list[Note]) -> bool:
    """Whether ranks hold the same weights, at first, so that they should step alike."""
    names = [name for name in notes[0]["names"] if name and name in evidence.weights]
    starts = [evidence.weights[name][0][1] for name in names]
    is_alike = bool(starts) and all(len(of) < 2 or is_equal(of) for of in starts)
    return is_alike and (evidence.is_data_parallel or any("shard" in name for name in names))


def buffers(evidence: Evidence) -> Iterator[AuditFinding]:
    """Buffers, such as running means, that drift apart."""
    if any(note["broadcasts_buffers"] for note in evidence.all("DDP")) or not evidence.is_data_parallel:
        return
    drifting = []
    for name, moments in evidence.buffers.items():
        known = [of for _, of in moments if len(of) > 1]
        if len(known) > 1 and is_equal(known[0], 1e-4) and not any(is_equal(of, 1e-4) for of in known[1:]):
            drifting.append((name, known[-1]))
    if drifting:
        name, last = drifting[0]
        note = evidence.first("DDP") or evidence.first("before step")
        writer = next((one.line for one in evidence.all("written") if one["role"] == "buffer"), None)
        yield AuditFinding(
            "buffers differ",
            Severity.WRONG,
            f"buffers drift apart: {listed([one for one, _ in drifting])}",
            f"at the end {short(name)} differs by {sketches.spread(list(last.values())):.1%} between ranks",
            "all_reduce what is written into them on each rank"
            if writer
            else "convert BatchNorm to SyncBatchNorm, or keep DDP's broadcast_buffers=True",
            writer or (note.line if note else None),
            tuple(last),
            None,
            short(name),
        )


def saved(evidence: Evidence) -> Iterator[AuditFinding]:
    """A sharded state that only some of its ranks save, and files that several ranks write."""
    by_line: dict[object, list[Note]] = {}
    for note in evidence.all("saved"):
        by_line.setdefault(note.line, []).append(note)
    for notes in by_line.values():
        ranks = {note.rank for note in notes}
        holders = {rank for note in notes for rank in note["shard_ranks"]}
        if missing := sorted(holders - ranks):
            yield AuditFinding(
                "saved in part",
                Severity.WRONG,
                f"{ranks_text(sorted(ranks))} saves shards of a state of which {ranks_text(missing)} holds the rest",
                f"{max(note['num_shards'] for note in notes)} of {max(note['num_tensors'] for note in notes)} tensors "
                "are shards",
                "save with torch.distributed.checkpoint on all ranks, or gather the full state first",
                notes[0].line,
                tuple(sorted(ranks)),
                notes[0].step,
            )
        files = {note["file"] for note in notes}
        if len(ranks) > 1 and len(files) == 1 and "" not in files:
            yield AuditFinding(
                "same file",
                Severity.WRONG if holders else Severity.SUSPICIOUS,
                f"{ranks_text(sorted(ranks))} write the same file",
                f"{files.pop()}",
                "let rank 0 save, or put the rank into the file's name",
                notes[0].line,
                tuple(sorted(ranks)),
                notes[0].step,
            )


def corrupted(evidence: Evidence) -> Iterator[AuditFinding]:
    """A state whose entries overlap in memory, so that one has overwritten the other."""
    for note in evidence.all("saved"):
        if note["overlapping"]:
            yield AuditFinding(
                "entries overlap",
                Severity.WRONG,
                f"{' and '.join(note['overlapping'])} overlap in memory in the state that is saved",
                "they begin or end at different places, so they are not one tied weight",
                "clone each tensor into the state",
                note.line,
                (note.rank,),
                note.step,
                note["overlapping"][0],
            )


def read_again(evidence: Evidence) -> Iterator[AuditFinding]:
    """A run that, after it has loaded its state in the middle of an epoch, trains on the first batches again."""
    for one in evidence.ranks:
        kinds = [note.kind for note in one.notes]
        loads = [i for i, kind in enumerate(kinds) if kind in ("loaded", "loaded by DCP")]
        at = next((i for i in loads if "before step" in kinds[:i]), None)
        if at is None or "epoch ended" in kinds[:at] or "loader" not in kinds[:at]:
            continue
        before, after = (
            [note["inputs"] for note in part if note.kind == "forward"] for part in (one.notes[:at], one.notes[at:])
        )
        if len(before) > 1 and before[:2] == after[:2] and before[0] != before[1]:
            yield AuditFinding(
                "not resumed",
                Severity.SUSPICIOUS,
                "the run resumes in the middle of an epoch, with the first batches of it",
                f"{len(before)} batches had been read, and the first two are read again",
                "save the position in the data too, and skip what has been read",
                one.notes[at].line,
                (one.rank,),
                one.notes[at].step,
                "data",
            )


def loaded(evidence: Evidence) -> Iterator[AuditFinding]:
    """A state that was loaded into nothing."""
    for note in evidence.all("loaded"):
        if note["num_keys"] and note["num_unexpected"] == note["num_keys"]:
            example = f"the state has {note['unexpected'][0]}"
            example += f", the module wants {note['missing'][0]}" if note["missing"] else ""
            yield AuditFinding(
                "loaded nothing",
                Severity.WRONG,
                f"no key of the state fits {note['model']}, and strict=False hides it",
                f"{note['num_keys']} keys, {note['num_missing']} missing: {example}",
                'strip or add the prefix ("module." of DDP, "_orig_mod." of compile), and load with strict=True',
                note.line,
                (note.rank,),
                note.step,
                note["unexpected"][0],
            )
        elif note["num_unexpected"] and note["num_missing"]:
            yield AuditFinding(
                "loaded in part",
                Severity.SUSPICIOUS,
                f"{note['num_unexpected']} keys of the state fit nothing in {note['model']}, and {note['num_missing']} "
                "parameters keep their own values",
                f"such as {note['unexpected'][0]}, and {note['missing'][0]}",
                "load with strict=True, or name what may be missing",
                note.line,
                (note.rank,),
                note.step,
                note["missing"][0],
            )
    for note in evidence.all("loaded by DCP"):
        if note["empty"]:
            yield AuditFinding(
                "loaded nothing",
                Severity.WRONG,
                f"the optimizer's state under {note['empty'][0]!r} was not loaded: the state dict given has no tensors",
                "DCP fills what it is given, in place, and a new optimizer's state dict has no tensors",
                "use get_state_dict and set_state_dict of torch.distributed.checkpoint.state_dict, which make it first",
                note.line,
                (note.rank,),
                note.step,
                note["empty"][0],
            )


def loaded_apart(evidence: Evidence) -> Iterator[AuditFinding]:
    """Replicas that load different states."""
    if not evidence.is_data_parallel or evidence.differ_by_design or evidence.is_expected:
        return
    for moment in evidence.together("loaded"):
        contents = [note["content"] for note in moment.values()]
        if len(moment) < evidence.world_size or len({note.line for note in moment.values()}) > 1:
            continue
        apart = [sketches.spread(list(of)) for of in zip(*contents, strict=False)]
        first = moment[min(moment)]
        if max(apart, default=0.0) > ROUNDING and any(
            start - first.step >= 0 for (start, _), _ in evidence.drifted.values()
        ):
            yield AuditFinding(
                "loaded apart",
                Severity.WRONG,
                "ranks load different states into replicas of one model",
                f"{sum(one > ROUNDING for one in apart)} of {len(apart)} parameters differ between ranks after it, by "
                f"up to {max(apart):.1%} of the norm",
                "choose the state by a value that all ranks share, or load on rank 0 and broadcast",
                first.line,
                tuple(moment),
                first.step,
                explains=frozenset({"weights differ"}),
            )
            return


def resumed(evidence: Evidence) -> Iterator[AuditFinding]:
    """A checkpoint from which the next step is not the one that was taken before."""
    for one in evidence.ranks:
        trained = [note for note in one.notes if note.kind in ("before step", "loaded", "loaded by DCP")]
        for i, note in enumerate(trained):
            if note.kind == "before step":
                continue
            later = [n for n in trained[i + 1 :] if n.kind == "before step"]
            earlier = [n for n in trained[:i] if n.kind == "before step"]
            old = {n["optimizer"] for n in earlier}
            if not later or not earlier or any(n["optimizer"] in old for n in later):  # it goes on, and resumes nothing
                continue
            if later[0]["kind"] != earlier[-1]["kind"] or _own_names(later[0]) != _own_names(earlier[-1]):
                continue
            yield from _compare_resumed(note, earlier, later)
            return


def _compare_resumed(load: Note, earlier: list[Note], later: list[Note]) -> Iterator[AuditFinding]:
    after = later[0]
    before = next((note for note in reversed(earlier) if _same_weights(note, after)), None)
    had_state = before["has_state"] if before else any(note["has_state"] for note in earlier)
    about: tuple[str, str, str, str] | None = None
    if had_state and not after["has_state"]:
        about = ("the optimizer's state", "it had state before the checkpoint and has none now", "optimizer", "wrong")
    elif had_state and after["has_state"] and (rates := _restarted(earlier, later)):
        about = (
            "the learning rate",
            f"it had come to {rates[0]:g}, and its schedule starts again at {rates[1]:g}",
            "lr",
            "suspicious",
        )
    elif before and before["options"] != after["options"]:
        changed = next(
            (n for a, b in zip(before["options"], after["options"], strict=False) for n in a if a[n] != b.get(n)), "lr"
        )
        values = before["options"][0].get(changed), after["options"][0].get(changed)
        about = (changed, f"it was {values[0]} and is {values[1]} in the first step after loading", changed, "wrong")
    elif before and _bodies(before["gradients"]) != _bodies(after["gradients"]):
        about = ("the same next batch", "from the same weights the first gradient differs", "data", "suspicious")
    if about:
        what, how, name, severity = about
        yield AuditFinding(
            "not resumed",
            Severity(severity),
            f"the run does not resume with {what}",
            how,
            "save and load the optimizer, the scheduler, the scaler, the sampler's position and the generators too",
            load.line,
            (load.rank,),
            load.step,
            name,
        )


def _own_names(step: Note) -> set[str]:
    """The names of what is stepped, without those of the outermost modules: one that is made again has a number."""
    return {(name or "").partition(".")[2] for name in step["names"]}


def _restarted(earlier: list[Note], later: list[Note]) -> tuple[float, float] | None:
    """A schedule's last learning rate before a load, and the rate at which a new optimizer begins it again."""
    before, after = (
        [note["options"][0].get("lr") for note in notes if note["optimizer"] == notes[at]["optimizer"]]
        for notes, at in ((earlier, -1), (later, 0))
    )
    for n in range(min(2, len(before), len(after))):  # a loaded rate lasts until the schedule's first step
        if before[n] == after[n] and before[n] not in (before[-1], None):
            return before[-1], after[n]
    return None


def _bodies(named: dict[str, list[float]]) -> list[list[float]]:
    return [[round(number, 4) for number in one] for one in named.values()]


def _same_weights(one: Note, other: Note) -> bool:
    mine, theirs = list(one["weights"].values()), list(other["weights"].values())
    return len(mine) == len(theirs) and all(sketches.difference(a, b) < 1e-6 for a, b in zip(mine, theirs, strict=True))


def useless(evidence: Evidence) -> Iterator[AuditFinding]:
    """Steps that change nothing, and parameters that never get a gradient."""
    steps = [note for note in evidence.all("before step") if note.rank == evidence.ranks[0].rank]
    if len(steps) < 2:
        return
    last: dict[str, list[float]] = {}
    norms = [(name, sketches.norm(one)) for note in steps for name, one in note["gradients"].items()]
    least = 1e-3 * max((norm for _, norm in norms), default=0.0)  # smaller ones may vanish in rounding
    still: set[str] = {name for name, norm in norms if norm > least}
    for note in steps:
        for name, one in note["weights"].items():
            if name in last and last[name] != one:
                still.discard(name)
            last[name] = one
    for note in evidence.ranks[0].of("weights at the end"):
        still -= {name for name, one in note["of"].items() if name in last and last[name] != one}
    moved = {name for name in last if name not in still}
    if still and all(name in still for name, _ in _with_gradient(steps)):
        rates = sorted({group.get("lr", 0.0) for note in steps for group in note["options"]})
        made = evidence.made(steps[0]) or steps[0]
        yield AuditFinding(
            "changes nothing",
            Severity.WRONG,
            f"{len(steps)} steps change none of the weights, though they have gradients",
            f"learning rates: {', '.join(f'{rate:g}' for rate in rates)}",
            "look at the learning rate and its schedule, and whether the optimizer holds the model's own tensors",
            made.line,
            tuple(one.rank for one in evidence.ranks),
            steps[0].step,
            short(sorted(still)[0]),
        )
    elif still and moved:
        yield AuditFinding(
            "changes nothing",
            Severity.SUSPICIOUS,
            f"{listed(sorted(still))} get gradients and never change",
            f"{len(moved)} other weights do",
            "look at the learning rate of their group, and whether the optimizer holds the model's own tensors",
            steps[0].line,
            tuple(one.rank for one in evidence.ranks),
            steps[0].step,
            short(sorted(still)[0]),
        )
    without = {name for note in evidence.all("before step") for name in note["without"] if name}
    never = without - {name for note in evidence.all("before step") for name in note["gradients"]}
    if never and moved:
        yield AuditFinding(
            "never a gradient",
            Severity.SUSPICIOUS,
            f"{listed(sorted(never))} are in the optimizer and never get a gradient",
            f"in {len(steps)} steps, on any rank",
            "look for a detach(), a no_grad() or a branch that is never taken; or freeze them and leave them out",
            steps[0].line,
            tuple(one.rank for one in evidence.ranks),
            steps[0].step,
            short(sorted(never)[0]),
        )


def _with_gradient(steps: list[Note]) -> list[tuple[str, list[float]]]:
    return [(name, one) for note in steps for name, one in note["gradients"].items() if sketches.norm(one) > 0]


RULES = (
    settings,
    buffers,
    saved,
    corrupted,
    loaded,
    loaded_apart,
    resumed,
    read_again,
    useless,
)
