"""Rules on calls of torch.distributed: races, works nobody waited for, autograd, strides, and calls paired by luck."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from worldsize.audit.cures import CURES
from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.notes import Note
from worldsize.audit.rules.evidence import Evidence, is_equal, ranks_text, short
from worldsize.source import Line

_PLAIN = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "reduce_scatter", "all_to_all")
_PLAIN += ("all_to_all_single", "all_gather_single", "reduce_scatter_single")
_CHANGING = ("all_reduce", "broadcast", "reduce", "reduce_scatter_tensor", "reduce_scatter")
_CHANGING += ("reduce_scatter_single",)


def races(evidence: Evidence) -> Iterator[AuditFinding]:
    """A tensor is read or written while a transfer that reads or writes it is under way."""
    never_awaited = {(note.rank, note.line) for note in evidence.all("not waited for")}
    for note in evidence.all("race"):
        started = _started(note)
        if (note.rank, started) in never_awaited:
            continue
        did = "writes" if note["is_write"] else "reads"
        yield AuditFinding(
            "race",
            Severity.WRONG,
            f"{note['operator']} {did} a tensor while {note['op']} is still moving it",
            f"{note['op']} was started at {started} and had not been waited for",
            CURES["race"],
            note.line,
            (note.rank,),
            note.step,
            explains=frozenset({"weights differ"}),
        )


def _started(race: Note) -> Line | None:
    return Line(*race["started"]) if race["started"] else None


def unawaited(evidence: Evidence) -> Iterator[AuditFinding]:
    """A handle that nobody waited for."""
    for note in evidence.all("not waited for"):
        used = next((n for n in evidence.all("race") if (n.rank, _started(n)) == (note.rank, note.line)), None)
        is_harmless = note["op"] in ("isend", "send") and used is None
        yield AuditFinding(
            "not waited for",
            Severity.SUSPICIOUS if is_harmless else Severity.WRONG,
            f"nobody waited for {note['op']}",
            "its handle was still open at the end of the program"
            + (f", and its tensor was used by {used['operator']} at {used.line}" if used else ""),
            CURES["not waited for"],
            note.line,
            (note.rank,),
            explains=frozenset(() if is_harmless else {"weights differ"}),
        )


def outside_autograd(evidence: Evidence) -> Iterator[AuditFinding]:
    """A collective on a tensor with a gradient function, which autograd does not see."""
    met = {(note.rank, note.line) for note in evidence.all("copy without gradient")}
    for note in evidence.all("collective in backward"):
        op, n = note["op"], evidence.world_size
        if "gather" in op and (note.rank, note.line) not in met:  # for a log, as far as can be seen
            continue
        if op in _CHANGING and note["is_followed"]:
            yield AuditFinding(
                "outside autograd",
                Severity.WRONG,
                f"{op} changes a tensor of the loss, and autograd does not see it: the gradient is the local one",
                f"the backward pass went through this tensor as if {op} had not happened; if gradients are then "
                f"averaged, they are 1/{n} of the true ones",
                CURES["outside autograd"],
                note.line,
                (note.rank,),
                note.step,
            )
        elif op not in _CHANGING and op not in ("send", "isend") and not note["is_followed"]:
            yield AuditFinding(
                "outside autograd",
                Severity.WRONG,
                f"{op} sends a tensor that has a gradient function, and no gradient came back through it",
                "the backward pass did not reach this tensor",
                CURES["outside autograd"],
                note.line,
                (note.rank,),
                note.step,
            )


def copies(evidence: Evidence) -> Iterator[AuditFinding]:
    """A loss that uses this rank's own part of what a gather returns, which has no gradient."""
    for note in evidence.all("copy without gradient"):
        yield AuditFinding(
            "copy without gradient",
            Severity.SUSPICIOUS,
            f"the loss uses what {note['op']} returns of this rank's own tensor, a copy without a gradient",
            "the tensor that was sent has a gradient function, its copy among the results has none",
            CURES["copy without gradient"],
            note.line,
            (note.rank,),
            note.step,
        )


def strides(evidence: Evidence) -> Iterator[AuditFinding]:
    """A tensor that is not contiguous, whose strides Gloo ignores."""
    for note in evidence.all("call"):
        if not note.get("has_gaps") or note["op"] not in (*_CHANGING, "scatter"):
            continue
        yield AuditFinding(
            "not contiguous",
            Severity.WRONG,
            f"{note['op']} gets a tensor that is not contiguous",
            f"its shape is {tuple(note['shape'])}; Gloo reads its memory from the start and ignores its strides, and "
            "NCCL refuses it",
            CURES["not contiguous"],
            note.line,
            (note.rank,),
            note.step,
            short(note.get("name", "")),
        )


