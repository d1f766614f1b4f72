# %% [markdown]
# # Lab 10. A mesh of ranks, and the plan for it
#
# A large model is trained along several axes at once. The ranks form a **mesh**: tensor parallelism
# (tp) runs along one axis, data parallelism (dp) along another, a pipeline (pp) along a third. In
# the first half of this lab you train on such a mesh by hand: who belongs to which group, which
# axis gets the fast links, whose gradients are summed with whose. In the second half you write what
# decides the sizes of the axes: the seconds and bytes that a plan costs, and a search for the best.
#
# ```text
# 8 ranks on 2 nodes, {"dp": 2, "tp": 4}: dp is the outermost axis, tp the innermost
#
#            tp 0    tp 1    tp 2    tp 3
# dp 0    rank 0  rank 1  rank 2  rank 3     node 0: activations travel inside it
# dp 1    rank 4  rank 5  rank 6  rank 7     node 1
#              gradients travel between the rows: rank 0 with 4, 1 with 5, ...
# ```
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `groups_along` | the ranks that communicate along an axis | 1 | 15 min | easy |
# | `arrange` | which axis is innermost, so that little leaves the nodes | 2 | 20 min | medium |
# | `gradients_on_mesh` | a training step on dp x tp ranks | 5 | 60 min | hard |
# | `clip` | clips by the norm of gradients that are sharded or replicated | 3 | 30 min | medium |
# | `work_s` | the compute of a micro-batch | 1 | 10 min | easy |
# | `tp_s`, `pp_s`, `dp_s` | communication that nothing hides | 3 | 30 min | medium |
# | `step_s`, `bubble_fraction` | a step of all of these | 1 | 10 min | easy |
# | `rank_bytes` | the memory of a rank | 2 | 20 min | medium |
# | `choose` | the fastest plan that fits | 3 | 30 min | medium |
# | `predict` | open-ended: the seconds of published training steps | 3 | 75 min | hard |
# | `in_words` | questions that you answer in words | 3 | 30 min | medium |
#
# Work in this order. Each part has a check below it and folded hints above it: the first hint says
# where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. On ranks
# the checks read **what travels, along which axis**: what each rank gives to an all-reduce, in
# which group, and how many bytes. Each function is graded with correct versions of the others, so
# that a mistake costs points only once.
#
# Of the operations of `torch.distributed`, all-reduce, reduce-scatter and all-gather are allowed,
# in all their forms. `torch.distributed.tensor`, `torch.distributed.fsdp` and torch's DDP are
# refused. The same inputs must give the same bits in every run, so use no clock, no threads or
# other processes, and no unseeded generator.

# %% setup
import itertools
import math
from dataclasses import replace
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import hardware
from worldsize.check import CheckFailed, expect_close
from worldsize.course import published_runs

SMALL_NODES = replace(hardware.H100_NDR, name="2 nodes of 4", gpus_per_node=4, nics_per_node=4)
EMULATED = {
    "cluster": SMALL_NODES,
    "compute": "none",
    "echo": False,
    "allow": {"all_reduce", "all_gather", "reduce_scatter"},
}


def show(picture):
    from IPython.display import display  # here and not above: the ranks need neither

    display(picture)


ws.run(
    dist.get_rank, world_size=2, **EMULATED
)  # the first run loads torch: the checks are then quick

# %% [markdown]
# ## 1. Groups
#
# The sizes of a mesh are a dictionary from the outermost axis to the innermost one. Ranks are
# counted like the elements of an array in memory: the innermost axis changes first. The ranks that
# communicate along an axis differ in their place on this axis only. Gradients are often summed over
# two axes at once, such as dp and the sequence axis (cp); then the group differs in both places.
#
# <details><summary>Hint 1: where to look</summary>
#
# `torch.arange(8).view(2, 4)` is the picture above. Where are the groups of tp in it, and those of
# dp?
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Move the axes of the group to the end (`movedim` or `permute`), then make rows of them: `reshape`
# and `tolist`.
#
# </details>


# %% groups_along tags=["solution"]
def groups_along(sizes: dict[str, int], *axes: str) -> list[list[int]]:
    """The groups of ranks that communicate along these axes.

    - `sizes` has the size of each axis, outermost first; the innermost axis changes from one rank
      to the next. There may be any number of axes, and `axes` names one or more of them, in the
      order in which they stand in `sizes`.
    - Every rank is in exactly one group: with all ranks whose places are the same on all other
      axes. A group's ranks are in ascending order, and so are the groups, by their first ranks.

    Example: groups_along({"dp": 2, "tp": 4}, "dp") is [[0, 4], [1, 5], [2, 6], [3, 7]].
    """
    ### BEGIN SOLUTION
    names = list(sizes)
    ranks = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    others = [names.index(name) for name in names if name not in axes]
    own = [names.index(name) for name in axes]
    size = math.prod(sizes[name] for name in axes)
    return ranks.permute(*others, *own).reshape(-1, size).tolist()
    ### END SOLUTION


# %% check_groups_along points=1
def check_groups_along():
    sizes = {"pp": 2, "dp": 3, "tp": 2}
    for axes, wanted, hint in (
        (("tp",), [[2 * one, 2 * one + 1] for one in range(6)], "The innermost axis: neighbours."),
        (("pp",), [[one, one + 6] for one in range(6)], "The outermost axis: far apart."),
        (("dp",), [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]], "In the middle: steps of tp."),
        (("dp", "tp"), [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]], "Two axes: six ranks each."),
        (("pp", "tp"), [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]], "These are not neighbours."),
    ):
        given = groups_along(sizes, *axes)
        if given != wanted:
            raise CheckFailed(f"{wanted} along {axes} of {sizes}", f"{given}", hint)
    if groups_along({"tp": 4}, "tp") != [[0, 1, 2, 3]]:
        raise CheckFailed("one group of all ranks of a mesh with one axis", "another answer")
    print("groups_along: one axis or two, wherever they stand.")


check_groups_along()

# %% [markdown]
# ## 2. Which axis on which link?
#
# NVLink inside a node is about ten times as fast as the network. Which axis is innermost decides
# what stays inside. Llama 3 was trained with the order tp, cp, pp, dp from the inside out, from the
# axis that can bear least latency to the one that can hide its communication (Llama Team 2024, *The
# Llama 3 Herd of Models*, section 3.3.2).
#
# Here the links carry rings: each rank sends to the next rank of its group, the last to the first.
# Node n holds the ranks from n · `gpus_per_node` on.
#
# <details><summary>Hint 1: where to look</summary>
#
# How many orders do four axes have? So few that each can be tried.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# For an order, make the dictionary of its sizes, and for each axis its `groups_along`. Of each
# group add up the bytes of all pairs (rank, next rank) whose nodes differ.
# `itertools.permutations` makes the orders.
#
# </details>


# %% arrange tags=["solution"]
def arrange(sizes: dict[str, int], sent_bytes: dict[str, float], gpus_per_node: int) -> list[str]:
    """The order of the axes, outermost first, in which the fewest bytes leave their node.

    - `sizes` has the axes in any order, at most four. In every group along an axis, each rank sends
      `sent_bytes[axis]` bytes to the next rank of the group in ascending order, and the last rank
      to the first. A group of one sends nothing.
    - Rank r is on node r // gpus_per_node; the nodes are full.
    - What counts is the sum over all ranks and axes of the bytes between different nodes. Of
      several best orders, any is right.

    Example: arrange({"tp": 4, "dp": 2}, {"tp": 9.0, "dp": 1.0}, 4) is ["dp", "tp"]: 8 bytes leave.
    """

    ### BEGIN SOLUTION
    def leaving(order):
        """The bytes between nodes."""
        total, ordered = 0.0, {axis: sizes[axis] for axis in order}
        for axis in order:
            for group in groups_along(ordered, axis):
                following = group[1:] + group[:1]
                for one, other in zip(group, following, strict=True):
                    if one // gpus_per_node != other // gpus_per_node:
                        total += sent_bytes[axis]
        return total

    return list(min(itertools.permutations(sizes), key=leaving))
    ### END SOLUTION


