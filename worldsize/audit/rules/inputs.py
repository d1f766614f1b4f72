"""Rules on what enters a model: batches, their order, random draws, and what a loss is the mean of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from worldsize.audit import sketches
from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.notes import Note
from worldsize.audit.rules.evidence import ROUNDING, UNREDUCED, Evidence, ranks_text
from worldsize.source import Line


def same_batch(evidence: Evidence) -> Iterator[AuditFinding]:
    """Every rank trains on the same batches."""
    moments = [moment for moment in evidence.together("forward") if len(moment) == evidence.world_size > 1]
    contents = [next(iter(moment.values()))["inputs"] for moment in moments]
    is_training = any(one != contents[0] for one in contents) and len(evidence.steps) != 1
    if not is_training or not evidence.is_data_parallel or evidence.differ_by_design:
        return
    losses = [[note["value"] for note in m.values()] for m in evidence.together("loss") if len(m) == len(moments[0])]
    draws = any(note["draws"] for moment in moments for note in moment.values())
    if not draws and any(max(of) - min(of) > 1e-6 * max(map(abs, of)) for of in losses):  # split inside the model
        return
    if all(_is_data_parallel(moment) and _is_same_input(moment) for moment in moments):
        first = moments[0]
        note = first[min(first)]
        loader = evidence.first("loader")
        yield AuditFinding(
            "same batch",
            Severity.WRONG,
            "every rank trains on the same batches",
            f"what entered {note['model']} was equal on {ranks_text(sorted(first))} in each of {len(moments)} forward "
            "passes",
            "give each rank its own part: DistributedSampler, or a slice by rank",
            loader.line if loader else note.line,
            tuple(first),
            note.step,
            explains=frozenset({"read by every rank"}),
        )


def read_by_all(evidence: Evidence) -> Iterator[AuditFinding]:
    """Every rank reads the whole data set in each epoch, in an order of its own."""
    if not evidence.is_data_parallel or evidence.differ_by_design:
        return
    for moment in evidence.together("loader"):
        notes = list(moment.values())
        whole, line = notes[0].get("whole"), notes[0].line
        orders = {tuple(note.get("state", ())) for note in notes}
        if len(notes) < max(2, evidence.world_size) or whole is None or len(orders) < len(notes):
            continue
        if all(note.get("whole") == whole and note.line == line for note in notes):
            yield AuditFinding(
                "read by every rank",
                Severity.SUSPICIOUS,
                "every rank reads the whole data set in each epoch, in an order of its own",
                f"each of {len(notes)} ranks shuffles all {whole[0]} samples: an epoch reads each {len(notes)} times",
                "give each rank its own part: DistributedSampler, with set_epoch() before each epoch",
                line,
                tuple(moment),
                notes[0].step,
            )
            return


def _is_data_parallel(moment: dict[int, Note]) -> bool:
    return all(not note["mesh"] or len(note["mesh"]) == len(moment) for note in moment.values())


def _is_same_input(moment: dict[int, Note]) -> bool:
    inputs = [note["inputs"] for note in moment.values()]
    has_content = any(sketches.norm(one) > 0 for one in inputs[0])
    return has_content and all(one == inputs[0] for one in inputs[1:])


def order(evidence: Evidence) -> Iterator[AuditFinding]:
    """A sampler that gives the same order in each epoch, or some samples twice in an evaluation."""
    repeated = [note for note in evidence.all("sampler") if note["is_repeated"] and not note["is_evaluation"]]
    if repeated:
        note = repeated[0]
        extra = f"; it also repeats {note['num_repeated']} of them" if note["num_repeated"] else ""
        yield AuditFinding(
            "same order",
            Severity.WRONG,
            "DistributedSampler gives the same order in every epoch",
            f"it was iterated {max(n['count'] for n in repeated)} times with the same epoch, over "
            f"{note['num_samples']} samples{extra}",
            "call sampler.set_epoch(epoch) before each epoch's loop",
            note.line,
            tuple(sorted({n.rank for n in repeated})),
            note.step,
            "epoch",
        )

    padded = [note for note in evidence.all("sampler") if note["is_evaluation"] and note["num_repeated"]]
    if padded:
        note = padded[0]
        yield AuditFinding(
            "counted twice",
            Severity.SUSPICIOUS,
            f"an evaluation counts {note['num_repeated']} of {note['num_samples']} samples twice",
            "DistributedSampler repeats samples until all ranks have the same number",
            "gather the results and drop what exceeds the data set, or shard it by rank without padding",
            Line(*note["made"]) if note["made"] else note.line,
            tuple(sorted({n.rank for n in padded})),
            note.step,
        )


def evaluated_by_all(evidence: Evidence) -> Iterator[AuditFinding]:
    """An evaluation that is the same on every rank, whose counts are summed over the ranks."""
    passes = {one.rank: one.of("evaluation") for one in evidence.ranks}
    steps = {note.step for notes in passes.values() for note in notes}
    for step in sorted(steps):
        inputs = [[note["inputs"] for note in notes if note.step == step] for notes in passes.values()]
        if len(inputs) < max(2, evidence.world_size) or any(one != inputs[0] for one in inputs):
            continue
        sums: list[list[Note]] = []
        for one in evidence.ranks:
            last = max(i for i, note in enumerate(one.notes) if note.kind == "evaluation" and note.step == step)
            after = itertools.takewhile(lambda note: note.kind != "forward", one.notes[last:])
            sums.append([n for n in after if n.kind == "call" and n["op"] == "all_reduce" and not n["is_torchs"]])
        if any(len(of) != 1 for of in sums):  # hits and samples are both summed, or nothing is
            continue
        notes = [of[0] for of in sums]
        values = {note.get("value") for note in notes}
        value = values.pop()
        if values or not value or value != int(value) or value < 2 or notes[0].get("reduction", "SUM") != "SUM":
            continue
        loaders = [note for note in evidence.ranks[0].of("loader") if note.step == step and not note["is_training"]]
        yield AuditFinding(
            "counted twice",
            Severity.SUSPICIOUS,
            "every rank evaluates the same samples, and what they count is summed over the ranks",
            f"{len(inputs[0])} forward passes had the same inputs on all {len(inputs)} ranks; each counted {value:g}, "
            f"and the sum is {len(inputs) * value:g}",
            "give each rank its own part of the samples, or do not sum; divide by the number that was counted",
            loaders[-1].line if loaders else notes[0].line,
            tuple(note.rank for note in notes),
            step,
        )
        return


def redrawn(evidence: Evidence) -> Iterator[AuditFinding]:
    """An order that is drawn for each epoch and is the same each time, because what it is drawn from is seeded anew."""
    for one in evidence.ranks:
        by_line: dict[Line | None, list[int]] = {}
        for i, note in enumerate(one.notes):
            if note.kind == "order drawn":
                by_line.setdefault(note.line, []).append(i)
        for places in by_line.values():
            parts = [
                [note["inputs"] for note in one.notes[start:stop] if note.kind == "forward"]
                for start, stop in itertools.pairwise([*places, len(one.notes)])
            ]
            is_same = len({one.notes[i]["content"] for i in places}) == 1
            read = [part for part in parts if len(part) > 1 and part[0] != part[1]]
            shortest = min(map(len, read), default=0)
            if is_same and len(read) > 1 and all(part[:shortest] == read[0][:shortest] for part in read):
                note = one.notes[places[0]]
                yield AuditFinding(
                    "same order",
                    Severity.SUSPICIOUS,
                    "samples are shuffled anew for each epoch, and come in the same order each time",
                    f"{note['function']} gave the same {len(places)} times, and the batches after it were the same",
                    "seed it once, before the first epoch, or by the epoch's number",
                    note.line,
                    (one.rank,),
                    note.step,
                    "epoch",
                )
                break


def copied_generators(evidence: Evidence) -> Iterator[AuditFinding]:
    """Workers of a loader that all draw from a copy of one generator."""
    for note in evidence.all("loader"):
        if note["num_workers"] > 1 and note["generator"] and not note["has_init"]:
            yield AuditFinding(
                "copied generator",
                Severity.WRONG,
                f"every worker of the loader draws from its own copy of {note['generator']}: the same random numbers",
                f"{note['num_workers']} forked workers a rank, and no worker_init_fn",
                "make the generator in the worker, seeded by rank and torch.utils.data.get_worker_info().seed",
                note.line,
                (note.rank,),
                note.step,
                note["generator"],
            )


def equal_draws(evidence: Evidence) -> Iterator[AuditFinding]:
    """Data-parallel ranks that draw the same dropout masks."""
    moments = [moment for moment in evidence.together("forward") if len(moment) == evidence.world_size > 1]
    if not moments or not evidence.is_data_parallel or evidence.differ_by_design:
        return
    notes = list(moments[0].values())
    if all(note["draws"] for note in notes) and all(_same_draws(moment) for moment in moments):
        yield AuditFinding(
            "equal draws",
            Severity.SUSPICIOUS,
            "every rank drops the same elements in each forward pass",
            f"torch's generator was in the same state on all ranks in all {len(moments)} forward passes",
            "seed by rank after the model has been made: torch.manual_seed(seed + rank)",
            notes[0].line,
            tuple(moments[0]),
            notes[0].step,
            "torch's generator",
        )


def unequal_draws(evidence: Evidence) -> Iterator[AuditFinding]:
    """Ranks that hold the same activations and drop different elements of them."""
    moments = [moment for moment in evidence.together("dropout") if len(moment) == evidence.world_size > 1]
    if len(moments) < 2 or evidence.is_expected:
        return
    forwards = [moment for moment in evidence.together("forward") if len(moment) == evidence.world_size]
    if forwards and not any(map(_is_same_input, forwards)):  # as where the first dropout acts on a weight
        return
    for moment in moments:
        read = [note["read"] for note in moment.values()]
        if sketches.spread(read) > ROUNDING or not sketches.norm(read[0]):
            return
    apart = [sketches.spread([note["made"] for note in moment.values()]) for moment in moments]
    if min(apart) > UNREDUCED:
        first = moments[0][min(moments[0])]
        yield AuditFinding(
            "unequal draws",
            Severity.WRONG,
            "ranks hold the same activations, and each drops different elements of them",
            f"in all {len(moments)} forward passes the first dropout's input was equal on all ranks; its output "
            f"differed by {max(apart):.0%} of the norm",
            "seed alike on ranks that hold the same activations (tensor parallelism), and by rank where they differ",
            first.line,
            tuple(moments[0]),
            first.step,
            "torch's generator",
            explains=frozenset({"weights differ", "replicas differ", "gradients differ", "changed apart"}),
        )


def _same_draws(moment: dict[int, Note]) -> bool:
    states = [note["generator"] for note in moment.values()]
    return all(one == states[0] for one in states[1:]) and not _is_same_input(moment)


def means_of_means(evidence: Evidence) -> Iterator[AuditFinding]:
    """Ranks average over different numbers of elements, and their gradients are averaged again."""
    moments = [m for m in evidence.together("loss") if len(m) == evidence.world_size > 1]
    uneven = [
        moment
        for moment in moments
        if all(note["is_mean"] and note["count"] for note in moment.values())
        and max(note["count"] for note in moment.values()) > 1.05 * min(note["count"] for note in moment.values())
    ]
    if not uneven or not evidence.is_data_parallel or evidence.differ_by_design:
        return
    uneven = [moment for moment in uneven if _is_averaged(evidence, moment)]
    if not uneven:
        return
    moment = uneven[0]
    counts = {rank: note["count"] for rank, note in moment.items()}
    total = sum(counts.values())
    mean = sum(note["value"] * counts[rank] for rank, note in moment.items()) / total
    of_means = sum(note["value"] for note in moment.values()) / len(moment)
    note = moment[min(moment)]
    severity = Severity.WRONG if 2 * len(uneven) > len(moments) else Severity.SUSPICIOUS
    severity = severity if 4 * len(uneven) > len(moments) else Severity.NOTE  # as the last batches of epochs
    yield AuditFinding(
        "mean of means",
        severity,
        "ranks average the loss over different numbers of elements, and their gradients are averaged again",
        f"{', '.join(f'rank {rank}: {count:g}' for rank, count in counts.items())}; the mean of the means is "
        f"{of_means:.4g}, the mean over all elements {mean:.4g}",
        "sum the losses, divide by the all-reduced number of elements, and multiply by the number of ranks",
        note.line,
        tuple(moment),
        note.step,
        "loss",
    )


def _is_averaged(evidence: Evidence, moment: dict[int, Note]) -> bool:
    """Whether the gradients of this moment's losses are averaged with equal weights: by DDP, or as can be seen."""
    if evidence.of_ddp:
        return True
    steps = {rank: note.step for rank, note in moment.items()}
    for of in evidence.steps:
        if any(rank not in of or of[rank].step != step for rank, step in steps.items()):
            continue
        for name in set.intersection(*(set(note["gradients"]) for note in of.values())):
            local = [evidence.local.get((rank, step), {}).get(name) for rank, step in steps.items()]
            known = [one for one in local if one is not None]
            final = [of[rank]["gradients"][name] for rank in steps]
            if len(known) < len(local) or sketches.spread(known) < 1e-3 or sketches.spread(final) > 1e-3:
                continue
            total = [1.0, *(sum(parts) for parts in zip(*(one[1:] for one in known), strict=True))]
            return sketches.factor(final[0], total) is not None
    return False


