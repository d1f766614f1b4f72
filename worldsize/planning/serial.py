"""The cost of a plan without a function of your own: what each resource takes at its peak, one after the other."""

from __future__ import annotations

from collections.abc import Mapping

from worldsize.planning.bounds import bounds, of_nics, peak_bytes_per_s, tp_bytes, weights_bytes
from worldsize.planning.layout import Plan


def parts_s(plan: Plan, dtype: str = "") -> Mapping[str, float]:
    """Return the seconds of each resource, none of them beside another, and of the pipeline's bubble.

    `compute_s` and `memory_s` are the plan's lower bounds. `links_s` and `nics_s` are what a program sends within a
    node and between nodes: tensor parallelism's gathers; gradients, reduced and gathered; weights, which ZeRO-3 gathers
    in each forward and backward of a micro-batch; and messages between stages. What cp and ep send is not counted. The
    bubble is that of 1F1B, interleaved in `num_chunks`: Narayanan et al. 2021, arXiv 2104.04473, section 2.2. `dtype`
    is that of the products, by default 16 bits.
    """
    seconds = {bound.resource: bound.seconds for bound in bounds(plan, dtype)}
    bubble_fraction = (plan.pp - 1) / plan.num_chunks / plan.num_micro_batches
    num_passes = 2 if plan.zero_stage < 3 else 2 * plan.num_micro_batches + 1
    return {
        "compute_s": seconds["compute"],
        "bubble_s": bubble_fraction * seconds["compute"],
        "memory_s": seconds["memory"],
        "links_s": _links_s(plan, num_passes),
        "nics_s": _nics_s(plan, num_passes),
    }


def step_s(plan: Plan, dtype: str = "") -> float:
    """Return the sum of `parts_s`, in seconds."""
    return sum(parts_s(plan, dtype).values())


def _links_s(plan: Plan, num_passes: int) -> float:
    """The time of what a rank receives within its node: gathers of a tp inside it, and its part of the shards."""
    per_node = plan.cluster.gpus_per_node
    num_local = sum(rank < per_node for rank in plan.shard_ranks)
    moved = num_passes * weights_bytes(plan) * (num_local - 1) / num_local
    if plan.tp <= per_node:
        moved += tp_bytes(plan)
    return moved / peak_bytes_per_s(plan.cluster.intra)


def _nics_s(plan: Plan, num_passes: int) -> float:
    """The time of what a node sends, with the gathers of a tp that spans nodes."""
    cluster = plan.cluster
    if cluster.inter is None or cluster.num_nodes == 1:
        return 0.0
    seconds = of_nics(plan, num_passes).seconds
    if plan.tp > cluster.gpus_per_node:
        moved = cluster.gpus_per_node * tp_bytes(plan)
        seconds += moved / (cluster.nics_per_node * peak_bytes_per_s(cluster.inter))
    return seconds