# %% check_arrange points=2
def check_arrange():
    heaviest = "The heaviest axis alone fills a node: then all of another heavy one leaves it."
    cases = [
        ({"tp": 4, "dp": 2}, {"tp": 9, "dp": 1}, 4, ["dp tp"], "The heavy axis fits in a node."),
        ({"tp": 4, "dp": 2}, {"tp": 1, "dp": 99}, 4, ["tp dp"], "Any axis may be the heavy one."),
        (
            {"tp": 2, "pp": 2, "dp": 4},
            {"tp": 9, "pp": 1, "dp": 3},
            8,
            ["pp tp dp", "pp dp tp"],
            "What fits into a node together is inside, in either order.",
        ),
        ({"tp": 2, "pp": 4, "dp": 2}, {"tp": 8, "pp": 9, "dp": 1}, 4, ["dp pp tp"], heaviest),
    ]
    for sizes, sent_bytes, per_node, best, hint in cases:
        order = arrange(sizes, sent_bytes, per_node)
        if sorted(order) != sorted(sizes):
            raise CheckFailed(f"an order of {list(sizes)}", f"{order}", "Each axis once.")
        if " ".join(order) not in best:
            of = f"of {sizes} that send {sent_bytes}, {per_node} a node, outermost first"
            raise CheckFailed(f"{' or '.join(best)} {of}", " ".join(order), hint)
    print("arrange: as few bytes as possible leave the nodes.")


check_arrange()

# %% [markdown]
# ## 3. A training step on two axes
#
# The model is a chain of blocks, each an MLP with a residual connection. The next cell is given: a
# block as one rank has it. Along tp every rank has other columns of `up` and rows of `down`, and
# the same inputs; `scale` and `bias` are **replicated**: whole on every rank. Along dp every rank
# has the same part of the weights, and other rows of the batch.
#
# ```text
# of one process                              on tp ranks, each with its part of up and down
# scaled = x * scale                          scaled = x * scale      backward: sum of gradients
# x = x + inner(block, scaled) + bias         x = x + sum over tp of inner(block, scaled) + bias
# ```
#
# Two questions decide whether the weights come out as in one process. **Which axis?** The partial
# sums of a layer are added up along tp, gradients along dp. After the two sums along tp, every rank
# of tp has the *whole* gradient of `scale` and `bias`: to add these up along tp again would make
# them tp times as large. **Who divides by what?** The loss is the mean over all targets of all dp
# ranks, and these may have unequal numbers of rows.
#
# Gradients that are right in any other way, such as by gathering the weights, are not what this lab
# is about: until the right sums travel along tp, what else is right earns half its points, and
# nothing without sums along dp.
#
# Both go wrong in production. In April 2026 torchtitan's loss was divided by the number of tokens
# before backward without a pipeline, and with one only in what was printed: gradients were
# thousands of times larger, the losses agreed, and AdamW did not mind (torchtitan issue 2972). On
# Megatron-LM's context-parallel axis the loss is multiplied by the size of the axis, because the
# average over dp x cp divides by it once too often; who removed the factor had to change the
# average as well (Megatron-LM issue 673).
#
# <details><summary>Hint 1: where to look</summary>
#
# In lab 8 two functions led into a tensor-parallel region and out of it. One adds up in forward,
# the other one in backward. Both are needed here, with `group=mesh.tp`.
#
# </details>
# <details><summary>Hint 2: the sums along tp</summary>
#
# A `torch.autograd.Function` whose forward is an identity and whose backward all-reduces a copy of
# the gradient, applied to `x * scale`; and one that does it the other way round, applied to
# `inner(...)`.
#
# </details>
# <details><summary>Hint 3: the sums along dp</summary>
#
# All-reduce the number of targets over dp, divide the sum of losses by it, call `backward`, and
# then *sum* all gradients over dp. No other division is needed.
#
# </details>


# %% given
class Block(NamedTuple):
    """One rank's part of a block: W width, F hidden width of the whole, N ranks along tp."""

    scale: torch.Tensor  # (W), replicated
    up: torch.Tensor  # (F/N, W), other rows of the whole on each rank of tp
    down: torch.Tensor  # (W, F/N), other columns of the whole
    bias: torch.Tensor  # (W), replicated


class Mesh(NamedTuple):
    """The groups of this rank."""

    tp: dist.ProcessGroup  # ranks with the same rows of the batch and other parts of the weights
    dp: dist.ProcessGroup  # ranks with other rows and the same part of the weights


def inner(block, scaled):
    """What a rank's part of the weights makes of (rows, W): a part of the sum over tp."""
    return torch.tanh(scaled @ block.up.t()) @ block.down.t()


def sum_of_losses(outputs, targets):
    return (outputs - targets).square().sum()


def whole_blocks(num_blocks=2, width=4, hidden_width=8):
    """The blocks of one process."""
    generator = torch.Generator().manual_seed(10)
    shapes = ((width,), (hidden_width, width), (width, hidden_width), (width,))
    return [
        Block(*[torch.randn(shape, generator=generator) / 2 for shape in shapes])
        for _ in range(num_blocks)
    ]


def part_of(block, place, num_parts):
    """The part of a whole block that a rank of tp has; its tensors want gradients."""
    up, down = block.up.chunk(num_parts, 0)[place], block.down.chunk(num_parts, 1)[place]
    return Block(*[one.clone().requires_grad_() for one in (block.scale, up, down, block.bias)])