def splits(evidence: Evidence) -> Iterator[AuditFinding]:
    """Samplers that split different data sets, or different orders of one, between ranks."""
    for moment in evidence.together("sampler"):
        notes = list(moment.values())
        if len(notes) < evidence.world_size or len(notes) < 2 or not evidence.is_data_parallel:
            continue
        if any(note["num_replicas"] != len(notes) or note.line != notes[0].line for note in notes):
            continue
        orders = [(note["seed"], note["epoch"]) for note in notes]
        if any(one["content"] != notes[0]["content"] for one in notes):
            others = ranks_text([n.rank for n in notes if n["content"] != notes[0]["content"]])
            what = "ranks give DistributedSampler different data sets, and it takes only a part of each"
            how = f"the {notes[0]['num_samples']} samples of rank {notes[0].rank} are not those of {others}"
            cure = "give all ranks the same data set (random_split with the same seed), or split it only once"
        elif any(one != orders[0] for one in orders):
            what = "ranks shuffle by different seeds, so that their parts of the data overlap"
            how = ", ".join(f"rank {n.rank}: seed {n['seed']}, epoch {n['epoch']}" for n in notes)
            cure = "give DistributedSampler the same seed and epoch on all ranks; it takes each rank's part by itself"
        else:
            continue
        yield AuditFinding("split apart", Severity.WRONG, what, how, cure, notes[0].line, tuple(moment), notes[0].step)
        return


