"""The programs that a student brings with a design: a cost of the step, a step to run on paper, a recovery policy."""

from __future__ import annotations

import functools
import runpy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsize.capstone.design import Design
from worldsize.launch.protocol.failure import of_exception
from worldsize.outages import Policy
from worldsize.planning import Plan
from worldsize.planning.search import Cost
from worldsize.source import quote

if TYPE_CHECKING:
    from worldsize.paper import PaperRun


class OtherPlan(ValueError):
    """The step was recorded for a different plan."""


class ProgramFailed(ValueError):
    """A student's program raised; the text names the file, the line and the error."""


@dataclass(frozen=True)
class StudentPrograms:
    """The functions of a design's file; None for those that the file lacks."""

    cost: Cost | None
    train: Callable[[Plan], Any] | None
    policy: Policy | None


def load_programs(design: Design, folder: Path) -> StudentPrograms:
    """Run the design's file of programs in this process and return its functions; none if the design names no file.

    For students on their own machine: the judge never runs students' code here.

    Raises:
        ValueError: there is no such file, it cannot be run, it has none of the functions, or one of these names is not
            a function. The cost and the policy later raise `ProgramFailed` if they fail.
    """
    named = design.programs
    if named is None:
        return StudentPrograms(None, None, None)
    path = folder / named.file
    if not path.is_file():
        raise ValueError(f"programs.file: {path} does not exist")
    with _explained(path):
        definitions = runpy.run_path(str(path), run_name="programs")
    cost, train, policy = (_function(definitions, name, path) for name in (named.cost, named.train, named.policy))
    if cost is train is policy is None:
        raise ValueError(f"{path} defines none of {named.cost}, {named.train} and {named.policy}")
    # the report of the ranks explains what `train` raises
    return StudentPrograms(_explaining(cost, path), train, _explaining(policy, path))


@dataclass(frozen=True)
class RecordedStep:
    """A cost that prices the record of a plan's step on the cluster of a plan.

    Raises:
        OtherPlan: that plan differs in more than its cluster's rates.
    """

    run: PaperRun
    plan: Plan

    def __call__(self, plan: Plan) -> float:
        own = self.plan
        if _sizes(plan) != _sizes(own):
            num_gpus = own.cluster.world_size
            raise OtherPlan(f"the step was recorded for {own} on {num_gpus:,} GPUs, not for {plan}; record it again")
        return self.run.step_s if plan.cluster == own.cluster else self.run.on(plan.cluster).step_s


def record_step(train: Callable[[Plan], Any], design: Design) -> RecordedStep:
    """Run `train(plan)` once on paper, on all GPUs."""
    from worldsize.paper import paper  # imports torch, which formulas do not need

    own = design.layout
    num_gpus = own.cluster.world_size
    run = paper(train, own, world_size=num_gpus, cluster=own.cluster, tokens_per_step=own.num_tokens, echo=False)
    return RecordedStep(run, own)


def _sizes(plan: Plan) -> tuple[Any, ...]:
    return plan.mesh, str(plan), plan.global_batch, plan.length, plan.cluster.world_size


def _function(definitions: Mapping[str, Any], name: str, path: Path) -> Callable[..., Any] | None:
    value = definitions.get(name)
    if value is not None and not callable(value):
        raise ValueError(f"{path}: {name} is {value!r}; it must be a function")
    return value


def _explaining(function: Callable[..., Any] | None, path: Path) -> Callable[..., Any] | None:
    """Wrap the function to raise `ProgramFailed` if it fails."""
    if function is None:
        return None

    @functools.wraps(function)
    def called(*given: Any) -> Any:
        with _explained(path):
            return function(*given)

    return called


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what the student's program raises into `ProgramFailed`."""
    try:
        yield
    except (Exception, SystemExit) as error:  # a program may also end the process
        failure = of_exception(0, error, 0)
        quoted = "\n".join(quote(failure.lines[-1:])) or f"  {path.name}"
        raise ProgramFailed(
            f"{path} failed with {failure.kind}: {failure.message or 'no message'}\n{quoted}\n"
            "Correct the program, and run the command again."
        ) from error
