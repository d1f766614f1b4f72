"""`compare`: two programs, or one at two world sizes, compared step by step."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from worldsize.audit import notes, sketches
from worldsize.audit.notes import FOLDER, PERTURBED, RankNotes
from worldsize.audit.rules.evidence import Evidence, listed
from worldsize.audit.sketches import Sketch
from worldsize.hardware import Cluster
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.runner import launch

_LEAST = 32 * 2.0**-23  # relative differences of float32 that are rounding in any case
_MARGIN = 10  # times what a change in the last bits of the first weights becomes
_CLASS = re.compile(r"^[A-Z]\w*(\[\d+\])?\.")
_PART = re.compile(r" \((?:shard|partial) .*\)$")


@dataclass(frozen=True)
class Difference:
    """The first tensor that differs: a "weight" before a step, or a "gradient" that the optimizer gets at it.

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
        times = f", {one.factor:.4g} times the first" if one.factor is not None else f", off by {one.relative:.2g}"
        which = f"the {one.kind} of {one.name}{times}"
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
    """Compare the weights and gradients of two programs, or of one program on two numbers of ranks, at each step.

    Both must take the same global batch and name their weights alike; names that DDP and FSDP2 add do not count, and
    shards of DTensors are compared as a whole. A difference counts if it is more than ten times what becomes of a
    change in the last bits of the reference's first weights, which a third run shows, and more than 32 units in the
    last place of float32.

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
            env = {FOLDER: folder, **env}
            launch(Spec(program, world_size=world_size, env=env, echo=False, cluster=cluster, timeout_s=timeout_s))
            return _Run(notes.read(folder))

    one = record(reference, world_sizes[0])
    other = record(candidate or reference, world_sizes[1])
    perturbed = record(reference, world_sizes[0], **{PERTURBED: "1"})
    return _compared(one, other, perturbed, (world_sizes[0], world_sizes[1]))


class _Run:
    """The weights and gradients of a run, whole, by kind and step."""

    def __init__(self, ranks: Sequence[RankNotes]) -> None:
        self.left_out: set[str] = set()
        self.steps: list[tuple[int, str, dict[str, Sketch]]] = []
        evidence, count = Evidence(ranks), 0
        for moment in evidence.steps:
            notes = list(moment.values())
            count = notes[0]["count"]
            for kind, field in (("weight", "weights"), ("gradient", "gradients")):
                self.steps.append((count, kind, self._whole([note[field] for note in notes])))
        if count:
            ends = [note["of"] for note in evidence.all("weights at the end")]
            self.steps.append((count + 1, "weight", self._whole(ends)))

    def _whole(self, of_ranks: Sequence[Mapping[str, Sketch]]) -> dict[str, Sketch]:
        """Put the shards together; leave out what plain tensors of one name differ in between ranks."""
        parts: dict[str, dict[str, Sketch]] = {}
        for named in of_ranks:
            for name, one in named.items():
                whole = _CLASS.sub(lambda match: match[1] or "", _PART.sub("", name))
                known = parts.setdefault(whole, {}).setdefault(name, one)
                if sketches.difference(known, one) > 1e-3:
                    self.left_out.add(whole)
        return {name: sketches.total(list(of.values())) for name, of in parts.items() if name not in self.left_out}


def _compared(one: _Run, other: _Run, perturbed: _Run, world_sizes: tuple[int, int]) -> ComparedRuns:
    left_out = one.left_out | other.left_out
    num_steps = 0
    for (step, kind, mine), (_, _, theirs), (_, _, rounded) in zip(
        one.steps, other.steps, perturbed.steps, strict=False
    ):
        left_out |= mine.keys() ^ theirs.keys()
        common = [name for name in mine if name in theirs and name not in left_out]
        noise = max((sketches.difference(mine[name], rounded[name]) for name in common if name in rounded), default=0.0)
        least = max(_MARGIN * noise, _LEAST)
        order = reversed(common) if kind == "gradient" else common  # as the backward pass goes
        for name in order:
            relative = sketches.difference(mine[name], theirs[name])
            if relative > least:
                factor = sketches.factor(theirs[name], mine[name])
                meaning = _meaning(kind, step, factor, world_sizes)
                first = Difference(step, kind, name, relative, factor, meaning)
                return ComparedRuns(first, num_steps, world_sizes, sorted(left_out))
        num_steps += kind == "gradient" and bool(common)
    return ComparedRuns(None, num_steps, world_sizes, sorted(left_out))


def _meaning(kind: str, step: int, factor: float | None, world_sizes: tuple[int, int]) -> str:
    more = world_sizes[1] / world_sizes[0]
    if kind == "weight" and step == 1:
        return "They start from different weights: use one seed before the model is made, or broadcast rank 0's."
    if kind == "weight":
        return "All gradients were the same, and the step is not: compare the optimizers, their settings and state."
    if factor is not None and more > 1 and abs(factor / more - 1) < 0.01:
        return f"Summed over {more:g} ranks and not averaged."
    if factor is not None and more > 1 and abs(factor * more - 1) < 0.01:
        return f"Divided by {more:g} once too often, or averaged where it should be summed."
    return "The weights are the same, and the gradient is not: look at the batch, the loss and this module's forward."