def streams(evidence: Evidence) -> Iterator[AuditFinding]:
    """A stream of samples that every worker of a loader reads from its beginning to its end."""
    for one in evidence.ranks:
        loader = next((note for note in one.of("loader") if note["is_stream"] and note["num_workers"] > 1), None)
        if loader is None:
            continue
        inputs = [note["inputs"] for note in one.notes[one.notes.index(loader) :] if note.kind == "forward"]
        n = loader["num_workers"]
        groups = [inputs[i : i + n] for i in range(0, len(inputs) - n + 1, n)]
        if len(groups) > 1 and all(all(each == group[0] for each in group) for group in groups):
            yield AuditFinding(
                "read by every worker",
                Severity.WRONG,
                f"each of the {n} workers of the loader reads the whole stream, so every batch comes {n} times",
                f"what entered the model was the same {n} times in a row, {len(groups)} times",
                "let __iter__ take the worker's part: torch.utils.data.get_worker_info() has its number",
                loader.line,
                (one.rank,),
                loader.step,
            )


def replicas(evidence: Evidence) -> Iterator[AuditFinding]:
    """A local tensor that is declared to be replicated, and differs between ranks."""
    for moment in evidence.together("replicated"):
        notes = list(moment.values())
        if any(note["mesh"] != notes[0]["mesh"] or note.line != notes[0].line for note in notes) or len(notes) < 2:
            continue
        if len(notes) < len(notes[0]["mesh"]) or evidence.is_expected:
            continue
        apart = sketches.spread([note["content"] for note in notes])
        if apart > UNREDUCED:
            yield AuditFinding(
                "replicas differ",
                Severity.WRONG,
                "ranks of one tensor-parallel group pass different tensors where each must pass the same",
                f"a tensor that becomes a replicated DTensor differs by {apart:.0%} of its norm",
                "give all ranks of a tensor-parallel group the same batch: split data by the data-parallel rank",
                notes[0].line,
                tuple(moment),
                notes[0].step,
                explains=frozenset({"gradients differ", "weights differ", "changed apart"}),
            )
            return


