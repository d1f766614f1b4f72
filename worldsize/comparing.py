"""`compare`: two programs, or one at two world sizes, compared step by step: weights, outputs, gradients."""

from __future__ import annotations

import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from worldsize.audit import notes, sketches
from worldsize.audit.notes import COMPARED, FOLDER, PERTURBED, RankNotes
from worldsize.audit.rules.evidence import Evidence, listed
from worldsize.audit.sketches import Sketch
from worldsize.hardware import Cluster
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.runner import launch

_LEAST = 32 * 2.0**-23  # relative differences of float32 that are rounding in any case
_REPLICAS = 1e-5  # relative difference of two ranks' rows that are the same rows
_MARGIN = 10  # times what a change in the last bits of the first weights becomes
_RARE_MARGIN = 100  # the same after a step, for few tensors: an optimizer may enlarge the rounding of single elements
_LEAST_FACTOR = 0.01  # by which a tensor is called a multiple of another
_CLASS = re.compile(r"^[A-Z]\w*(\[\d+\])?\.")
_PART = re.compile(r" \((?:shard|partial) .*\)$")
_WRAPPERS = re.compile(r"(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(\.|$)")  # around modules


@dataclass(frozen=True)
class Difference:
    """The first tensor that differs, in the order in which a step makes them.

    `kind` is "weight", before a step; "input", which the whole model gets; "output", which module `name` returns; or
    "gradient", which the optimizer gets. Of inputs and outputs the sums over all rows are compared.

    `relative` is the norm of the difference over that of the larger tensor; `factor` is c if the second is c times the
    first, otherwise None.
    """

    step: int
    kind: str
    name: str
    relative: float
    factor: float | None
    meaning: str


@dataclass(frozen=True)
class ComparedRuns:
    """What two runs have in common: all steps, or all before the `first` difference.

    `left_out` names weights that only one of them has, or that differ between ranks.
    """

    first: Difference | None
    num_steps: int
    world_sizes: tuple[int, int]
    left_out: Sequence[str] = ()

    @property
    def is_equal(self) -> bool:
        """Whether no difference was found that is more than rounding, in at least one step."""
        return self.first is None and self.num_steps > 0

    def __repr__(self) -> str:
        where = f"{self.world_sizes[0]} against {self.world_sizes[1]} ranks"
        left_out = f"\nNot compared: {listed(self.left_out)}" if self.left_out else ""
        if self.first is None:
            steps = f"{self.num_steps} step{'s' * (self.num_steps != 1)}"
            same = f"Equal to within rounding in {steps}" if self.num_steps else "Nothing to compare: no optimizer step"
            return f"{same} ({where}){left_out}"
        one = self.first
        is_multiple = one.factor is not None and abs(one.factor - 1) > _LEAST_FACTOR
        times = f", {one.factor:.4g} times the first" if is_multiple else f", off by {one.relative:.2g}"
        which = f"the {one.kind} of {one.name or 'the model'}{times}"
        return f"Different from step {one.step} on ({where}): {which}.\n{one.meaning}{left_out}"

    def _repr_html_(self) -> str:
        colour = "#b3261e" if self.first else "#1b6e3c"
        return f"<div style='border-left:4px solid {colour};padding:2px 10px'>{escape(repr(self))}</div>"


