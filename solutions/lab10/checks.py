"""Hidden checks of lab 10: training on a mesh of emulated ranks, and a cost model that chooses.

On ranks the points rest on the bodies of collectives and on the groups that they went through: the
judge computes the model in branches, one for each rank of tp, whose partial sums and gradients are
what must travel. The cost model is numbers, compared with the judge's own. A chosen plan is priced
by the judge's cost, against the best of all legal plans. Published steps are predicted for runs
that the course does not show; a prediction counts only where it responds to a changed batch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from autograder.checks import (
    Made,
    Outcome,
    PartlyHeld,
    StudentFailed,
    between,
    call_each,
    entries,
    entry,
    expect_body,
    expect_same_again,
    expect_sum_travelled,
    hinted,
    is_same,
    limit_computing,
    points,
    received,
    shown,
    shuffled,
    take_from_solution,
    tensor_like,
    whole,
)
from worldsize import hardware
from worldsize.check import CheckFailed, expect_close
from worldsize.course import published_runs
from worldsize.course.published_runs import PublishedRun
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch import Run

BY_HAND = "torch's own is not allowed here: this is what you write"
BY_HAND_COST = "ws.plan without a cost is not allowed here: the cost is what you write"
OPERATIONS = {"all_reduce", "all_gather", "reduce_scatter"}
RULES = {
    "allow": OPERATIONS,
    "forbid": {
        "torch.distributed.tensor": BY_HAND,
        "torch.distributed.fsdp": BY_HAND,
        "torch.distributed.optim": BY_HAND,
        "torch.distributed.Reducer": BY_HAND,
        "worldsize.planning.serial": BY_HAND_COST,
    },
}
TWO_NODES = dataclasses.replace(
    hardware.H100_NDR, name="2 nodes of 4", gpus_per_node=4, nics_per_node=4
)
SEEN = RULES | {"keeps_exchanges": True, "cluster": TWO_NODES}
CPU_S = 3  # more than what the text says
ALL_RANKS = "All ranks of a group must make the same calls in the same order."


# The cost model, and what the judge puts in place of the student's parts.

Job, Machine, Plan = take_from_solution(
    Path(__file__).with_name("lab10.py"), "Job", "Machine", "Plan"
)


def micro_batches(job: Any, plan: Any) -> int:
    return job.global_batch // (plan.dp * plan.micro_batch)


def layer_weights(job: Any) -> int:
    return 4 * job.width**2 + 2 * job.width * job.hidden_width


def parameters(job: Any, plan: Any) -> float:
    own = job.num_layers // plan.pp * layer_weights(job) + job.vocab_size * job.width
    return own / plan.tp


def reference_work_s(job: Any, machine: Any, plan: Any) -> float:
    layer = 2 * layer_weights(job) + 4 * job.length * job.width
    passes = 4 if plan.recompute else 3
    of_layers = passes * layer * (job.num_layers // plan.pp)
    of_head = 6 * job.vocab_size * job.width
    tokens = plan.micro_batch * job.length
    return tokens * (of_layers + of_head) / (plan.tp * machine.flops_per_s)


def ring_s(size_bytes: float, num_ranks: int, span: int, machine: Any) -> float:
    """An all-reduce over ranks that span so many ranks of the mesh."""
    is_inside = span <= machine.gpus_per_node
    rate = machine.node_bytes_per_s if is_inside else machine.network_bytes_per_s
    return 2 * (num_ranks - 1) / num_ranks * size_bytes / rate


def activation_bytes(job: Any, plan: Any) -> int:
    return 2 * plan.micro_batch * job.length * job.width


def reference_tp_s(job: Any, machine: Any, plan: Any) -> float:
    num = (6 if plan.recompute else 4) * (job.num_layers // plan.pp)
    return num * ring_s(activation_bytes(job, plan), plan.tp, plan.tp, machine)


def reference_pp_s(job: Any, machine: Any, plan: Any) -> float:
    is_inside = machine.num_gpus <= machine.gpus_per_node
    rate = machine.node_bytes_per_s if is_inside else machine.network_bytes_per_s
    return 0.0 if plan.pp == 1 else 2 * activation_bytes(job, plan) / (plan.tp * rate)


def reference_dp_s(job: Any, machine: Any, plan: Any) -> float:
    sum_s = ring_s(2 * parameters(job, plan), plan.dp, plan.tp * plan.dp, machine)
    backward = 0.75 if plan.recompute else 2 / 3
    hidden_s = backward * reference_work_s(job, machine, plan)
    return max(sum_s - hidden_s, sum_s * plan.pp / job.num_layers)


def reference_step_s(job: Any, machine: Any, plan: Any) -> float:
    one_s = reference_work_s(job, machine, plan) + reference_tp_s(job, machine, plan)
    one_s += reference_pp_s(job, machine, plan)
    num = micro_batches(job, plan) + plan.pp - 1
    return num * one_s + reference_dp_s(job, machine, plan)


def reference_held_bytes(job: Any, plan: Any) -> float:
    layers = job.num_layers // plan.pp * min(micro_batches(job, plan), plan.pp)
    of_one = activation_bytes(job, plan) / 2 / plan.tp
    kept = 2 * layers + 34 if plan.recompute else 34 * layers
    return (4 + 12 / plan.dp) * parameters(job, plan) + of_one * kept


def reference_groups(sizes: Mapping[str, int], *axes: str) -> list[list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(itertools.product(*(range(size) for size in sizes.values()))):
        named = zip(sizes, place, strict=True)
        found.setdefault(tuple(at for axis, at in named if axis not in axes), []).append(rank)
    return list(found.values())


# In an order in which none needs a later one.
REFERENCES: dict[str, Callable[..., Any]] = {
    "groups_along": reference_groups,
    "num_micro_batches": micro_batches,
    "num_parameters": parameters,
    "work_s": reference_work_s,
    "tp_s": reference_tp_s,
    "pp_s": reference_pp_s,
    "dp_s": reference_dp_s,
    "step_s": reference_step_s,
    "rank_bytes": reference_held_bytes,
}


def stand_ins(name: str) -> dict[str, Callable[..., Any]]:
    """Right functions for the student's other ones; one that leads to `name` must not go there."""
    return dict(itertools.takewhile(lambda part: part[0] != name, REFERENCES.items()))


def returned(student: Any, name: str, calls: Sequence[Any], **options: Any) -> list[Any]:
    job = (call_each, name, list(calls), stand_ins(name))
    run = student.emulated(*job, world_size=1, **RULES, **options)
    return entries(run.values[0], len(calls))


# groups


def expect_groups(student: Any, cases: Sequence[tuple[dict[str, int], Sequence[str]]]) -> None:
    calls = [(sizes, *axes) for sizes, axes in cases]
    for (sizes, axes), given in zip(cases, returned(student, "groups_along", calls), strict=True):
        wanted = reference_groups(sizes, *axes)
        if given != wanted:
            what = f"the groups along {' and '.join(axes)} of {sizes}"
            hint = "The innermost axis changes from one rank to the next."
            raise CheckFailed(f"{what}: {shown(wanted)}", shown(given), hint)


def drawn_sizes(rng: torch.Generator, num_axes: int) -> dict[str, int]:
    """Axes of different sizes, in any order."""
    names = shuffled(rng, ["pp", "dp", "cp", "tp"])[:num_axes]
    return dict(zip(names, shuffled(rng, [2, 3, 4, 5])[:num_axes], strict=True))


@points(0.5, cell="check_groups_along")
def check_groups_along_one_axis(student, rng):
    """Along each axis of meshes with one, two and three axes in any order."""
    meshes = [drawn_sizes(rng, 1), drawn_sizes(rng, 2), drawn_sizes(rng, 3), {"dp": 1, "tp": 4}]
    expect_groups(student, [(sizes, (axis,)) for sizes in meshes for axis in sizes])


@points(0.5, cell="check_groups_along")
def check_groups_along_two_axes(student, rng):
    """Along two axes at once, neighbours or not, of meshes with three and four axes; and along
    three and all of them.
    """
    cases = []
    for sizes in (drawn_sizes(rng, 3), drawn_sizes(rng, 4)):
        for num in range(2, len(sizes) + 1):
            cases += [(sizes, axes) for axes in itertools.combinations(sizes, num)]
    expect_groups(student, cases)


# arrange