def micro_batches(evidence: Evidence) -> Iterator[AuditFinding]:
    """Micro-batches of one step whose means are added with equal weights, over different numbers of elements."""
    for one in evidence.ranks:
        stepped = {note.step for note in one.of("before step")}
        by_step: dict[int, list[Note]] = {}
        for note in one.of("loss"):
            if note.get("micro") and note.step in stepped:
                by_step.setdefault(note.step, []).append(note)
        uneven = [
            notes
            for notes in by_step.values()
            if max(n["micro"][0] for n in notes) > 1.05 * min(n["micro"][0] for n in notes)
            and len({note.line for note in notes}) == len({note["micro"][1] for note in notes}) == 1
            and notes[0]["micro"][1] is not None
        ]
        if uneven and any(len(notes) > 1 for notes in by_step.values()):
            notes = uneven[0]
            counts = [note["micro"][0] for note in notes]
            yield AuditFinding(
                "mean of means",
                Severity.WRONG if 2 * len(uneven) > len(by_step) else Severity.SUSPICIOUS,
                "micro-batches average the loss over different numbers of elements, and count alike in the step",
                f"the micro-batches of a step are means over {', '.join(f'{count:g}' for count in counts)} elements",
                "sum the losses of all micro-batches, and divide by their total number of elements",
                notes[0].line,
                (one.rank,),
                notes[0].step,
                "loss",
            )


def repeated_draws(evidence: Evidence) -> Iterator[AuditFinding]:
    """Dropout that begins with the same state of the generator in every step."""
    for one in evidence.ranks:
        by_step: dict[int, Note] = {}
        for note in one.of("forward"):
            by_step.setdefault(note.step, note)
        notes = [note for note in by_step.values() if note["draws"]]
        if len(notes) > 2 and all(note["generator"] == notes[0]["generator"] for note in notes):
            yield AuditFinding(
                "repeated draws",
                Severity.SUSPICIOUS,
                "every step drops the same elements",
                f"torch's generator was in the same state before the forward passes of {len(notes)} steps",
                "seed once, before the first step",
                Line(*notes[1]["seeded"]) if notes[1]["seeded"] else notes[0].line,
                (one.rank,),
                notes[1].step,
                "torch's generator",
            )


RULES = (
    unequal_draws,
    replicas,
    same_batch,
    read_by_all,
    splits,
    streams,
    order,
    redrawn,
    evaluated_by_all,
    copied_generators,
    equal_draws,
    repeated_draws,
    means_of_means,
    micro_batches,
)
