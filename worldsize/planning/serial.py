"""The cost of a plan without a function of your own: what each resource takes at its peak, one after the other."""

from __future__ import annotations

from collections.abc import Mapping

from worldsize.planning.bounds import bounds, of_nics
from worldsize.planning.layout import Plan


def parts_s(plan: Plan, dtype: str = "") -> Mapping[str, float]:
    """Return the seconds of each resource, none of them beside another, and of the pipeline's bubble.

    They are the plan's lower bounds, except that gradients are reduced and gathered, and that ZeRO-3 gathers weights in
    each forward and backward of a micro-batch. The bubble is that of 1F1B, interleaved in `num_chunks`: Narayanan et
    al. 2021, arXiv 2104.04473, section 2.2. Not counted: what cp and ep send, and gradients and weights within a node.
    `dtype` is that of the products, by default 16 bits.
    """
    compute, *others = bounds(plan, dtype)
    bubble_fraction = (plan.pp - 1) / plan.num_chunks / plan.num_micro_batches
    parts = {"compute_s": compute.seconds, "bubble_s": bubble_fraction * compute.seconds}
    parts |= {"memory_s": 0.0, "links_s": 0.0, "nics_s": 0.0}
    parts |= {f"{bound.resource}_s": bound.seconds for bound in others}
    if parts["nics_s"]:
        num_passes = 2 if plan.zero_stage < 3 else 2 * plan.num_micro_batches + 1
        parts["nics_s"] = of_nics(plan, num_passes).seconds
    return parts


def step_s(plan: Plan, dtype: str = "") -> float:
    """Return the sum of `parts_s`, in seconds."""
    return sum(parts_s(plan, dtype).values())