def gradients_on_rank(dp, tp, rows_of):
    """The loss and the gradients of a rank of a mesh with tp innermost."""
    rank = dist.get_rank()
    made = Mesh(
        [dist.new_group(list(range(first, first + tp))) for first in range(0, dp * tp, tp)][
            rank // tp
        ],
        [dist.new_group(list(range(first, dp * tp, tp))) for first in range(tp)][rank % tp],
    )
    blocks = [part_of(one, rank % tp, tp) for one in whole_blocks()]
    loss = gradients_on_mesh(blocks, *rows_of[rank // tp], made)
    return loss, [[one.grad for one in block] for block in blocks]


# %% gradients_on_mesh tags=["solution"]
def gradients_on_mesh(
    blocks: list[Block], inputs: torch.Tensor, targets: torch.Tensor, mesh: Mesh
) -> float:
    """Set the gradient of the mean loss over all ranks' targets; return this loss.

    - `blocks` has this rank's parts, whose tensors have no `grad` so far. `inputs` and `targets`
      are (rows, W), the same on all ranks of tp; ranks of dp have others, and perhaps other numbers
      of rows, at least one each.
    - The output is that of the chain of blocks in one process, in the picture above. The loss is
      the sum of `sum_of_losses` of all ranks of dp over the number of elements of all their
      targets. It is returned as a float, the same on all ranks.
    - `grad` of each tensor in `blocks` becomes the gradient of this loss: for `scale` and `bias`
      as in one process, for `up` and `down` this rank's part of it. `scale` and `bias` get the same
      bits on all ranks.
    - Over `mesh.tp` each block makes two all-reduces: in forward of `inner(block, scaled)`, in
      backward of the gradient of `scaled`. Nothing else travels along tp.
    - Over `mesh.dp` each gradient travels once, in as many operations as you like: a rank sends no
      more than one all-reduce of all its gradients would, and at most 64 bytes for other things.
    - Nothing travels in other groups.
    """

    ### BEGIN SOLUTION
    class Enter(torch.autograd.Function):
        """An identity whose gradient is summed over tp."""

        @staticmethod
        def forward(ctx, tensor):
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx, part):
            total = part.clone()
            dist.all_reduce(total, group=mesh.tp)
            return total

    class Leave(torch.autograd.Function):
        """A sum over tp whose gradient goes back as it is."""

        @staticmethod
        def forward(ctx, tensor):
            total = tensor.clone()
            dist.all_reduce(total, group=mesh.tp)
            return total

        @staticmethod
        def backward(ctx, whole):
            return whole

    x = inputs
    for block in blocks:
        scaled = Enter.apply(x * block.scale)
        x = x + Leave.apply(inner(block, scaled)) + block.bias
    loss = sum_of_losses(x, targets)
    sums = torch.tensor([loss.item(), targets.numel()])
    dist.all_reduce(sums, group=mesh.dp)
    (loss / sums[1]).backward()
    parameters = [one for block in blocks for one in block]
    flat = torch.cat([one.grad.flatten() for one in parameters])
    dist.all_reduce(flat, group=mesh.dp)
    for one, total in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
        one.grad = total.view_as(one)
    return (sums[0] / sums[1]).item()
    ### END SOLUTION


# %% check_gradients_on_mesh points=5
def check_gradients_on_mesh():
    from worldsize import draw

    generator = torch.Generator().manual_seed(11)
    drawn = [torch.randn(2, rows, 4, generator=generator) for rows in (1, 3)]
    rows_of = [(one[0], one[1]) for one in drawn]
    wholes = [part_of(one, 0, 1) for one in whole_blocks()]
    x, targets = (torch.cat([one[place] for one in drawn]) for place in (0, 1))
    for block in wholes:
        x = x + inner(block, x * block.scale) + block.bias
    loss = sum_of_losses(x, targets) / targets.numel()
    loss.backward()
    run = ws.run(gradients_on_rank, 2, 2, rows_of, world_size=4, **EMULATED)
    # in the order in which backward makes them: the first one that is wrong shows where it begins
    hints = {
        "down": "Divide by the targets of all ranks of dp, once, and sum over dp alone.",
        "up": "Divide by the targets of all ranks of dp, once, and sum over dp alone.",
        "bias": "Every rank of tp has the whole of it: a sum over tp makes it tp times as large.",
        "scale": "It is whole if the gradient of `scaled` is summed over tp: once, in backward.",
    }
    for rank, (given_loss, found) in enumerate(run.values):
        hint = "The mean over all targets, of 1 row on a rank of dp and 3 on the other; bias once."
        expect_close(given_loss, loss.item(), f"the loss on rank {rank}", hint)
        for place in (1, 0):
            for name, hint in hints.items():
                wanted = getattr(wholes[place], name).grad
                if name in ("up", "down"):
                    wanted = wanted.chunk(2, int(name == "down"))[rank % 2]
                given = found[place][Block._fields.index(name)]
                what = f"the gradient of {name} in block {place} on rank {rank}"
                if given is None:
                    raise CheckFailed(what, "None", hint)
                expect_close(given, wanted, what, hint)
    calls = [one for one in run.timeline.of(0) if one.kind == "communication"]
    along_tp = [one for one in calls if one.peers == (0, 1)]
    if len(along_tp) != 4:
        hint = "Two for each of the two blocks: one in forward and one in backward."
        raise CheckFailed("4 operations along tp", f"{len(along_tp)}", hint)
    sizes = [one.size_bytes for one in along_tp]
    if sizes != [4 * 4] * 4:
        raise CheckFailed("1 row of 4 numbers in each operation along tp", f"{sizes} bytes")
    most = 4 * 2 * (4 + 16 + 16 + 4) + 64
    if (along_dp := sum(one.size_bytes for one in calls if one.peers == (0, 2))) > most:
        hint = "Each gradient travels once along dp."
        raise CheckFailed(f"at most {most} bytes along dp", f"{along_dp}", hint)
    show(draw.timeline(run.timeline, title="A step on 2 x 2 ranks, emulated"))
    print(f"gradients_on_mesh: right, with {sum(sizes)} bytes along tp, {along_dp} along dp.")


check_gradients_on_mesh()

# %% [markdown]
# ## 4. One norm for the whole mesh
#
# Clipping needs the norm of *all* gradients as one vector. On a mesh this vector lies in pieces:
# some tensors are sharded along tp, with FSDP along dp too, other stages of a pipeline have other
# tensors, and norms' weights are whole on every rank of tp. Every number of the vector counts once:
# a shard on the rank that has it, a replica on one of the ranks that have it.
#
# <details><summary>Hint 1: where to look</summary>
#
# Take one kind of tensor after the other: those with the same `axes`. What is the sum of squares of
# all their elements, wherever they are?
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# For each kind add up the squares of this rank in float32, and all-reduce this number over each of
# the kind's axes in turn. Replicated along an axis means no sum along it. The kinds' numbers
# together are the square of the norm. All ranks must go through the kinds in the same order.
#
# </details>


# %% clip tags=["solution"]
def clip(
    tensors: list[tuple[torch.Tensor, tuple[str, ...]]],
    max_norm: float,
    groups: dict[str, dist.ProcessGroup],
) -> float:
    """Scale gradients down, in place, if their norm is above `max_norm`; return the norm before it.

    - `tensors` has pairs: this rank's part of a gradient, and the axes along which the ranks have
      *other* parts or tensors. Along all other axes the ranks have the same. Without axes, all
      ranks have the same. All ranks have the same axes at the same places of the list, in the same
      order; the shapes may differ and have any dimensions, and a part may have no elements.
    - `groups` has this rank's group along each axis of the mesh, whatever the axes are called.
    - The norm is the root of the sum of squares of all elements on the mesh, each counted once. It
      is computed in float32 whatever the gradients' types, and is a float, the same on all ranks.
    - Where it is above `max_norm`, every gradient is multiplied by `max_norm / norm`; otherwise all
      stay as they are.
    - What a rank knows of the others' parts comes over these groups, as squares or sums of squares.
      A rank gives at most 128 bytes to all operations together.

    Example: with tp of 2, where the ranks have [3.] and [0.] of a tensor that is sharded along tp,
    and both have [4.] of a replicated one, the norm is 5.
    """
    ### BEGIN SOLUTION
    total = torch.zeros(())
    for kind in sorted({axes for _, axes in tensors}):
        squares = torch.zeros(())
        for tensor, axes in tensors:
            if axes == kind:
                squares += tensor.float().square().sum()
        for axis in kind:
            dist.all_reduce(squares, group=groups[axis])
        total += squares
    norm = total.sqrt().item()
    if norm > max_norm:
        for tensor, _ in tensors:
            tensor.mul_(max_norm / norm)
    return norm
    ### END SOLUTION


# %% check_clip points=3
def clip_on_rank(dp, tp, cases):
    """The norm and the gradients of a rank of a mesh with tp innermost, for each case."""
    rank = dist.get_rank()
    by_tp = [dist.new_group(list(range(first, first + tp))) for first in range(0, dp * tp, tp)]
    by_dp = [dist.new_group(list(range(first, dp * tp, tp))) for first in range(tp)]
    own = {"dp": by_dp[rank % tp], "tp": by_tp[rank // tp]}
    found = []
    for max_norm, tensors in cases:
        mine = [(of_rank[rank].clone(), axes) for of_rank, axes in tensors]
        found.append((clip(mine, max_norm, own), [tensor for tensor, _ in mine]))
    return found


def check_clip():
    def each(*numbers, dtype=torch.float32):
        return [torch.tensor([[number]], dtype=dtype) for number in numbers]

    half = torch.bfloat16
    cases = [
        ([(each(3, 0, 3, 0), ("tp",)), (each(4, 4, 4, 4), ())], 5, "Replicas count once."),
        ([(each(1, 1, 7, 7), ("dp",)), (each(1, 5, 1, 5), ("tp",))], 76**0.5, "Each axis alone."),
        ([(each(1, 2, 4, 2), ("dp", "tp")), (each(0, 0, 0, 0), ())], 5, "Sharded on both axes."),
        ([([torch.full((1024,), 1.0625, dtype=half)] * 4, ())], 34, "Squares in float32."),
    ]
    given = [(2.0, tensors) for tensors, _, _ in cases]
    given.append((6.0, cases[0][0]))
    run = ws.run(clip_on_rank, 2, 2, given, world_size=4, **EMULATED)
    for rank, found in enumerate(run.values):
        for (tensors, norm, hint), (of_rank, clipped) in zip(cases, found, strict=False):
            what = f"the norm of {[axes for _, axes in tensors]}"
            expect_close(of_rank, norm, f"{what} on rank {rank}", hint, rtol=1e-3)
            for (before, _), after in zip(tensors, clipped, strict=True):
                wanted = before[rank] * (2.0 / norm)
                hint = "Multiply by max_norm / norm, in place."
                expect_close(after, wanted, "a clipped gradient", hint, rtol=1e-2)
        for (before, _), after in zip(cases[0][0], found[-1][1], strict=True):
            if not torch.equal(before[rank], after):
                raise CheckFailed("gradients as they were below max_norm", "others")
    most = max(sum(one.size_bytes for one in run.timeline.of(rank) if one.size_bytes)
               for rank in range(4))  # fmt: skip
    if most > 5 * 128:
        raise CheckFailed("at most 128 bytes a rank in each case", f"{most} in {len(given)} cases")
    print("clip: shards once each, replicas once, whatever the axes.")


check_clip()

# %% [markdown]
# ## 5. What a plan costs
#
# From here on there are no ranks, only arithmetic. The next cell is given: a job, a machine and a
# plan. The model is a GPT: a layer has 4 W² weights of attention and 2 W F of the MLP; embedding
# and head share one matrix of V W weights, which the first and the last stage hold both. All
# numbers but the optimizer's are in bfloat16.
#
# Ranks are a mesh with pp outermost, then dp, and tp innermost. With tp, activations are cut along
# the sequence wherever weights do not cut them (sequence parallelism), so that all of them are
# divided by tp. The optimizer's state is sharded along dp (ZeRO-1). `recompute` means that of each
# layer only the input is kept, and forward runs again before its backward.
#
# A cost model need not be exact to choose well. This one leaves out much: kernels that do not reach
# the same rate, latency, the optimizer's step. What it has is what differs between plans.


# %% costs
class Job(NamedTuple):
    """A GPT and its batch: `global_batch` sequences of `length` tokens a step."""

    num_layers: int
    width: int
    num_heads: int
    hidden_width: int
    vocab_size: int
    length: int
    global_batch: int


class Machine(NamedTuple):
    """GPUs; rates are those of one GPU, of a link in one direction."""

    num_gpus: int
    gpus_per_node: int
    flops_per_s: float  # that kernels reach
    memory_bytes: float
    node_bytes_per_s: float  # to a GPU in the same node
    network_bytes_per_s: float  # to a GPU in another node


class Plan(NamedTuple):
    """The ranks along each axis, the sequences in a micro-batch, and whether layers recompute."""

    dp: int
    tp: int
    pp: int
    micro_batch: int
    recompute: bool


def num_micro_batches(job, plan):
    """The micro-batches of a pipeline in one step."""
    return job.global_batch // (plan.dp * plan.micro_batch)


def num_parameters(job, plan):
    """The parameters of a rank of the stage that has most: the first or the last one."""
    layer = 4 * job.width**2 + 2 * job.width * job.hidden_width
    return (job.num_layers // plan.pp * layer + job.vocab_size * job.width) / plan.tp


JOB = Job(24, 2048, 16, 8192, 51200, 2048, 64)
MACHINE = Machine(32, 8, 4e14, 80e9, 4e11, 5e10)

# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# A product with n weights takes 2 n operations for a token. Attention's scores, and the sum of
# values that they weigh, take 2 · length · W operations each for a token.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Backward takes twice the operations of forward, so a layer takes 3 times its forward, and 4 times
# with recomputation. The head is not recomputed.
#
# </details>


# %% work_s tags=["solution"]
def work_s(job: Job, machine: Machine, plan: Plan) -> float:
    """The seconds for which a rank of the last stage computes for one micro-batch.

    - It has num_layers / pp layers and the head; all of their operations are divided by tp.
    - Forward takes 2 (4 W² + 2 W F) + 4 · length · W operations for a token in a layer, and 2 V W
      in the head. Backward takes twice that. With recomputation layers run forward twice, the head
      once.
    - All operations run at `machine.flops_per_s`.

    Example: for JOB on MACHINE with Plan(8, 2, 2, 1, False) it is 0.01243 s.
    """
    ### BEGIN SOLUTION
    weights = 4 * job.width**2 + 2 * job.width * job.hidden_width
    layer = 2 * weights + 4 * job.length * job.width
    passes = 4 if plan.recompute else 3
    head = 2 * job.vocab_size * job.width
    flops = passes * job.num_layers // plan.pp * layer + 3 * head
    return plan.micro_batch * job.length * flops / plan.tp / machine.flops_per_s
    ### END SOLUTION


# %% check_work_s points=1
def check_work_s():
    for plan, wanted, hint in (
        (Plan(8, 2, 2, 1, False), WORK[0], "Layers and head, three times their forward, over tp."),
        (Plan(4, 2, 4, 4, False), WORK[1], "In proportion to the micro-batch; fewer layers."),
        (Plan(8, 4, 1, 2, True), WORK[2], "Layers four times, the head three times."),
    ):
        expect_close(work_s(JOB, MACHINE, plan), wanted, f"work_s of {plan}", hint, 1e-3, 1e-9)
    print(f"work_s: {1e3 * WORK[0]:.2f} ms for a micro-batch of one sequence.")


WORK = (0.012434, 0.028089, 0.030473)  # computed by hand
check_work_s()

# %% [markdown]
# ## 6. Communication that nothing hides
#
# Along **tp** a layer waits for its sums: nothing is hidden. Along **pp** a stage waits for the
# activations of the stage before and the gradients of the stage behind. Along **dp** gradients are
# summed while backward still runs, so most of it is hidden, if backward is long enough. But the
# gradients of the stage's first layer are ready only when backward is over: their share is never
# hidden.
#
# <details><summary>Hint 1: where to look</summary>
#
# Which link does an axis use? The one between the ranks of its group that are furthest apart. With
# tp innermost, a group of tp spans tp ranks, and one of dp spans tp · dp.
#
# </details>
# <details><summary>Hint 2: how many all-reduces</summary>
#
# Along tp a layer has two halves, attention and MLP: an all-reduce each in forward, and one each in
# backward. Recomputation runs forward once more.
#
# </details>


# %% communication tags=["solution"]
def tp_s(job: Job, machine: Machine, plan: Plan) -> float:
    """The seconds of one micro-batch's all-reduces along tp on a stage; 0 if tp is 1.

    - Each of the num_layers / pp layers makes two all-reduces in forward, two in backward, and two
      more with recomputation, each of micro_batch · length · width numbers of 2 bytes.
    - An all-reduce of S bytes over n ranks takes 2 (n - 1)/n S / rate seconds, with the node's
      rate if tp is at most gpus_per_node, otherwise the network's.

    Example: for JOB on MACHINE with Plan(8, 2, 2, 1, False) it is 0.001007 s.
    """
    ### BEGIN SOLUTION
    rate = machine.node_bytes_per_s
    if plan.tp > machine.gpus_per_node:
        rate = machine.network_bytes_per_s
    size_bytes = 2 * plan.micro_batch * job.length * job.width
    num = job.num_layers // plan.pp * (6 if plan.recompute else 4)
    return num * 2 * (plan.tp - 1) / plan.tp * size_bytes / rate
    ### END SOLUTION


def pp_s(job: Job, machine: Machine, plan: Plan) -> float:
    """The seconds for which a stage waits for one micro-batch's messages; 0 if pp is 1.

    - It receives one activation and one gradient, each of micro_batch · length · width numbers of 2
      bytes, of which every rank of tp receives its part, 1/tp.
    - They come over the network, unless all GPUs are in one node.

    Example: for JOB on MACHINE with Plan(8, 2, 2, 1, False) it is 0.0001678 s.
    """
    ### BEGIN SOLUTION
    if plan.pp == 1:
        return 0.0
    rate = machine.network_bytes_per_s
    if machine.num_gpus <= machine.gpus_per_node:
        rate = machine.node_bytes_per_s
    return 2 * 2 * plan.micro_batch * job.length * job.width / plan.tp / rate
    ### END SOLUTION


def dp_s(job: Job, machine: Machine, plan: Plan) -> float:
    """The seconds of the gradients' all-reduce that a step waits for; 0 if dp is 1.

    - The all-reduce has `num_parameters(job, plan)` numbers of 2 bytes, S bytes together. Over n =
      dp ranks it takes 2 (n - 1)/n S / rate seconds, with the node's rate if tp · dp is at most
      gpus_per_node, otherwise the network's.
    - It runs beside the backward pass of the last micro-batch, which takes 2/3 of `work_s`, or 3/4
      of it with recomputation. What is longer than that is exposed.
    - At least the share of one layer is exposed: the seconds of the all-reduce divided by the
      num_layers / pp layers of the stage.

    Example: for JOB on MACHINE with Plan(8, 2, 2, 1, False) it is 0.01652 s.
    """
    ### BEGIN SOLUTION
    rate = machine.node_bytes_per_s
    if plan.tp * plan.dp > machine.gpus_per_node:
        rate = machine.network_bytes_per_s
    total_s = 2 * (plan.dp - 1) / plan.dp * 2 * num_parameters(job, plan) / rate
    backward_s = (3 / 4 if plan.recompute else 2 / 3) * work_s(job, machine, plan)
    return max(total_s - backward_s, total_s / (job.num_layers // plan.pp))
    ### END SOLUTION


# %% check_communication points=3
def check_communication():
    one_node = MACHINE._replace(num_gpus=8)
    machines = {"32": MACHINE, "nodes of 4": MACHINE._replace(gpus_per_node=4), "8": one_node}
    with patch.dict(globals(), work_s=lambda job, machine, plan: 0.009):  # dp_s needs no other part
        for function, machine, plan, wanted, hint in COMMUNICATION:
            given = globals()[function](JOB, machines[machine], plan)
            what = f"{function} of {plan} on {machine} GPUs".replace("of 4 GPUs", "of 4")
            expect_close(given, wanted, what, hint, 1e-3, 1e-9)
    print("tp_s, pp_s, dp_s: each on its link, and what backward hides is not counted.")


COMMUNICATION = [
    ("tp_s", "32", Plan(16, 1, 2, 1, False), 0.0, "One rank sends nothing."),
    (
        "tp_s",
        "32",
        Plan(4, 4, 2, 1, False),
        1.50995e-3,
        "4 a layer, 2 (n - 1)/n of the bytes each.",
    ),
    ("tp_s", "32", Plan(4, 8, 1, 2, True), 1.05696e-2, "With recomputation there are 6 a layer."),
    ("tp_s", "nodes of 4", Plan(4, 8, 1, 1, False), 2.81857e-2, "tp 8 leaves a node of 4."),
    ("pp_s", "32", Plan(16, 2, 1, 1, False), 0.0, "One stage sends nothing."),
    ("pp_s", "32", Plan(8, 2, 2, 1, False), 1.67772e-4, "Two messages, cut by tp, by network."),
    ("pp_s", "8", Plan(1, 2, 4, 2, False), 4.1943e-5, "All GPUs are in one node."),
    ("dp_s", "32", Plan(1, 8, 4, 1, False), 0.0, "One rank sends nothing."),
    ("dp_s", "32", Plan(8, 2, 2, 1, False), 1.88093e-2, "2/3 of work_s hide some of it."),
    ("dp_s", "32", Plan(8, 2, 2, 1, True), 1.80593e-2, "With recomputation 3/4 of work_s do."),
    ("dp_s", "32", Plan(4, 2, 4, 1, False), 2.5428e-4, "At least the share of a layer."),
    ("dp_s", "nodes of 4", Plan(4, 2, 4, 1, False), 6.20542e-3, "tp and dp together leave a node."),
]
check_communication()

# %% [markdown]
# ## 7. A step
#
# Work, sums along tp and messages follow each other in every micro-batch on every stage. A pipeline
# of pp stages that are all as slow as the slowest one takes as long as m + pp - 1 micro-batches (m
# of them, and pp - 1 until the last stage begins). The exposed rest of dp comes once.
#
# <details><summary>Hint: where to look</summary>
#
# In week 9, a schedule took (m + p - 1)(f + b). Here f + b also has communication in it.
#
# </details>


# %% step_time tags=["solution"]
def step_s(job: Job, machine: Machine, plan: Plan) -> float:
    """The seconds of a step: (m + pp - 1)(work_s + tp_s + pp_s) + dp_s, for m micro-batches.

    It calls `num_micro_batches`, `work_s`, `tp_s`, `pp_s` and `dp_s`.
    """
    ### BEGIN SOLUTION
    num = num_micro_batches(job, plan) + plan.pp - 1
    each_s = sum(part(job, machine, plan) for part in (work_s, tp_s, pp_s))
    return num * each_s + dp_s(job, machine, plan)
    ### END SOLUTION


def bubble_fraction(job: Job, plan: Plan) -> float:
    """The share of a pipeline's time in which a rank is idle, (pp - 1)/(m + pp - 1).

    Example: with 4 stages and 8 micro-batches it is 3/11.
    """
    ### BEGIN SOLUTION
    return (plan.pp - 1) / (num_micro_batches(job, plan) + plan.pp - 1)
    ### END SOLUTION


# %% check_step_time points=1
def check_step_time():
    def always(time_s):
        return lambda job, machine, plan: time_s

    times_s = {"work_s": 0.01, "tp_s": 0.002, "pp_s": 0.0005, "dp_s": 0.3}
    parts = {name: always(time_s) for name, time_s in times_s.items()}
    for plan, num in ((Plan(2, 4, 4, 4, False), 8), (Plan(8, 4, 1, 2, True), 4)):
        with patch.dict(globals(), parts):
            wanted = (num + plan.pp - 1) * 0.0125 + 0.3
            hint = "Fill and drain cost pp - 1 micro-batches, with their communication."
            expect_close(step_s(JOB, MACHINE, plan), wanted, f"step_s of {plan}", hint, 1e-6)
        wanted = (plan.pp - 1) / (num + plan.pp - 1)
        hint = "Idle over *all* time, not over the time of the work."
        expect_close(bubble_fraction(JOB, plan), wanted, f"the bubble of {plan}", hint, 1e-6)
    print("step_s: a pipeline of micro-batches, and the end of the gradients' sum.")


check_step_time()

# %% [markdown]
# ## 8. Does it fit?
#
# A parameter takes 2 bytes as a weight, 2 as a gradient and 12 in the optimizer's state, which dp
# shards. A layer keeps 34 bytes for each token and each number of its width, all divided by tp
# (Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, section
# 4, without the scores of attention, which a fused kernel does not keep). With recomputation it is
# the layer's input only, 2 bytes; and one layer at a time has all 34 again.
#
# <details><summary>Hint: where to look</summary>
#
# The first stage is the one that holds most: with 1F1B it has min(m, pp) micro-batches in flight.
#
# </details>


# %% rank_bytes tags=["solution"]
def rank_bytes(job: Job, plan: Plan) -> float:
    """The bytes that a rank of the first stage holds.

    - Of each of its `num_parameters(job, plan)`: 2 bytes of weight, 2 of gradient, 12 / dp of
      optimizer state.
    - Activations of min(m, pp) micro-batches, for m micro-batches in a step. One micro-batch takes
      34 · micro_batch · length · width / tp bytes in each of the num_layers / pp layers.
    - With recomputation one micro-batch takes 2 · micro_batch · length · width / tp bytes in each
      layer, and the rank holds once, not once a layer, 34 · micro_batch · length · width / tp more.

    Example: for JOB with Plan(8, 2, 2, 1, False) it is 3,660,578,816.
    """
    ### BEGIN SOLUTION
    states = (2 + 2 + 12 / plan.dp) * num_parameters(job, plan)
    numbers = plan.micro_batch * job.length * job.width / plan.tp
    in_flight = min(num_micro_batches(job, plan), plan.pp)
    layers = in_flight * job.num_layers // plan.pp
    return states + numbers * (2 * layers + 34 if plan.recompute else 34 * layers)
    ### END SOLUTION


# %% check_rank_bytes points=2
def check_rank_bytes():
    for plan, wanted, hint in HELD:
        given = rank_bytes(JOB, plan)
        expect_close(given / 1e9, wanted, f"the gigabytes of {plan}", hint, 1e-4, 1e-6)
    print(f"rank_bytes: {HELD[2][1]:.2f} GB on 32 GPUs, {HELD[3][1]:.2f} with recomputation.")


HELD = [
    (Plan(1, 1, 1, 1, False), 24.427626, "With one stage one micro-batch is in flight."),
    (Plan(1, 8, 4, 2, False), 1.669333, "tp divides weights and activations alike."),
    (Plan(8, 2, 2, 1, False), 3.660579, "dp shards the optimizer's state, 12 bytes of the 16."),
    (Plan(8, 2, 2, 1, True), 2.121269, "2 bytes a layer for each in flight, and once 34."),
    (Plan(4, 1, 8, 16, False), 8.636072, "There is one micro-batch only: m is less than pp."),
    (Plan(4, 1, 8, 16, True), 4.475322, "There is one micro-batch only: m is less than pp."),
]
check_rank_bytes()

# %% [markdown]
# ## 9. The best plan
#
# What is left is a search. There are at most some thousand plans, so try all of them.
#
# <details><summary>Hint 1: where to look</summary>
#
# Loop over the sizes of tp and pp that divide the number of GPUs; dp follows. Then over
# micro-batches and recomputation.
#
# </details>
# <details><summary>Hint 2: what is not legal</summary>
#
# Each stage has the same number of layers, each rank of tp the same number of heads, each rank of
# dp the same number of micro-batches.
#
# </details>


# %% choose tags=["solution"]
def choose(job: Job, machine: Machine) -> Plan | None:
    """The plan with the least `step_s` of all legal plans that fit; None if none fits.

    - Legal: dp · tp · pp is `machine.num_gpus`; tp divides `num_heads` and `hidden_width`; pp
      divides `num_layers`; dp · micro_batch divides `global_batch`. tp may be larger than a node,
      and recompute may be True or False.
    - It fits if `rank_bytes(job, plan)` is at most `machine.memory_bytes`.
    - It calls your `step_s` and `rank_bytes`, in whose place the checks put the judge's. Points are
      in proportion to how near the plan is to the best one: all for the best, none for one that
      takes 25% longer, is not legal, or does not fit, on average over several jobs. There are none
      at all unless a further job, which is drawn, gets a legal plan in less than three times the
      seconds of the best one.
    - It takes at most 2 seconds of computing time, starts no other process, and does not take
      `ws.plan` without a cost, which has one of its own.
    """
    ### BEGIN SOLUTION
    found = []
    for tp, pp in itertools.product(range(1, machine.num_gpus + 1), repeat=2):
        dp = machine.num_gpus // (tp * pp)
        if dp * tp * pp != machine.num_gpus or job.num_layers % pp:
            continue
        if job.num_heads % tp or job.hidden_width % tp or job.global_batch % dp:
            continue
        for micro_batch in range(1, job.global_batch // dp + 1):
            if job.global_batch // dp % micro_batch == 0:
                found += [Plan(dp, tp, pp, micro_batch, recompute) for recompute in (False, True)]
    fitting = [plan for plan in found if rank_bytes(job, plan) <= machine.memory_bytes]
    return min(fitting, key=lambda plan: step_s(job, machine, plan), default=None)
    ### END SOLUTION


# %% check_choose points=3
def check_choose():
    def given_held_bytes(job, plan):
        kept = 1 if plan.recompute else 4
        return 1e9 * kept * plan.micro_batch * job.num_layers / (plan.tp * plan.pp)

    def given_step_s(job, machine, plan):
        num = num_micro_batches(job, plan) + 2 * plan.pp - 2
        one = plan.micro_batch**0.9 * (1 + 0.1 * plan.tp + plan.recompute / 3) / plan.tp
        return num * one / plan.pp

    for num_gpus, num_layers, num_heads, batch, memory, wanted, hint in CHOICES:
        job = JOB._replace(num_layers=num_layers, num_heads=num_heads, global_batch=batch)
        machine = MACHINE._replace(num_gpus=num_gpus, memory_bytes=memory * 1e9)
        with patch.dict(globals(), step_s=given_step_s, rank_bytes=given_held_bytes):
            plan = choose(job, machine)
        if plan != (wanted and Plan(*wanted)):
            of = f"for {num_layers} layers, {num_heads} heads, {num_gpus} GPUs of {memory} GB"
            of += f", {batch} sequences a step"
            raise CheckFailed(f"{wanted} {of}", f"{plan}", hint)
    print("choose: the best of all legal plans that fit.")


CHOICES = [
    (32, 24, 16, 64, 80, (16, 2, 1, 1, False), "Try all sizes; drop what does not fit."),
    (32, 24, 16, 64, 5, (1, 4, 8, 1, False), "Drop what does not fit before you take the best."),
    (24, 24, 20, 64, 20, (4, 2, 3, 1, False), "20 heads are not cut into 3; but 24 layers are."),
    (64, 22, 12, 64, 3, (8, 4, 2, 1, True), "22 layers are not cut into 8; try to recompute."),
    (32, 24, 16, 96, 800, (32, 1, 1, 3, False), "Micro-batches of several sequences: 2, 3, 4 ..."),
    (32, 24, 16, 64, 0.01, None, "None where nothing fits."),
]
check_choose()

# %% [markdown]
# ## 10. Open-ended: steps that others have published
#
# How good is such a model, if the truth is a run that somebody did measure? The next cell shows the
# published runs that the course has for lessons: Megatron-LM, BLOOM, MosaicML and others, from 4 to
# 1,920 GPUs. The checks have others, of the same sources. Sizes and plan are given, the seconds are
# not. One run of the same source is given with its seconds, the **anchor**: it shows how fast the
# source's software and machines are, which no formula knows.
#
# The simplest guess is that every GPU reaches the same share of its peak in the run as in the
# anchor. It is a *one-constant guess*, and not a bad one: on the runs that the checks have it is
# 14.7% off on average, and 68% on one where communication decides. The judge's own model is 9.0%
# off, with constants chosen on other runs. No formula of this kind is right to 5% on every source.
#
# <details><summary>Hint 1: a ratio of two predictions</summary>
#
# Write `model_s(run)`, and return `model_s(run) / model_s(anchor) * anchor.step_s`. What is wrong
# by one factor in both then cancels.
#
# </details>
# <details><summary>Hint 2: what matters beside the operations</summary>
#
# In this order: ZeRO-3 gathers all weights twice in each micro-batch, and scatters gradients; over
# the network this can take longer than the compute. Kernels that wait for memory: all activations
# are written and read, the scores of attention without flash most of all. Flash attention reaches
# far less of the peak than a matrix product. All-reduces along tp, 4 to 6 a layer. The bubble,
# (pp - 1)/num_chunks micro-batches long. The head.
#
# </details>
# <details><summary>Hint 3: constants</summary>
#
# The share of the peak, of NVLink, of the network and of the memory's rate that real programs reach
# are between a third and nine tenths. Choose them on the lessons' runs, leaving out one at a time.
#
# </details>


# %% published
PEAK_FLOPS_PER_S = {"A100": 312e12, "H100": 989e12}
MEMORY_BYTES_PER_S = {"A100": 2.0e12, "H100": 3.35e12}
NVLINK_BYTES_PER_S = {"A100": 300e9, "H100": 450e9}  # of a GPU, in one direction
NETWORK_BYTES_PER_S = {"A100": 25e9, "H100": 50e9}  # the same, with a NIC for each GPU


def flops_of(run):
    """Operations of a step on each GPU, with what is computed again; of a causal flash half."""
    attention = 4 * run.length * run.width / (2 if run.has_flash else 1)
    weights = 4 * run.width**2 + 2 * run.width * run.hidden_width
    layer = (4 if run.recompute == "full" else 3) * (2 * weights + attention)
    layer += attention if run.recompute == "selective" else 0
    head = 3 * 2 * run.width * run.vocab_size
    return run.global_batch * run.length * (run.num_layers * layer + head) / run.num_gpus


def one_constant_s(run, anchor):
    """The seconds of a run whose GPUs reach the same share of their peak as the anchor's."""
    peaks = [PEAK_FLOPS_PER_S[one.gpu[:4]] for one in (run, anchor)]
    return flops_of(run) / flops_of(anchor) * peaks[1] / peaks[0] * anchor.step_s


def anchor_of(run, among):
    """The run of the same source and kind of GPU that is most like this one; None without one."""

    def unlike(other):
        kinds = ((one.zero_stage == 3, one.recompute, one.precision) for one in (run, other))
        one, another = kinds
        differs = [mine != theirs for mine, theirs in zip(one, another, strict=True)]
        return [*differs, abs(math.log(other.width / run.width))]

    def source(one):
        return one.source.partition(" (")[0], one.gpu[:4]

    others = [one for one in among if source(one) == source(run) and one.name != run.name]
    return min(others, key=unlike, default=None)


def pairs_for_lessons():
    """The lessons' runs that have an anchor, with their anchors."""
    runs = published_runs.rows()
    found = [(run, anchor_of(run, runs)) for run in runs]
    return [(run, anchor) for run, anchor in found if anchor]


def mean_error(predict_s, pairs):
    """The mean error of predictions as a fraction; more than a half counts as a half."""
    errors = [abs(predict_s(run, anchor) / run.step_s - 1) for run, anchor in pairs]
    return sum(min(0.5, error) for error in errors) / len(errors)


# %% predict tags=["solution"]
def predict(run: published_runs.PublishedRun, anchor: published_runs.PublishedRun) -> float:
    """The seconds of a step of a published run.

    - `run` has the sizes and the plan; its `step_s` is nan, and its name, source, model and notes
      are empty. `anchor` is another run of the same source and kind of GPU, with its `step_s`.
      `gpu` begins with "A100" or "H100", with 8 in a node, and a NIC for each as far as is known.
    - One point: the prediction follows from the run. With the same anchor, twice the batch takes
      1.4 to 2.1 times as long, twice the layers 1.5 to 2.2 times, twice the replicas with twice the
      batch 0.9 to 1.5 times; no recomputation in place of full takes 0.6 to 0.97 times as long, and
      H100s in place of A100s 0.2 to 0.85 times.
    - Two points: the mean error over published runs that the course does not show, each error
      counted as 50% at most. None for the one-constant guess, all for the judge's own model and
      one percentage point more, in proportion between them. A run with m micro-batches in each
      replica counts as 50% off unless one more of them makes its step longer by a fraction between
      0.4/(m + pp) and 1.3/m.

    Example: for MPT-3b on 8 A100s (`mpt_170`), from the anchor MPT-350m (`mpt_196`), the published
    step is 8.14 s, the one-constant guess 13.31 s, and the judge's own model says 8.11 s.
    """

    ### BEGIN SOLUTION
    def model_s(one):
        gpu = one.gpu[:4]
        nvlink, network = 0.35 * NVLINK_BYTES_PER_S[gpu], 0.7 * NETWORK_BYTES_PER_S[gpu]
        rate, memory = 0.5 * PEAK_FLOPS_PER_S[gpu], 0.58 * MEMORY_BYTES_PER_S[gpu]
        tokens = one.micro_batch * one.length
        num = one.global_batch / (one.dp * one.micro_batch)
        passes, sums = (4, 6) if one.recompute == "full" else (3, 4)
        weights = 4 * one.width**2 + 2 * one.width * one.hidden_width
        attention = 4 * one.length * one.width * (1.3 if one.has_flash else 1)  # it runs slower
        flops = passes * (2 * weights + attention)
        flops += attention if one.recompute == "selective" else 0
        cut = one.tp if one.is_sequence_split else 1 + 0.7 * (one.tp - 1)
        moved = 34 * tokens * one.width / cut
        if not one.has_flash:
            moved += 10 * one.num_heads / one.tp * one.length * tokens
        summed = 4 * (one.tp - 1) / one.tp * tokens * one.width
        link = nvlink if one.tp <= 8 else network
        layer_s = tokens * flops / one.tp / rate + passes * moved / memory + sums * summed / link
        stage_s = one.num_layers / one.pp * layer_s
        if one.pp > 1:
            stage_s += 4 * one.num_chunks * tokens * one.width / one.tp / network
        head_s = 6 * tokens * one.width * one.vocab_size / one.tp / rate
        total_s = stage_s * (num + (one.pp - 1) / one.num_chunks) + head_s * num
        parameters = (one.num_layers * weights / one.pp + one.vocab_size * one.width) / one.tp
        link = nvlink if one.tp * one.dp <= 8 else network
        sent_s = parameters * (one.dp - 1) / one.dp / link  # of one byte for each parameter
        if one.zero_stage == 3:
            total_s = max(total_s, 6 * num * sent_s) + 0.1 * min(total_s, 6 * num * sent_s)
        else:
            total_s += 0.1 * 8 * sent_s
        return total_s + 28 * parameters / (one.dp if one.zero_stage else 1) / memory

    return model_s(run) / model_s(anchor) * anchor.step_s
    ### END SOLUTION


# %% check_predict points=3
def changes_of(run):
    """Changes of a run, with the least and the most by which its seconds grow."""
    num = run.global_batch // (run.dp * run.micro_batch)
    batch, layers, dp = 2 * run.global_batch, 2 * run.num_layers, 2 * run.dp
    yield {"global_batch": batch}, 1.4, 2.1, "twice the batch"
    yield {"num_layers": layers}, 1.5, 2.2, "twice the layers"
    one_more = {"global_batch": run.global_batch + run.dp * run.micro_batch}
    least, most = 1 + 0.4 / (num + run.pp), 1 + 1.3 / num
    yield one_more, least, most, f"{num + 1} in place of {num} micro-batches"
    if run.recompute == "full":
        more = {"global_batch": batch, "dp": dp, "num_gpus": 2 * run.num_gpus}
        yield more, 0.9, 1.5, "twice the replicas and twice the batch"
        yield {"recompute": "none"}, 0.6, 0.97, "no recomputation"
        yield {"gpu": "H100-SXM5-80GB"}, 0.2, 0.85, "H100s in place of A100s"


def check_predict():
    from worldsize import draw

    rows = []
    pairs = pairs_for_lessons()
    hidden = {"step_s": math.nan, "name": "", "source": "", "model": "", "notes": ""}

    def mine(run, anchor):
        given = predict(replace(run, **hidden), anchor)
        if not 0 < given < math.inf:
            raise CheckFailed(f"seconds of {run.model}", f"{given}")
        return given

    for run, anchor in pairs:
        for change, low, high, what in changes_of(run):
            ratio = mine(replace(run, **change), anchor) / mine(run, anchor)
            if not low < ratio < high:
                hint = "Compute the seconds from the run's sizes; a table knows no other runs."
                expected = f"{low:.3g} to {high:.3g} times the seconds of {run.model} with {what}"
                raise CheckFailed(expected, f"{ratio:.4g}", hint)
        rows.append({
            "run": f"{run.model}, {run.num_gpus} {run.gpu[:4]}, tp {run.tp}, pp {run.pp}",
            "published_s": run.step_s,
            "one_constant_s": one_constant_s(run, anchor),
            "yours_s": mine(run, anchor),
            "off_fraction": mine(run, anchor) / run.step_s - 1,
        })  # fmt: skip
    show(draw.table(rows, title="Published steps beside two predictions from one anchor a source"))
    errors = [mean_error(one, pairs) for one in (mine, one_constant_s)]
    if errors[0] >= errors[1]:
        hint = "Divide two predictions of the same model, and add what communication takes."
        expected = f"less than the one-constant guess's {errors[1]:.1%}"
        raise CheckFailed(expected, f"{errors[0]:.1%}", hint)
    print(f"predict: {errors[0]:.1%} off on average, the one-constant guess {errors[1]:.1%}.")


check_predict()

# %% [markdown]
# ## 11. In words
#
# Answer in at most 250 words, with numbers:
#
# 1. On a mesh of dp 4 x cp 2, the two ranks of cp have one half each of every sequence, with as
#    many targets. Gradients are averaged over all 8 ranks. A colleague multiplies the loss of each
#    rank by 2, the size of cp. When is she right, and when are the gradients twice too large? Say
#    what each rank's loss is divided by.
# 2. Llama 3's 405B was trained with 2,048 sequences a step, tp 8, pp 16 and one sequence in a
#    micro-batch, on 8,192 and on 16,384 GPUs (Table 4, without cp). How many micro-batches does a
#    pipeline have in each, and what is the bubble of plain 1F1B? How much faster is the step at
#    best with twice the GPUs? Name two ways out.
# 3. With tp 8, the squares of the sharded gradients sum up to 9 and those of the replicated ones
#    to 1. What is the norm, and what norm comes out if replicas count on every rank? By how much
#    are the gradients too small after clipping to 1, and why may no loss curve show it?

# %% in_words [markdown] points=3 tags=["solution"]
# **Answer.**
#
# 1. She is right if each rank divides the sum over its half by the number of targets of the *whole*
#    sequences. Then the two halves have to be added up, and the average over 8 divides by 2 once
#    too often: the factor 2 undoes this. If each rank divides by its own number of targets, the
#    loss is a mean already, the average over 8 ranks is right, and her gradients are twice too
#    large. They are, too, if gradients are summed over cp and averaged over dp only.
# 2. dp is 64 and 128, so a pipeline has 32 and 16 micro-batches. The bubble is 15/47 = 32% and
#    15/31 = 48%. Steps are as 47 to 31 micro-batches: 1.52 times as fast, not twice. Ways out: an
#    interleaved schedule, which divides the bubble's time by the number of chunks; more sequences a
#    step; fewer stages, if they fit; cp instead of more dp.
# 3. The norm is the root of 10, 3.16; with replicas on 8 ranks it is the root of 17, 4.12. After
#    clipping, gradients are 3.16/4.12 = 0.77 of what they should be, 23% too small. AdamW divides
#    by the size of the gradients, so that a factor hardly shows in the loss. The printed norms of
#    two plans show it at once.
#
# **Rubric**, one point each:
#
# - Divided by the targets of whole sequences: right. Divided by the rank's own: twice too large.
#   Half with one of the two.
# - 32 and 16, 32% and 48%, about 1.5, and two ways out. Half with one slip.
# - 3.16 and 4.12, 23%, and AdamW does not mind a factor. Half with one slip.

# %% [markdown]
# ## What you have built
#
# The next cell lets your functions choose plans for a GPT of 175 billion parameters on more and
# more GPUs: 1,536 sequences of 2,048 tokens a step, on nodes of 8 that reach half of an A100's
# peak.


# %% all_plans
def chosen_plans():
    from worldsize import draw

    job, rows = Job(96, 12288, 96, 49152, 51200, 2048, 1536), []
    for num_gpus in (128, 256, 512, 1024):
        machine = Machine(num_gpus, 8, 156e12, 80e9, 2.4e11, 2.5e10)
        plan = choose(job, machine)
        if plan is None:
            raise CheckFailed(f"a plan for {num_gpus} GPUs", "None")
        rows.append({
            "GPUs": num_gpus,
            "tp": plan.tp,
            "pp": plan.pp,
            "dp": plan.dp,
            "micro-batch": plan.micro_batch,
            "recompute": plan.recompute,
            "held_bytes": rank_bytes(job, plan),
            "bubble_fraction": bubble_fraction(job, plan),
            "step_s": step_s(job, machine, plan),
        })  # fmt: skip
    return draw.table(rows, title="The plans that your model chooses for 175 billion parameters")


show(chosen_plans())
