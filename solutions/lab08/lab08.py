# %% [markdown]
# # Lab 8. A tensor-parallel transformer block by hand
#
# Sharded data parallelism gathers a layer before it computes it: the whole layer must fit, and so
# must its activations. **Tensor parallelism** never puts a layer together. Each rank has some of
# its columns or rows, some of its heads, some of the vocabulary, and what travels is activations.
# In this lab you write it for one block of Llama's shape, then **sequence parallelism**, which cuts
# what tensor parallelism leaves whole, and a loss that never has all logits in one place.
#
# ```text
#                  tensor parallelism              with sequence parallelism
# norm             all T tokens on every rank      T/N tokens on each rank
# enter            forward: nothing                forward: all-gather of tokens
#                  backward: all-reduce            backward: reduce-scatter of tokens
# attention, MLP   1/N of the heads, 1/N of the hidden width, all T tokens
# leave            forward: all-reduce             forward: reduce-scatter of tokens
#                  backward: nothing               backward: all-gather of tokens
# bias, residual   all T tokens on every rank      T/N tokens on each rank
# ```
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `copy_to_ranks`, `reduce_from_ranks` | into and out of a parallel region | 3 | 25 min | easy |
# | `gather_tokens`, `reduce_scatter_tokens` | the same, with the tokens cut | 3 | 30 min | medium |
# | `shard_weights` | this rank's columns, rows and heads | 3 | 30 min | medium |
# | `parallel_mlp` | SwiGLU on 1/N of the hidden width | 2 | 15 min | easy |
# | `parallel_attention` | attention on 1/N of the heads | 3 | 25 min | medium |
# | `parallel_block` | norms, residuals and both halves, in both modes | 7 | 40 min | medium |
# | `sync_replicated` | the gradients of weights that every rank has | 3 | 25 min | medium |
# | `vocabulary_loss` | cross-entropy where each rank has 1/N of the logits | 5 | 60 min | hard |
# | `what_it_costs` | questions that you answer in words | 4 | 40 min | medium |
#
# Work in this order. Each part has a check below it and folded hints above it: the first hint says
# where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The checks
# run your code on emulated ranks. They compare **what each rank sends** with the partial sums and
# tokens that it must send, and **what each rank holds** with what Linux says of its processes. Each
# function is graded with correct versions of the others, so that a mistake costs points only once.
# Where a function sends more than its contract says, such as weights or logits, what else it does
# right earns half the points. A result that ranks did not make of what was sent earns nothing.
#
# Of the operations of `torch.distributed`, all-reduce, all-gather and reduce-scatter are allowed,
# in all their forms. In the conjugate pair a reduce-scatter and an all-gather of the same tensor
# are as good as an all-reduce: they are the same bytes. `torch.distributed.tensor` (and so
# `parallelize_module` and `loss_parallel`) is refused, and so are torch's functional collectives,
# which bring their own backward. The same inputs must give the same bits in every run, so use no
# clock, no threads and no unseeded generator.

# %% setup
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional as F

import worldsize as ws
from worldsize.check import CheckFailed, expect_close
from worldsize.models import transformer

OPERATIONS = {"all_reduce", "all_gather", "reduce_scatter"}
EMULATED = {"cluster": "dgx-h100", "compute": "none", "echo": False, "allow": OPERATIONS}


def show(picture):
    from IPython.display import display  # here and not above: the ranks need neither

    display(picture)


def calls_of(run):
    """The operations of rank 0, in their order."""
    return [event for event in run.timeline.of(0) if event.kind == "communication"]


ws.run(
    dist.get_rank, world_size=2, **EMULATED
)  # the first run loads torch: the checks are then quick

# %% [markdown]
# The next cell is given: the weights of a block, the norm, and attention for some heads. Shapes: B
# sequences, T tokens, W width, D numbers a head, H query heads and K key/value heads (each of which
# serves H/K query heads), F hidden width, V vocabulary, N ranks.


# %% given
class Weights(NamedTuple):
    """The weights of a block: whole, or one rank's part, where H, K and F are its share."""

    attention_norm: torch.Tensor  # (W)
    qkv: torch.Tensor  # (H D + 2 K D, W): the rows of all queries, then of all keys, of all values
    output: torch.Tensor  # (W, H D)
    output_bias: torch.Tensor  # (W)
    mlp_norm: torch.Tensor  # (W)
    gate: torch.Tensor  # (F, W)
    up: torch.Tensor  # (F, W)
    down: torch.Tensor  # (W, F)
    down_bias: torch.Tensor  # (W)


REPLICATED = ("attention_norm", "output_bias", "mlp_norm", "down_bias")  # whole on every rank