def compare(
    reference: Callable[[], Any],
    candidate: Callable[[], Any] | None = None,
    *,
    world_sizes: tuple[int, int] = (1, 2),
    cluster: Cluster | str | None = None,
    timeout_s: float = 60,
) -> ComparedRuns:
    """Compare two programs, or one program on two numbers of ranks, at each step: weights, outputs, gradients.

    Both must take the same global batch and name their weights alike; names that DDP and FSDP2 add do not count, and
    shards of DTensors are compared as a whole. The rows of inputs and outputs may lie on any rank, in any order, and in
    any number of micro-batches; an output of which a rank has only some columns is not compared. A difference counts if
    it is more than ten times what becomes of a change in the last bits of the reference's first weights, which a third
    run shows, and more than 32 units in the last place of float32.

    Raises:
        ValueError: `world_sizes` are not two numbers, or as for `worldsize.run`.
        RankFailed, RunTimeout, RunStopped: a run did not end well.
    """
    if len(world_sizes) != 2:
        raise ValueError(
            f"world_sizes are {world_sizes!r}; give two, of the reference and of the other run, such as (1, 4)"
        )

    def record(program: Callable[[], Any], world_size: int, **env: str) -> _Run:
        with tempfile.TemporaryDirectory(prefix="worldsize-compare-") as folder:
            env = {FOLDER: folder, COMPARED: "1", **env}
            launch(Spec(program, world_size=world_size, env=env, echo=False, cluster=cluster, timeout_s=timeout_s))
            return _Run(notes.read(folder))

    one = record(reference, world_sizes[0])
    other = record(candidate or reference, world_sizes[1])
    perturbed = record(reference, world_sizes[0], **{PERTURBED: "1"})
    return _compared(one, other, perturbed, (world_sizes[0], world_sizes[1]))


@dataclass(frozen=True)
class _Moment:
    """All tensors of one kind in one step, whole; of inputs and outputs also their rows, columns and parameters."""

    step: int
    kind: str
    of: Mapping[str, Sketch]
    shapes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)


class _Run:
    """What a run did, moment by moment."""

    def __init__(self, ranks: Sequence[RankNotes]) -> None:
        self.left_out: set[str] = set()
        self.moments: list[_Moment] = []
        evidence, count = Evidence(ranks), 0
        passed = {(note.step, note.rank): note["of"] for note in evidence.all("passed")}
        for of_ranks in evidence.steps:
            notes = list(of_ranks.values())
            count = notes[0]["count"]
            rows = [passed.pop((note.step, note.rank), []) for note in notes]
            self.moments += [
                _Moment(count, "weight", self._whole([note["weights"] for note in notes])),
                _passed(count, "input", rows),
                _passed(count, "output", rows),
                _Moment(count, "gradient", self._whole([note["gradients"] for note in notes])),
            ]
        if count:
            ends = [note["of"] for note in evidence.all("weights at the end")]
            self.moments.append(_Moment(count + 1, "weight", self._whole(ends)))

    def _whole(self, of_ranks: Sequence[Mapping[str, Sketch]]) -> dict[str, Sketch]:
        """Put the shards together; leave out what plain tensors of one name differ in between ranks."""
        parts: dict[str, dict[str, Sketch]] = {}
        for named in of_ranks:
            for name, one in named.items():
                whole = _plain(_PART.sub("", name))
                known = parts.setdefault(whole, {}).setdefault(name, one)
                if sketches.difference(known, one) > 1e-3:
                    self.left_out.add(whole)
        return {name: sketches.total(list(of.values())) for name, of in parts.items() if name not in self.left_out}


def _passed(step: int, kind: str, of_ranks: Sequence[Sequence[Sequence[Any]]]) -> _Moment:
    """Add up the rows of all ranks, those of replicas once; leave out a name that is not one module on all ranks."""
    parts: defaultdict[str, list[tuple[int, int, int, Sketch]]] = defaultdict(list)
    for passed in of_ranks:
        for what, name, num_parameters, columns, num_rows, sketch in passed:
            known = parts[_plain(name)]
            if what == kind and not any(
                num_rows == rows and sketches.difference(sketch, of) < _REPLICAS for rows, *_, of in known
            ):
                known.append((num_rows, columns, num_parameters, sketch))
    of, shapes = {}, {}
    for name, known in parts.items():
        if len({(columns, num_parameters) for _, columns, num_parameters, _ in known}) == 1:
            num_rows = sum(rows for rows, *_ in known)
            norm, *sums = sketches.total([one for *_, one in known])
            of[name] = [norm, *(one / math.sqrt(num_rows) for one in sums)]  # on the scale of the norm
            shapes[name] = num_rows, *known[0][1:3]
    return _Moment(step, kind, of, shapes)


def _plain(name: str) -> str:
    """A name without what stands for its outermost module, and without wrappers."""
    return _WRAPPERS.sub("", _CLASS.sub(lambda match: match[1] or "", name)).rstrip(".")


