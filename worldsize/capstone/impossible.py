"""The contradictions in a design: for each section of the file, sentences that say what does not add up.

The sentences name keys of the file. A check that would only repeat an earlier one is left out: memory is checked only
for a legal plan, and days and dollars only for one that fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from worldsize.capstone import bill, saves
from worldsize.capstone.design import Design, Network, SwitchLevel
from worldsize.capstone.figures import run
from worldsize.outages import Policy
from worldsize.planning import bounds
from worldsize.planning.layout import stage_layers
from worldsize.planning.search import Cost
from worldsize.units import DAY, format_bytes, format_count, format_time_s, significant

# the largest batch that we know of: 15,360 sequences of 4,096 tokens, DeepSeek-V3 (2024), arXiv 2412.19437, section 4.2
MOST_BATCH_TOKENS = 15_360 * 4_096
LEAST_STEPS = (
    2_000  # in which the learning rate of Llama 2 alone rose: Touvron et al. 2023, arXiv 2307.09288, section 2.2
)
MOST_EPOCHS = 4  # up to which repeated tokens teach nearly as much as new ones: Muennighoff et al. 2023
_SAME = 1 - 1e-9  # for sums of rounded numbers


def check(design: Design, cost: Cost | None = None, policy: Policy | None = None) -> list[str]:
    """Return a sentence for each thing that does not add up.

    Without a cost of a step, days and dollars are those of the fastest program that the hardware allows.
    A policy decides on checkpoints, as in `run`, and may go on with fewer nodes if there are too few spares.
    """
    problems = [*_of_plan(design)] or [*_of_memory(design)]
    problems += [*_of_data(design), *_of_network(design), *_of_storage(design)]
    if policy is None:
        problems += _of_spares(design)
    problems += [*_of_failures(design), *_of_power(design)]
    if problems:
        return problems
    if cost is None:
        least = bounds.least(design.layout, design.software.precision)
        least_days = design.num_steps * least.seconds / DAY
        return over_budget(design, least_days, f"even without a failure, with {least.work}")
    try:
        days = run(design, cost, policy).days
    except bounds.Impossible as error:
        return [f"{error}."]
    return over_budget(design, days)


def _of_plan(design: Design) -> Iterator[str]:
    plan, shape, cluster, data = design.plan, design.shape, design.cluster, design.data
    num_ranks, tp, per_node = plan.dp * plan.tp * plan.pp * plan.cp, plan.tp, cluster.gpus_per_node
    if num_ranks != cluster.world_size:
        yield (
            f"plan: dp {plan.dp} x tp {tp} x pp {plan.pp} x cp {plan.cp} are {num_ranks:,} ranks, and "
            f"{design.nodes.num_nodes:,} nodes have {cluster.world_size:,} GPUs; they must be as many."
        )
    if per_node % tp:
        shared = "so layers would be shared over the network"
        yield f"plan.tp: {tp} does not divide the {per_node} GPUs of a node, {shared}."
    if shape.num_heads % tp or shape.num_kv_heads % tp:
        yield f"plan.tp: {tp} does not divide {shape.num_heads} heads and {shape.num_kv_heads} key/value heads."
    if not stage_layers(shape.num_layers, plan.pp, plan.num_chunks):
        yield (
            f"plan.pp: {shape.num_layers} layers, or {shape.num_layers + 2} with the embedding and the head, cannot be "
            f"cut into {plan.pp} stages x {plan.num_chunks} chunks."
        )
    if data.global_batch % (plan.dp * plan.micro_batch):
        yield (
            f"data.global_batch: {data.global_batch:,} sequences cannot be cut into micro-batches of "
            f"{plan.micro_batch} on each of {plan.dp} replicas; it must be a multiple of {plan.dp * plan.micro_batch}."
        )
    if data.length % (2 * plan.cp if plan.cp > 1 else 1) or data.length // plan.cp % tp:
        pieces = f"into 2 x cp {plan.cp} pieces, and a rank's share of them by " if plan.cp > 1 else "by "
        yield f"data.length: {data.length:,} tokens cannot be cut {pieces}tp {tp}."
    if shape.num_experts % plan.ep or plan.dp * plan.cp % plan.ep:
        yield (
            f"plan.ep: {plan.ep} must divide the {shape.num_experts} experts of a layer and the dp x cp = "
            f"{plan.dp * plan.cp} ranks that share them."
        )
    if plan.zero_stage and plan.dp * plan.cp == 1:
        yield f"plan.zero_stage: ZeRO-{plan.zero_stage} shards over dp x cp ranks, and there is 1: nothing to share."
    yield from _of_software(design)


def _of_software(design: Design) -> Iterator[str]:
    plan, software, gpu = design.plan, design.software, design.cluster.gpu
    right = "none" if plan.pp == 1 else "interleaved" if plan.num_chunks > 1 else "1f1b"
    if software.schedule != right:
        yield (
            f'software.schedule: "{software.schedule}" cannot run pp {plan.pp} with {plan.num_chunks} chunks a stage; '
            f'that takes "{right}".'
        )
    num_micro = design.layout.num_micro_batches
    if plan.num_chunks > 1 and num_micro % plan.pp:
        yield (
            f"software.schedule: interleaved stages take micro-batches in rounds of pp {plan.pp}, and a replica has "
            f"{num_micro}; data.global_batch must be a multiple of dp x micro_batch x pp = "
            f"{plan.dp * plan.micro_batch * plan.pp:,}."
        )
    if software.precision not in gpu.peak_flops_per_s:
        known = ", ".join(gpu.peak_flops_per_s)
        yield f"software.precision: the {gpu.name} computes in {known}, not in {software.precision}."


def _of_memory(design: Design) -> Iterator[str]:
    parts, has = design.held, design.cluster.gpu.memory_bytes
    if parts.states_bytes > has:
        yield (
            f"plan: weights {format_bytes(parts.weights_bytes)}, gradients {format_bytes(parts.gradients_bytes)} and "
            f"optimizer state {format_bytes(parts.optimizer_bytes)} on a GPU are more than its {format_bytes(has)}, "
            "before any activation; take more tp or pp, or a higher plan.zero_stage."
        )
    elif parts.total_bytes > has:
        yield (
            f"plan: {format_bytes(parts.states_bytes)} of weights, gradients and optimizer state leave "
            f"{format_bytes(has - parts.states_bytes)} of a GPU's {format_bytes(has)}, and activations take "
            f"{format_bytes(parts.activations_bytes)}; recompute more, or take a smaller micro_batch."
        )
    host, copy_bytes = design.cluster.host, design.checkpoint_bytes / design.nodes.num_nodes
    if design.checkpoint.is_async and host and copy_bytes > host.memory_bytes:
        yield (
            f"checkpoint.is_async: a node's share of a save, {format_bytes(copy_bytes)}, does not fit in its host's "
            f"{format_bytes(host.memory_bytes)}; save synchronously, or share it among more nodes."
        )


def _of_data(design: Design) -> Iterator[str]:
    data, shape = design.data, design.shape
    if data.length > shape.context_length:
        yield (
            f"data.length: sequences of {data.length:,} tokens are longer than the model's context of "
            f"{shape.context_length:,}."
        )
    if (batch_tokens := data.global_batch * data.length) > MOST_BATCH_TOKENS:
        yield (
            f"data.global_batch: a step of {format_count(batch_tokens)} tokens; the largest that we know of has "
            f"{format_count(MOST_BATCH_TOKENS)} (DeepSeek-V3, arXiv 2412.19437); what a larger one teaches is unknown."
        )
    if design.num_steps < LEAST_STEPS:
        yield (
            f"data.num_tokens: they are {significant(design.num_steps)} steps; in Llama 2's training, the learning "
            f"rate alone rose for {LEAST_STEPS:,} (arXiv 2307.09288)."
        )
    epochs = data.num_tokens / data.dataset_tokens
    if epochs > MOST_EPOCHS:
        yield (
            f"data.num_tokens: {epochs:.1f} epochs over data.dataset_tokens; after {MOST_EPOCHS} the same tokens teach "
            "little more (Muennighoff et al. 2023, arXiv 2305.16264)."
        )
    num_values = 256**data.bytes_per_token
    if num_values < shape.vocab_size:
        yield (
            f"data.bytes_per_token: {data.bytes_per_token} bytes have {num_values:,} values, and the vocabulary has "
            f"{shape.vocab_size:,}."
        )


def _of_nics(design: Design) -> Iterator[str]:
    cluster, switch = design.cluster, design.switch
    inter, host = cluster.inter, cluster.host
    if inter is None:
        return
    if host is not None:
        nics = cluster.nics_per_node * inter.bandwidth_bytes_per_s
        buses = cluster.gpus_per_node * (host.link.peak_bytes_per_s or host.link.bandwidth_bytes_per_s)
        if nics > buses:
            yield (
                f"nodes.nic_bytes_per_s: the {cluster.nics_per_node} NICs of a node carry {format_bytes(nics)}/s, and "
                f"its {cluster.gpus_per_node} GPUs reach them over {host.link.name}, {format_bytes(buses)}/s in all."
            )
    if switch is None:
        return
    if not inter.name.startswith(switch.network):
        yield (
            f"network.switch: the ports of a {switch.name} are {switch.network}, and the NICs of "
            f"{design.nodes.cluster} are {inter.name}."
        )
    elif inter.bandwidth_bytes_per_s > switch.port_bytes_per_s:
        yield (
            f"nodes.nic_bytes_per_s: a NIC of {format_bytes(inter.bandwidth_bytes_per_s)}/s is faster than a port of a "
            f"{switch.name}, {format_bytes(switch.port_bytes_per_s)}/s."
        )


def _of_network(design: Design) -> Iterator[str]:
    network, switch, num_nodes, num_nics = design.network, design.switch, design.num_nodes_in_all, bill.num_nics(design)
    yield from _of_nics(design)
    if network is None:
        return
    leaf, top = network.levels[0], network.levels[-1]
    crowded = (level for level in network.levels if switch and level.num_down + level.num_up > switch.num_ports)
    if switch and (level := next(crowded, None)):
        yield (
            f"network.levels: a {level.name} has {level.num_down} ports down and {level.num_up} up, and a "
            f"{switch.name} has {switch.num_ports} in all."
        )
    if leaf.num_switches * leaf.num_down < num_nics:
        yield (
            f"network.levels: {leaf.num_switches} {leaf.name} switches have {leaf.num_switches * leaf.num_down:,} "
            f"ports down, and {num_nodes:,} nodes, spares among them, have {num_nics:,} NICs."
        )
    num_below, of_each = leaf.num_nodes or num_nodes, 1 if network.is_rail else design.cluster.nics_per_node
    if of_each * num_below > leaf.num_down:
        yield (
            f"network.levels: a {leaf.name} has {leaf.num_down} ports down, and the NICs of {num_below} nodes below "
            f"it, {of_each} of each."
        )
    if loose := _loose_cables(network):
        yield loose
    yield from _crowded_above(network, num_nodes)
    if top.num_nodes is not None and top.num_nodes < num_nodes:
        yield (
            f"network.levels: the highest switches, {top.name}, join {top.num_nodes:,} nodes, and there are "
            f"{num_nodes:,}: some cannot reach others."
        )
    if design.cluster.inter is None:
        return
    num_cables = min([num_nics, *(_num_up(level) for level in network.levels[:-1])]) / 2
    has, said = num_cables * design.cluster.inter.bandwidth_bytes_per_s, network.bisection_bytes_per_s
    if has < said * _SAME:
        yield (
            f"network.bisection_bytes_per_s: {format_bytes(said)}/s are said to pass between two halves of the "
            f"network; its {num_cables:,.0f} cables between them carry {format_bytes(has)}/s."
        )


def _crowded_above(network: Network, num_nodes: int) -> Iterator[str]:
    """Yield a sentence for each level whose switches have too few ports to reach everything below them."""
    for below, above in pairwise(network.levels):
        num_below = -(-(above.num_nodes or num_nodes) // (below.num_nodes or num_nodes))
        if num_below > above.num_down:
            rail = " a rail" if network.is_rail and below is network.levels[0] else ""
            yield (
                f"network.levels: {num_below:,} {below.name} switches{rail} are below each {above.name}, which has "
                f"{above.num_down} ports down: it cannot reach them all; put another level between them."
            )


def _loose_cables(network: Network) -> str | None:
    """Return a sentence on the lowest level whose ports up do not match the ports down above it."""
    for below, above in pairwise(network.levels):
        if _num_up(below) != above.num_switches * above.num_down:
            return (
                f"network.levels: {below.name} switches have {_num_up(below):,} ports up in all, and {above.name} "
                f"switches {above.num_switches * above.num_down:,} ports down; a cable needs both."
            )
    top = network.levels[-1]
    if top.num_up:
        return f"network.levels: {top.name} has {top.num_up} ports up, but there are no switches above it."
    return None


def _num_up(level: SwitchLevel) -> int:
    return level.num_switches * level.num_up


def _of_storage(design: Design) -> Iterator[str]:
    store, data, checkpoint = design.storage, design.data, design.checkpoint
    dataset_bytes = data.dataset_tokens * data.bytes_per_token
    if checkpoint.num_kept * design.checkpoint_bytes + dataset_bytes > store.capacity_bytes:
        yield (
            f"storage.capacity_bytes: {checkpoint.num_kept} saves of {format_bytes(design.checkpoint_bytes)} and "
            f"{format_bytes(dataset_bytes)} of tokens do not fit in {format_bytes(store.capacity_bytes)}."
        )
    write_s = saves.write_s(design)
    if write_s > checkpoint.every_s:
        yield (
            f"checkpoint.every_s: a save takes {format_time_s(write_s)} to write at the rates of storage, and the next "
            f"one begins after {format_time_s(checkpoint.every_s)}."
        )
    needed = data.num_tokens * data.bytes_per_token / (design.budget.days * DAY)  # without loading a checkpoint
    if needed > store.read_bytes_per_s:
        yield (
            f"storage.read_bytes_per_s: to be done in {design.budget.days:g} days, {format_bytes(needed)}/s of tokens "
            f"must be read, and the store gives {format_bytes(store.read_bytes_per_s)}/s."
        )


def _of_spares(design: Design) -> Iterator[str]:
    """Yield a sentence if there are too few spares, for which the job would wait."""
    if _unknown_rates(design):
        return
    away, spares = saves.mean_num_away(design), design.nodes.num_spares
    if away > spares:
        yield (
            f"nodes.num_spares: {significant(away)} nodes are away for repair at a time, in the mean, and {spares} "
            "stand by: the job would often wait for the rest."
        )


def _of_failures(design: Design) -> Iterator[str]:
    if unknown := _unknown_rates(design):
        yield unknown
        return
    mean_s, every_s, start_s = saves.mean_s_to_failure(design), design.checkpoint.every_s, saves.start_s(design)
    if every_s >= mean_s:
        yield (
            f"checkpoint.every_s: a node fails every {format_time_s(mean_s)}, in the mean, and a save comes only after "
            f"{format_time_s(every_s)} of training: most of it would be lost."
        )
    if start_s >= mean_s:
        yield (
            f"failures.restart_s: to start again and to load takes {format_time_s(start_s)}, and a node fails every "
            f"{format_time_s(mean_s)}, in the mean."
        )


def _unknown_rates(design: Design) -> str | None:
    try:
        saves.causes(design)
    except ValueError as error:
        return f"failures.rates: {error}."
    return None


def _of_power(design: Design) -> Iterator[str]:
    site = design.site
    try:
        node = bill.node(design)
    except ValueError as error:
        yield f"{error}."
        return
    drawn_w = sum(bill.power_w(design).values())
    if drawn_w > site.power_w:
        yield (
            f"site.power_w: {_megawatts(drawn_w)} at most, with a PUE of {site.pue:g}, and the site gives "
            f"{_megawatts(site.power_w)}."
        )
    if site.nodes_per_rack * node.power_w > site.rack_power_w:
        yield (
            f"site.nodes_per_rack: {site.nodes_per_rack} x {node.name} draw "
            f"{site.nodes_per_rack * node.power_w / 1000:.1f} kW, and a rack gives {site.rack_power_w / 1000:g} kW."
        )


def over_budget(design: Design, days: float, whose: str = "with saves and failures") -> list[str]:
    """Return sentences on days, and on the dollars that they cost, beyond the budget."""
    problems: list[str] = []
    budget = design.budget
    if days > budget.days:
        problems.append(f"budget.days: it takes {_days(days)} days {whose}; the budget has {budget.days:g}.")
    try:
        usd = sum(bill.usd(design, days).values())
    except ValueError as error:
        return [*problems, f"{error}."]
    if usd > budget.usd:
        how = "its share of the equipment, operation and electricity" if budget.pays == "own" else "rented GPUs"
        problems.append(
            f"budget.usd: {_days(days)} days {whose} cost {usd / 1e6:,.1f} million dollars for {how}; the budget has "
            f"{budget.usd / 1e6:,.1f}."
        )
    return problems


def _days(days: float) -> str:
    return significant(days) if math.isfinite(days) else "endless"


def _megawatts(power_w: float) -> str:
    return f"{power_w / 1e6:,.2f} MW" if power_w >= 1e5 else f"{power_w:g} W"