def pairs(evidence: Evidence) -> Iterator[AuditFinding]:
    """Calls that pair up by luck: of a different step, or with a different tensor."""
    may_differ = evidence.first("join") is not None  # it lets ranks take different numbers of steps
    for calls in _paired(evidence):
        first = calls[min(calls)]
        steps = {rank: call.step for rank, call in calls.items()}
        names = {rank: call.get("name", "") for rank, call in calls.items()}
        are_weights = all(
            name.startswith("weight ") for name in names.values()
        )  # averaged, after steps of each rank's own
        if len(set(steps.values())) > 1 and first["op"] in _PLAIN and not are_weights and not may_differ:
            late = [rank for rank, step in steps.items() if step != max(steps.values())]
            yield AuditFinding(
                "paired by luck",
                Severity.WRONG,
                f"{first['op']} combines tensors of different steps",
                ", ".join(f"rank {rank} is at step {step}" for rank, step in steps.items()),
                f"let every rank make the same calls in every step: {ranks_text(late)} skipped a step",
                calls[late[0]].line,
                tuple(late),
                min(steps.values()),
                explains=frozenset({"weights differ", "gradients differ"}),
            )
            return
        lines = {call.line for call in calls.values()}
        is_unnamed = [call for call in calls.values() if not call.get("name") and not call.get("is_zero", True)]
        is_other = len(set(names.values())) > 1 and not _is_one_weight(evidence, names)
        if is_other and (all(names.values()) or (is_unnamed and len(lines) > 1)):
            yield AuditFinding(
                "paired by luck",
                Severity.WRONG,
                f"{first['op']} combines different tensors",
                "; ".join(f"rank {rank}'s {name or f'tensor at {calls[rank].line}'}" for rank, name in names.items()),
                "let every rank loop over the same tensors in the same order, with zeros where one has no gradient",
                first.line,
                tuple(calls),
                first.step,
                short(next(filter(None, names.values())).removeprefix("gradient of ").removeprefix("weight ")),
                explains=frozenset({"weights differ", "gradients differ"}),
            )
            return


def _is_one_weight(evidence: Evidence, names: dict[int, str]) -> bool:
    """Whether ranks have one weight under different names, as tied stages do."""
    starts = {note.rank: note["of"] for note in evidence.all("weights before backward")}
    own = [starts.get(r, {}).get(n.removeprefix("gradient of ").removeprefix("weight ")) for r, n in names.items()]
    known = [one for one in own if one is not None]
    return len(known) == len(own) and len({tuple(map(abs, one[1:])) for one in known}) == 1 < len(set(known[0][1:]))


def skipped(evidence: Evidence) -> Iterator[AuditFinding]:
    """A rank whose backward passes are as many as those of the others, and whose steps are fewer."""
    counts = {
        note.rank: {int(number): count for number, count in note["num_steps"].items()} for note in evidence.all("ended")
    }
    losses = {one.rank: one.of("loss") for one in evidence.ranks}
    if len(counts) < evidence.world_size or len({len(notes) for notes in losses.values()}) > 1 or evidence.is_expected:
        return
    first = evidence.first("before step")
    if first is None or not evidence.is_data_parallel or evidence.differ_by_design:
        return
    is_uneven = len({of.get(first["optimizer"]) for of in counts.values()}) > 1
    if not is_uneven and evidence.first("thrown away") is None:
        return
    for n, notes in enumerate(zip(*losses.values(), strict=True)):
        if len({note.step for note in notes}) > 1:
            late = tuple(note.rank for note in notes if note.step < max(note.step for note in notes))
            yield AuditFinding(
                "step skipped",
                Severity.WRONG,
                f"{ranks_text(late)} skipped a step that the other ranks took",
                f"in backward pass {n + 1}, " + ", ".join(f"rank {note.rank} is at step {note.step}" for note in notes),
                CURES["step skipped"],
                first.line,
                late,
                min(note.step for note in notes),
                explains=frozenset({"settings differ", "weights differ", "paired by luck"}),
            )
            return


def _paired(evidence: Evidence) -> Iterator[dict[int, Note]]:
    """The n-th collective of each group on all its ranks, in order."""
    by_group: defaultdict[tuple[int, ...], dict[int, list[Note]]] = defaultdict(lambda: defaultdict(list))
    everybody = tuple(range(evidence.world_size))
    for note in evidence.all("call"):
        if note["op"] in _PLAIN and not note.get("is_torchs"):
            by_group[tuple(note["group"] or everybody)][note.rank].append(note)
    for group, of_ranks in by_group.items():
        for n in range(min((len(of_ranks[rank]) for rank in group if rank in of_ranks), default=0)):
            calls = {rank: of_ranks[rank][n] for rank in group if rank in of_ranks}
            if len(calls) == len(group) > 1:
                yield calls


def biases(evidence: Evidence) -> Iterator[AuditFinding]:
    """A bias that every rank adds before the sum over ranks."""
    for note in evidence.all("bias summed over ranks"):
        moments = evidence.weights.get(note["name"], [])
        if moments and len(moments[0][1]) > 1 and not is_equal(moments[0][1]):
            continue
        yield AuditFinding(
            "bias summed",
            Severity.WRONG,
            f"every rank adds {short(note['name'])} before the sum over ranks, which then contains it "
            f"{evidence.world_size} times, or trains it too slowly if it was divided",
            "the bias is added to what all_reduce gets, and is the same on every rank",
            CURES["bias summed"],
            note.line,
            tuple(one.rank for one in evidence.ranks),
            note.step,
            short(note["name"]),
        )


RULES = (races, unawaited, outside_autograd, strides, skipped, pairs, biases, copies)
