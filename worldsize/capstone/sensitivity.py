"""Sensitivity to each resource: the days and dollars of a design with a little more of one resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from worldsize.capstone.design import Design, changed
from worldsize.capstone.figures import Figures, run
from worldsize.capstone.programs import OtherPlan
from worldsize.hardware import Cluster, Gpu, Link
from worldsize.outages import Policy
from worldsize.planning import Plan
from worldsize.planning.layout import RECOMPUTES, ZERO_STAGES
from worldsize.planning.memory_estimate import held
from worldsize.planning.search import Cost, price

MORE = 1.1  # of a rate or a size
_TEN = f"{MORE - 1:.0%} more"


@dataclass(frozen=True)
class Gain:
    """The savings from so much more of a resource; negative if it costs more than it saves.

    `saved_usd` leaves out the price of faster parts, which is unknown; it includes that of nodes and spares.
    """

    resource: str
    unit: str
    saved_days: float
    saved_usd: float


def gains(of: Figures, cost: Cost, policy: Policy | None = None) -> list[Gain]:
    """Compute what more of each resource would buy, most days first; leave out what a recorded step cannot price."""
    found = []
    for resource, unit, design, plan in (*_variations(of.design), ("GPU memory", _TEN, of.design, None)):
        try:
            other = run(design, cost, policy, plan or _with_memory(design, cost))
        except OtherPlan:
            continue
        found.append(Gain(resource, unit, of.days - other.days, of.usd - other.usd))
    return sorted(found, key=lambda gain: -gain.saved_days)


def _variations(design: Design) -> Iterator[tuple[str, str, Design, Plan]]:
    """Yield each resource, how much more of it there is, the design with it, and the plan to price."""
    for resource, cluster in _faster(design.cluster).items():
        yield resource, _TEN, design, replace(design.layout, cluster=cluster)
    replica = design.plan.tp * design.plan.pp * design.plan.cp
    if replica % design.cluster.gpus_per_node == 0:
        bigger = _with_replica(design)
        yield "GPUs", f"a replica of {replica}, with its share of the batch", bigger, bigger.layout
    for resource, unit, changes in (
        ("spare nodes", "one more", {"nodes__num_spares": design.nodes.num_spares + 1}),
        ("rate of the store's writes", _TEN, _faster_writes(design)),
        ("speed of a restart", _TEN, {"failures__restart_s": design.failures.restart_s / MORE}),
        ("saves", _TEN, {"checkpoint__every_s": design.checkpoint.every_s / MORE}),
    ):
        yield resource, unit, changed(design, **changes), design.layout


def _with_memory(design: Design, cost: Cost) -> Plan:
    """Return the plan with less recomputation or ZeRO where more memory allows it; otherwise the design's own."""
    own, has = design.layout, design.cluster.gpu.memory_bytes
    zero_stages = ZERO_STAGES if own.num_shards > 1 else (0,)
    others = [replace(own, recompute=one, zero_stage=stage) for one in RECOMPUTES for stage in zero_stages]
    now, then = (
        [plan for plan in others if held(plan, design.gradient_bytes).total_bytes <= most_bytes] or [own]
        for most_bytes in (has, has * MORE)
    )
    if len(then) == len(now):
        return own
    seconds = {plan: price(cost, plan, design.software.precision)[0] for plan in then}
    quickest = min(then, key=seconds.__getitem__)
    return own if quickest in now else quickest


def _with_replica(design: Design) -> Design:
    dp, replica = design.plan.dp, design.plan.tp * design.plan.pp * design.plan.cp
    return changed(
        design,
        plan__dp=dp + 1,
        nodes__num_nodes=design.nodes.num_nodes + replica // design.cluster.gpus_per_node,
        data__global_batch=design.data.global_batch // dp * (dp + 1),
    )


def _faster(cluster: Cluster) -> Mapping[str, Cluster]:
    """Return the cluster with more of each rate, by name."""
    gpu = cluster.gpu
    found = {
        "rate of matrix products": replace(cluster, gpu=_computing(gpu)),
        "bandwidth of GPU memory": replace(
            cluster, gpu=replace(gpu, memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * MORE)
        ),
        "bandwidth in a node": replace(cluster, intra=_wider(cluster.intra)),
    }
    if cluster.inter is not None:
        found["bandwidth of NICs and network"] = replace(cluster, inter=_wider(cluster.inter))
    return found


def _computing(gpu: Gpu) -> Gpu:
    return replace(gpu, peak_flops_per_s={dtype: rate * MORE for dtype, rate in gpu.peak_flops_per_s.items()})


def _wider(link: Link) -> Link:
    return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * MORE, peak_bytes_per_s=None)


def _faster_writes(design: Design) -> Mapping[str, float]:
    store = design.storage
    return {
        "storage__write_bytes_per_s": store.write_bytes_per_s * MORE,
        "storage__node_write_bytes_per_s": store.node_write_bytes_per_s * MORE,
    }
