"""Rules on steps: gradients that are never cleared or never used, modes, schedules, and updates lost in rounding."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator

from worldsize.audit import sketches
from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.notes import Note
from worldsize.audit.rules.evidence import Evidence, listed, ranks_text, short
from worldsize.source import Line

_LOST = 0.9  # of a weight's elements with gradients, which steps leave as they are


def kept(evidence: Evidence) -> Iterator[AuditFinding]:
    """Gradients that no step finds cleared, so that each adds to those of all steps before it."""
    for one in evidence.ranks:
        by_optimizer: defaultdict[int, list[Note]] = defaultdict(list)
        for note in one.of("kept gradients"):
            by_optimizer[note["optimizer"]].append(note)
        for notes in by_optimizer.values():
            if len(notes) < 2 or not all(note["is_kept"] for note in notes):
                continue
            name = next(filter(None, notes[0]["names"]), "")
            yield AuditFinding(
                "never cleared",
                Severity.WRONG,
                "gradients are never cleared: each step uses the sum of those of all steps before it",
                f"the gradient of {short(name) or 'a weight'} was still there when the next backward pass began, in "
                f"{len(notes)} steps",
                "call optimizer.zero_grad() once for each step",
                notes[0].line,
                (one.rank,),
                notes[0].step,
                short(name),
            )


def thrown_away(evidence: Evidence) -> Iterator[AuditFinding]:
    """Backward passes whose gradients are cleared before any step."""
    for one in evidence.ranks:
        notes = one.of("thrown away")
        if len(notes) > 1 and one.of("before step") and 3 * len(notes) >= notes[-1]["num_passes"]:
            yield AuditFinding(
                "thrown away",
                Severity.SUSPICIOUS,
                "gradients are cleared before a step has used them",
                f"so it was after {len(notes)} of {notes[-1]['num_passes']} backward passes",
                "clear gradients after the step, not between the micro-batches that it adds up",
                notes[0].line,
                (one.rank,),
                notes[0].step,
            )


def stopped(evidence: Evidence) -> Iterator[AuditFinding]:
    """Weights that steps have changed and then no longer do, though they have gradients."""
    first = evidence.ranks[0]
    by_optimizer: defaultdict[int, list[Note]] = defaultdict(list)
    for note in first.of("before step"):
        by_optimizer[note["optimizer"]].append(note)
    end = next((note["of"] for note in first.of("weights at the end")), {})
    for notes in by_optimizer.values():
        rates = [max((group.get("lr", 1.0) for group in note["options"]), default=1.0) for note in notes]
        num_zero = len(list(itertools.takewhile(lambda rate: rate == 0, reversed(rates))))
        if any(rates) and num_zero > 2 and 4 * num_zero > len(rates):
            schedule = next(iter(first.of("schedule")), None)
            yield AuditFinding(
                "stops changing",
                Severity.SUSPICIOUS,
                f"the learning rate is 0 in the last {num_zero} of {len(rates)} steps, which change nothing",
                f"it has been {max(rates):g}" + (f"; {schedule['kind']} set it" if schedule else ""),
                "make the schedule for as many steps as it is stepped: per batch or per epoch",
                Line(*schedule["made"]) if schedule and schedule["made"] else notes[-num_zero].line,
                tuple(one.rank for one in evidence.ranks),
                notes[-num_zero].step,
                "lr",
            )
            return
        if any(group.get("lr") == 0 for note in notes for group in note["options"]):
            continue
        still: dict[str, list[Note]] = {}
        for name in notes[0]["weights"]:
            values = [note["weights"].get(name) for note in notes] + [end.get(name)]
            changes = [
                (note, before != after)
                for note, (before, after) in zip(notes, itertools.pairwise(values), strict=True)
                if sketches.norm(evidence.local.get((first.rank, note.step), {}).get(name, [0.0]))
            ]
            last = [note for note, _ in itertools.takewhile(lambda one: not one[1], reversed(changes))]
            if 1 < len(last) < len(changes) and sketches.is_finite(values[-1] or [0.0]):
                still[name] = last[::-1]
        if still and len(still) == len(notes[0]["weights"]):
            name, last = next(iter(still.items()))
            yield AuditFinding(
                "stops changing",
                Severity.SUSPICIOUS,
                f"{listed(list(still))} have gradients, and steps no longer change them",
                f"earlier steps changed them, and the last {len(last)} did not, with learning rate "
                f"{last[0]['options'][0].get('lr', 0):g}",
                "look for what the step remembers from an earlier one: a list of parameters, compiled code, a flag",
                last[0].line,
                tuple(one.rank for one in evidence.ranks),
                last[0].step,
                short(name),
            )
            return


def rounded(evidence: Evidence) -> Iterator[AuditFinding]:
    """Weights of a dtype in which most updates are smaller than the spacing of numbers."""
    notes = evidence.ranks[0].of("rounded")
    names = notes[0]["of"] if notes else {}
    lost = [name for name in names if all(note["of"].get(name, [0])[0] >= _LOST for note in notes)]
    if len(notes) > 1 and lost:
        fraction, dtype = notes[0]["of"][lost[0]]
        first = evidence.first("before step")
        made = evidence.made(first)
        yield AuditFinding(
            "lost in rounding",
            Severity.SUSPICIOUS,
            f"steps leave {listed(lost)} as they are: the updates are too small for {dtype}",
            f"{fraction:.0%} of the elements that have gradients do not change in a step",
            "keep the weights that the optimizer steps in float32, and cast copies of them (autocast, or "
            "MixedPrecisionPolicy)",
            made.line if made else notes[0].line,
            tuple(one.rank for one in evidence.ranks),
            notes[0].step,
            short(lost[0]),
            explains=frozenset({"changes nothing"}),
        )


def modes(evidence: Evidence) -> Iterator[AuditFinding]:
    """Steps in evaluation mode after steps in training mode, on some ranks or on all."""
    seen: dict[int, dict[int, set[bool]]] = {}
    lines: dict[int, Note] = {}
    for one in evidence.ranks:
        stepped = {note.step for note in one.of("before step")}
        by_step: dict[int, set[bool]] = {}
        for note in one.of("mode"):
            if note.step in stepped:
                by_step.setdefault(note.step, set()).add(note["is_training"])
                if not note["is_training"]:
                    lines.setdefault(one.rank, note)
        seen[one.rank] = by_step
    left: dict[int, int] = {}
    for rank, of_rank in seen.items():
        steps = sorted(of_rank)
        training = [step for step in steps if True in of_rank[step]]
        after = [step for step in steps if training and step > training[-1]]
        if training and len(after) > 1:
            left[rank] = after[0]
    if not left:
        return
    first = min(left, key=lambda rank: left[rank])
    is_split = len(left) < len(seen) and evidence.is_data_parallel
    yield AuditFinding(
        "trained in evaluation mode",
        Severity.WRONG if is_split else Severity.SUSPICIOUS,
        f"{ranks_text(sorted(left))} {'trains' if len(left) == 1 else 'train'} in evaluation mode, after steps in "
        "training mode" + (", while other ranks train in training mode" if is_split else ""),
        f"from step {left[first]} on, dropout is off and BatchNorm keeps its statistics",
        "call model.train() after each evaluation, on every rank",
        lines[first].line,
        tuple(sorted(left)),
        left[first],
    )


def drops(evidence: Evidence) -> Iterator[AuditFinding]:
    """Dropout in a module that is in evaluation mode, and statistics that do not exist yet."""
    for note in evidence.all("drops in evaluation"):
        yield AuditFinding(
            "drops in evaluation",
            Severity.SUSPICIOUS,
            f"{note['module']} drops elements in evaluation mode",
            f"it passes a rate of {note['rate']:g}, whatever its mode is",
            "pass training=self.training, or a rate of 0.0 if not self.training",
            note.line,
            (note.rank,),
            note.step,
        )
    notes = list(evidence.all("initial statistics"))
    if notes and evidence.steps:
        yield AuditFinding(
            "no statistics yet",
            Severity.NOTE,
            f"{notes[0]['module']} is evaluated before any training pass has made its statistics",
            "they have their initial values",
            "run a training pass or load a state first, if the result of this evaluation is to mean anything",
            notes[0].line,
            tuple(sorted({note.rank for note in notes})),
            notes[0].step,
        )


def schedules(evidence: Evidence) -> Iterator[AuditFinding]:
    """Schedules that run faster than the steps, or belong to an optimizer that takes none."""
    for one in evidence.ranks:
        num_steps = max((note.step for note in one.of("before step")), default=0)
        by_number: defaultdict[int, list[Note]] = defaultdict(list)
        for note in one.of("schedule"):
            by_number[note["number"]].append(note)
        for notes in by_number.values():
            # a schedule may be stepped after the last step, which counts for one that did not come
            counts = Counter(note.step for note in notes if note.step <= num_steps)
            own = [note["num_steps"] for note in notes]  # of its optimizer
            spans = [len({note.step for note in same}) for _, same in itertools.groupby(notes, _num_steps_before)]
            if own[-1] and spans[-1] > 2 * max(spans[:-1], default=1) + 1:
                yield AuditFinding(
                    "schedule of no steps",
                    Severity.WRONG,
                    f"{notes[0]['kind']} changes the learning rate of an optimizer that takes no more steps",
                    f"it was stepped in {spans[-1] - 1} steps since the last one of that optimizer; a different one "
                    "took them",
                    "make a new schedule with each new optimizer",
                    notes[-1].line,
                    (one.rank,),
                    notes[-1].step,
                    "lr",
                )
            elif len(notes) > 1 and not any(own) and len(one.of("before step")) > 1:
                yield AuditFinding(
                    "schedule of no steps",
                    Severity.WRONG,
                    f"{notes[0]['kind']} changes the learning rate of an optimizer that takes no step",
                    f"it was stepped {len(notes)} times, and the steps were those of a different optimizer",
                    "make the schedule for the optimizer that steps, after the optimizer has been made or wrapped",
                    notes[0].line,
                    (one.rank,),
                    notes[0].step,
                    "lr",
                )
            elif (
                len(counts) > 1
                and (often := min(counts.values())) > 1
                and _are_consecutive(list(counts))
                and not _counts_ranks(notes)
            ):
                yield AuditFinding(
                    "schedule too fast",
                    Severity.SUSPICIOUS,
                    f"{notes[0]['kind']} is stepped {often} times or more for each optimizer step",
                    f"so it was in {len(counts)} steps, on {evidence.world_size} ranks",
                    "step it once for each optimizer step, on every rank; or make it for as many times more steps",
                    notes[0].line,
                    (one.rank,),
                    notes[0].step,
                    "lr",
                )


def _num_steps_before(schedule: Note) -> int:
    return schedule["num_steps"]


def _counts_ranks(notes: list[Note]) -> bool:
    """Whether a library steps a schedule once for each rank's batch, and the schedule is long enough for that."""
    past = sum(note["is_past_end"] for note in notes)
    return all(note["is_by_library"] for note in notes) and 4 * past < len(notes)


def _are_consecutive(steps: list[int]) -> bool:
    return max(steps) - min(steps) == len(steps) - 1


def defaults(evidence: Evidence) -> Iterator[AuditFinding]:
    """Learning rates that are written to where no step reads them."""
    for one in evidence.ranks:
        by_optimizer: defaultdict[int, list[Note]] = defaultdict(list)
        for note in one.of("before step"):
            by_optimizer[note["optimizer"]].append(note)
        for notes in by_optimizer.values():
            written = {note["defaults"]["lr"] for note in notes if "lr" in note["defaults"]}
            used = {group.get("lr") for note in notes for group in note["options"]}
            if len(written) > 1 and not written & used:
                made = evidence.made(notes[0]) or notes[0]
                yield AuditFinding(
                    "changes nothing",
                    Severity.WRONG,
                    f"learning rates are written to {notes[0]['kind']}.defaults, which its steps do not read",
                    f"{len(written)} values were written; all steps used {', '.join(f'{rate:g}' for rate in used)}",
                    'write to each group: for group in optimizer.param_groups: group["lr"] = rate',
                    made.line,
                    (one.rank,),
                    notes[0].step,
                    "lr",
                )


RULES = (kept, thrown_away, stopped, rounded, modes, drops, schedules, defaults)
