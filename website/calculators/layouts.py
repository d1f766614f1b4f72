"""Which layout of a model fits, and how fast can its step be?

A layout splits a model over GPUs. Tensor parallelism (tp) splits every matrix, pipeline parallelism (pp) splits the
layers into stages, and data parallelism (dp) has the other GPUs train replicas: dp is the number of GPUs over tp times
pp. ZeRO shards a replica's states over the replicas, and recomputation keeps fewer activations: "full" only the input
of each layer; "selective" recomputes norms and activation functions, and for GPT the attention scores.

A layout is legal if its sizes divide what they split. Its [estimated bytes](../docs/plan.md) are weights, gradients and
optimizer state at 16 bytes for each parameter, and the activations of the micro-batches in flight. Four measured peaks
were 1.09 to 1.73 times their estimates. So up to 58% of a GPU's memory fits, up to 92% perhaps, and more hardly.
Without interleaving, the first stage of a pipeline keeps pp micro-batches.

The least time of a step takes one resource alone, busy all the time at its peak: the matrix products, a GPU's memory,
what tensor parallelism gathers over NVLink, or what a node sends over its NICs. The longest of these binds, and no
program is faster. Published programs took a few times that least, and the page gives [their range](../docs/paper.md)
for the family of layouts and generation of GPUs where enough of them were published, whatever the network: for one NIC
of 10 Gb/s it says little. The MFU counts all scores of attention, as PaLM's paper and most published figures do; the
least time has only the half that the causal mask leaves.

The least times of most layouts are nearly equal, because the matrix products bind almost all of them. So the page
orders the layouts whose estimate fits by the time of a step without any overlap: the sum of all these times, with the
bubble of 1F1B while the pipeline fills and drains, and with what a program sends rather than the least: gradients are
reduced and gathered, and ZeRO-3 gathers weights for each micro-batch. It tries every tp, pp, dp, ZeRO stage and way of
recomputing with your micro-batch, and columns 1 to 5 are the five cheapest that differ in tp, pp or dp. Treat layouts
that differ by less than 5% as equal: most ratios of two published steps are farther than that from the ratio on paper.

Try this, from the layout at the start:

- Set pp to 8. The states fall from 36.3 to 19.2 GB, and the activations stay at 27.2 GB: each stage has half as many
  layers, and the first keeps twice as many micro-batches.
- Set ZeRO to 1. The optimizer state falls from 27.2 to 3.4 GB, and the least time stays.
- Set pp to 1. The states alone are more than 80 GB. With ZeRO-1 the layout is 66.6 GB, and perhaps
  fits.
- Set recompute to full. The activations fall to 1.7 GB, and the least time grows by 24%.
- Set the sequences per step to 16 and pp to 1. Now 32 replicas cannot share 16 sequences, so the layout is not legal.

[Week 10](../weeks/week10_combining_them.ipynb) combines the dimensions, and [week 14](../weeks/week14_capstone.ipynb)
plans a run of Llama 3 405B. Its published steps on 8,192 and 16,384 H100 took 2.3 and 2.5 times the least time that
this page computes for tp 8, pp 16, ZeRO-2, no recomputation and 2,048 sequences of 8,192 tokens. These two steps are in
no range of this page, so the table says "not known". By the estimate that layout holds 85 GB, and it ran on GPUs of 80
GB: an estimate so near to a GPU's memory decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from calculators import charts
from calculators.calculator import Answer, Question
from calculators.what_fits import said_of
from worldsize import hardware, planning
from worldsize.models import shapes
from worldsize.planning import Plan, PricedPlan, bounds, serial
from worldsize.planning.layout import RECOMPUTES, ZERO_STAGES
from worldsize.planning.legality import why_not
from worldsize.planning.memory_estimate import GREATEST_PEAK, LEAST_PEAK, NUM_PEAKS, MemoryEstimate, held
from worldsize.planning.plans import ACTIVATIONS, STATES
from worldsize.published import BOUND, find_range, nearest_range
from worldsize.units import format_bytes, format_count, format_time_s, format_times_s

PARTS = ("weights", "gradients", "optimizer state", "activations")
QUESTION = Question(
    "Llama 3 70B trains on 256 A100 with tp 8 and pp 4, without ZeRO or recomputation, on sequences of 8,192 tokens "
    "one at a time. How many GB does the fullest GPU hold?",
    "GB",
    "70.6 billion parameters at 16 bytes over 32 GPUs are 35.3 GB, and 36.3 on the first stage, which also has the "
    "embedding. The activations are 27.2 GB: the first stage has a quarter of the layers, and keeps 4 micro-batches.",
)
LABELS = {
    "num_gpus": "GPUs",
    "tp": "tp, tensor parallel",
    "pp": "pp, pipeline stages",
    "zero_stage": "ZeRO stage",
    "micro_batch": "sequences per micro-batch",
    "global_batch": "sequences per step",
    "length": "tokens per sequence",
}
RANGES = {
    "model": {
        name: name for name, one in shapes.SHAPES.items() if one.num_experts == 1 and name not in ("tiny", "small")
    },
    "cluster": {
        "A100 80 GB, InfiniBand HDR": "a100-hdr",
        "A100 80 GB, one NIC of 10 Gb/s": "a100-10gbe",
        "H100 80 GB, InfiniBand NDR": "h100-ndr",
        "H200 141 GB, InfiniBand NDR": "h200-ndr",
        "B200 180 GB, InfiniBand NDR": "b200-ndr",
    },
    "num_gpus": [8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384],
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 4, 8, 12, 16, 32, 64],
    "zero_stage": list(ZERO_STAGES),
    "recompute": list(RECOMPUTES),
    "micro_batch": [1, 2, 4, 8, 16],
    "global_batch": [16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096],
    "length": [2048, 4096, 8192, 16384, 32768],
}
_NUM_OTHERS = 5


class _Column(NamedTuple):
    """A layout of the table and of the picture."""

    name: str
    plan: Plan
    parts: MemoryEstimate


def answer(
    model: str = "llama-3-70b",
    cluster: str = "a100-hdr",
    num_gpus: int = 256,
    tp: int = 8,
    pp: int = 4,
    zero_stage: int = 0,
    recompute: str = "none",
    micro_batch: int = 1,
    global_batch: int = 512,
    length: int = 8192,
) -> Answer:
    """Whether a layout is legal and fits, its least time of a step, and the five cheapest that fit."""
    mine, others, problem, nothing = None, [], "", ""
    try:
        mine = layout(model, cluster, num_gpus, tp, pp, zero_stage, recompute, micro_batch, global_batch, length)
    except ValueError as error:
        problem = str(error)
    try:
        others = _cheapest(model, cluster, num_gpus, micro_batch, global_batch, length)
    except ValueError as error:
        nothing = str(error)
    if mine is None and not others:
        raise ValueError(f"this layout is not legal, because {problem}; and {nothing}")
    columns = [_Column("yours", mine, held(mine))] if mine else []
    columns += [_Column(f"{place}", one, held(one)) for place, one in enumerate(others, start=1)]
    capacity = columns[0].plan.cluster.gpu.memory_bytes
    cheapest = "The table has the cheapest that are legal and whose estimate fits"
    return Answer(
        _verdict(mine, nothing) if mine else f"This layout is not legal: {problem}. {cheapest}.",
        columns[0].parts.total_bytes / 1e9 if mine else math.nan,
        ("layout", *(column.name for column in columns)),
        _rows(columns),
        charts.bars(
            (
                (f"{column.name}: {_sizes(column.plan)}", part, amount / 1e9)
                for column in columns
                for part, amount in zip(PARTS, _bytes(column.parts), strict=True)
            ),
            "GB on the fullest GPU",
            capacity / 1e9,
            f"the GPU's {format_bytes(capacity)}",
            PARTS,
        ),
    )


def layout(
    model: str,
    cluster: str,
    num_gpus: int,
    tp: int,
    pp: int,
    zero_stage: int,
    recompute: str,
    micro_batch: int,
    global_batch: int,
    length: int,
    num_chunks: int = 1,
) -> Plan:
    """The plan with these sizes, on all GPUs; a single replica has nothing that ZeRO could shard.

    Raises:
        ValueError: it is not legal.
    """
    shape, machines = shapes.shape(model), _cluster(cluster, num_gpus)
    dp, rest = divmod(num_gpus, tp * pp)
    if rest or not dp:
        raise ValueError(f"tp {tp} times pp {pp} does not divide {num_gpus:,} GPUs")
    if reason := why_not((tp, 1, dp, pp), shape, machines, global_batch, length):
        raise ValueError(reason)
    if global_batch // dp % micro_batch:
        raise ValueError(f"a replica has {global_batch // dp} of the sequences, which {micro_batch} does not divide")
    return Plan(
        model=shape,
        cluster=machines,
        global_batch=global_batch,
        length=length,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=1,
        micro_batch=micro_batch,
        num_chunks=num_chunks,
        recompute=recompute,
        zero_stage=zero_stage if dp > 1 else 0,
    )


def published_s(plan: Plan) -> tuple[float, float] | None:
    """The seconds of a step within which published programs of this kind would be; None if none is of its kind."""
    found = find_range(BOUND, plan.family, plan.cluster.gpu.architecture, plan.cluster.world_size)
    return found and found.around(bounds.least(plan).seconds)


def _cluster(name: str, num_gpus: int) -> hardware.Cluster:
    found = hardware.cluster(name)
    return found.with_nodes(num_gpus // found.gpus_per_node)


def _cheapest(
    model: str, cluster: str, num_gpus: int, micro_batch: int, global_batch: int, length: int
) -> Sequence[Plan]:
    """The cheapest plans of different (tp, pp, dp) that fit.

    Raises:
        ValueError: none fits.
    """
    found = planning.plan(
        model,
        _cluster(cluster, num_gpus),
        global_batch=global_batch,
        length=length,
        cp=1,
        ep=1,
        micro_batch=micro_batch,
        num_chunks=1,
    )
    return [one.plan for one in found.layouts[:_NUM_OTHERS]]


def _verdict(plan: Plan, nothing: str) -> str:
    """Say whether a plan fits, and how long its step takes at least and would take."""
    parts, capacity = held(plan), plan.cluster.gpu.memory_bytes
    needed = format_bytes(parts.total_bytes)
    what = f"{plan.model.name} with {_sizes(plan)} needs {needed}, and a GPU has {format_bytes(capacity)}"
    said = said_of(parts.total_bytes, capacity)
    if said == "no":
        reason = STATES if parts.states_bytes > capacity else ACTIVATIONS
        return f"{what}. It does not fit: {reason}." + (f" {nothing[:1].upper()}{nothing[1:]}." if nothing else "")
    peaks = f"{NUM_PEAKS} measured peaks were {LEAST_PEAK} to {GREATEST_PEAK} times theirs"
    share = f"{parts.total_bytes / capacity:.0%} of a GPU's memory by the estimate"
    fits = "fits" if said == "yes" else f"{said} fits: {share}, and {peaks}"
    least = bounds.least(plan)
    found = find_range(BOUND, plan.family, plan.cluster.gpu.architecture, plan.cluster.world_size)
    around = published_s(plan)
    near = nearest_range(BOUND, plan.family, plan.cluster.world_size)
    published = (
        f"at least nine in ten of {found.num_rows} published steps of this kind took {found.low:.2f} to "
        f"{found.high:.2f} times the least: {format_times_s(*around)}"
        if found and around
        else f"nothing of its kind was compared, but {near.num_rows} published {near.kind} took {near.low:.2f} to "
        f"{near.high:.2f} times their least"
    )
    return f"{what}. It {fits}. A step takes at least {format_time_s(least.seconds)}, for {least.work}; {published}."


def _rows(columns: Sequence[_Column]) -> list[list[str]]:
    """What the table shows of each layout."""
    plans = [column.plan for column in columns]
    leasts = [bounds.least(plan).seconds for plan in plans]
    arounds = [published_s(plan) for plan in plans]
    sizes = [
        ["tp, pp, dp", *(f"{plan.tp}, {plan.pp}, {plan.dp}" for plan in plans)],
        ["ZeRO stage", *(f"{plan.zero_stage}" for plan in plans)],
        ["recompute", *(plan.recompute for plan in plans)],
    ]
    memory = [
        [part, *(format_bytes(_bytes(column.parts)[place]) for column in columns)] for place, part in enumerate(PARTS)
    ]
    return [
        *sizes,
        *memory,
        ["total", *(format_bytes(column.parts.total_bytes) for column in columns)],
        ["of the GPU's memory", *(_fits(column) for column in columns)],
        ["least time of a step", *map(format_time_s, leasts)],
        ["step of published programs", *(format_times_s(*ends) if ends else "not known" for ends in arounds)],
        ["step without any overlap", *(format_time_s(serial.step_s(plan)) for plan in plans)],
        ["tokens/s, at most", *(_tokens_per_s(plan, s) for plan, s in zip(plans, leasts, strict=True))],
        ["of the least time, the products take", *(_share(plan, s) for plan, s in zip(plans, leasts, strict=True))],
        ["MFU of published programs", *(_published_mfu(plan, ends) for plan, ends in zip(plans, arounds, strict=True))],
    ]


def _fits(column: _Column) -> str:
    total, capacity = column.parts.total_bytes, column.plan.cluster.gpu.memory_bytes
    return f"{total / capacity:.0%}, {said_of(total, capacity)}"


def _share(plan: Plan, least_s: float) -> str:
    """The fraction of the least time in which the GPU computes at its peak."""
    (products,) = (bound for bound in bounds.bounds(plan) if bound.resource == "compute")
    return f"{products.seconds / least_s:.0%}"


def _published_mfu(plan: Plan, ends: tuple[float, float] | None) -> str:
    return " to ".join(f"{_mfu(plan, step_s):.0%}" for step_s in reversed(ends)) if ends else "not known"


def _tokens_per_s(plan: Plan, step_s: float) -> str:
    return format_count(float(f"{plan.num_tokens / step_s:.3g}"))


def _mfu(plan: Plan, step_s: float) -> float:
    return PricedPlan(plan, step_s, {}, 0.0).mfu_fraction


def _bytes(parts: MemoryEstimate) -> tuple[float, ...]:
    return parts.weights_bytes, parts.gradients_bytes, parts.optimizer_bytes, parts.activations_bytes


def _sizes(plan: Plan) -> str:
    return f"tp{plan.tp} pp{plan.pp} dp{plan.dp}"