def rms_norm(x, weight):
    """Each token divided by the root of its mean square, then scaled."""
    wide = x.float()
    scale = (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return (wide * scale * weight).type_as(x)


def attend(query, key, value, head_dim):
    """Causal attention with rotary positions: (B, T, H D), (B, T, K D) twice -> (B, T, H D)."""
    query, key, value = (one.unflatten(-1, (-1, head_dim)) for one in (query, key, value))
    angles = transformer.rotary_angles(query.shape[1], head_dim, 10_000.0, query.device)
    query, key = (transformer.rotate(one, angles.cos(), angles.sin()) for one in (query, key))
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(2)


def whole_block(x, weights, head_dim):
    """The block on one rank: what all ranks together must compute."""
    hidden = rms_norm(x, weights.attention_norm)
    query_rows = weights.output.shape[1]
    key_rows = (len(weights.qkv) - query_rows) // 2
    parts = F.linear(hidden, weights.qkv).split([query_rows, key_rows, key_rows], dim=-1)
    x = x + F.linear(attend(*parts, head_dim), weights.output, weights.output_bias)
    hidden = rms_norm(x, weights.mlp_norm)
    hidden = F.silu(F.linear(hidden, weights.gate)) * F.linear(hidden, weights.up)
    return x + F.linear(hidden, weights.down, weights.down_bias)


def random_weights(width, num_heads, num_kv_heads, head_dim, hidden_width, seed=0):
    """Weights of a whole block, drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    rows = head_dim * (num_heads + 2 * num_kv_heads)
    return Weights(
        *(1 + draw(width), draw(rows, width), draw(width, head_dim * num_heads), draw(width)),
        *(1 + draw(width), draw(hidden_width, width), draw(hidden_width, width)),
        *(draw(width, hidden_width), draw(width)),
    )


# %% [markdown]
# Two functions that several checks use: one runs a function in both directions on a rank, one
# compares half a block with the whole.


# %% for_checks
def pass_through(function, x, factors):
    """The output, two gradients of x, and whether x and the gradient handed in are unchanged."""
    x, before = x.clone().requires_grad_(), x.clone()
    y = function(x)
    handed_in = factors.clone()
    (x.grad,) = torch.autograd.grad(y, x, handed_in)
    total = function(x).sum()  # its gradient is a 1 that is seen as many
    (expanded,) = torch.autograd.grad(total, x)
    is_kept = torch.equal(x.detach(), before) and torch.equal(handed_in, factors)
    return y.detach().clone(), x.grad, expanded, is_kept


def alone(half, x, shards, *sizes):
    """A half block by all shards, one after the other in this process, as ranks would compute it.

    The result on the last rank, the sum of the gradients of x, and calls of enter and of leave.
    """
    partial_sums, calls = [], []

    def leave(y):
        calls.append("leave")
        partial_sums.append(y)
        return sum(partial_sums)

    def enter(x):
        calls.append("enter")
        return x

    x = x.clone().requires_grad_()
    for shard in shards:
        y = half(x, shard, *sizes, enter, leave)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), gradient, calls


def expect_half(half, name, x, shards, whole, *sizes):
    """Raise CheckFailed unless a half block on two ranks gives what the whole gives."""
    x_of_whole = x.clone().requires_grad_()
    wanted = whole(x_of_whole)
    (wanted_gradient,) = torch.autograd.grad(wanted.sum(), x_of_whole)
    y, gradient, calls = alone(half, x, shards, *sizes)
    if calls != ["enter", "leave"] * len(shards):
        hint = "Enter once with x, and leave once with the partial sums."
        raise CheckFailed("enter, then leave, on each rank", ", ".join(calls), hint)
    bias = shards[0].down_bias if name == "parallel_mlp" else shards[0].output_bias
    hint = "Compare with `whole_block`, line by line."
    if y.shape == wanted.shape and torch.allclose(y, wanted + bias, atol=1e-4):
        hint = "The bias comes N times into the sum: add it after `leave`."
    if y.shape == wanted.shape and torch.allclose(y, wanted - bias, atol=1e-4):
        hint = "The bias is missing: add it after `leave`."
    expect_close(y, wanted.detach(), name, hint)
    expect_close(gradient, wanted_gradient, f"the gradient of x through {name}", hint)


# %% [markdown]
# ## 1. Into a parallel region, and out of it
#
# A **column-parallel** layer has some of the outputs of a matrix: every rank puts in the same x,
# and gets outputs of its own. A **row-parallel** layer takes these up, and gives partial sums,
# which are added up over the ranks. Nothing travels between the two.
#
# ```text
#             ┌─ columns of rank 0 ─► rows of rank 0 ─ partial sum ─┐
#  x ─ copy ──┤                                                     ├─ reduce ─► y
#             └─ columns of rank 1 ─► rows of rank 1 ─ partial sum ─┘
# ```
#
# In backward the arrows turn round. Each rank gets the gradient of y whole, and has only its part
# of the gradient of x: where forward copies, backward must add up; where forward adds up, backward
# copies. Megatron-LM's authors call the two f and g, and say that they are **conjugate** (Shoeybi
# et al. 2019, section 3). Autograd does not see what `dist.all_reduce` does: write both directions.
#
# <details><summary>Hint 1: where to look</summary>
#
# A `torch.autograd.Function` with the static methods `forward(ctx, x)` and `backward(ctx,
# gradient)`; it is called by `.apply(x)`.
#
# </details>
# <details><summary>Hint 2: what must not change</summary>
#
# `dist.all_reduce` writes into the tensor that it gets, which must be contiguous. Clone it first,
# with `memory_format=torch.contiguous_format`: a gradient may be shared, or one number seen as
# many.
#
# </details>


# %% copy_and_reduce tags=["solution"]
def copy_to_ranks(x: torch.Tensor) -> torch.Tensor:
    """Enter a parallel region: x itself in forward; in backward its gradients added over the ranks.

    - Forward sends nothing. Backward is one all-reduce of the gradient, in its dtype.
    - Neither x nor the gradient that backward gets changes, and both may have any layout.

    Example: where the gradients behind it are 2 on rank 0 and 3 on rank 1, x gets 5 on both.
    """
    ### BEGIN SOLUTION
    return _CopyToRanks.apply(x)
    ### END SOLUTION


def reduce_from_ranks(x: torch.Tensor) -> torch.Tensor:
    """Leave a parallel region: the sum of x over the ranks; in backward the gradient itself.

    - Forward is one all-reduce of x, in its dtype. Backward sends nothing.
    - x does not change, and may have any layout.

    Example: 2 on rank 0 and 3 on rank 1 give 5 on both. A gradient of 7 stays 7.
    """
    ### BEGIN SOLUTION
    return _ReduceFromRanks.apply(x)


def _summed(x):
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_y):
        return _summed(grad_y)


class _ReduceFromRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _summed(x)

    @staticmethod
    def backward(ctx, grad_y):
        return grad_y

    ### END SOLUTION


# %% check_copy_and_reduce points=3
def check_copy_and_reduce():
    x = [torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([[5.0, 6], [7, 8]])]
    factors = [torch.full((2, 2), 2.0), torch.full((2, 2), 3.0)]

    def run(function, values):
        each = list(zip(values, factors, strict=True))
        ran = ws.run(pass_through, function, each=each, world_size=2, **EMULATED)
        sizes = [call.size_bytes for call in calls_of(ran)]
        return ran.values, sizes

    values, sizes = run(copy_to_ranks, [x[0], x[0]])
    for rank, (y, gradient, expanded, is_kept) in enumerate(values):
        expect_close(y, x[0], f"copy_to_ranks on rank {rank}", "Forward gives x itself.")
        hint = "In backward, add the gradients up over the ranks."
        if torch.allclose(gradient, torch.full((2, 2), 2.5)):
            hint = "That is the mean. The ranks' parts of the gradient add up: do not divide."
        expect_close(gradient, torch.full((2, 2), 5.0), "the gradient of x", hint)
        hint = "A gradient may be one number seen as many: clone it into memory of its own first."
        expect_close(expanded, torch.full((2, 2), 2.0), "the gradient of x.sum()", hint)
        if not is_kept:
            hint = "all_reduce works in place: clone what you give to it."
            raise CheckFailed("x and the gradient that came in to stay as they are", "others", hint)
    if sizes != [16, 16]:
        hint = "Forward sends nothing; backward is one all-reduce of the gradient."
        raise CheckFailed("an all-reduce of 16 bytes in each of two backwards", f"{sizes}", hint)

    values, sizes = run(reduce_from_ranks, x)
    for rank, (y, gradient, expanded, is_kept) in enumerate(values):
        hint = "The sum over the ranks."
        expect_close(y, x[0] + x[1], f"reduce_from_ranks on rank {rank}", hint)
        hint = "Each rank already has the whole gradient of the sum: hand it on as it is."
        expect_close(gradient, factors[rank], "the gradient of x", hint)
        expect_close(expanded, torch.ones(2, 2), "the gradient of x", hint)
        if not is_kept:
            hint = "all_reduce works in place: clone what you give to it."
            raise CheckFailed("x to stay as it is", "another x", hint)
    if sizes != [16, 16]:
        hint = "Forward is one all-reduce of x; backward sends nothing."
        raise CheckFailed("an all-reduce of 16 bytes in each of two forwards", f"{sizes}", hint)
    print("copy_to_ranks, reduce_from_ranks: one all-reduce each, in opposite directions.")


check_copy_and_reduce()

# %% [markdown]
# ## 2. The same, with tokens cut
#
# An all-reduce is a reduce-scatter and then an all-gather. Between the two each rank has 1/N of the
# sum. Put the norm, the bias and the residual there, and they work on T/N tokens on each rank, with
# the same bytes on the wire (Korthikanti et al. 2022, section 4.2.2). The pair is conjugate, too:
# all-gather in one direction is reduce-scatter in the other.
#
# ```text
# rank 0   tokens 0 1 ─┐ all-gather          ┌─ reduce-scatter   tokens 0 1 of the sum
#                      ├──────► 0 1 2 3 ─────┤
# rank 1   tokens 2 3 ─┘                     └──────────────►    tokens 2 3 of the sum
# ```
#
# Tokens are dimension 1, behind the sequences, but collectives join and cut dimension 0.
#
# <details><summary>Hint 1: where to look</summary>
#
# `dist.all_gather_into_tensor(output, input)` and `dist.reduce_scatter_tensor(output, input)`,
# where what belongs to a rank is (B, T/N, W), and what belongs to all is (N B, T/N, W): rank after
# rank.
#
# </details>
# <details><summary>Hint 2: moving the ranks</summary>
#
# `x.unflatten(1, (N, -1))` is (B, N, T/N, W); `.transpose(0, 1).flatten(0, 1)` brings the ranks to
# the front. The way back is `.unflatten(0, (N, -1)).transpose(0, 1).flatten(1, 2)`.
#
# </details>
# <details><summary>Hint 3: both directions</summary>
#
# Write two plain functions, one that gathers and one that reduces and scatters. Each of the two
# autograd functions has one of them as its forward and the other one as its backward.
#
# </details>


# %% gather_and_scatter tags=["solution"]
def gather_tokens(x: torch.Tensor) -> torch.Tensor:
    """Enter with cut tokens: (B, T/N, W) -> (B, T, W), the tokens of all ranks in the ranks' order.

    - Forward is one all-gather. Backward adds the gradients (B, T, W) over the ranks and gives each
      rank those of its tokens (B, T/N, W), by one reduce-scatter. Both in their own dtype.
    - Neither x nor the gradient that backward gets changes, and both may have any layout.
    """
    ### BEGIN SOLUTION
    return _GatherTokens.apply(x)
    ### END SOLUTION


def reduce_scatter_tokens(x: torch.Tensor) -> torch.Tensor:
    """Leave with cut tokens: (B, T, W) -> (B, T/N, W), this rank's tokens of the ranks' sum.

    - Forward is one reduce-scatter. Backward is one all-gather of the ranks' gradients (B, T/N, W),
      to (B, T, W). Both in their own dtype. T is a multiple of N.
    - Neither x nor the gradient that backward gets changes, and both may have any layout.
    """
    ### BEGIN SOLUTION
    return _ReduceScatterTokens.apply(x)


def _gathered(x):
    num_ranks = dist.get_world_size()
    parts = x.new_empty(num_ranks * len(x), *x.shape[1:])
    dist.all_gather_into_tensor(parts, x.contiguous())
    return parts.unflatten(0, (num_ranks, -1)).transpose(0, 1).flatten(1, 2)


def _scattered(x):
    parts = x.unflatten(1, (dist.get_world_size(), -1)).transpose(0, 1)
    own = x.new_empty(parts.shape[1:])
    dist.reduce_scatter_tensor(own, parts.flatten(0, 1))
    return own


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _gathered(x)

    @staticmethod
    def backward(ctx, grad_y):
        return _scattered(grad_y)


class _ReduceScatterTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _scattered(x)

    @staticmethod
    def backward(ctx, grad_y):
        return _gathered(grad_y)

    ### END SOLUTION


# %% check_gather_and_scatter points=3
def check_gather_and_scatter():
    whole = torch.arange(24.0).view(2, 4, 3)  # two sequences of four tokens
    halves = [whole[:, :2].clone(), whole[:, 2:].clone()]
    sums = [3 * one for one in halves]  # of the whole, and twice the whole

    def run(function, each):
        ran = ws.run(pass_through, function, each=each, world_size=2, **EMULATED)
        return ran.values, [call.name for call in calls_of(ran)], ran.timeline.bytes_sent(0)

    hint = (
        "With two sequences: the ranks must be dimension 0 of what travels, and tokens come back."
    )
    each = [(halves[0], whole), (halves[1], 2 * whole)]
    values, names, sent = run(gather_tokens, each)
    for rank, (y, gradient, expanded, is_kept) in enumerate(values):
        expect_close(y, whole, f"gather_tokens on rank {rank}", hint)
        why = hint
        if gradient.shape == halves[rank].shape and torch.allclose(
            gradient, (1 + rank) * halves[rank]
        ):
            why = "Every rank has a part of the gradient of all tokens: add up, do not just cut."
        expect_close(gradient, sums[rank], f"the gradient of x on rank {rank}", why)
        expect_close(expanded, torch.full((2, 2, 3), 2.0), "the gradient of y.sum()", why)
        if not is_kept:
            raise CheckFailed("x and the gradient to stay as they are", "others", "Copy first.")
    if names != ["all_gather", "reduce_scatter"] * 2 or sent != 4 * 48:
        actual = f"{', '.join(names)}, {sent:.0f} bytes"
        hint = "An all-gather in forward and a reduce-scatter in backward."
        raise CheckFailed("all-gather and reduce-scatter, twice, 192 bytes", actual, hint)

    each = [(whole, halves[0]), (2 * whole, halves[1])]
    values, names, sent = run(reduce_scatter_tokens, each)
    for rank, (y, gradient, expanded, is_kept) in enumerate(values):
        expect_close(y, sums[rank], f"reduce_scatter_tokens on rank {rank}", hint)
        expect_close(gradient, whole, f"the gradient of x on rank {rank}", hint)
        expect_close(expanded, torch.ones(2, 4, 3), "the gradient of y.sum()", hint)
        if not is_kept:
            raise CheckFailed("x and the gradient to stay as they are", "others", "Copy first.")
    if names != ["reduce_scatter", "all_gather"] * 2 or sent != 4 * 48:
        actual = f"{', '.join(names)}, {sent:.0f} bytes"
        hint = "A reduce-scatter in forward and an all-gather in backward."
        raise CheckFailed("reduce-scatter and all-gather, twice, 192 bytes", actual, hint)
    print("gather_tokens, reduce_scatter_tokens: the bytes of an all-reduce, in two halves.")


check_gather_and_scatter()

# %% [markdown]
# ## 3. Columns, rows and heads
#
# In torch a linear layer's weight is (outputs, inputs). A column-parallel layer has some of its
# outputs, so some *rows* of that tensor; a row-parallel one some of its inputs. The names come from
# the mathematics, where x stands on the left.
#
# Attention is cut by heads: a rank has whole heads, and with each group of H/K query heads the
# key/value head that serves them. Checkpoints often have queries, keys and values in one weight, as
# here. Cut that in N pieces, and rank 0 of 2 gets queries alone.
#
# ```text
# qkv, H = 4, K = 2     q0 q1 q2 q3 k0 k1 v0 v1        q0 and q1 use k0 and v0
# rank 0 of 2           q0 q1       k0    v0
# rank 1 of 2                 q2 q3    k1    v1
# ```
#
# <details><summary>Hint 1: where to look</summary>
#
# H D is `full.output.shape[1]`; what else `qkv` has is keys and values, half and half. `split` it
# into these three, cut each, and `torch.cat` the rank's parts.
#
# </details>
# <details><summary>Hint 2: memory of its own</summary>
#
# `tensor.chunk(world_size, dim)[rank]` is a view: as long as it lives, so does the whole weight.
# `clone` it.
#
# </details>


# %% shard_weights tags=["solution"]
def shard_weights(full: Weights, head_dim: int, rank: int, world_size: int) -> Weights:
    """What one rank has of a block's weights.

    - Rank 0 has the first 1/N, and so on: of `gate` and `up` 1/N of the outputs; of `output` and
      `down` 1/N of the inputs; of `qkv` the rows of its H/N queries, K/N keys and K/N values, in
      this order. Norms and biases are whole.
    - All have memory of their own: no larger tensor lives on in them. `full` does not change.

    Raises:
        ValueError: `world_size` does not divide the number of key/value heads, or the hidden width.

    Example: of 4 query heads and 2 key/value heads, rank 1 of 2 has q2, q3, k1 and v1.
    """
    ### BEGIN SOLUTION
    query_rows = full.output.shape[1]
    key_rows = (len(full.qkv) - query_rows) // 2
    if key_rows // head_dim % world_size or len(full.gate) % world_size:
        raise ValueError(f"{world_size} ranks do not divide the key/value heads and hidden width")

    def cut(weight, dim=0):
        return weight.chunk(world_size, dim)[rank].clone(memory_format=torch.contiguous_format)

    parts = full.qkv.split([query_rows, key_rows, key_rows])
    return Weights(
        qkv=torch.cat([cut(part) for part in parts]),
        output=cut(full.output, dim=1),
        gate=cut(full.gate),
        up=cut(full.up),
        down=cut(full.down, dim=1),
        **{name: full._asdict()[name].clone() for name in REPLICATED},
    )
    ### END SOLUTION


# %% check_shard_weights points=3
def check_shard_weights():
    # 4 query heads and 2 key/value heads of 2 numbers each: every row holds its own number
    full = random_weights(3, num_heads=4, num_kv_heads=2, head_dim=2, hidden_width=4)
    full = full._replace(qkv=torch.arange(16.0).view(16, 1).repeat(1, 3))
    heads = {2: ([0, 1, 2, 3, 8, 9, 12, 13], [4, 5, 6, 7, 10, 11, 14, 15]), 1: (list(range(16)),)}
    for num_ranks, rows in heads.items():
        for rank, wanted in enumerate(rows):
            found = shard_weights(full, 2, rank, num_ranks)
            given = found.qkv[:, 0].tolist()
            if given != wanted:
                hint = "Cut the queries, the keys and the values apart, and then each by ranks."
                expected = f"rows {wanted} of qkv on rank {rank} of {num_ranks}"
                raise CheckFailed(expected, f"{[int(one) for one in given]}", hint)
            half = slice(rank * 4 // num_ranks, (rank + 1) * 4 // num_ranks)
            columns = slice(2 * half.start, 2 * half.stop)
            hint = "A row-parallel layer has some of the inputs: dimension 1."
            expect_close(found.output, full.output[:, columns], f"output on rank {rank}", hint)
            expect_close(found.down, full.down[:, half], f"down on rank {rank}", hint)
            hint = "A column-parallel layer has some of the outputs: dimension 0."
            expect_close(found.gate, full.gate[half], f"gate on rank {rank}", hint)
            expect_close(found.up, full.up[half], f"up on rank {rank}", hint)
            for name in REPLICATED:
                hint = "Every rank has the norms and the biases whole."
                expect_close(found._asdict()[name], full._asdict()[name], name, hint)
            for name, one in found._asdict().items():
                if one.untyped_storage().nbytes() > one.nbytes or one is full._asdict()[name]:
                    hint = "A view keeps the whole weight alive: clone it."
                    raise CheckFailed(f"{name} with memory of its own", "a view", hint)
    for num_ranks in (3, 4):
        try:
            shard_weights(full, 2, 0, num_ranks)
        except ValueError:
            continue
        hint = "A rank needs whole key/value heads: check that N divides K, and F."
        raise CheckFailed(f"a ValueError for 2 key/value heads on {num_ranks} ranks", "none", hint)
    print("shard_weights: whole heads, with the keys and values that they use.")


check_shard_weights()

# %% [markdown]
# ## 4. The MLP
#
# `gate` and `up` are column-parallel, `down` is row-parallel. SiLU and the product work on each
# number by itself, so on a rank's share of F as well. How the tokens come in and how the sum goes
# out are arguments: `copy_to_ranks` and `reduce_from_ranks`, or, with cut tokens, `gather_tokens`
# and `reduce_scatter_tokens`.
#
# <details><summary>Hint 1: where to look</summary>
#
# `F.linear(x, weight)` is x times the transposed weight. Look at `whole_block`.
#
# </details>
# <details><summary>Hint 2: the bias</summary>
#
# Added to a partial sum, it would come N times into the sum. Add it after `leave`.
#
# </details>


# %% parallel_mlp tags=["solution"]
def parallel_mlp(x: torch.Tensor, shard: Weights, enter, leave) -> torch.Tensor:
    """The second half of a block, without its norm and residual, by this rank's shard.

    - x is what comes out of the norm, and the result what is added to the residual, bias included:
      (B, T, W) each, or (B, T/N, W) with cut tokens.
    - `enter` and `leave` are called once each, on x and on the partial sums (B, T, W) in x's dtype.
    """
    ### BEGIN SOLUTION
    x = enter(x)  # (B, T, W)
    hidden = F.silu(F.linear(x, shard.gate)) * F.linear(x, shard.up)  # (B, T, F/N)
    return leave(F.linear(hidden, shard.down)) + shard.down_bias
    ### END SOLUTION


# %% check_parallel_mlp points=2
def check_parallel_mlp():
    full = random_weights(6, num_heads=2, num_kv_heads=2, head_dim=2, hidden_width=8)
    shards = [
        full._replace(gate=full.gate[cut], up=full.up[cut], down=full.down[:, cut])
        for cut in (slice(0, 4), slice(4, 8))
    ]

    def whole(x):
        hidden = F.silu(F.linear(x, full.gate)) * F.linear(x, full.up)
        return F.linear(hidden, full.down, full.down_bias)

    x = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(1))
    expect_half(parallel_mlp, "parallel_mlp", x, shards, whole)
    print("parallel_mlp: two halves of the hidden width add up to the whole.")


check_parallel_mlp()

# %% [markdown]
# ## 5. Attention
#
# A rank's queries, keys and values come out of one product, next to each other. Its heads attend as
# if there were no others, and `output` is row-parallel.
#
# <details><summary>Hint 1: where to look</summary>
#
# How many numbers the queries have on this rank: `shard.output.shape[1]`. Not the width: that is
# the number for all ranks together.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Split the last dimension of `F.linear(x, shard.qkv)` into the rank's queries, keys and values, and
# hand them to `attend`.
#
# </details>


# %% parallel_attention tags=["solution"]
def parallel_attention(
    x: torch.Tensor, shard: Weights, head_dim: int, enter, leave
) -> torch.Tensor:
    """The first half of a block, without its norm and residual, by this rank's heads.

    - x is what comes out of the norm, and the result what is added to the residual, bias included:
      (B, T, W) each, or (B, T/N, W) with cut tokens.
    - `enter` and `leave` are called once each, on x and on the partial sums (B, T, W) in x's dtype.
    - A rank may have any number of query heads for each of its key/value heads, and H D need not
      be W.
    """
    ### BEGIN SOLUTION
    x = enter(x)  # (B, T, W)
    num_queries = shard.output.shape[1]
    num_keys = (len(shard.qkv) - num_queries) // 2
    parts = F.linear(x, shard.qkv).split([num_queries, num_keys, num_keys], dim=-1)
    return leave(F.linear(attend(*parts, head_dim), shard.output)) + shard.output_bias
    ### END SOLUTION


# %% check_parallel_attention points=3
def check_parallel_attention():
    def draw(*shape):
        return torch.randn(shape, generator=generator) / 3

    generator = torch.Generator().manual_seed(2)
    for heads_of_group in (1, 2):  # two ranks with one key/value head each, of 4 numbers
        queries, keys, values = (
            [draw(4 * number, 6) for _ in range(2)] for number in (heads_of_group, 1, 1)
        )
        outputs = [draw(6, 4 * heads_of_group) for _ in range(2)]
        whole_parts = [torch.cat(parts) for parts in (queries, keys, values)]
        full = random_weights(6, 2 * heads_of_group, 2, 4, 4)
        shards = [
            full._replace(qkv=torch.cat([queries[rank], keys[rank], values[rank]]),
                          output=outputs[rank]) for rank in range(2)
        ]  # fmt: skip

        def whole(x, parts=whole_parts, outputs=outputs, full=full):
            mixed = attend(*(F.linear(x, part) for part in parts), 4)
            return F.linear(mixed, torch.cat(outputs, 1), full.output_bias)

        x = torch.randn(2, 3, 6, generator=generator)
        expect_half(parallel_attention, "parallel_attention", x, shards, whole, 4)
    print("parallel_attention: each rank attends with its own heads.")


check_parallel_attention()

# %% [markdown]
# ## 6. The block
#
# Norms and residuals stand outside the parallel regions. Without cut tokens every rank computes
# them for all T tokens, N times the same; with cut tokens each rank has T/N of them. The pair of
# functions at the ends of a region is all that differs.
#
# Mind where a norm stands. Behind `copy_to_ranks`, its weight would see only what comes back from
# this rank's heads; before it, the gradient has been added up, and is whole and the same on every
# rank.
#
# <details><summary>Hint 1: where to look</summary>
#
# `whole_block`, with its halves replaced by your functions.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Choose `enter` and `leave` first: one pair for cut tokens, the other pair for whole ones. Norm,
# half, residual; norm, half, residual.
#
# </details>


# %% parallel_block tags=["solution"]
def parallel_block(
    x: torch.Tensor, shard: Weights, head_dim: int, is_sequence_parallel: bool
) -> torch.Tensor:
    """A block by this rank's shard, without or with sequence parallelism.

    - Without, x and the result are (B, T, W) and the same on every rank. With it, they are this
      rank's tokens (B, T/N, W), and norms, biases and residuals work on these alone.
    - Without, forward and backward send one all-reduce for each half. With it, they send one
      all-gather and one reduce-scatter for each half. All are (B, T, W) in x's dtype, and nothing
      else is sent.
    - Without, the gradients of x and of `REPLICATED` weights are whole and the same on every rank.
      With it, those of `REPLICATED` weights are what this rank's tokens give.
    - It runs on any number of ranks, and also on paper (`ws.paper`), on 64 of them: there tensors
      have no numbers, so what it does depends on shapes alone.
    """
    ### BEGIN SOLUTION
    enter, leave = copy_to_ranks, reduce_from_ranks
    if is_sequence_parallel:
        enter, leave = gather_tokens, reduce_scatter_tokens
    hidden = rms_norm(x, shard.attention_norm)
    x = x + parallel_attention(hidden, shard, head_dim, enter, leave)
    hidden = rms_norm(x, shard.mlp_norm)
    return x + parallel_mlp(hidden, shard, enter, leave)
    ### END SOLUTION


# %% check_parallel_block points=7
def pass_block(full, x, head_dim, is_sequence_parallel):
    """The output, and the gradients of x and of the shard, which are asked for by name."""
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    shard = shard_weights(full, head_dim, rank, num_ranks)
    shard = Weights(*(one.requires_grad_() for one in shard))
    own = x.chunk(num_ranks, 1)[rank] if is_sequence_parallel else x
    own = own.clone().requires_grad_()
    y = parallel_block(own, shard, head_dim, is_sequence_parallel)
    y.square().sum().backward()
    return y.detach(), own.grad, {name: one.grad for name, one in shard._asdict().items()}


def check_parallel_block():
    from worldsize import draw

    full = random_weights(8, num_heads=4, num_kv_heads=2, head_dim=4, hidden_width=12, seed=3)
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(4))
    leaves = Weights(*(one.clone().requires_grad_() for one in full))
    x_of_whole = x.clone().requires_grad_()
    wanted = whole_block(x_of_whole, leaves, 4)
    wanted.square().sum().backward()
    for is_cut in (False, True):
        how = "with sequence parallelism" if is_cut else "without sequence parallelism"
        run = ws.run(pass_block, full, x, 4, is_cut, world_size=2, **EMULATED)
        outputs, gradients, by_name = zip(*run.values, strict=True)
        joined = [torch.cat(outputs, 1)] if is_cut else outputs
        hint = "Norm, half, residual; norm, half, residual. Look at `whole_block`."
        for y in joined:
            expect_close(y, wanted.detach(), f"the output {how}", hint)
        joined = [torch.cat(gradients, 1)] if is_cut else gradients
        for gradient in joined:
            hint = "The norm stands before `enter`, so that what comes back has been added up."
            expect_close(gradient, x_of_whole.grad, f"the gradient of x {how}", hint, rtol=1e-3)
        for name in REPLICATED:
            each = [of_rank[name] for of_rank in by_name]
            hint = "Norms stand before `enter`, biases after `leave`."
            whole = leaves._asdict()[name].grad
            for one in [sum(each)] if is_cut else each:
                expect_close(one, whole, f"the gradient of {name} {how}", hint, rtol=1e-3)
        names = [call.name for call in calls_of(run)]
        expected = ["all_gather", "reduce_scatter"] * 4 if is_cut else ["all_reduce"] * 4
        if names != expected:
            hint = "One `enter` and one `leave` for each half, of the right pair."
            raise CheckFailed(f"{', '.join(expected)} {how}", ", ".join(names), hint)
        show(draw.timeline(run.timeline, title=f"Two halves of a block {how}, emulated"))
    print("parallel_block: the whole block's outputs and gradients, in both modes.")


check_parallel_block()

# %% [markdown]
# ## 7. Weights that every rank has
#
# In March 2022 BLOOM's team found that the four tensor-parallel copies of its norms' weights were
# no longer equal: ranks above the first had not clipped their gradients. Training does not notice,
# because each rank goes on with its own copy; but the model that is put together from the ranks is
# another one than any of them trained (BLOOM chronicles, 24 March to 6 April 2022).
#
# With cut tokens each rank has the gradient of T/N tokens for a norm or bias. These must be added
# up over the ranks, not averaged: one rank would have seen all tokens. (The gpt-neox project once
# averaged them: PR 1259.) Without cut tokens they are whole already, and a sum would be N times too
# much.
#
# <details><summary>Hint 1: where to look</summary>
#
# `torch.cat` the gradients of `REPLICATED` weights, all-reduce that, and `split` it again.
#
# </details>
# <details><summary>Hint 2: what has no gradient</summary>
#
# A frozen weight is frozen on every rank: leave out what has `.grad` None, and send nothing where
# nothing is left.
#
# </details>


# %% sync_replicated tags=["solution"]
def sync_replicated(shard: Weights, is_sequence_parallel: bool) -> None:
    """Make the gradients of `REPLICATED` weights whole after backward, and the same on every rank.

    - With sequence parallelism they are added up over the ranks, in one all-reduce of all of them
      together, in their dtype. Without it nothing is sent, and nothing changes.
    - What has no gradient is left out, on every rank the same. Other gradients stay as they are.
    """
    ### BEGIN SOLUTION
    weights = [shard._asdict()[name] for name in REPLICATED]
    gradients = [one.grad for one in weights if one.grad is not None]
    if is_sequence_parallel and gradients:
        flat = torch.cat(gradients)
        dist.all_reduce(flat)
        for gradient, total in zip(gradients, flat.split([len(g) for g in gradients]), strict=True):
            gradient.copy_(total)
    ### END SOLUTION


# %% check_sync_replicated points=3
def sync_some(is_sequence_parallel, frozen):
    """The gradients by name, after each weight had one more than the last, times rank + 1."""
    shard = random_weights(3, num_heads=2, num_kv_heads=2, head_dim=2, hidden_width=4)
    for number, (name, one) in enumerate(shard._asdict().items(), 1):
        one.requires_grad_()
        if name not in frozen:
            one.grad = torch.full_like(one, float(number * (dist.get_rank() + 1)))
    sync_replicated(shard, is_sequence_parallel)
    return {name: one.grad for name, one in shard._asdict().items()}


def check_sync_replicated():
    for frozen in ((), ("mlp_norm",), REPLICATED):
        for is_cut in (True, False):
            run = ws.run(sync_some, is_cut, frozen, world_size=2, **EMULATED)
            names = [call.name for call in calls_of(run)]
            if names != ["all_reduce"] * (is_cut and frozen != REPLICATED):
                expected = "one all-reduce with cut tokens, where there are gradients, else nothing"
                hint = "Join the gradients first. Without cut tokens they are whole already."
                raise CheckFailed(expected, ", ".join(names) or "nothing", hint)
            for rank, found in enumerate(run.values):
                for number, name in enumerate(Weights._fields, 1):
                    if name in frozen:
                        continue
                    is_summed = is_cut and name in REPLICATED
                    wanted = torch.full_like(found[name], number * (3 if is_summed else rank + 1))
                    hint = "Sharded weights, and all without cut tokens, keep their gradients."
                    if is_summed:
                        hint = "Add up over the ranks, and write back into .grad."
                        if torch.allclose(found[name], wanted / 2):
                            hint = "That is the mean: each rank saw other tokens, so they add up."
                    expect_close(found[name], wanted, f"the gradient of {name}", hint)
    print("sync_replicated: one all-reduce, and every copy gets the same gradient.")


check_sync_replicated()

# %% [markdown]
# ## 8. A loss without the logits
#
# The head is column-parallel: each rank has the logits of V/N entries of the vocabulary. To gather
# them would send V numbers for each token, 128,256 for Llama 3. Cross-entropy needs three:
#
# ```text
# loss of a token = log Σ exp(logit - m) - (logit of its target - m)      m: the largest logit
#
# m                 the largest of the ranks' largest               all-reduce, MAX
# Σ exp(...)        the sum of the ranks' sums                      all-reduce, SUM
# logit - m         one rank has the target; the others give 0      all-reduce, SUM
# ```
#
# Backward sends nothing: the gradient of a logit is its share of the sum, minus 1 for the target.
# Each rank has all that it needs for its own.
#
# <details><summary>Hint 1: where to look</summary>
#
# The same m for all ranks, from `logits.detach()`: sums of different powers cannot be added, and no
# gradient goes through m. The sum and the target's logit may travel together (`torch.stack`)
# through a function that you have: in backward it hands on the gradient.
#
# </details>
# <details><summary>Hint 2: the target's logit</summary>
#
# This rank's entries begin at rank · V/N. `targets - first` is a place in its logits if it is at
# least 0 and below V/N; elsewhere, `clamp` it, so that `gather` finds something, and multiply what
# it finds by 0.
#
# </details>
# <details><summary>Hint 3: float32</summary>
#
# `logits.float()` first; autograd turns the gradient back into bfloat16.
#
# </details>


# %% vocabulary_loss tags=["solution"]
def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy over all tokens, from this rank's logits (B, T, V/N).

    - `targets` (B, T) are places in the whole vocabulary, the same on every rank. Rank 0 has the
      logits of the first V/N of it, and so on. The loss is one float32 number, the same on every
      rank.
    - All is computed in float32, and for logits of any size no power overflows or is lost. The
      gradient of the logits is that of the whole softmax, in their dtype.
    - Forward sends three float32 numbers a token, in all-reduces. Backward sends nothing.

    Example: logits (0, 0) on each of two ranks give log 4, whatever the target.
    """
    ### BEGIN SOLUTION
    flat = logits.flatten(0, 1).float()  # (B T, V/N)
    largest = flat.detach().amax(dim=1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    shifted = flat - largest[:, None]
    num_own = flat.shape[1]
    places = targets.flatten() - dist.get_rank() * num_own
    is_own = (places >= 0) & (places < num_own)
    own = shifted.gather(1, places.clamp(0, num_own - 1)[:, None])[:, 0] * is_own
    total, target = reduce_from_ranks(torch.stack([shifted.exp().sum(dim=1), own]))
    return (total.log() - target).mean()
    ### END SOLUTION


# %% check_vocabulary_loss points=5
def lose(logits, targets):
    """The loss, and the gradient of this rank's logits."""
    logits = logits.chunk(dist.get_world_size(), -1)[dist.get_rank()].clone().requires_grad_()
    loss = vocabulary_loss(logits, targets)
    (3 * loss).backward()
    return loss.detach(), logits.grad


def check_vocabulary_loss():
    generator = torch.Generator().manual_seed(6)
    targets = torch.tensor([[0, 5, 7], [3, 4, 2]])  # some on rank 0 of 2, some on rank 1
    small = torch.randn(2, 3, 8, generator=generator)
    uneven = small + 100.0 * torch.tensor([0] * 4 + [1] * 4)  # rank 1 has the far larger logits
    cases = {"small logits": small, "logits of very different size": uneven,
             "logits of bfloat16": small.bfloat16()}  # fmt: skip
    for what, logits in cases.items():
        leaf = logits.clone().requires_grad_()
        wanted = F.cross_entropy(leaf.float().flatten(0, 1), targets.flatten())
        (3 * wanted).backward()
        run = ws.run(lose, logits, targets, world_size=2, **EMULATED)
        for rank, (loss, gradient) in enumerate(run.values):
            hint = "Compare m, the sum and the target's logit with those of all logits."
            if not torch.isfinite(loss):
                hint = "All ranks subtract the same m, the largest logit of all ranks."
            expect_close(loss, wanted.detach(), f"the loss with {what} on rank {rank}", hint)
            part = leaf.grad.chunk(2, -1)[rank]
            hint = "The share of the sum, minus 1 for the target where it is this rank's."
            if gradient is None:
                raise CheckFailed("a gradient of the logits", "none", hint)
            if torch.allclose(gradient.float(), 2 * part.float(), atol=1e-3):
                hint = "That is N times too much: what adds up in forward, copies in backward."
            rtol, atol = (2e-2, 1e-3) if gradient.dtype == torch.bfloat16 else (1e-4, 1e-5)
            expect_close(gradient, part, f"the gradient with {what}", hint, rtol=rtol, atol=atol)
        sizes = [call.size_bytes for call in calls_of(run)]
        if sum(sizes) > 3 * 4 * 6:
            hint = (
                "m, the sum and the target's logit travel; logits do not, and nothing in backward."
            )
            raise CheckFailed("3 float32 numbers for each of 6 tokens", f"{sizes} bytes", hint)
    print(
        "vocabulary_loss: three numbers a token over the wire, and the loss of the whole softmax."
    )


check_vocabulary_loss()

# %% [markdown]
# ## 9. In words
#
# A model of Llama-3-70B's shape: 80 layers, width 8,192, 64 query heads and 8 key/value heads, all
# in bfloat16. A micro-batch is one sequence of 8,192 tokens. The 8 GPUs of a node are joined by
# links of 450 GB/s; nodes by 50 GB/s for each GPU.
#
# Answer in at most 250 words, with numbers:
#
# 1. How many MB does a rank send for one layer and micro-batch in forward and backward together,
#    with N = 8? How long does that take for all 80 layers, within a node, and with N = 16 over two
#    nodes at 50 GB/s? What does sequence parallelism change in this?
# 2. Which tensors of a layer are not divided by N without sequence parallelism? How many bytes a
#    token and layer is the input of one norm, on each rank, without and with it, for N = 8?
# 3. With N = 16 the 8 key/value heads do not go round. What can one do, and what does it cost?
# 4. In a block with dropout, which masks must be equal on all ranks and which must not, without
#    sequence parallelism? What goes wrong if all ranks have the same seed for both?

# %% what_it_costs [markdown] points=4 tags=["solution"]
# **Answer.** S = 8,192 · 8,192 · 2 bytes = 134 MB is the tensor that travels.
#
# 1. Four all-reduces a layer: 4 · 2 · 7/8 · 134 = 940 MB; for 80 layers 75.2 GB, 167 ms at 450
#    GB/s. With N = 16: 4 · 2 · 15/16 · 134 = 1,007 MB a layer, 80.5 GB, 1.6 s at 50 GB/s: nearly
#    ten times as long, while each rank computes half as much. Sequence parallelism changes nothing:
#    an all-gather and a reduce-scatter are an all-reduce.
# 2. Inputs and outputs of norms, residuals, and the inputs of attention and MLP; weights of norms
#    and biases of row-parallel layers, too. The input of a norm is 8,192 · 2 = 16 kB a token, and 2
#    kB with sequence parallelism.
# 3. Give every key/value head to two ranks. Its weights are held twice, and its gradients must be
#    added up over the two, in each step. Or use N = 8, and pipeline stages or data parallelism
#    beyond the node.
# 4. Behind the residual all ranks have the same tokens and need the same mask: otherwise their
#    copies of x differ from then on. Inside the region, in attention, each rank has other heads and
#    needs masks of its own. With one seed for both, heads on different ranks drop the same places:
#    the masks are not independent.
#
# **Rubric**, one point each:
#
# - 940 MB (or 0.94 GB) and about 0.17 s; about 1.6 s; sequence parallelism sends the same. Half
#   with one slip.
# - Norms' inputs and residuals; 16 kB and 2 kB.
# - Replicated key/value heads with their gradients added up, or another split beyond the node.
# - Equal outside, different inside, and copies that differ, or masks that depend on each other.

# %% [markdown]
# ## What you have built
#
# The next cell trains a block and a head on four emulated ranks, and compares it with one process:
# the loss after some steps, the bytes that a rank sends in a step in units of B T W, what its
# tensors hold at the peak, and how far the ranks' copies of a norm are apart. The last row leaves
# out `sync_replicated`. Its loss alone would not show it.


# %% all_modes
def train_whole(num_steps, batch, sizes, vocabulary):
    full, head = random_weights(**sizes, seed=8), random_head(sizes["width"], vocabulary)
    leaves = [one.requires_grad_() for one in (*full, head)]
    for step in range(num_steps):
        x, targets = random_batch(*batch, sizes["width"], vocabulary, step)
        y = whole_block(x, Weights(*leaves[:-1]), sizes["head_dim"])
        loss = F.cross_entropy(F.linear(y, head).flatten(0, 1), targets.flatten())
        descend(loss, leaves)
    return loss.item()


def train_parallel(num_steps, batch, sizes, vocabulary, is_sequence_parallel, is_synced):
    """The last loss, and one norm's weight on this rank."""
    rank, num_ranks, head_dim = dist.get_rank(), dist.get_world_size(), sizes["head_dim"]
    enter = gather_tokens if is_sequence_parallel else copy_to_ranks
    shard = shard_weights(random_weights(**sizes, seed=8), head_dim, rank, num_ranks)
    head = random_head(sizes["width"], vocabulary).chunk(num_ranks)[rank].clone()
    leaves = [one.requires_grad_() for one in (*shard, head)]
    for step in range(num_steps):
        x, targets = random_batch(*batch, sizes["width"], vocabulary, step)
        own = x.chunk(num_ranks, 1)[rank] if is_sequence_parallel else x
        y = parallel_block(own, shard, head_dim, is_sequence_parallel)
        loss = vocabulary_loss(F.linear(enter(y), head), targets)
        descend(loss, leaves, lambda: is_synced and sync_replicated(shard, is_sequence_parallel))
    return loss.item(), shard.mlp_norm.detach()


def descend(loss, leaves, before_update=lambda: None):
    loss.backward()
    before_update()
    for one in leaves:
        one.data -= 0.1 * one.grad
        one.grad = None


def random_head(width, vocabulary):
    return torch.randn(vocabulary, width, generator=torch.Generator().manual_seed(9)) / width**0.5


def random_batch(num_sequences, num_tokens, width, vocabulary, step):
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(num_sequences, num_tokens, width, generator=generator)
    return x, torch.randint(vocabulary, (num_sequences, num_tokens), generator=generator)


def compare_modes(num_steps=4, num_ranks=4):
    from worldsize import draw

    sizes = {"width": 64, "num_heads": 8, "num_kv_heads": 4, "head_dim": 8, "hidden_width": 128}
    batch, vocabulary = (2, 64), 256
    rows = [{"mode": "one process", "sent in a step, B T W": "0", "most held, MB": "",
             "copies of a norm differ by": "", "last loss":
             f"{train_whole(num_steps, batch, sizes, vocabulary):.5f}"}]  # fmt: skip
    modes = {"tensor parallel": (False, True), "and sequence parallel": (True, True),
             "without sync_replicated": (True, False)}  # fmt: skip
    for mode, flags in modes.items():
        job = (train_parallel, num_steps, batch, sizes, vocabulary, *flags)
        run = ws.run(*job, world_size=num_ranks, memory=True, **EMULATED)
        losses, norms = zip(*run.values, strict=True)
        sent = run.timeline.bytes_sent(0) / num_steps / (4 * 2 * 64 * 64)
        apart = max((one - norms[0]).abs().max().item() for one in norms)
        rows.append({"mode": mode, "sent in a step, B T W": f"{sent:.2f}",
                     "most held, MB": f"{run.memory[0].most_bytes / 1e6:.2f}",
                     "copies of a norm differ by": f"{apart:.5f}",
                     "last loss": f"{losses[0]:.5f}"})  # fmt: skip
    return draw.table(rows, title=f"A block and a head on {num_ranks} emulated ranks")


show(compare_modes())