def leaving_bytes(sizes: Mapping[str, int], sent: Mapping[str, float], per_node: int) -> float:
    total = 0.0
    for axis in sizes:
        for group in reference_groups(sizes, axis):
            pairs = zip(group, group[1:] + group[:1], strict=True)
            total += sent[axis] * sum(one // per_node != other // per_node for one, other in pairs)
    return total


def expect_arranged(student: Any, cases: Sequence[tuple[dict, dict, int]]) -> None:
    for (sizes, sent, per_node), given in zip(
        cases, returned(student, "arrange", cases), strict=True
    ):
        what = f"of {sizes}, {per_node} ranks a node, that send {sent}"
        order = given if isinstance(given, list) else []
        if len(order) != len(sizes) or any(axis not in order for axis in sizes):
            raise CheckFailed(f"an order of all axes {what}", shown(given))
        orders = itertools.permutations(sizes)
        best = min(leaving_bytes({a: sizes[a] for a in one}, sent, per_node) for one in orders)
        found = leaving_bytes({axis: sizes[axis] for axis in order}, sent, per_node)
        if found > best * (1 + 1e-9):
            hint = "Try every order, and count the pairs of neighbours on different nodes."
            raise CheckFailed(f"{best:g} bytes between nodes {what}", f"{found:g}", hint)


@points(1, cell="check_arrange")
def check_the_heavy_axis_is_inside(student, rng):
    """Two axes of which one fits into a node: it is the innermost one if it sends more, whatever
    its name and its place in `sizes`.
    """
    cases = []
    for names in (("tp", "dp"), ("dp", "tp"), ("pp", "cp")):
        heavy, light = names
        for order in (names, names[::-1]):
            sent = {heavy: float(whole(rng, 20, 40)), light: float(whole(rng, 1, 3))}
            sizes = {heavy: 4, light: 2}
            cases.append(({axis: sizes[axis] for axis in order}, sent, 4))
    expect_arranged(student, cases)


@points(1, cell="check_arrange")
def check_few_bytes_leave_the_nodes(student, rng):
    """Three and four axes, where the heaviest one need not be the innermost."""
    unit = float(whole(rng, 1, 5))
    cases = []
    for sizes, sent, per_node in (
        ((2, 4, 2), (8, 9, 1), 4),
        ((4, 2, 2), (8, 9, 7), 8),
        ((2, 2, 4), (10, 9, 10), 4),
        ((2, 4, 4), (5, 8, 9), 8),
        ((2, 2, 2, 4), (3, 7, 1, 4), 8),
        ((3, 4), (10, 16), 6),  # a group of four is on two nodes, and does not fill the second
    ):
        names = shuffled(rng, ["tp", "cp", "dp", "pp"])[: len(sizes)]
        by_axis = {axis: unit * one for axis, one in zip(names, sent, strict=True)}
        cases.append((dict(zip(names, sizes, strict=True)), by_axis, per_node))
    expect_arranged(student, cases)


# gradients


class Sizes(NamedTuple):
    """A model, a mesh, and the rows of each rank of dp."""

    seed: int
    dp: int
    tp: int
    rows: Sequence[int]
    num_blocks: int = 2
    width: int = 3
    hidden_width: int = 8


FIELDS = ("scale", "up", "down", "bias")
SHARDED = ("up", "down")
REPLICATED = ("scale", "bias")


def blocks_of(sizes: Sizes) -> list[list[torch.Tensor]]:
    """The whole weights of each block, in the order of `FIELDS`.

    All weights and inputs are positive and all targets negative, and so all gradients are positive:
    no sum of some of them is near zero, where rounding would decide.
    """
    generator = torch.Generator().manual_seed(sizes.seed)
    width, hidden = sizes.width, sizes.hidden_width
    kinds = (((width,), 1.0), ((hidden, width), 0.3), ((width, hidden), 0.25), ((width,), 1.0))
    return [
        [factor * (0.3 + torch.rand(shape, generator=generator) / 2) for shape, factor in kinds]
        for _ in range(sizes.num_blocks)
    ]


def part_of(block: Sequence[torch.Tensor], place: int, num: int) -> list[torch.Tensor]:
    scale, up, down, bias = block
    parts = [scale, up.chunk(num, 0)[place], down.chunk(num, 1)[place], bias]
    return [one.clone(memory_format=torch.contiguous_format) for one in parts]


def rows_of(sizes: Sizes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The inputs and targets of each rank of dp."""
    generator = torch.Generator().manual_seed(sizes.seed + 1)

    def drawn_rows(num: int) -> torch.Tensor:
        return 0.3 + torch.rand(num, sizes.width, generator=generator)

    return [(drawn_rows(num), -drawn_rows(num)) for num in sizes.rows]


def step_on_rank(student: Any, parts: Any, inputs: Any, targets: Any, dp: int, tp: int) -> Any:
    """The loss and the gradients of a rank that has its own part of the weights and its rows."""
    rank = dist.get_rank()
    by_tp = [dist.new_group(list(range(first, first + tp))) for first in range(0, dp * tp, tp)]
    by_dp = [dist.new_group(list(range(first, dp * tp, tp))) for first in range(tp)]
    mesh = student.Mesh(by_tp[rank // tp], by_dp[rank % tp])
    blocks = [student.Block(*[one.requires_grad_() for one in part]) for part in parts]
    loss = student.gradients_on_mesh(blocks, inputs, targets, mesh)
    return [loss, [[one.grad for one in block] for block in blocks]]


# Usual slips in what travels along tp. The other checks are judged by the program with the slip.
BIAS_INSIDE = "a rank adds the bias to its part of the sum"
ENTERS_BEFORE_SCALE = "the block's input is what enters, before its scale"
SUMMED_TWICE = "backward sums along tp also where the region is left"
NOT_SUMMED = "backward sums nothing along tp"
IN_BACKWARD = (SUMMED_TWICE, NOT_SUMMED)
SLIPS = ("", BIAS_INSIDE, ENTERS_BEFORE_SCALE, *IN_BACKWARD)


class AlongTp(torch.autograd.Function):
    """The ranks of tp in one process: tensors, one of each rank, which are summed or passed on.

    What ranks send for a sum is appended to `sent`.
    """

    @staticmethod
    def forward(
        ctx: Any, sent: list[Any], is_summed: bool, is_summed_back: bool, *parts: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.sent, ctx.is_summed_back = sent, is_summed_back
        return AlongTp.summed(parts, sent) if is_summed else tuple(one.clone() for one in parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        passed = AlongTp.summed(gradients, ctx.sent) if ctx.is_summed_back else gradients
        return None, None, None, *passed

    @staticmethod
    def summed(parts: Sequence[torch.Tensor], sent: list[Any]) -> tuple[torch.Tensor, ...]:
        sent.append([one.detach().clone() for one in parts])
        total = torch.stack(list(parts)).sum(dim=0)
        return tuple(total.clone() for _ in parts)


class Truth(NamedTuple):
    """What a step computes: that of one process, or of a program with a slip.

    `partial[d][t]` are the bodies that rank t of tp sends along tp, in order, for the rows of rank
    d of dp; `sums[d][t]` are its gradients of that rank's sum of losses, one after the other.
    """

    loss: float
    partial: list[list[list[torch.Tensor]]]
    sums: list[list[list[torch.Tensor]]]
    counts: list[int]


def truth_of(sizes: Sizes, slip: str = "") -> Truth:
    partial, sums, total = [], [], 0.0
    pairs = rows_of(sizes)
    for x, targets in pairs:
        blocks = [
            [[one.requires_grad_() for one in part_of(block, t, sizes.tp)] for t in range(sizes.tp)]
            for block in blocks_of(sizes)
        ]
        sent: list[list[torch.Tensor]] = []
        hidden = [x] * sizes.tp
        for ranks in blocks:
            hidden = outputs_of(ranks, hidden, sent, slip)
        losses = torch.stack([(one - targets).square().sum() for one in hidden])
        total += losses[0].item()
        of_ranks = [[one for ranks in blocks for one in ranks[t]] for t in range(sizes.tp)]
        found = torch.autograd.grad(losses.sum(), list(itertools.chain(*of_ranks)))
        num = len(of_ranks[0])
        sums.append([list(found[t * num : (t + 1) * num]) for t in range(sizes.tp)])
        partial.append([[one[t] for one in sent] for t in range(sizes.tp)])
    counts = [targets.numel() for _, targets in pairs]
    return Truth(total / sum(counts), partial, sums, counts)


def outputs_of(
    ranks: Sequence[Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    sent: list[list[torch.Tensor]],
    slip: str,
) -> list[torch.Tensor]:
    """What a block gives each rank of tp; `ranks` are their parts of the weights."""

    def enter(tensors: Sequence[torch.Tensor]) -> Any:
        return AlongTp.apply(sent, False, slip != NOT_SUMMED, *tensors)

    def leave(tensors: Sequence[torch.Tensor]) -> Any:
        return AlongTp.apply(sent, True, slip == SUMMED_TWICE, *tensors)

    before = enter(inputs) if slip == ENTERS_BEFORE_SCALE else inputs
    scaled = [one * own[0] for one, own in zip(before, ranks, strict=True)]
    if slip != ENTERS_BEFORE_SCALE:
        scaled = enter(scaled)
    parts = [
        torch.tanh(one @ up.t()) @ down.t() + (bias if slip == BIAS_INSIDE else 0)
        for one, (_, up, down, bias) in zip(scaled, ranks, strict=True)
    ]
    return [
        x + one + (0 if slip == BIAS_INSIDE else own[3])
        for x, one, own in zip(inputs, leave(parts), ranks, strict=True)
    ]


def wanted_of(truth: Truth, weights: Sequence[float]) -> list[list[torch.Tensor]]:
    """The gradients by place along tp, with a weight for each rank of dp."""
    return [
        [sum(weight * one for weight, one in zip(weights, by_dp, strict=True)) for by_dp in columns]
        for columns in (zip(*of_place, strict=True) for of_place in zip(*truth.sums, strict=True))
    ]  # pyright: ignore[reportReturnType]


def run_step(student: Any, sizes: Sizes) -> Run:
    pairs, wholes = rows_of(sizes), blocks_of(sizes)
    each = []
    for rank in range(sizes.dp * sizes.tp):
        parts = [part_of(block, rank % sizes.tp, sizes.tp) for block in wholes]
        each.append((parts, *pairs[rank // sizes.tp], sizes.dp, sizes.tp))
    with hinted(ALL_RANKS):
        return student.emulated(step_on_rank, each=each, world_size=sizes.dp * sizes.tp, **SEEN)


def gradients_of(run: Run, rank: int, num_blocks: int) -> list[Any]:
    return [
        entry(run.values[rank], 1, block, field)
        for block in range(num_blocks)
        for field in range(4)
    ]


def fits(given: Sequence[Any], wanted: Sequence[torch.Tensor]) -> bool:
    return all(
        tensor_like(one, like) is not None and torch.allclose(one, like, 1e-3, 1e-5)
        for one, like in zip(given, wanted, strict=True)
    )


def scales_of(truth: Truth, tp: int) -> list[tuple[list[float], str]]:
    """The weights of ranks of dp in usual mistakes, and what is wrong."""
    counts, dp = truth.counts, len(truth.counts)
    total, ones = sum(counts), [1.0] * len(counts)
    return [
        (ones, "That is the gradient of the sum: divide by the number of all targets."),
        ([1 / one for one in counts], "Each rank divides by its own targets, and sums over dp."),
        ([1 / one / dp for one in counts], "That is the mean of the means: divide by all targets."),
        ([1 / one / dp / tp for one in counts], "Dividing by all ranks counts tp as well."),
        ([1 / total / dp] * dp, "Divided by all targets, and then by dp once more."),
        ([1 / total / dp / tp] * dp, "Divided by all targets, and then by all ranks once more."),
        ([1 / total / tp] * dp, "Divided by all targets, and then by tp once more."),
    ]


def expect_gradients(
    run: Run, sizes: Sizes, fields: Sequence[str], is_scale_judged: bool, slip: str = ""
) -> None:
    """Raise CheckFailed unless these gradients are right; the scale, if it is judged, as well.

    Otherwise any of the usual scales will do: one slip costs one slip.
    """
    truth, wrong_scales = truth_of(sizes, slip), []
    weights = [1 / sum(truth.counts)] * sizes.dp
    wanted = wanted_of(truth, weights)
    places = [at for at in range(4 * sizes.num_blocks) if FIELDS[at % 4] in fields]

    def all_fit(by_place: Any) -> bool:
        found = []
        for rank in range(sizes.dp * sizes.tp):
            given, like = gradients_of(run, rank, sizes.num_blocks), by_place[rank % sizes.tp]
            found.append(fits([given[at] for at in places], [like[at] for at in places]))
        return all(found)

    wrong_scales = [
        why for weights, why in scales_of(truth, sizes.tp) if all_fit(wanted_of(truth, weights))
    ]
    if wrong_scales and not is_scale_judged:
        return
    found = slip_of(run, sizes)
    known = wrong_scales or [f"Here {found}."] * (found in IN_BACKWARD)
    for rank in range(sizes.dp * sizes.tp):
        given, like = gradients_of(run, rank, sizes.num_blocks), wanted[rank % sizes.tp]
        for at in places:
            name = FIELDS[at % 4]
            hint = (known or [WHOLE if name not in SHARDED else PART])[0]
            what = f"the gradient of {name} in block {at // 4} on rank {rank}"
            expect_close(given[at], like[at], what, hint, 1e-3, 1e-5)


WHOLE = "After the sums over tp every rank of tp has the whole of it; only dp is left to sum."
PART = "Each rank of tp has a part of its own: sum it over dp, and over nothing else."


def expect_loss(run: Run, sizes: Sizes) -> None:
    hint = "The sum over the targets of all ranks of dp, over their number; each tp has it once."
    for rank, value in enumerate(run.values):
        loss = entry(value, 0)
        if type(loss) is not float:
            raise CheckFailed(f"a float from rank {rank}", shown(loss), hint)
        expect_close(loss, truth_of(sizes).loss, f"the loss on rank {rank}", hint, 1e-4)


def sent_bytes(exchange: Exchange, rank: int) -> float:
    """What a rank sends in a ring."""
    num, size = len(exchange.ranks), len(exchange.bodies.get(rank, b""))
    factor = {"all_reduce": 2 * (num - 1) / num, "reduce_scatter": (num - 1) / num}
    return factor.get(exchange.op, num - 1) * size


def along(run: Run, ranks: Sequence[int]) -> list[Exchange]:
    """What went through a group, in the order of its first rank's program."""
    found = [one for one in run.exchanges if sorted(one.ranks) == list(ranks)]
    return sorted(found, key=lambda one: one.numbers[ranks[0]])


def tp_ranks(sizes: Sizes, d: int) -> list[int]:
    return list(range(d * sizes.tp, (d + 1) * sizes.tp))


def dp_ranks(sizes: Sizes, t: int) -> list[int]:
    return list(range(t, sizes.dp * sizes.tp, sizes.tp))


def expect_groups_of_mesh(run: Run, sizes: Sizes) -> None:
    """Raise CheckFailed where something travelled in another group than those of the mesh."""
    known = [tp_ranks(sizes, d) for d in range(sizes.dp)]
    known += [dp_ranks(sizes, t) for t in range(sizes.tp)]
    for one in run.exchanges:
        if sorted(one.ranks) not in known and any(one.bodies.values()):
            hint = "Give every operation its group: mesh.tp or mesh.dp."
            raise CheckFailed(
                "operations in the groups of the mesh alone",
                f"{one.op} among ranks {shown(sorted(one.ranks))}",
                hint,
            )


def like_scaled(exchange: Exchange, rank: int, wanted: torch.Tensor) -> Exchange:
    """The exchange with a body of the size of the numbers that are wanted: the loss's scale."""
    body = exchange.tensor(rank)
    if body.dtype != wanted.dtype or body.numel() != wanted.numel() or not body.any():
        return exchange
    factor = (wanted.norm() / body.norm()).item()
    return exchange._replace(bodies={rank: (body * factor).numpy().tobytes()})


def expect_along_tp(run: Run, sizes: Sizes, slip: str = "") -> None:
    """Raise CheckFailed unless each block makes its two all-reduces along tp; half for more."""
    truth = truth_of(sizes, slip)
    num = len(truth.partial[0][0])
    hint = "In forward the part of the sum, in backward the gradient of scaled."
    more = 0
    for d in range(sizes.dp):
        ranks = tp_ranks(sizes, d)
        calls = [one for one in along(run, ranks) if one.op == "all_reduce"]
        more = max(more, len(along(run, ranks)) - num)
        if len(calls) < num:
            raise CheckFailed(f"{num} all-reduces along tp", f"{len(calls)}", hint)
        for number, one in enumerate(calls[:num]):
            is_forward = number < sizes.num_blocks
            place = number if is_forward else 2 * sizes.num_blocks - 1 - number
            name = "inner(block, scaled)" if is_forward else "the gradient of scaled"
            for t, rank in enumerate(ranks):
                wanted = truth.partial[d][t][number]
                what = f"{name} of block {place} on rank {rank}"
                like = one if is_forward else like_scaled(one, rank, wanted)
                expect_body(like, wanted, what, TP_BODY, rank, rtol=1e-3)
    if more:
        raise PartlyHeld(0.5, f"{num} operations along tp", f"{num + more}", hint)


def slip_of(run: Run, sizes: Sizes) -> str:
    """The usual slip with which the sums travel along tp; "" for none, or for any other mistake."""
    for slip in SLIPS:
        try:
            expect_along_tp(run, sizes, slip)
        except CheckFailed as error:
            has_more = isinstance(error, PartlyHeld) and slip != NOT_SUMMED
            if not has_more:
                continue
        return slip
    return ""


TP_BODY = "Along tp a rank gives its own part of the sum, before the bias and the residual."


def expect_along_dp(run: Run, sizes: Sizes) -> None:
    """Raise CheckFailed unless all gradients travel along dp, each once; half if only some do."""
    expect_sums(run, sizes, is_whole=True)
    for t, own in enumerate(truth_of(sizes).sums[0]):
        size = sum(one.nbytes for one in own)
        most = 2 * (sizes.dp - 1) / sizes.dp * size + 64
        for rank in dp_ranks(sizes, t):
            given = sum(sent_bytes(one, rank) for one in along(run, dp_ranks(sizes, t)))
            if given > most * (1 + 1e-9):
                expected = f"at most {most:.0f} bytes of rank {rank} along dp"
                raise CheckFailed(expected, f"{given:.0f}", "Each gradient travels once.")


def expect_sums(run: Run, sizes: Sizes, is_whole: bool) -> None:
    """Raise CheckFailed unless gradients were summed over dp by what travelled along dp.

    In part, these are `up` and `down` of the last block, which no mistake along tp changes in
    backward. Any of the usual scales will do, and gradients as a usual slip along tp makes them.
    """
    truth = truth_of(sizes, slip_of(run, sizes))
    own = slice(None) if is_whole else slice(-3, -1)
    for t in range(sizes.tp):
        ranks = dp_ranks(sizes, t)
        calls = [_renumbered(one, ranks) for one in along(run, ranks)]
        flat = [torch.cat([one.flatten() for one in of_dp[t][own]]) for of_dp in truth.sums]
        weights = [([1 / sum(truth.counts)] * sizes.dp, ""), *scales_of(truth, sizes.tp)]
        weights += [(own_scales, "")] if (own_scales := scales_along_tp(run, sizes)) else []
        failed: list[CheckFailed] = []
        for by_rank, _ in weights:
            shares = [weight * one for weight, one in zip(by_rank, flat, strict=True)]
            what = f"the gradients along dp at place {t} of tp"
            hint = "Sum every gradient over mesh.dp."
            try:
                counts = torch.ones(sizes.dp)
                expect_sum_travelled(calls, torch.stack(shares), counts, what, hint)
                break
            except CheckFailed as error:
                failed.append(error)
        else:
            raise failed[0]


def scales_along_tp(run: Run, sizes: Sizes) -> list[float]:
    """The weights with which ranks of dp begin backward, by the first gradient along tp; or none.

    They are what the loss was multiplied by, such as the loss scale of mixed precision.
    """
    found = []
    for d, partial in enumerate(truth_of(sizes).partial):
        rank = tp_ranks(sizes, d)[0]
        calls = [one for one in along(run, tp_ranks(sizes, d)) if one.op == "all_reduce"]
        body, wanted = calls[sizes.num_blocks :][:1], partial[0][sizes.num_blocks]
        if not body or (sent := body[0].tensor(rank)).numel() != wanted.numel():
            return []
        found.append((sent.double().norm() / wanted.double().norm()).item())
    return found


def expect_mesh(run: Run, sizes: Sizes) -> None:
    """Raise CheckFailed unless gradients were summed along dp; half where tp carries others."""
    expect_groups_of_mesh(run, sizes)
    expect_sums(run, sizes, is_whole=False)
    slip = slip_of(run, sizes)
    try:
        expect_along_tp(run, sizes, "" if slip in IN_BACKWARD else slip)
    except CheckFailed as error:
        hint = f"{error.hint} Until the right sums travel along tp, what else is right earns half."
        raise PartlyHeld(0.5, error.expected, error.actual, hint) from None


def _renumbered(exchange: Exchange, ranks: Sequence[int]) -> Exchange:
    """The exchange as one among ranks 0, 1, 2, ..."""
    of = {rank: place for place, rank in enumerate(ranks)}
    by_rank = ("bodies", "numbers", "posted_s", "done_s")
    changed = {
        name: {of[rank]: one for rank, one in getattr(exchange, name).items()} for name in by_rank
    }
    return exchange._replace(ranks=tuple(of[rank] for rank in exchange.ranks), **changed)


def expect_same_loss(student: Any, rng: torch.Generator) -> None:
    """Raise CheckFailed unless 4 ranks of dp return the same bits where the order of a sum matters.

    All weights and inputs are zero, so that the sums of losses are 2**24 and three times 3/4.
    """
    targets = shuffled(rng, [[4096.0, 0.0, 0.0, 0.0], *[[0.5, 0.5, 0.5, 0.0]] * 3])
    shapes, zeros = ((4,), (2, 4), (4, 2), (4,)), torch.zeros(1, 4)
    each = [
        ([[torch.zeros(shape) for shape in shapes]], zeros, torch.tensor([one]), 4, 1)
        for one in targets
    ]
    with hinted(ALL_RANKS):
        run = student.emulated(step_on_rank, each=each, world_size=4, **SEEN)
    losses = [entry(value, 0) for value in run.values]
    if not is_same(losses, losses[:1] * 4):
        hint = "Each rank adds up in an order of its own: let one sum over dp make all of them."
        raise CheckFailed("the same bits of the loss on all ranks of dp", "other last bits", hint)


def drawn(rng: torch.Generator, dp: int, tp: int) -> Sizes:
    rows = shuffled(rng, [one + 1 + whole(rng, 0, 1) * one for one in range(dp)])
    return Sizes(whole(rng, 0, 10**6), dp, tp, rows)


@points(2, cell="check_gradients_on_mesh")
def check_gradients_are_those_of_one_process(student, rng):
    """On 2 x 2 ranks, with unequal numbers of rows on the ranks of dp: the loss and the gradients
    of `up` and `down` are those of one process, and all gradients the same bits in every run.
    """
    sizes = drawn(rng, 2, 2)
    run = run_step(student, sizes)
    expect_gradients(run, sizes, SHARDED, is_scale_judged=True)
    expect_loss(run, sizes)
    expect_same_again(run.values, run_step(student, sizes).values)
    expect_mesh(run, sizes)


@points(1, cell="check_gradients_on_mesh")
def check_replicated_weights_stay_alike(student, rng):
    """`scale` and `bias` get their whole gradient, not tp times as much, and the same bits on all
    ranks, on 2 x 3 ranks. Half, if they are wrong only because backward sums nothing along tp, or
    sums twice.
    """
    sizes = drawn(rng, 2, 3)._replace(hidden_width=6)
    run = run_step(student, sizes)
    slip = slip_of(run, sizes)
    expect_gradients(run, sizes, REPLICATED, False, "" if slip == ENTERS_BEFORE_SCALE else slip)
    for rank in range(1, sizes.dp * sizes.tp):
        like = rank % sizes.tp if slip == NOT_SUMMED else 0  # without sums, places of tp differ
        first, own = (
            [gradients_of(run, one, sizes.num_blocks)[at] for at in (0, 3, 4, 7)]
            for one in (like, rank)
        )
        if not is_same(first, own):
            hint = "Let the same sums over tp and dp make them on every rank."
            raise CheckFailed("the same bits on all ranks", f"others on rank {rank}", hint)
    expect_mesh(run, sizes)


@points(1, cell="check_gradients_on_mesh")
def check_tp_carries_parts_of_sums(student, rng):
    """On 2 x 4 ranks, inside two nodes: along tp each block sends its part of the sum and the
    gradient of `scaled`, and nothing else. Half with the bias, before `scale`, or if backward sums
    nothing along tp, or sums twice.
    """
    sizes = drawn(rng, 2, 4)
    run = run_step(student, sizes)
    expect_groups_of_mesh(run, sizes)
    try:
        expect_along_tp(run, sizes)
    except CheckFailed as error:
        if isinstance(error, PartlyHeld) or not (slip := slip_of(run, sizes)):
            raise
        hint = f"{error.hint} Here {slip}."
        raise PartlyHeld(0.5, error.expected, error.actual, hint) from None


@points(1, cell="check_gradients_on_mesh")
def check_dp_carries_gradients(student, rng):
    """On 4 x 2 ranks, also between two nodes: along dp each gradient travels once. Half, if `up`
    and `down` of the last block do. The loss has the same bits on 4 ranks of dp.
    """
    expect_same_loss(student, rng)
    sizes = drawn(rng, 4, 2)
    run = run_step(student, sizes)
    expect_groups_of_mesh(run, sizes)
    try:
        expect_along_dp(run, sizes)
    except CheckFailed as error:
        expect_sums(run, sizes, is_whole=False)
        raise PartlyHeld(0.5, error.expected, error.actual, error.hint) from None


# clip


def clip_on_rank(student: Any, sizes: dict[str, int], cases: Any) -> Any:
    """The norm and the gradients after clipping, of a rank of a mesh, for each case."""
    own = {}
    for axis in sizes:
        for ranks in reference_groups(sizes, axis):
            made = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                own[axis] = made
    found = []
    for max_norm, tensors in cases:
        kept = [tensor.clone() for tensor, _ in tensors]
        mine = [(one, axes) for one, (_, axes) in zip(kept, tensors, strict=True)]
        norm = student.clip(mine, max_norm, own)
        found.append([norm, kept])
    return found


class Gradient(NamedTuple):
    """A gradient on all ranks of a mesh: what each has, and along which axes it differs."""

    of_rank: list[torch.Tensor]
    axes: tuple[str, ...]


def drawn_gradient(
    rng: torch.Generator, sizes: Mapping[str, int], axes: Sequence[str], dtype: torch.dtype
) -> Gradient:
    """Ranks that differ in their places on these axes have different tensors, of two dimensions or
    three.
    """
    others = [whole(rng, 1, 3) for _ in range(whole(rng, 1, 2))]
    by_place: dict[tuple[int, ...], torch.Tensor] = {}
    found = []
    for place in itertools.product(*(range(size) for size in sizes.values())):
        key = tuple(at for axis, at in zip(sizes, place, strict=True) if axis in axes)
        if key not in by_place:
            num = whole(rng, 1, 5)
            if len(by_place) == 1:
                num = 0
            by_place[key] = torch.randn(num, *others, generator=rng).to(dtype)
        found.append(by_place[key].clone())
    return Gradient(found, tuple(axes))


def norm_of(gradients: Sequence[Gradient], sizes: Mapping[str, int]) -> float:
    """Each element once: of ranks that have the same, the first."""
    total = 0.0
    for one in gradients:
        seen = set()
        for rank, place in enumerate(itertools.product(*(range(n) for n in sizes.values()))):
            key = tuple(at for axis, at in zip(sizes, place, strict=True) if axis in one.axes)
            if key not in seen:
                seen.add(key)
                total += one.of_rank[rank].double().square().sum().item()
    return total**0.5


def run_clip(
    student: Any, sizes: dict[str, int], cases: Sequence[tuple[float, list[Gradient]]]
) -> Run:
    num = math.prod(sizes.values())
    each = [
        (sizes, [(most, [(one.of_rank[rank], one.axes) for one in own]) for most, own in cases])
        for rank in range(num)
    ]
    with hinted(ALL_RANKS):
        return student.emulated(clip_on_rank, each=each, world_size=num, **SEEN)


def expect_norms(
    run: Run, sizes: Mapping[str, int], cases: Sequence[tuple[float, list[Gradient]]]
) -> None:
    for number, (_, own) in enumerate(cases):
        wanted, kinds = norm_of(own, sizes), list(dict.fromkeys(one.axes for one in own))
        for rank, value in enumerate(run.values):
            norm = entry(value, number, 0)
            what = f"the norm on rank {rank}, of gradients along {kinds}"
            if type(norm) is not float:
                raise CheckFailed(f"{what}: a float", shown(norm))
            expect_close(norm, wanted, what, CLIP, 1e-4, 1e-6)
            if norm != entry(run.values[0], number, 0):
                raise CheckFailed("the same norm on all ranks", "others", CLIP)
    for rank in range(len(run.values)):
        given = sum(len(one.bodies.get(rank, b"")) for one in run.exchanges)
        if given > 128 * len(cases):
            hint = "A sum of squares is one number: nothing else needs to travel."
            raise CheckFailed(f"at most 128 bytes of rank {rank} a call", f"{given}", hint)


CLIP = "Sum the squares of a kind over each of its axes, and over no other; then add the kinds."


def with_twins(
    made: list[Gradient], sizes: Mapping[str, int]
) -> list[tuple[float, list[Gradient]]]:
    """A case, and one for each sharded gradient in which rank 0's part of it is larger."""
    places = list(itertools.product(*(range(size) for size in sizes.values())))
    cases = [(99.0, made)]
    for at, one in enumerate(made):
        own = [
            tuple(k for a, k in zip(sizes, place, strict=True) if a in one.axes) for place in places
        ]
        parts = [
            x.abs() + 1 if key == own[0] else x for x, key in zip(one.of_rank, own, strict=True)
        ]
        if one.axes:
            cases.append((99.0, [*made[:at], one._replace(of_rank=parts), *made[at + 1 :]]))
    return cases


def expect_squares_travelled(
    run: Run, sizes: Mapping[str, int], cases: Sequence[tuple[float, list[Gradient]]]
) -> None:
    """Raise CheckFailed unless every rank received the squares in which a twin differs.

    They may come in any sum, as an n-th on each of n ranks that have them, or under a root.
    """
    squares = [norm_of(own, sizes) ** 2 for _, own in cases]
    for rank in range(len(run.values)):
        calls = [one for one in run.exchanges if rank in one.ranks and any(one.bodies.values())]
        calls.sort(key=lambda one: one.numbers[rank])
        num = len(calls) // len(cases)
        came = [
            torch.cat([torch.zeros(1, dtype=torch.float64), *itertools.chain(*of_case)])
            for of_case in (
                [received(one, rank) for one in calls[at * num : (at + 1) * num]]
                for at in range(len(cases))
            )
        ]
        for numbers, square in zip(came[1:], squares[1:], strict=True):
            more = square - squares[0]
            is_there = len(numbers) == len(came[0]) and any(
                (share * (numbers**power - came[0] ** power) / more - 1).abs().min() < 1e-3
                for share in range(1, len(run.values) + 1)
                for power in (1, 2)
            )
            if not is_there:
                expected = f"the squares of rank 0's part to come to rank {rank} over the wire"
                raise CheckFailed(expected, "other numbers, or none", CLIP)


@points(1.5, cell="check_clip")
def check_norm_counts_each_once(student, rng):
    """On 2 x 2 ranks: tensors that are sharded along tp, along dp, along both, and along none, with
    parts of different sizes.
    """
    sizes = {"dp": 2, "tp": 2}
    kinds = [("tp",), ("dp",), ("dp", "tp"), ()]
    made = [drawn_gradient(rng, sizes, axes, torch.float32) for axes in [*kinds, ("tp",)]]
    cases = with_twins(made, sizes)
    run = run_clip(student, sizes, cases)
    expect_norms(run, sizes, cases)
    expect_squares_travelled(run, sizes, cases)


@points(0.5, cell="check_clip")
def check_norm_over_stages(student, rng):
    """On 2 x 1 x 3 ranks, with other tensors along the outermost axis and replicas along the
    innermost one, whatever their names; and so many tensors that each may not have its own sum.
    """
    outer, within = shuffled(rng, ["cp", "ep"])
    sizes = {outer: 2, "dp": 1, within: 3}
    kinds = [(outer, within), (outer,), (outer, "dp", within)]
    made = [drawn_gradient(rng, sizes, axes, torch.float32) for axes in kinds]
    others = [drawn_gradient(rng, sizes, axes, torch.float32) for axes in kinds * 12]
    small = [one._replace(of_rank=[part / 8 for part in one.of_rank]) for one in others]
    cases = [(most, own + small) for most, own in with_twins(made, sizes)]
    run = run_clip(student, sizes, cases)
    expect_norms(run, sizes, cases)
    expect_squares_travelled(run, sizes, cases)


@points(1, cell="check_clip")
def check_gradients_are_clipped(student, rng):
    """Above `max_norm` all gradients are scaled in place, and below it none, also where all are
    zero; squares and sums are float32, whether gradients are bfloat16 or float16, where squares
    overflow.
    """
    sizes, half = {"dp": 1, "tp": 2}, torch.bfloat16
    made = [drawn_gradient(rng, sizes, axes, torch.float32) for axes in (("tp",), ())]
    many = [torch.full((4096,), 1.0625, dtype=half) for _ in range(2)]
    norm = norm_of(made, sizes)
    wide = [Gradient(many, ("tp",))]
    large = [Gradient([torch.full((64,), 300.0, dtype=torch.float16) for _ in range(2)], ())]
    cases = [(norm / between(rng, 2, 4), made), (norm * 1.5, made), (1.0, wide), (1.0, large)]
    run = run_clip(student, sizes, cases)
    expect_norms(run, sizes, cases)
    for number, (most, own) in enumerate(cases):
        factor = min(1.0, most / norm_of(own, sizes))
        for rank in range(2):
            for place, one in enumerate(own):
                given, wanted = entry(run.values[rank], number, 1, place), one.of_rank[rank]
                if factor < 1:
                    wanted = (wanted.float() * factor).to(wanted.dtype)
                what = f"a gradient with a norm {'above' if factor < 1 else 'below'} max_norm"
                hint = "Multiply by max_norm / norm, in place, only where the norm is larger."
                near = 1e-4 if one.of_rank[0].dtype == torch.float32 else 1e-2
                expect_close(given, wanted, what, hint, near, 0.0)
    twins = with_twins(made, sizes)
    expect_squares_travelled(run_clip(student, sizes, twins), sizes, twins)
    zeros = [(1.0, [Gradient([torch.zeros(3)] * 2, ("tp",))])]
    run = run_clip(student, sizes, zeros)
    expect_norms(run, sizes, zeros)
    for value in run.values:
        expect_close(entry(value, 0, 1, 0), torch.zeros(3), "a gradient of zeros", "It stays.")


# The parts of the cost


def drawn_job(rng: torch.Generator) -> Job:
    heads = 8 * whole(rng, 1, 4)
    width = 64 * heads
    hidden = whole(rng, 3, 4) * width
    vocab = 1000 * whole(rng, 30, 60)
    layers = 8 * whole(rng, 3, 6)  # stages of all plans below divide them
    return Job(layers, width, heads, hidden, vocab, 512 * whole(rng, 2, 5), 64)


def drawn_machine(rng: torch.Generator) -> Machine:
    rate = 1e14 * whole(rng, 2, 6)
    node, network = 1e11 * whole(rng, 2, 5), 1e10 * whole(rng, 2, 5)
    return Machine(32, 8, rate, 8e10, node, network)


PLANS = [
    Plan(8, 2, 2, 1, False),
    Plan(4, 2, 4, 2, True),
    Plan(4, 8, 1, 4, False),
    Plan(16, 1, 2, 2, True),
    Plan(2, 4, 4, 8, False),
]


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def expect_numbers(student: Any, name: str, calls: Sequence[Any], hint: str) -> None:
    """Raise CheckFailed unless a part of the cost is what the judge's own says."""
    for args, given in zip(calls, returned(student, name, calls), strict=True):
        wanted = REFERENCES[name](*args)
        what = f"{name} with {args[-1]}"
        if not is_number(given):
            raise CheckFailed(f"{what}: a number", shown(given), hint)
        if not math.isclose(given, wanted, rel_tol=1e-4, abs_tol=1e-12):
            raise CheckFailed(f"{what} to be {wanted:.6g}", f"{given:.6g}", hint)


@points(1, cell="check_work_s")
def check_work(student, rng):
    """The compute of a micro-batch, with and without recomputation, for all kinds of plans."""
    job, machine = drawn_job(rng), drawn_machine(rng)
    hint = "Layers run 3 or 4 times their forward, the head 3 times; all of it over tp."
    expect_numbers(student, "work_s", [(job, machine, plan) for plan in PLANS], hint)


@points(1, cell="check_communication")
def check_tp(student, rng):
    """The all-reduces of a micro-batch along tp, in a node and beyond."""
    job, machine = drawn_job(rng), drawn_machine(rng)
    calls = [(job, machine, plan) for plan in PLANS]
    calls += [(job, machine._replace(gpus_per_node=4), plan) for plan in PLANS]
    hint = "2 (n - 1)/n of the bytes, 4 times a layer, 6 with recomputation; nothing overlaps."
    expect_numbers(student, "tp_s", calls, hint)


@points(0.5, cell="check_communication")
def check_pp(student, rng):
    """The messages of a micro-batch along pp, over the network and in a node."""
    job, machine = drawn_job(rng), drawn_machine(rng)
    inside = machine._replace(num_gpus=8)
    calls = [(job, machine, plan) for plan in PLANS]
    calls += [(job, inside, Plan(1, 2, 4, 2, False)), (job, inside, Plan(4, 2, 1, 2, False))]
    expect_numbers(student, "pp_s", calls, "An activation and a gradient, each cut by tp.")


@points(1.5, cell="check_communication")
def check_dp(student, rng):
    """What backward does not hide of the gradients' sum: most of it, the share of a layer, none."""
    job, machine = drawn_job(rng), drawn_machine(rng)
    slow = machine._replace(network_bytes_per_s=machine.network_bytes_per_s / 20)
    quick = machine._replace(gpus_per_node=16, node_bytes_per_s=1e12)
    calls = [(job, one, plan) for one in (machine, slow, quick) for plan in PLANS]
    calls += [(job, machine, Plan(1, 8, 4, 1, False))]
    hint = "The sum less 2/3 or 3/4 of work_s, but at least the share of one layer."
    expect_numbers(student, "dp_s", calls, hint)


@points(0.75, cell="check_step_time")
def check_step(student, rng):
    """A step of all parts: (m + pp - 1) times what a micro-batch takes, and the rest of dp."""
    job, machine = drawn_job(rng), drawn_machine(rng)
    hint = "Each of the m + pp - 1 turns has work, sums along tp, and messages."
    expect_numbers(student, "step_s", [(job, machine, plan) for plan in PLANS], hint)


@points(0.25, cell="check_step_time")
def check_bubble(student, rng):
    """The share of a pipeline's time in which a rank is idle."""
    calls = [(drawn_job(rng), plan) for plan in PLANS]
    given = returned(student, "bubble_fraction", calls)
    for (job, plan), one in zip(calls, given, strict=True):
        wanted = (plan.pp - 1) / (micro_batches(job, plan) + plan.pp - 1)
        hint = "Idle over all of the time."
        if not is_number(one):
            raise CheckFailed(f"a number for {plan}", shown(one), hint)
        expect_close(one, wanted, f"the bubble of {plan}", hint, 1e-6, 1e-9)


@points(1, cell="check_rank_bytes")
def check_held_without_recomputation(student, rng):
    """Weights, gradients, sharded optimizer state, and activations in flight."""
    job = drawn_job(rng)
    plans = [plan._replace(recompute=False) for plan in PLANS] + [Plan(4, 1, 8, 16, False)]
    hint = "12 / dp bytes of state; 34 a layer for min(m, pp) micro-batches, all over tp."
    expect_numbers(student, "rank_bytes", [(job, plan) for plan in plans], hint)


@points(1, cell="check_rank_bytes")
def check_held_with_recomputation(student, rng):
    """The inputs of all layers, and one layer's activations once."""
    job = drawn_job(rng)
    plans = [plan._replace(recompute=True) for plan in PLANS] + [Plan(4, 1, 8, 16, True)]
    hint = "2 bytes a layer for each in flight, and once 34 more."
    expect_numbers(student, "rank_bytes", [(job, plan) for plan in plans], hint)


# choose


def divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def legal_plans(job: Job, machine: Machine) -> Iterator[Plan]:
    for tp in divisors(machine.num_gpus):
        for pp in divisors(machine.num_gpus // tp):
            dp = machine.num_gpus // (tp * pp)
            for micro_batch in divisors(job.global_batch // dp):
                for recompute in (False, True):
                    plan = Plan(dp, tp, pp, micro_batch, recompute)
                    if why_not_legal(job, machine, plan) is None:
                        yield plan


def why_not_legal(job: Job, machine: Machine, plan: Plan) -> str | None:
    """Why a plan is not legal; None where it is."""
    if plan.dp * plan.tp * plan.pp != machine.num_gpus:
        return f"dp tp pp is {plan.dp * plan.tp * plan.pp} on {machine.num_gpus} GPUs"
    if job.num_layers % plan.pp:
        return f"{job.num_layers} layers on {plan.pp} stages"
    if job.num_heads % plan.tp or job.hidden_width % plan.tp:
        return f"{job.num_heads} heads, or a width of {job.hidden_width}, on tp {plan.tp}"
    if job.global_batch % (plan.dp * plan.micro_batch):
        return f"{job.global_batch} sequences in parts of {plan.dp * plan.micro_batch}"
    return None


def read_plan(value: Any) -> Plan | None:
    """The plan that was returned; None where it is none."""
    dp, tp, pp, micro_batch, recompute = entries(value, 5)
    sizes = (dp, tp, pp, micro_batch)
    is_sound = all(type(one) is int and 0 < one < 1 << 31 for one in sizes)
    return (
        Plan(dp, tp, pp, micro_batch, recompute) if is_sound and type(recompute) is bool else None
    )


def drawn_case(rng: torch.Generator) -> tuple[Job, Machine]:
    """A job and a machine for which every search finds good plans, and no table has any.

    All sizes of plans are powers of two, and all plans fit; dp alone is not legal.
    """
    num_gpus, heads, rate = 2 ** whole(rng, 4, 6), 64 * whole(rng, 2, 3), 1e14 * whole(rng, 2, 6)
    vocab, length, width = 1000 * whole(rng, 30, 60), 1024 * whole(rng, 2, 5), 64 * heads
    job = Job(64 * whole(rng, 1, 2), width, heads, 4 * width, vocab, length, num_gpus // 2)
    node, network = 5e-4 * rate * whole(rng, 2, 4), 1e-5 * rate * whole(rng, 4, 8)
    return job, Machine(num_gpus, 8, rate, 1e15, node, network)


# In these the best plan is not that of simple rules, nor of a search that forgets what is legal:
# it has a pp of 3 or 6, a tp of 6, a micro-batch of 6. Only the unit of time is drawn.
JOBS: tuple[tuple[Job, Machine], ...] = (
    (Job(46, 7680, 60, 30720, 51200, 2048, 192), Machine(64, 8, 2e14, 40e9, 2.4e11, 2.5e10)),
    (Job(44, 5120, 20, 20480, 51200, 2048, 192), Machine(64, 8, 2e14, 24e9, 2.4e11, 2.5e9)),
    (Job(126, 16384, 128, 53248, 128256, 8192, 252), Machine(2016, 8, 4e14, 80e9, 3.6e11, 5e10)),
    (Job(36, 4096, 32, 16384, 51200, 4096, 96), Machine(24, 4, 4e14, 48e9, 2e10, 1.2e9)),
    (Job(48, 3072, 24, 12288, 51200, 16384, 12), Machine(24, 12, 4e14, 24e9, 3.6e11, 1e9)),
    (Job(32, 4096, 32, 14336, 128256, 8192, 32), Machine(16, 8, 4e14, 24e9, 3.6e11, 5e10)),
    (Job(48, 1600, 25, 6400, 51200, 2048, 384), Machine(64, 8, 2e14, 40e9, 2.4e11, 1e10)),
)


def timed(machine: Machine, unit: float) -> Machine:
    """The machine with all rates times one factor: no plan gains on another."""
    rates = ("flops_per_s", "node_bytes_per_s", "network_bytes_per_s")
    return machine._replace(**{name: unit * getattr(machine, name) for name in rates})


def limit() -> Made:
    return Made(limit_computing, CPU_S)


def chosen(student: Any, job: Job, machine: Machine) -> tuple[Plan | None, str]:
    """The plan for a job, within its computing time; or None, and what there is in its place."""
    try:
        (value,) = returned(student, "choose", [(job, machine)], made=limit())
    except StudentFailed as failed:
        return None, f"no plan within 2 seconds of computing time. {failed}"
    return read_plan(value), shown(value)


def bests(cases: Sequence[tuple[Job, Machine]]) -> list[float]:
    """The least seconds of a step in each case."""
    return [
        min(
            reference_step_s(job, machine, plan)
            for plan in legal_plans(job, machine)
            if reference_held_bytes(job, plan) <= machine.memory_bytes
        )
        for job, machine in cases
    ]


def expect_searched(student: Any, job: Job, machine: Machine) -> None:
    """Raise CheckFailed unless there is a legal plan for a drawn job, not far from the best."""
    plan, actual = chosen(student, job, machine)
    expected = "a plan for a job that was drawn"
    hint = "A plan follows from the sizes of the job; a table knows no other jobs."
    if plan is None:
        raise CheckFailed(expected, actual, hint)
    if why := why_not_legal(job, machine, plan):
        raise CheckFailed(expected, f"a plan that is not legal: {why}", hint)
    slower = reference_step_s(job, machine, plan) / bests([(job, machine)])[0]
    if slower > 3:
        raise CheckFailed(expected, f"one that takes {slower:.2f} times as long as the best", hint)


@points(2.5, cell="check_choose")
def check_choice_is_near_the_best(student, rng):
    """By the judge's cost the plan is as good as the best of all: points in proportion, none for
    25% more time, for a plan that is not legal, and for one that does not fit. None at all without
    a legal plan for a drawn job in less than three times the best one's seconds.
    """
    expect_searched(student, *drawn_case(rng))
    unit = between(rng, 0.8, 1.2)
    cases = [(job, timed(machine, unit)) for job, machine in JOBS]
    shares, worst = [], (2.0, "", "")
    for (job, machine), best in zip(cases, bests(cases), strict=True):
        plan, actual = chosen(student, job, machine)
        of = f"for {job.num_layers} layers on {machine.num_gpus} GPUs"
        if plan is None:
            share = 0.0
        elif why := why_not_legal(job, machine, plan):
            share, actual = 0.0, f"a plan that is not legal: {why}"
        elif (held := reference_held_bytes(job, plan)) > machine.memory_bytes:
            share, actual = 0.0, f"a plan of {held / 1e9:.1f} GB"
        else:
            slower = reference_step_s(job, machine, plan) / best
            share, actual = max(0.0, 5 - 4 * slower), f"one that takes {slower:.2f} times as long"
        shares.append(1.0 if share > 1 - 1e-6 else share)
        expected = f"the best legal plan in {machine.memory_bytes / 1e9:.0f} GB {of}"
        worst = min(worst, (share, expected, actual))
    mean = sum(shares) / len(shares)
    if mean < 1:
        hint = "Try all legal plans, drop what does not fit, and take the least step_s."
        found = worst[1], f"{worst[2]}; {mean:.0%} of the way to the best, on average", hint
        share = int(100 * mean + 1e-9) / 100
        raise PartlyHeld(share, *found) if share else CheckFailed(*found)


@points(0.5, cell="check_choose")
def check_nothing_fits(student, rng):
    """None where no plan fits, and a plan where one fits just about."""
    job, machine = drawn_case(rng)
    held = [reference_held_bytes(job, plan) for plan in legal_plans(job, machine)]
    tight = machine._replace(memory_bytes=min(held))
    none = machine._replace(memory_bytes=0.9 * min(held))
    given = returned(student, "choose", [(job, tight), (job, none)], made=limit())
    plan = read_plan(given[0])
    if plan is None or why_not_legal(job, tight, plan):
        raise CheckFailed("the one plan that fits", shown(given[0]))
    if reference_held_bytes(job, plan) > tight.memory_bytes:
        raise CheckFailed("the one plan that fits", "one that does not")
    if given[1] is not None:
        raise CheckFailed("None where nothing fits", shown(given[1]))


# predict

# Rows of tests/data/published_runs.csv of its part "judge" by their anchors, rows of the lessons:
# name, layers, width, heads, vocabulary, length, batch, micro-batch, tp, pp, dp, chunks,
# recomputation, sequence split, ZeRO stage, flash attention, seconds. The hidden width is 4 times
# the width; kind of GPU and precision are the anchor's.
ROWS = {
    "sc21_t1_04": (
        "sc21_t1_01 30 3072 32 51200 2048 512 16 2 1 32 1 full 0 0 0 3.711",
        "sc21_t1_03 40 6144 48 51200 2048 1024 8 8 1 32 1 full 0 0 0 9.388",
    ),
    "sc21_t1_07": ("sc21_t1_06 80 12288 96 51200 2048 2304 2 8 8 24 2 full 0 0 0 24.842",),
    "sc21_t2_z3_530B_640": (
        "sc21_t2_z3_175B_1536 96 12288 96 51200 2048 1536 1 1 1 1536 1 full 0 3 0 66.75",
        "sc21_t2_z3_530B_1120 105 20480 128 51200 2048 2240 2 1 1 1120 1 full 0 3 0 179.92",
    ),
    "kor22_t5_MT-NLG-530B_full": (
        "kor22_t5_GPT-175B_full 96 12288 96 51200 2048 64 1 8 8 1 3 full 0 0 0 18.13",
    ),
    "kor22_t5_MT-NLG-530B_selsp": (
        "kor22_t5_GPT-175B_selsp 96 12288 96 51200 2048 64 1 8 8 1 3 selective 1 0 0 13.75",
    ),
    "meg20_a100_4": (
        "meg20_a100dp_256 30 2304 18 51200 1024 2048 16 2 1 128 1 full 0 0 0 1.101",
        "meg20_a100dp_512 36 3072 24 51200 1024 2048 16 4 1 128 1 full 0 0 0 1.242",
    ),
    "bloom_pre_034": (
        "bloom_pre_068 84 13312 64 250880 2048 2048 4 8 6 8 1 full 0 1 0 122.93",
        "bloom_pre_101 78 13824 128 250880 2048 2048 4 4 12 8 1 full 0 1 0 153.9",
        "bloom_pre_112 78 13824 96 250880 2048 512 2 4 12 8 1 full 0 1 0 35.77",
    ),
    "mpt_014": (
        "mpt_001 80 8192 64 50368 2048 4096 8 1 1 512 1 full 0 3 1 16.2685",
        "mpt_066 24 1536 12 50368 2048 768 24 1 1 32 1 none 0 3 1 0.7231",
    ),
    "mpt_170": (
        "mpt_157 32 4096 32 50368 2048 576 18 1 1 32 1 full 0 3 1 9.8962",
        "mpt_183 24 2048 16 50368 512 2048 32 1 1 8 1 none 0 3 1 6.0174",
    ),
    "vtrain_multi_044": (
        "vtrain_multi_088 96 12288 96 50257 2048 1536 2 4 16 8 1 full 0 0 0 54.2559",
        "vtrain_multi_099 96 12288 96 50257 2048 1536 4 8 8 8 1 full 0 0 0 58.2403",
    ),
}


def hidden_runs() -> list[tuple[PublishedRun, PublishedRun]]:
    """The runs that the course does not show, with their anchors and their seconds."""
    known = {one.name: one for one in published_runs.rows()}
    return [
        (_run(line, known[anchor]), known[anchor])
        for anchor, lines in ROWS.items()
        for line in lines
    ]


def _run(line: str, anchor: PublishedRun) -> PublishedRun:
    name, *values, recompute, is_split, stage, has_flash, step_s = line.split()
    layers, width, heads, vocab, length, batch, micro, tp, pp, dp, chunks = map(int, values)
    return dataclasses.replace(
        anchor,
        name=name,
        num_layers=layers,
        width=width,
        num_heads=heads,
        hidden_width=4 * width,
        vocab_size=vocab,
        length=length,
        global_batch=batch,
        micro_batch=micro,
        num_gpus=tp * pp * dp,
        tp=tp,
        pp=pp,
        dp=dp,
        num_chunks=chunks,
        recompute=recompute,
        is_sequence_split=is_split == "1",
        zero_stage=int(stage),
        has_flash=has_flash == "1",
        step_s=float(step_s),
    )


PEAK = {"A100": 312e12, "H100": 989e12}
MEMORY = {"A100": 2.0e12, "H100": 3.35e12}
NODE = {"A100": 300e9, "H100": 450e9}
NETWORK = {"A100": 25e9, "H100": 50e9}


def hardware_flops(run: PublishedRun) -> float:
    attention = 4 * run.length * run.width / (2 if run.has_flash else 1)
    layer = (4 if run.recompute == "full" else 3) * (24 * run.width**2 + attention)
    layer += attention if run.recompute == "selective" else 0
    of_all = run.num_layers * layer + 6 * run.width * run.vocab_size
    return run.global_batch * run.length * of_all / run.num_gpus / PEAK[run.gpu[:4]]


def one_constant_s(run: PublishedRun, anchor: PublishedRun) -> float:
    """The guess that both reach the same share of their peak."""
    return hardware_flops(run) / hardware_flops(anchor) * anchor.step_s


def judges_s(run: PublishedRun, anchor: PublishedRun) -> float:
    """The judge's own model, whose constants were chosen on the bench's and the lessons' rows."""
    return modelled_s(run) / modelled_s(anchor) * anchor.step_s


def modelled_s(run: PublishedRun) -> float:
    gpu, tokens, is_full = run.gpu[:4], run.micro_batch * run.length, run.recompute == "full"
    rate, memory = 0.5 * PEAK[gpu], 0.58 * MEMORY[gpu]
    num, num_passes = run.global_batch / (run.dp * run.micro_batch), 4 if is_full else 3

    def ring_s(num_ranks: int, span: int, size_bytes: float) -> float:
        link = 0.35 * NODE[gpu] if span <= 8 else 0.7 * NETWORK[gpu]
        return 2 * (num_ranks - 1) / num_ranks * size_bytes / link

    weights, scores = 12 * run.width**2, 4 * run.length * run.width
    scores *= 1.3 if run.has_flash else 1  # a fused attention reaches less of the peak
    flops = num_passes * (2 * weights + scores) + scores * (run.recompute == "selective")
    moved = 34 * run.width / (run.tp if run.is_sequence_split else 0.3 + 0.7 * run.tp)
    moved += 0 if run.has_flash else 10 * run.num_heads / run.tp * run.length
    layer_s = tokens * (flops / run.tp / rate + num_passes * moved / memory)
    layer_s += (6 if is_full else 4) * ring_s(run.tp, run.tp, 2 * tokens * run.width)
    stage_s = run.num_layers / run.pp * layer_s
    if run.pp > 1:
        sent_bytes = 4 * run.num_chunks * tokens * run.width / run.tp
        stage_s += sent_bytes / (0.7 * NETWORK[gpu])
    step_s = stage_s * (num + (run.pp - 1) / run.num_chunks)
    step_s += num * 6 * tokens * run.width * run.vocab_size / run.tp / rate
    own = (run.num_layers * weights / run.pp + run.vocab_size * run.width) / run.tp
    gradients_s = ring_s(run.dp, run.tp * run.dp, own)  # a byte for each parameter
    if run.zero_stage == 3:
        gathered_s = 3 * num * gradients_s
        step_s = max(step_s, gathered_s) + 0.1 * min(step_s, gathered_s)
    else:
        step_s += 0.1 * 4 * gradients_s
    return step_s + 28 * own / (run.dp if run.zero_stage else 1) / memory


UNKNOWN = {"name": "", "source": "", "model": "", "notes": "", "step_s": math.nan}


def predicted(
    student: Any, rng: torch.Generator, pairs: Sequence[tuple[PublishedRun, PublishedRun]]
) -> list[float]:
    """The seconds that are predicted for runs without names, in a drawn order; nan for none."""
    order = shuffled(rng, list(range(len(pairs))))
    asked = [(dataclasses.replace(pairs[at][0], **UNKNOWN), pairs[at][1]) for at in order]
    run = student.emulated(call_each, "predict", asked, world_size=1, **RULES)
    found = [math.nan] * len(pairs)
    for at, value in zip(order, entries(run.values[0], len(pairs)), strict=True):
        found[at] = float(value) if is_number(value) and 0 < value < 1e9 else math.nan
    return found


def with_one_more(run: PublishedRun) -> PublishedRun:
    """The run with one more micro-batch in each replica."""
    return dataclasses.replace(run, global_batch=run.global_batch + run.dp * run.micro_batch)


def responds(run: PublishedRun, before_s: float, after_s: float) -> bool:
    """True where one more micro-batch takes about as long as those before it."""
    num = run.global_batch / (run.dp * run.micro_batch)
    return 0.4 / (num + run.pp) < after_s / before_s - 1 < 1.3 / num


WORST = 0.5  # at most counts as error


def error_of(predicted_s: float, run: PublishedRun) -> float:
    return min(WORST, abs(predicted_s / run.step_s - 1))


@points(2, cell="check_predict")
def check_predictions_of_hidden_runs(student, rng):
    """The mean error over published runs that the course does not show, between that of the
    one-constant guess and that of the judge's own model: points in proportion.
    """
    pairs = hidden_runs()
    more = [(with_one_more(run), anchor) for run, anchor in pairs]
    given = predicted(student, rng, [*pairs, *more])
    errors, own, guess, num_unlike = [], [], [], 0
    for (run, anchor), one, other in zip(
        pairs, given[: len(pairs)], given[len(pairs) :], strict=True
    ):
        is_alike = responds(run, one, other)
        num_unlike += not is_alike
        errors.append(error_of(one, run) if is_alike else WORST)
        own.append(error_of(judges_s(run, anchor), run))
        guess.append(error_of(one_constant_s(run, anchor), run))
    mine, best, least = (sum(one) / len(pairs) for one in (errors, own, guess))
    share = (least - mine) / (least - best - 0.01)
    if share < 1:
        expected = (
            f"at most {best + 0.01:.1%} off on average over {len(pairs)} runs: the judge's own"
            f" model is {best:.1%} off, the one-constant guess {least:.1%}"
        )
        hint = "Which of communication, memory, bubble and recomputation does it not have yet?"
        if num_unlike:
            hint = f"{num_unlike} do not respond to one more micro-batch, and count {WORST:.0%}."
        share = int(100 * share + 1e-9) / 100
        if share > 0:
            raise PartlyHeld(share, expected, f"{mine:.1%}", hint)
        raise CheckFailed(expected, f"{mine:.1%}", hint)


def changes_of(run: PublishedRun) -> list[tuple[dict[str, Any], float, float, str]]:
    """Changes of a run, and between which factors they change its seconds."""
    twice = {"global_batch": 2 * run.global_batch, "dp": 2 * run.dp, "num_gpus": 2 * run.num_gpus}
    return [
        ({"global_batch": 2 * run.global_batch}, 1.4, 2.1, "twice the batch"),
        ({"num_layers": 2 * run.num_layers}, 1.5, 2.2, "twice the layers"),
        (twice, 0.9, 1.5, "twice the replicas and twice the batch"),
        ({"recompute": "none"}, 0.6, 0.97, "no recomputation"),
    ]


@points(1, cell="check_predict")
def check_predictions_respond(student, rng):
    """Predictions follow from the run: twice the batch and twice the layers, twice the replicas
    with twice the batch, no recomputation, and a faster GPU.
    """
    is_plain = {"zero_stage": (0, 1), "recompute": ("full",)}
    pairs = [
        pair
        for pair in hidden_runs()
        if all(getattr(pair[0], name) in allowed for name, allowed in is_plain.items())
    ]
    changed, bounds = [], []
    for run, anchor in shuffled(rng, pairs)[:6]:
        for change, *wanted in changes_of(run):
            changed.append(((run, anchor), (dataclasses.replace(run, **change), anchor)))
            bounds.append(wanted)
        faster = dataclasses.replace(run, gpu="H100-SXM5-80GB")
        changed.append(((run, anchor), (faster, anchor)))
        bounds.append([0.2, 0.85, "H100 in place of A100"])
    flat = [one for pair in changed for one in pair]
    given = predicted(student, rng, flat)
    for place, (low, high, what) in enumerate(bounds):
        before_s, after_s = given[2 * place : 2 * place + 2]
        if not low < after_s / before_s < high:
            expected = f"{low} to {high} times the seconds with {what}"
            hint = "Compute the seconds from the sizes of the run."
            raise CheckFailed(expected, f"{after_s / before_s:.2f} times", hint)
