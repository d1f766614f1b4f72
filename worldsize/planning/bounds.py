"""The least seconds of a step under a plan: what no program can beat on the plan's hardware.

Each bound takes one resource alone, busy all the time at its peak, with everything else hidden behind it. Counted is
what the plan itself asks for: gradients and weights travel in 16 bits, once a step whatever the micro-batches, a node
sums its own gradients before it sends them, and the optimizer has 12 bytes a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from worldsize.hardware import Gpu, Link
from worldsize.planning.layout import Plan
from worldsize.published import BOUND, find_range, nearest_range
from worldsize.units import MB, format_bytes, format_time_s, format_times_s, significant

_BYTES = 2  # of a number in 16 bits
_CACHE_BYTES = 256 * MB  # more than the last-level cache of any GPU: what it holds need not be read again
_OPTIMIZER_BYTES = 12  # per parameter: the weight in float32, and Adam's two moments


class Impossible(ValueError):
    """A cost is less than the hardware allows."""


@dataclass(frozen=True)
class LowerBound:
    """The least seconds that one resource takes, and the work that takes them, for a message."""

    resource: str  # "compute", "memory", "links" or "nics"
    seconds: float
    work: str


def refuse_impossible(step_s: float, plan: Plan, dtype: str = "") -> None:
    """Raise `Impossible` if a step of `step_s` seconds is shorter than `least(plan, dtype)`.

    Raises:
        Impossible: it is; the message names the plan, the bound and its work.
    """
    bound = least(plan, dtype)
    if step_s < bound.seconds:
        raise Impossible(
            f"cost is {format_time_s(step_s)} for {plan}, and no program takes less than "
            f"{format_time_s(bound.seconds)}: {bound.work}"
        )


def describe_step(step_s: float, plan: Plan, dtype: str = "") -> str:
    """Describe how near a step is to `least(plan, dtype)`, and how near published programs of its kind were."""
    least_s = least(plan, dtype).seconds
    times = f"takes {significant(step_s / least_s)} times the least that the hardware allows"
    published = find_range(BOUND, plan.family, plan.cluster.gpu.architecture, plan.cluster.world_size)
    if published is None:
        near = nearest_range(BOUND, plan.family, plan.cluster.world_size)
        return (
            f"{times}. Nothing of its kind was compared; published {near.kind} took {near.low:.2f} to {near.high:.2f} "
            f"times that least ({near.num_rows} rows)."
        )
    return f"{times}; {published}, which is {format_times_s(*published.around(least_s))}."


def least(plan: Plan, dtype: str = "") -> LowerBound:
    """Return the largest of the bounds; `dtype` is that of the products, by default 16 bits."""
    return max(bounds(plan, dtype), key=lambda bound: bound.seconds)


def bounds(plan: Plan, dtype: str = "") -> Iterator[LowerBound]:
    """Yield a bound for the products, for the memory of a GPU and, where the plan uses them, for NVLink and NICs."""
    yield _of_products(plan, dtype)
    yield _of_memory(plan)
    if 1 < plan.tp <= plan.cluster.gpus_per_node and plan.cluster.mesh is None:
        yield _of_links(plan, 1 if dtype == "float8" else _BYTES)
    if plan.cluster.num_nodes > 1:
        yield of_nics(plan)


def peak_flops_per_s(gpu: Gpu, dtype: str = "") -> tuple[str, float]:
    """Return the dtype and the peak at which a GPU multiplies, by default in 16 bits."""
    peaks = gpu.peak_flops_per_s
    dtype = next(name for name in (dtype, "bfloat16", "float16", *peaks) if name in peaks)
    return dtype, peaks[dtype]


def _of_products(plan: Plan, dtype: str) -> LowerBound:
    """The products that a causal mask leaves, forward, backward and again with full recomputation.

    Of a layer's last product, backward needs only the input: torch stops recomputing there.
    """
    model, layers = plan.model, plan.num_stage_layers
    forward_flops = model.layer_flops(plan.length) - 2 * plan.length * model.width  # half of the scores and their sums
    layer_flops = 3 * forward_flops
    if plan.recompute == "full":
        layer_flops += forward_flops - 2 * model.num_active_experts * model.width * model.hidden_width
    flops = max(max(layers) * layer_flops, layers[-1] * layer_flops + 3 * model.head_flops)
    num_tokens = plan.num_micro_batches * plan.micro_batch * plan.length
    dtype, peak = peak_flops_per_s(plan.cluster.gpu, dtype)
    seconds = num_tokens * flops / (plan.tp * plan.cp * peak)
    work = f"its products at the {plan.cluster.gpu.name}'s peak of {peak / 1e12:,.0f} TFLOP/s in {dtype}"
    return LowerBound("compute", seconds, work)


def _of_memory(plan: Plan) -> LowerBound:
    """Every micro-batch reads the weights of its layers forward and backward; the update reads and writes its state."""
    gpu, weights = plan.cluster.gpu, weights_bytes(plan)
    read = 2 * plan.num_micro_batches * max(0, weights - _CACHE_BYTES)
    num_updated = plan.most_parameters / (plan.num_shards if plan.zero_stage else 1)
    moved = read + (2 * _OPTIMIZER_BYTES + 2 * _BYTES) * num_updated
    work = f"weights and optimizer state through the {gpu.name}'s memory"
    return _moved("memory", moved, gpu.memory_bandwidth_bytes_per_s, work)


def _of_links(plan: Plan, number_bytes: int) -> LowerBound:
    link = plan.cluster.intra
    work = f"what tp {plan.tp} gathers over {link.name}"
    return _moved("links", tp_bytes(plan, number_bytes), peak_bytes_per_s(link), work)


def tp_bytes(plan: Plan, number_bytes: int = _BYTES) -> float:
    """Return what tensor parallelism brings to a rank in a step.

    Each pass over a layer gathers a sequence's shards twice; what is reduced may leave through the other way.
    """
    num_passes = 3 if plan.recompute == "full" else 2
    gathered = number_bytes * plan.num_micro_batch_tokens * plan.model.width * (plan.tp - 1) / plan.tp
    return plan.num_micro_batches * max(plan.num_stage_layers) * num_passes * 2 * gathered


def of_nics(plan: Plan, num_passes: int = 1) -> LowerBound:
    """What a node sends, and receives as much: its weights or gradients `num_passes` times, and between stages.

    At least once: sent as gradients, received as sums or weights.
    """
    cluster, per_node = plan.cluster, plan.cluster.gpus_per_node
    ranks = plan.shard_ranks
    num_local = sum(rank < per_node for rank in ranks)
    num_groups, num_nodes = per_node / num_local, len({rank // per_node for rank in ranks})
    of_group = weights_bytes(plan) * (num_nodes - 1) / num_nodes
    moved = num_passes * num_groups * of_group if num_nodes > 1 else 0.0
    if plan.pp > 1 and plan.tp * plan.num_shards >= per_node:
        num_messages = 2 * (plan.pp * plan.num_chunks - 1) / plan.pp  # of a micro-batch, by the mean stage
        message = _BYTES * plan.num_micro_batch_tokens * plan.model.width / plan.tp
        moved += per_node * plan.num_micro_batches * num_messages * message
    assert cluster.inter is not None
    rate = cluster.nics_per_node * peak_bytes_per_s(cluster.inter)
    return _moved("nics", moved, rate, f"what a node sends over its {_nics(plan)}")


def _nics(plan: Plan) -> str:
    number = plan.cluster.nics_per_node
    assert plan.cluster.inter is not None
    return f"{number} NIC{'' if number == 1 else 's'} ({plan.cluster.inter.name})"


def weights_bytes(plan: Plan) -> int:
    """Return the bytes of a rank's layers, without experts, of which a step may use none."""
    dense = plan.num_layer_parameters - plan.num_layer_expert_parameters
    return _BYTES * max(plan.num_stage_layers) * dense


def peak_bytes_per_s(link: Link) -> float:
    """Return the rate of a link in one direction, by its data sheet where that is known."""
    return link.peak_bytes_per_s or link.bandwidth_bytes_per_s


def _moved(resource: str, size_bytes: float, bytes_per_s: float, what: str) -> LowerBound:
    work = f"{what}, {format_bytes(size_bytes)} at {format_bytes(bytes_per_s)}/s"
    return LowerBound(resource, size_bytes / bytes_per_s, work)
