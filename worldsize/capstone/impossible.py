"""What in a design does not add up: a function for each kind, which returns the sentence that says why, or nothing.

The sentences name keys of the file. Where a later kind would only repeat an earlier one, it is not asked: memory is
asked only of a legal plan, and days and dollars only of one that fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

from worldsize.capstone import bill, saves
from worldsize.capstone.design import Design, SwitchLevel
from worldsize.capstone.figures import least_step_s, run
from worldsize.outages import Policy
from worldsize.planning.layout import stage_layers
from worldsize.planning.memory_estimate import held
from worldsize.planning.search import Cost
from worldsize.units import DAY, format_bytes, format_time_s, significant

MOST_EPOCHS = 4  # over the same tokens, up to which they teach nearly as much as new ones: Muennighoff et al. 2023
_SAME = 1 - 1e-9  # for sums of rounded numbers

Kind: TypeAlias = Callable[[Design], str | None]


def check(design: Design, cost: Cost | None = None, policy: Policy | None = None) -> list[str]:
    """A sentence for each thing that does not add up; none if all does.

    Without a cost of a step, days and dollars are asked of the least that any program takes, at the peak of all GPUs.
    A policy decides on saves, as in `run`, and may go on with fewer nodes where spares are too few.
    """
    found = _asked(design, PLAN)
    if not found:
        found += _asked(design, MEMORY)
    found += _asked(design, DATA) + _asked(design, NETWORK) + _asked(design, STORAGE)
    if policy is None:
        found += _asked(design, SPARES)
    found += _asked(design, FAILURES) + _asked(design, POWER)
    if found:
        return found
    if cost is None:
        least_days = design.num_steps * least_step_s(design.layout) / DAY
        return over_budget(design, least_days, "even at the peak of all GPUs and without a failure")
    return over_budget(design, run(design, cost, policy).days)


def _asked(design: Design, kinds: tuple[Kind, ...]) -> list[str]:
    return [sentence for kind in kinds if (sentence := kind(design))]


def not_all_gpus(design: Design) -> str | None:
    plan, num_gpus = design.plan, design.cluster.world_size
    num_ranks = plan.dp * plan.tp * plan.pp * plan.cp
    if num_ranks == num_gpus:
        return None
    return (
        f"plan: dp {plan.dp} x tp {plan.tp} x pp {plan.pp} x cp {plan.cp} are {num_ranks:,} ranks, and "
        f"{design.nodes.num_nodes:,} nodes have {num_gpus:,} GPUs; they must be as many."
    )


def tp_leaves_its_node(design: Design) -> str | None:
    tp, per_node = design.plan.tp, design.cluster.gpus_per_node
    if per_node % tp == 0:
        return None
    return f"plan.tp: {tp} does not divide the {per_node} GPUs of a node, so layers would be shared over the network."


def tp_cuts_heads(design: Design) -> str | None:
    tp, shape = design.plan.tp, design.shape
    if shape.num_heads % tp == 0 and shape.num_kv_heads % tp == 0:
        return None
    return f"plan.tp: {tp} does not divide {shape.num_heads} heads and {shape.num_kv_heads} key/value heads."


def stages_are_unequal(design: Design) -> str | None:
    plan, num_layers = design.plan, design.shape.num_layers
    if stage_layers(num_layers, plan.pp, plan.num_chunks):
        return None
    return (
        f"plan.pp: {num_layers} layers, or {num_layers + 2} with the embedding and the head, cannot be cut into "
        f"{plan.pp} stages x {plan.num_chunks} chunks."
    )


def batch_is_not_cut(design: Design) -> str | None:
    plan, batch = design.plan, design.data.global_batch
    if batch % (plan.dp * plan.micro_batch) == 0:
        return None
    return (
        f"data.global_batch: {batch:,} sequences cannot be cut into micro-batches of {plan.micro_batch} on each of "
        f"{plan.dp} replicas; it must be a multiple of {plan.dp * plan.micro_batch}."
    )


def sequence_is_not_cut(design: Design) -> str | None:
    plan, length = design.plan, design.data.length
    if length % (2 * plan.cp if plan.cp > 1 else 1) == 0 and length // plan.cp % plan.tp == 0:
        return None
    pieces = f"into 2 x cp {plan.cp} pieces, and a rank's share of them by " if plan.cp > 1 else "by "
    return f"data.length: {length:,} tokens cannot be cut {pieces}tp {plan.tp}."


def experts_are_not_shared(design: Design) -> str | None:
    plan, num_experts = design.plan, design.shape.num_experts
    if num_experts % plan.ep == 0 and plan.dp * plan.cp % plan.ep == 0:
        return None
    return (
        f"plan.ep: {plan.ep} must divide the {num_experts} experts of a layer and the dp x cp = {plan.dp * plan.cp} "
        "ranks that share them."
    )


def nothing_to_shard(design: Design) -> str | None:
    plan = design.plan
    if plan.zero_stage == 0 or plan.dp * plan.cp > 1:
        return None
    return f"plan.zero_stage: ZeRO-{plan.zero_stage} shards over dp x cp ranks, and there is 1: nothing to share."


def schedule_is_another(design: Design) -> str | None:
    plan, schedule = design.plan, design.software.schedule
    right = "none" if plan.pp == 1 else "interleaved" if plan.num_chunks > 1 else "1f1b"
    if schedule == right:
        return None
    return (
        f'software.schedule: "{schedule}" cannot run pp {plan.pp} with {plan.num_chunks} chunks a stage; that takes '
        f'"{right}".'
    )


def rounds_are_not_whole(design: Design) -> str | None:
    plan, num_micro = design.plan, design.layout.num_micro_batches
    if plan.num_chunks == 1 or num_micro % plan.pp == 0:
        return None
    return (
        f"software.schedule: interleaved stages take micro-batches in rounds of pp {plan.pp}, and a replica has "
        f"{num_micro}; data.global_batch must be a multiple of dp x micro_batch x pp = "
        f"{plan.dp * plan.micro_batch * plan.pp:,}."
    )


def gpu_lacks_precision(design: Design) -> str | None:
    gpu, precision = design.cluster.gpu, design.software.precision
    if precision in gpu.peak_flops_per_s:
        return None
    return f"software.precision: the {gpu.name} computes in {', '.join(gpu.peak_flops_per_s)}, not in {precision}."


def states_do_not_fit(design: Design) -> str | None:
    parts, has = held(design.layout), design.cluster.gpu.memory_bytes
    if parts.states_bytes <= has:
        return None
    return (
        f"plan: weights {format_bytes(parts.weights_bytes)}, gradients {format_bytes(parts.gradients_bytes)} and "
        f"optimizer state {format_bytes(parts.optimizer_bytes)} on a GPU are more than its {format_bytes(has)}, before "
        "any activation; take more tp or pp, or a higher plan.zero_stage."
    )


def activations_do_not_fit(design: Design) -> str | None:
    parts, has = held(design.layout), design.cluster.gpu.memory_bytes
    if parts.states_bytes > has or parts.total_bytes <= has:
        return None
    return (
        f"plan: {format_bytes(parts.states_bytes)} of weights, gradients and optimizer state leave "
        f"{format_bytes(has - parts.states_bytes)} of a GPU's {format_bytes(has)}, and activations take "
        f"{format_bytes(parts.activations_bytes)}; recompute more, or take a smaller micro_batch."
    )


def host_holds_no_copy(design: Design) -> str | None:
    host = design.cluster.host
    if not design.checkpoint.is_async or host is None:
        return None
    copy_bytes = design.checkpoint_bytes / design.nodes.num_nodes
    if copy_bytes <= host.memory_bytes:
        return None
    return (
        f"checkpoint.is_async: a node's share of a save, {format_bytes(copy_bytes)}, does not fit in its host's "
        f"{format_bytes(host.memory_bytes)}; save synchronously, or share it among more nodes."
    )


def sequence_is_too_long(design: Design) -> str | None:
    length, most = design.data.length, design.shape.context_length
    if length <= most:
        return None
    return f"data.length: sequences of {length:,} tokens are longer than the model's context of {most:,}."


def tokens_are_too_few(design: Design) -> str | None:
    data = design.data
    epochs = data.num_tokens / data.dataset_tokens
    if epochs <= MOST_EPOCHS:
        return None
    return (
        f"data.num_tokens: {epochs:.1f} epochs over data.dataset_tokens; after {MOST_EPOCHS} the same tokens teach "
        "little more (Muennighoff et al. 2023, arXiv 2305.16264)."
    )


def identifiers_do_not_fit(design: Design) -> str | None:
    num_bytes, vocab_size = design.data.bytes_per_token, design.shape.vocab_size
    if 256**num_bytes >= vocab_size:
        return None
    return (
        f"data.bytes_per_token: {num_bytes} bytes have {256**num_bytes:,} values, and the vocabulary has "
        f"{vocab_size:,}."
    )


def switch_has_too_few_ports(design: Design) -> str | None:
    if design.network is None or design.switch is None:
        return None
    for level in design.network.levels:
        if level.num_down + level.num_up > design.switch.num_ports:
            return (
                f"network.levels: a {level.name} has {level.num_down} ports down and {level.num_up} up, and a "
                f"{design.switch.name} has {design.switch.num_ports} in all."
            )
    return None


def leaves_have_too_few_ports(design: Design) -> str | None:
    if design.network is None:
        return None
    leaf, num_nics = design.network.levels[0], bill.num_nics(design)
    num_ports = leaf.num_switches * leaf.num_down
    if num_ports >= num_nics:
        return None
    return (
        f"network.levels: {leaf.num_switches} {leaf.name} switches have {num_ports:,} ports down, and "
        f"{design.num_nodes_in_all:,} nodes, spares among them, have {num_nics:,} NICs."
    )


def leaf_has_too_many_nodes(design: Design) -> str | None:
    if design.network is None:
        return None
    leaf = design.network.levels[0]
    num_nodes = leaf.num_nodes or design.num_nodes_in_all
    of_each = 1 if design.network.is_rail else design.cluster.nics_per_node
    if of_each * num_nodes <= leaf.num_down:
        return None
    return (
        f"network.levels: a {leaf.name} has {leaf.num_down} ports down, and the NICs of {num_nodes} nodes below it, "
        f"{of_each} of each."
    )


def cables_lead_nowhere(design: Design) -> str | None:
    if design.network is None:
        return None
    levels = design.network.levels
    for below, above in pairwise(levels):
        if _num_up(below) != above.num_switches * above.num_down:
            return (
                f"network.levels: {below.name} switches have {_num_up(below):,} ports up in all, and {above.name} "
                f"switches {above.num_switches * above.num_down:,} ports down; a cable needs both."
            )
    if levels[-1].num_up:
        return f"network.levels: {levels[-1].name} has {levels[-1].num_up} ports up, and no switches are above it."
    return None


def top_joins_too_few(design: Design) -> str | None:
    if design.network is None:
        return None
    top = design.network.levels[-1]
    if top.num_nodes is None or top.num_nodes >= design.num_nodes_in_all:
        return None
    return (
        f"network.levels: the highest switches, {top.name}, join {top.num_nodes:,} nodes, and there are "
        f"{design.num_nodes_in_all:,}: some cannot reach others."
    )


def bisection_is_less(design: Design) -> str | None:
    if design.network is None or design.cluster.inter is None:
        return None
    uplinks = [_num_up(level) for level in design.network.levels[:-1]]
    num_cables = min([bill.num_nics(design), *uplinks]) / 2
    has = num_cables * design.cluster.inter.bandwidth_bytes_per_s
    said = design.network.bisection_bytes_per_s
    if has >= said * _SAME:
        return None
    return (
        f"network.bisection_bytes_per_s: {format_bytes(said)}/s are said to pass between two halves of the network; "
        f"its {num_cables:,.0f} cables between them carry {format_bytes(has)}/s."
    )


def store_is_too_small(design: Design) -> str | None:
    store, kept = design.storage, design.checkpoint.num_kept * design.checkpoint_bytes
    dataset = design.data.dataset_tokens * design.data.bytes_per_token
    if kept + dataset <= store.capacity_bytes:
        return None
    return (
        f"storage.capacity_bytes: {design.checkpoint.num_kept} saves of {format_bytes(design.checkpoint_bytes)} and "
        f"{format_bytes(dataset)} of tokens do not fit in {format_bytes(store.capacity_bytes)}."
    )


def saves_overtake_each_other(design: Design) -> str | None:
    write_s, every_s = saves.write_s(design), design.checkpoint.every_s
    if write_s <= every_s:
        return None
    return (
        f"checkpoint.every_s: a save takes {format_time_s(write_s)} to write at the rates of storage, and the next one "
        f"begins after {format_time_s(every_s)}."
    )


def tokens_come_too_slowly(design: Design) -> str | None:
    """Whether the store can be read as fast as the budget's days ask for; a save's loading is not in it."""
    needed = design.data.num_tokens * design.data.bytes_per_token / (design.budget.days * DAY)
    if needed <= design.storage.read_bytes_per_s:
        return None
    return (
        f"storage.read_bytes_per_s: to be done in {design.budget.days:g} days, {format_bytes(needed)}/s of tokens must "
        f"be read, and the store gives {format_bytes(design.storage.read_bytes_per_s)}/s."
    )


def rates_are_unknown(design: Design) -> str | None:
    try:
        saves.causes(design)
    except ValueError as error:
        return f"failures.rates: {error}."
    return None


def spares_are_too_few(design: Design) -> str | None:
    if rates_are_unknown(design):
        return None
    away, spares = saves.mean_num_away(design), design.nodes.num_spares
    if away <= spares:
        return None
    return (
        f"nodes.num_spares: {significant(away)} nodes are away for repair at a time, in the mean, and {spares} stand "
        "by: the job would often wait for the rest."
    )


def failures_come_before_saves(design: Design) -> str | None:
    if rates_are_unknown(design):
        return None
    mean_s, every_s = saves.mean_s_to_failure(design), design.checkpoint.every_s
    if every_s < mean_s:
        return None
    return (
        f"checkpoint.every_s: a node fails every {format_time_s(mean_s)}, in the mean, and a save comes only after "
        f"{format_time_s(every_s)} of training: most of it would be lost."
    )


def failures_come_before_the_start(design: Design) -> str | None:
    if rates_are_unknown(design):
        return None
    mean_s, start_s = saves.mean_s_to_failure(design), saves.start_s(design)
    if start_s < mean_s:
        return None
    return (
        f"failures.restart_s: to start again and to load takes {format_time_s(start_s)}, and a node fails every "
        f"{format_time_s(mean_s)}, in the mean."
    )


def node_is_unknown(design: Design) -> str | None:
    try:
        bill.node(design)
    except ValueError as error:
        return f"{error}."
    return None


def site_has_too_little_power(design: Design) -> str | None:
    if node_is_unknown(design):
        return None
    drawn, has = sum(bill.power_w(design).values()), design.site.power_w
    if drawn <= has:
        return None
    return (
        f"site.power_w: {_megawatts(drawn)} at most, with a PUE of {design.site.pue:g}, and the site gives "
        f"{_megawatts(has)}."
    )


def rack_has_too_little_power(design: Design) -> str | None:
    if node_is_unknown(design):
        return None
    site, each = design.site, bill.node(design)
    if site.nodes_per_rack * each.power_w <= site.rack_power_w:
        return None
    return (
        f"site.nodes_per_rack: {site.nodes_per_rack} x {each.name} draw "
        f"{site.nodes_per_rack * each.power_w / 1000:.1f} kW, and a rack gives {site.rack_power_w / 1000:g} kW."
    )


PLAN = (
    not_all_gpus,
    tp_leaves_its_node,
    tp_cuts_heads,
    stages_are_unequal,
    batch_is_not_cut,
    sequence_is_not_cut,
    experts_are_not_shared,
    nothing_to_shard,
    schedule_is_another,
    rounds_are_not_whole,
    gpu_lacks_precision,
)
MEMORY = (states_do_not_fit, activations_do_not_fit, host_holds_no_copy)
DATA = (sequence_is_too_long, tokens_are_too_few, identifiers_do_not_fit)
NETWORK = (
    switch_has_too_few_ports,
    leaves_have_too_few_ports,
    leaf_has_too_many_nodes,
    cables_lead_nowhere,
    top_joins_too_few,
    bisection_is_less,
)
STORAGE = (store_is_too_small, saves_overtake_each_other, tokens_come_too_slowly)
SPARES = (spares_are_too_few,)  # for a job that waits
FAILURES = (rates_are_unknown, failures_come_before_saves, failures_come_before_the_start)
POWER = (node_is_unknown, site_has_too_little_power, rack_has_too_little_power)


def over_budget(design: Design, days: float, whose: str = "with saves and failures") -> list[str]:
    """Sentences for days, and for the dollars that they cost, beyond the budget."""
    found: list[str] = []
    budget = design.budget
    if days > budget.days:
        found.append(f"budget.days: it takes {_days(days)} days {whose}; the budget has {budget.days:g}.")
    try:
        usd = sum(bill.usd(design, days).values())
    except ValueError as error:
        return [*found, f"{error}."]
    if usd > budget.usd:
        how = "its share of the equipment, operation and electricity" if budget.pays == "own" else "rented GPUs"
        found.append(
            f"budget.usd: {_days(days)} days {whose} cost {usd / 1e6:,.1f} million dollars for {how}; the budget has "
            f"{budget.usd / 1e6:,.1f}."
        )
    return found


def _num_up(level: SwitchLevel) -> int:
    return level.num_switches * level.num_up


def _days(days: float) -> str:
    return significant(days) if math.isfinite(days) else "endless"


def _megawatts(power_w: float) -> str:
    return f"{power_w / 1e6:,.2f} MW" if power_w >= 1e5 else f"{power_w:g} W"
