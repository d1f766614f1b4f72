"""What a design achieves: the step time from a cost function; then days, goodput, energy, cost and the bottleneck."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from worldsize import outages
from worldsize.capstone import bill, saves
from worldsize.capstone.design import Design
from worldsize.outages import Cause, Endured, NodeFailure, Policy, TrainingJob
from worldsize.planning import Plan, PricedPlan
from worldsize.planning.search import Cost, price
from worldsize.timeline import Timeline
from worldsize.units import DAY

SPAN_S = 30 * DAY  # goodput is measured over whole spans: shorter ones have too few failures
_MOST_SPANS = 24  # after two years a mean hardly moves
CALLED = {
    "step": "training steps",
    "compute": "kernels",
    "tp": "collectives of tensor parallelism",
    "cp": "collectives of context parallelism",
    "ep": "exchanges of tokens between experts",
    "bubble": "the pipeline's bubble",
    "pp": "messages between stages",
    "dp": "gradients and weights that no work hides",
    "update": "the optimizer's update",
    "memory": "weights and optimizer state through memory",
    "links": "what tensor parallelism gathers",
    "nics": "what a node sends",
    "saving": "standing still for saves",
    "lost": "work that failures undo",
    "starting": "restarts",
    "waiting": "waiting for nodes in repair",
}
REMEDIES = {
    "compute": "faster GPUs or kernels, or less recomputation",
    "tp": "a smaller tp, or faster links in a node",
    "cp": "a smaller cp",
    "ep": "a smaller ep, or one within a node",
    "bubble": "more micro-batches, a smaller pp, or more chunks",
    "pp": "fewer chunks, or faster NICs",
    "dp": "a larger batch, overlap, or faster NICs",
    "update": "a higher ZeRO stage",
    "memory": "larger micro-batches, or a higher ZeRO stage",
    "links": "a smaller tp, or faster links in a node",
    "nics": "a larger batch, or faster NICs",
    "saving": "rarer or asynchronous saves, or a faster store",
    "lost": "more frequent saves",
    "starting": "a faster restart",
    "waiting": "more spares, or a policy that goes on with fewer nodes",
}


@dataclass(frozen=True)
class Figures:
    """What a design achieves.

    `parts` are the seconds of a step by part, if the cost names them. `goodput_fraction` is the training
    that counts, of all time; `spent_s` is the time by what the job did, as in `outages.Endured`.
    """

    design: Design = field(repr=False)
    step_s: float
    parts: Mapping[str, float]
    goodput_fraction: float
    spent_s: Mapping[str, float] = field(repr=False)

    @property
    def tokens_per_s(self) -> float:
        """While it trains."""
        return self.design.layout.num_tokens / self.step_s

    @property
    def mfu_fraction(self) -> float:
        """While it trains."""
        return PricedPlan(self.design.layout, self.step_s, self.parts, 0.0).mfu_fraction

    @property
    def held_bytes(self) -> float:
        """On the GPU that holds most."""
        return self.design.held.total_bytes

    @property
    def training_days(self) -> float:
        """If nothing ever failed and nothing was saved."""
        return self.design.num_steps * self.step_s / DAY

    @property
    def days(self) -> float:
        return self.training_days / self.goodput_fraction if self.goodput_fraction else float("inf")

    @property
    def power_w(self) -> float:
        return sum(bill.power_w(self.design).values())

    @property
    def energy_kwh(self) -> float:
        return bill.energy_kwh(self.design, self.days)

    @property
    def usd(self) -> float:
        return sum(bill.usd(self.design, self.days).values())

    @property
    def shares(self) -> Mapping[str, float]:
        """The shares of the time, which add up to 1, largest first."""
        spent = self.spent_s
        all_s = sum(spent.values())
        of_step = {name.removesuffix("_s"): part for name, part in self.parts.items()} or {"step": self.step_s}
        found = {name: part / self.step_s * spent["training"] / all_s for name, part in of_step.items()}
        found |= {name: part / all_s for name, part in spent.items() if name != "training"}
        return dict(sorted(found.items(), key=lambda one: -one[1]))

    @property
    def bottleneck(self) -> str:
        """The largest share of the time other than kernels or whole steps, and what would shorten it."""
        (most, share), (second, second_share) = list(self.shares.items())[:2]
        sentence = f"{share:.1%} of the time goes to {CALLED.get(most, most)}"
        if most in ("compute", "step"):
            sentence += f"; of the rest, most goes to {CALLED.get(second, second)}, {second_share:.1%}"
            most = second
        return f"{sentence}: {REMEDIES[most]}." if most in REMEDIES else f"{sentence}."


def run(
    design: Design,
    cost: Cost,
    policy: Policy | None = None,
    plan: Plan | None = None,
    span_s: float | None = None,
    seed: int = 0,
) -> Figures:
    """Compute the figures of a design; `cost` gives the seconds of a step under a plan, or named parts of them.

    `policy` decides on checkpoints instead of the design's `checkpoint.every_s`, as in `outages.endure`. `plan`, for
    example on faster links, is priced instead of the design's own. Goodput is measured over `span_s` seconds, by
    default over the whole training, up to two years.

    Raises:
        ValueError: a cost is not a number or impossible, or a policy cannot be followed.
    """
    step_s, parts = price(cost, plan or design.layout, design.software.precision)
    if not 0 < step_s < math.inf:
        raise ValueError(f"cost is {step_s} s for {design.layout}; it must be a finite number of seconds above 0")
    span_s = span_s or min(math.ceil(max(design.num_steps * step_s / SPAN_S, 1)), _MOST_SPANS) * SPAN_S
    job, num_nodes, rates = saves.job(design), design.num_nodes_in_all, tuple(saves.causes(design))
    if policy is None:
        endured = _endured(design.checkpoint.every_s, job, num_nodes, rates, span_s, seed)
    else:
        endured = outages.endure(policy, job, _failures(num_nodes, rates, span_s, seed), span_s)
    return Figures(design, step_s, parts, endured.goodput, endured.seconds)


@lru_cache(maxsize=1024)
def _endured(
    every_s: float, job: TrainingJob, num_nodes: int, rates: tuple[Cause, ...], span_s: float, seed: int
) -> Endured:
    """Simulate the job with its failures, which many designs of a sweep share; without the long timeline."""
    endured = outages.endure(every_s, job, _failures(num_nodes, rates, span_s, seed), span_s)
    return replace(endured, timeline=Timeline([]))


@lru_cache(maxsize=64)
def _failures(num_nodes: int, rates: tuple[Cause, ...], span_s: float, seed: int) -> tuple[NodeFailure, ...]:
    """Draw failures for a power of two of nodes, so that a design with one more node has the same and the new node's.

    Otherwise chance would hide what one more node buys.
    """
    drawn = outages.draw(rates, 1 << (num_nodes - 1).bit_length(), span_s, seed)
    return tuple(failure for failure in drawn if failure.node < num_nodes)