def _compared(one: _Run, other: _Run, perturbed: _Run, world_sizes: tuple[int, int]) -> ComparedRuns:
    left_out = one.left_out | other.left_out
    num_steps, before = 0, None
    for mine, theirs, rounded in zip(one.moments, other.moments, perturbed.moments, strict=False):
        if not mine.shapes:
            left_out |= mine.of.keys() ^ theirs.of.keys()
        first = _other_batch(mine, theirs)
        names = [
            name
            for name in mine.of
            if name in theirs.of and name not in left_out and mine.shapes.get(name) == theirs.shapes.get(name)
        ]
        if not first and (name := _first_name(mine, theirs, rounded, names)) is not None:
            if mine.kind == "output":
                before = names[names.index(name) - 1] if name != names[0] else None
            factor = sketches.factor(theirs.of[name], mine.of[name])
            meaning = _meaning(mine.kind, mine.step, factor, world_sizes, before)
            relative = sketches.difference(mine.of[name], theirs.of[name])
            first = Difference(mine.step, mine.kind, name, relative, factor, meaning)
        if first:
            return ComparedRuns(first, num_steps, world_sizes, sorted(left_out))
        if mine.kind == "output":
            before = names[-1] if names else None
        num_steps += mine.kind == "gradient" and bool(names)
    return ComparedRuns(None, num_steps, world_sizes, sorted(left_out))


def _other_batch(mine: _Moment, theirs: _Moment) -> Difference | None:
    """The difference between inputs that have the same columns and not as many rows."""
    for name in mine.shapes.keys() & theirs.shapes.keys() if mine.kind == "input" else ():
        (rows, *shape), (their_rows, *their_shape) = mine.shapes[name], theirs.shapes[name]
        if rows != their_rows and shape == their_shape:
            meaning = f"The first run trains on {rows} rows in this step, the other on {their_rows}."
            return Difference(mine.step, mine.kind, name, abs(1 - their_rows / rows), None, meaning)
    return None


def _first_name(mine: _Moment, theirs: _Moment, rounded: _Moment, names: Sequence[str]) -> str | None:
    """The name of the first tensor that differs by more than rounding, as the passes go; None if none does."""
    known = [name for name in names if name in rounded.of]
    noise = max((sketches.difference(mine.of[name], rounded.of[name]) for name in known), default=0.0)
    relative = {name: sketches.difference(mine.of[name], theirs.of[name]) for name in names}
    least = max(_MARGIN * noise, _LEAST)
    differing = [name for name in names if relative[name] > least]
    if mine.step > 1 and len(differing) <= len(names) / 2:
        differing = [name for name in differing if relative[name] > least * _RARE_MARGIN / _MARGIN]
    return differing[-1 if mine.kind == "gradient" else 0] if differing else None


def _meaning(kind: str, step: int, factor: float | None, world_sizes: tuple[int, int], before: str | None) -> str:
    """What a first difference means; `before` is the module that returns its output before, if outputs are known."""
    more = world_sizes[1] / world_sizes[0]
    if kind == "weight" and step == 1:
        return "They start from different weights: use one seed before the model is made, or broadcast rank 0's."
    if kind == "weight":
        return "All gradients were the same, and the step is not: compare the optimizers, their settings and state."
    if kind == "input":
        return "The weights are the same, and the batches are not: look at the data, its order and how ranks share it."
    if kind == "output":
        since = f", and at what is computed after {before}" if before else ""
        return f"Every output before it is the same: look at this module, its mode and its buffers{since}."
    if factor is not None and more > 1 and abs(factor / more - 1) < 0.01:
        return f"Summed over {more:g} ranks and not averaged."
    if factor is not None and more > 1 and abs(factor * more - 1) < 0.01:
        return f"Divided by {more:g} once too often, or averaged where it should be summed."
    if before is not None:
        return "The outputs are the same, and the gradient is not: look at the targets, the loss and the backward pass."
    return "The weights are the same, and the gradient is not: look at the batch, the loss and this module's forward."
