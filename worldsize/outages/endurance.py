"""Simulation of a job that trains, checkpoints, fails and restarts, in virtual time, to find its goodput."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from numbers import Integral, Real
from typing import TypeAlias

from worldsize.event import LOST, WAIT, Event
from worldsize.outages.causes import NodeFailure
from worldsize.timeline import Timeline

_MOST_SAVES = 10_000_000  # per job: more would take minutes to simulate
_TRAINING, _SAVING, _STARTING, _WAITING = "training", "saving", "starting", "waiting"
_KINDS = {_TRAINING: "compute", _SAVING: "checkpoint", _STARTING: "restart", _WAITING: WAIT, LOST: LOST}


@dataclass(frozen=True)
class TrainingJob:
    """What a job needs and what it costs to save and to start it; all times in seconds.

    On fewer than `num_nodes` nodes it trains proportionally slower. A checkpoint stops training for `stall_s`, and can
    be loaded `write_s` after its start, which is longer than `stall_s` for an asynchronous checkpoint. `start_s` is the
    restart time: noticing the failure, starting the ranks, loading.
    """

    num_nodes: int
    stall_s: float
    start_s: float
    write_s: float | None = None
    num_spares: int = 0

    def __post_init__(self) -> None:
        are_whole = isinstance(self.num_nodes, Integral) and isinstance(self.num_spares, Integral)
        if not are_whole or self.num_nodes < 1 or self.num_spares < 0:
            raise ValueError(
                f"a job needs 1 node or more and 0 spares or more; got {self.num_nodes} and {self.num_spares}"
            )
        for name in ("stall_s", "start_s", "durable_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a number of seconds, 0 or more")
        if self.durable_s < self.stall_s:
            raise ValueError(f"write_s is {self.write_s}; it must be at least stall_s, which is {self.stall_s}")

    @property
    def durable_s(self) -> float:
        """The seconds from the start of a checkpoint until it can be loaded."""
        return self.stall_s if self.write_s is None else self.write_s


@dataclass(frozen=True)
class Status:
    """What a policy knows when it is asked: at the start, after a checkpoint, a failure, or a wait for a node.

    `event` is "start", "saved", "failed" or "back"; a job that trains hears of a returned node at its next checkpoint.
    `num_nodes` counts nodes in use, 0 at the start and after a failure; `num_healthy` counts usable nodes, including
    spares. `trained_s` is the training that counts so far, in seconds of the whole job.
    """

    event: str
    time_s: float
    trained_s: float
    num_nodes: int
    num_healthy: int
    num_failures: int


@dataclass(frozen=True)
class SavePlan:
    """What a policy wants: `save_after_s` seconds of training, then a save, on `num_nodes` nodes.

    None means all the nodes that the job needs. With more nodes than are healthy the job waits; with a different number
    than before it restarts. An infinite time means no checkpoint.
    """

    save_after_s: float
    num_nodes: int | None = None


Policy: TypeAlias = Callable[[Status], SavePlan | float]


@dataclass(frozen=True)
class Endured:
    """How a job spent its time.

    `seconds` has the time spent training, saving, starting and waiting, and the training that was lost. `goodput` is
    the training that counts, in seconds of the whole job, as a fraction of all time. Source: the effective training
    time of Jiang et al., MegaScale, NSDI 2024, section 6.3.
    """

    goodput: float
    seconds: dict[str, float]
    num_failures: int
    num_saves: int
    timeline: Timeline = field(repr=False)


def endure(
    policy: Policy | float, job: TrainingJob, failures: Iterable[NodeFailure], span_s: float, least_s: float = 0.0
) -> Endured:
    """Simulate `job` for `span_s` seconds of these failures; `policy` decides when to checkpoint and on how many nodes.

    A number instead of a function is the seconds of training between checkpoints. A failure of a node in use interrupts
    the job, even during a checkpoint or a restart; the training since the last complete checkpoint is lost. Nodes
    numbered `num_nodes` and above are the spares; the job uses the healthy nodes with the lowest numbers. With
    `least_s`, a plan with fewer seconds of training until the next checkpoint is refused; without it, checkpoints may
    overlap.

    Raises:
        ValueError: a plan is impossible, its time is too short to simulate, or a failure names a node that the job does
            not have.
    """
    if not 0 < span_s < math.inf:
        raise ValueError(f"span_s is {span_s}; it must be a number of seconds above 0")
    return _Course(policy, job, failures, span_s, least_s).run()


class _Course:
    """The course of one job, from 0 to `span_s`."""

    def __init__(
        self, policy: Policy | float, job: TrainingJob, failures: Iterable[NodeFailure], span_s: float, least_s: float
    ) -> None:
        self.policy, self.job, self.span_s, self.least_s = policy, job, span_s, least_s
        self.failures = sorted(failures, key=lambda failure: failure.time_s, reverse=True)  # the next failure is last
        for failure in self.failures:
            if not 0 <= failure.node < job.num_nodes + job.num_spares:
                raise ValueError(f"{failure} strikes a node that the job does not have")
        self.time_s = 0.0
        self.trained_s = 0.0  # training that counts if no failure precedes its checkpoint
        self.saves: list[tuple[float, float]] = [(0.0, 0.0)]  # when each is complete, and the training in it
        # of training: index of the event, and the training that counts after it
        self.pieces: list[tuple[int, float]] = []
        self.back_s: dict[int, float] = {}  # node that is away -> when it is back
        self.in_use: set[int] = set()
        self.num_failures = self.num_saves = 0
        self.events: list[Event] = []

    def run(self) -> Endured:
        event = "start"
        while self.time_s < self.span_s:
            plan = self._plan(event)
            event = self._follow(plan.num_nodes or self.job.num_nodes, plan.save_after_s)
        seconds = dict.fromkeys(_KINDS, 0.0)
        for one in self.events:
            seconds[one.name] += one.duration_s
        return Endured(self.trained_s / self.span_s, seconds, self.num_failures, self.num_saves, Timeline(self.events))

    def _plan(self, event: str) -> SavePlan:
        num_healthy = self._num_healthy()
        status = Status(event, self.time_s, self.trained_s, len(self.in_use), num_healthy, self.num_failures)
        wanted = self.policy(status) if callable(self.policy) else self.policy
        plan = wanted if isinstance(wanted, SavePlan) else SavePlan(wanted)
        if not isinstance(plan.save_after_s, Real) or not plan.save_after_s > 0:
            raise ValueError(f"at {status} the policy saves after {plan.save_after_s!r} s; it must be a number above 0")
        if plan.save_after_s < self.least_s:
            raise ValueError(
                f"at {status} the policy saves after {plan.save_after_s:g} s; this job "
                f"needs at least {self.least_s:g} s"
            )
        if plan.save_after_s + self.job.stall_s < self.span_s / _MOST_SAVES:
            raise ValueError(
                f"at {status} the policy saves after {plan.save_after_s} s: that is more than {_MOST_SAVES:,} "
                f"checkpoints in {self.span_s:g} s; give its times in seconds"
            )
        is_given = plan.num_nodes is not None
        if is_given and not (isinstance(plan.num_nodes, Integral) and 1 <= plan.num_nodes <= self.job.num_nodes):
            raise ValueError(f"at {status} the policy wants {plan.num_nodes} nodes; give 1 to {self.job.num_nodes}")
        return SavePlan(float(plan.save_after_s), int(plan.num_nodes) if plan.num_nodes is not None else None)

    def _follow(self, num_nodes: int, save_after_s: float) -> str:
        """Carry out a plan until an event that ends it, and return the event."""
        if self._num_healthy() < num_nodes:
            self.in_use = set()
            self._pass(min(self.back_s.values()) - self.time_s, _WAITING)
            return "back"
        if self._begin(num_nodes) and self._train(save_after_s) and self._save():
            return "saved"
        self._lose()
        return "failed"

    def _begin(self, num_nodes: int) -> bool:
        """Restart if the number of nodes changes, once the last checkpoint is complete."""
        if len(self.in_use) == num_nodes:
            return True
        if self.in_use and not self._pass(self.saves[-1][0] - self.time_s, _SAVING):
            return False
        healthy = (node for node in range(self.job.num_nodes + self.job.num_spares) if node not in self.back_s)
        self.in_use = set(islice(healthy, num_nodes))
        return self._pass(self.job.start_s if self.time_s else 0.0, _STARTING)

    def _train(self, duration_s: float) -> bool:
        begin_s, share = self.time_s, len(self.in_use) / self.job.num_nodes
        goes_on = self._pass(duration_s, _TRAINING)
        self.trained_s += (self.time_s - begin_s) * share
        if self.time_s > begin_s:
            self.pieces.append((len(self.events) - 1, self.trained_s))
        return goes_on

    def _save(self) -> bool:
        begin_s = self.time_s
        self.saves.append((begin_s + self.job.durable_s, self.trained_s))
        goes_on = self._pass(self.job.stall_s, _SAVING)
        self.num_saves += goes_on and begin_s < self.span_s and begin_s + self.job.stall_s <= self.span_s
        return goes_on

    def _lose(self) -> None:
        """Fall back to the last complete checkpoint."""
        kept_s = max(trained_s for whole_s, trained_s in self.saves if whole_s <= self.time_s)
        while self.pieces and self.pieces[-1][1] > kept_s:
            index, _ = self.pieces.pop()
            self.events[index] = replace(self.events[index], kind=_KINDS[LOST], name=LOST)
        self.saves = [(self.time_s, kept_s)]
        self.trained_s = kept_s

    def _pass(self, duration_s: float, name: str) -> bool:
        """Advance the clock; return False if a node in use failed first."""
        begin_s, end_s = self.time_s, min(self.time_s + duration_s, self.span_s)
        goes_on = True
        while goes_on and self.failures and self.failures[-1].time_s < end_s:
            failure = self.failures.pop()
            if self.back_s.get(failure.node, 0.0) > failure.time_s:
                continue  # it is away already
            self.back_s[failure.node] = failure.time_s + failure.away_s
            if failure.node in self.in_use:
                end_s, goes_on = failure.time_s, False
                self.num_failures += 1
                self.in_use = set()
        self.time_s = end_s
        if end_s > begin_s:
            self.events.append(Event(0, "job", _KINDS[name], name, begin_s, end_s))
        return goes_on

    def _num_healthy(self) -> int:
        self.back_s = {node: back_s for node, back_s in self.back_s.items() if back_s > self.time_s}
        return self.job.num_nodes + self.job.num_spares - len(self.back_s)
