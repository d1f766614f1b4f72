"""Hidden checks of lab 8: the parts of a tensor-parallel block, by what is sent and what is held.

Points rest on the bodies of collectives, which the conductor saw, and on the memory that the kernel
counts. The judge computes the whole block in branches, one for each rank: their partial sums, and
the gradients that come back out of each, are what ranks must send. Each part runs with correct
versions of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional as F

from autograder.checks import (
    PartlyHeld,
    StudentFailed,
    between,
    entries,
    entry,
    expect_grown,
    expect_like,
    expect_same_again,
    hinted,
    is_same,
    points,
    posts_of,
    return_freed_memory,
    shown,
    take_from_solution,
    tensor_like,
    whole,
)
from worldsize.check import CheckFailed, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch import Run
from worldsize.models import transformer

Tensors = list[torch.Tensor]
MB = 2**20
BY_HAND = "torch's own tensor parallelism is not allowed here: this is what you write"
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
BOTH_WAYS = "torch's functional collectives have their own backward: write both directions"
RULES = {
    "allow": set(OPERATIONS),
    "forbid": {
        "torch.distributed.tensor": BY_HAND,
        "torch.ops._c10d_functional": BOTH_WAYS,
        "torch.ops._c10d_functional_autograd": BOTH_WAYS,
    },
}
ON_PAPER = {"torch.distributed.tensor.DTensor": BY_HAND}  # the recorder imports its module
SEEN = {**RULES, "keeps_exchanges": True}
SUM, GATHER, SCATTER = OPERATIONS
FLOAT, HALF = torch.float32, torch.bfloat16

ALL_RANKS = "All ranks must make the same calls in the same order."
HALF_POINTS = "Until nothing else travels, everything else earns half its points."
BY_WIRE = "What a rank knows of the others comes over the wire."


# What runs on the ranks beside the student's code: the parts that it does not judge.

SOLUTION = Path(__file__).with_name("lab08.py")
Weights, REPLICATED, attend = take_from_solution(SOLUTION, "Weights", "REPLICATED", "attend")
right_copy, right_reduce, right_gather, right_scatter = take_from_solution(
    SOLUTION, "copy_to_ranks", "reduce_from_ranks", "gather_tokens", "reduce_scatter_tokens"
)


def ranks() -> int:
    return dist.get_world_size()


def ends(is_cut: bool) -> Any:
    """How a parallel region is entered and left."""
    return (right_gather, right_scatter) if is_cut else (right_copy, right_reduce)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, FLOAT))
    scale = (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return (wide * scale * weight).type_as(x)


def mlp_sums(x: Any, shard: Weights) -> torch.Tensor:
    """The partial sums of one rank's hidden numbers."""
    return F.linear(F.silu(F.linear(x, shard.gate)) * F.linear(x, shard.up), shard.down)


def attention_sums(x: Any, shard: Weights, head_dim: int) -> torch.Tensor:
    """The partial sums of one rank's heads."""
    num_queries = shard.output.shape[1]
    num_keys = (len(shard.qkv) - num_queries) // 2
    parts = F.linear(x, shard.qkv).split([num_queries, num_keys, num_keys], dim=-1)
    return F.linear(attend(*parts, head_dim), shard.output)


def reference_mlp(x: Any, shard: Any, enter: Any, leave: Any) -> torch.Tensor:
    return leave(mlp_sums(enter(x), shard)) + shard.down_bias


def reference_attention(x: Any, shard: Any, head_dim: int, enter: Any, leave: Any) -> torch.Tensor:
    return leave(attention_sums(enter(x), shard, head_dim)) + shard.output_bias


def reference_block(x: Any, shard: Any, head_dim: int, is_cut: bool) -> torch.Tensor:
    x = x + reference_attention(rms_norm(x, shard.attention_norm), shard, head_dim, *ends(is_cut))
    return x + reference_mlp(rms_norm(x, shard.mlp_norm), shard, *ends(is_cut))


def with_references(student: Any) -> None:
    """Put right functions in place of the student's small ones."""
    student.copy_to_ranks, student.reduce_from_ranks = right_copy, right_reduce
    student.gather_tokens, student.reduce_scatter_tokens = right_gather, right_scatter
    student.parallel_mlp, student.parallel_attention = reference_mlp, reference_attention


def leaves_of(shard: Sequence[torch.Tensor], dtype: torch.dtype = FLOAT) -> Weights:
    return Weights(*(one.detach().to(dtype).clone().requires_grad_() for one in shard))


def own_part(x: torch.Tensor, is_cut: bool) -> torch.Tensor:
    return (x.chunk(ranks(), 1)[dist.get_rank()] if is_cut else x).clone()


def whole_on_rank(student: Any, cases: list[Any]) -> Any:
    return passes(cases, student.copy_to_ranks, student.reduce_from_ranks)


def cut_on_rank(student: Any, cases: list[Any]) -> Any:
    return passes(cases, student.gather_tokens, student.reduce_scatter_tokens)


def passes(cases: list[tuple[int, torch.Tensor, torch.Tensor]], *functions: Any) -> Any:
    """By case, the output and the gradient, and x and the gradient that came in, afterwards."""
    found = []
    for number, x, factors in cases:
        x = x.detach().requires_grad_()
        y = functions[number](x)
        output = y.detach().clone()
        (gradient,) = torch.autograd.grad(y, x, factors)
        found.append([output, gradient, x.detach(), factors])
    return found


def shard_on_rank(student: Any, cases: list[Any]) -> Any:
    """By case, all ranks' shards, or that it was refused, and the weights afterwards.

    Then the same shards once the weights are overwritten.
    """
    found = []

    def copies(weights: Any) -> list[Any]:
        return [one.clone() if isinstance(one, torch.Tensor) else one for one in weights]

    for full, head_dim, num_ranks, divides in cases:
        shards, full = [], student.Weights(*full)
        try:
            for rank in range(num_ranks):
                shards.append(list(student.shard_weights(full, head_dim, rank, num_ranks)))
        except ValueError:
            shards = "refused"
        except Exception:
            if divides:
                raise
        of_ranks = shards if isinstance(shards, list) else []
        found.append([[copies(one) for one in of_ranks] or shards, copies(full)])
        for one in full:
            one.zero_()
        found[-1].append(of_ranks)
    return found


def shard_many_on_rank(student: Any, rows: int, num_blocks: int, rank: int, num_ranks: int) -> Any:
    """Fill the memory with one rank's shards of weights that nobody else keeps."""
    return_freed_memory()
    kept = []
    for _ in range(num_blocks):
        sides = (3 * rows, *[rows] * 4)
        qkv, output, gate, up, down = (torch.ones(side, rows) for side in sides)
        row = torch.ones(rows)
        full = student.Weights(row, qkv, output, row, row, gate, up, down, row)
        kept.append(student.shard_weights(full, rows // num_ranks, rank, num_ranks))
        del full, qkv, output, gate, up, down
    return [one.gate.sum().item() for one in kept]


def outcomes(call: Callable[..., Any], cases: list[Any], shard: Any) -> Any:
    """By case, what a block or half of one gives, and the gradients of x and of the shard."""
    found = []
    for x, factors, is_cut, dtype in cases:
        own = own_part(x, is_cut).to(dtype).requires_grad_()
        leaves = leaves_of(shard, dtype)
        y = call(own, leaves, is_cut)
        y.backward(own_part(factors, is_cut).to(dtype))
        found.append([y.detach(), own.grad, [one.grad for one in leaves]])
    return found


def mlp_on_rank(student: Any, cases: list[Any], shard: Any) -> Any:
    def call(x: Any, leaves: Weights, is_cut: bool) -> Any:
        return student.parallel_mlp(x, student.Weights(*leaves), *ends(is_cut))

    return outcomes(call, cases, shard)


def attention_on_rank(student: Any, cases: list[Any], head_dim: int, shard: Any) -> Any:
    def call(x: Any, leaves: Weights, is_cut: bool) -> Any:
        return student.parallel_attention(x, student.Weights(*leaves), head_dim, *ends(is_cut))

    return outcomes(call, cases, shard)


def block_on_rank(student: Any, cases: list[Any], head_dim: int, shard: Any) -> Any:
    with_references(student)

    def call(x: Any, leaves: Weights, is_cut: bool) -> Any:
        return student.parallel_block(x, student.Weights(*leaves), head_dim, is_cut)

    return outcomes(call, cases, shard)


class Large(NamedTuple):
    """A block of any size, of which a rank makes its shard alone."""

    num_tokens: int
    width: int
    heads_per_rank: int
    head_dim: int
    hidden_per_rank: int


def large_block_on_rank(student: Any, sizes: Large) -> Any:
    """Forward and backward of a block with cut tokens, whose size is all that matters."""
    with_references(student)
    width, rows = sizes.width, sizes.heads_per_rank * sizes.head_dim
    shapes = Weights(
        *((width,), (3 * rows, width), (width, rows), (width,), (width,)),
        *((sizes.hidden_per_rank, width),) * 2,
        *((width, sizes.hidden_per_rank), (width,)),
    )
    made = [torch.zeros(shape, dtype=HALF, requires_grad=True) for shape in shapes]
    x = torch.zeros(1, sizes.num_tokens // ranks(), width, dtype=HALF, requires_grad=True)
    y = student.parallel_block(x, student.Weights(*made), sizes.head_dim, True)
    y.float().sum().backward()


def sync_on_rank(student: Any, cases: list[Any]) -> Any:
    """By case, all gradients afterwards."""
    found = []
    for gradients, is_cut in cases:
        made = [torch.zeros_like(one, requires_grad=True) for one, _ in gradients]
        for leaf, (gradient, is_there) in zip(made, gradients, strict=True):
            leaf.grad = gradient.clone() if is_there else None
        student.sync_replicated(student.Weights(*made), is_cut)
        found.append([one.grad for one in made])
    return found


def step_on_rank(student: Any, case: Any, head_dim: int, shard: Any) -> Any:
    """The replicated weights after a step of training."""
    x, factors, is_cut, _ = case
    leaves = leaves_of(shard)
    reference_block(own_part(x, is_cut), leaves, head_dim, is_cut).backward(
        own_part(factors, is_cut)
    )
    student.sync_replicated(student.Weights(*leaves), is_cut)
    return [
        leaf.detach() - 0.1 * leaf.grad for leaf in (leaves._asdict()[name] for name in REPLICATED)
    ]


def lose_on_rank(student: Any, targets: Any, cases: Any) -> Any:
    """By case, the loss, and the gradient of this rank's logits for a factor."""
    student.reduce_from_ranks = right_reduce
    student.copy_to_ranks = right_copy
    found = []
    for logits, factor in cases:
        logits.requires_grad_()
        loss = student.vocabulary_loss(logits, targets)
        value = loss.detach().clone()
        (factor * loss).backward()
        found.append([value, logits.grad])
    return found


# What the judge draws, computes and compares.


@cache
def held_seed(student: Any) -> list[int]:
    """The seed of the runs that several checks of a student read, once the first has drawn it."""
    return []


@cache
def attempt(student: Any, seed: int, make: Callable[..., Any], *args: Any) -> Any:
    try:
        return make(student, torch.Generator().manual_seed(seed), *args)
    except StudentFailed as failed:
        return failed


def shared(student: Any, rng: torch.Generator, make: Callable[..., Any], *args: Any) -> Any:
    """What `make` gives for this student, made once.

    Raises:
        StudentFailed: the run gave no values.
    """
    held = held_seed(student)
    if not held:
        held.append(whole(rng, 0, 2**31))
    found = attempt(student, held[0], make, *args)
    if isinstance(found, StudentFailed):
        raise found
    return found


def drawn(rng: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=rng)


class Sizes(NamedTuple):
    num_ranks: int
    width: int
    group: int  # query heads for each key/value head
    kv_per_rank: int
    head_dim: int
    hidden_per_rank: int


def drawn_sizes(rng: torch.Generator, num_ranks: int) -> Sizes:
    width = 2 * whole(rng, 3, 6)
    return Sizes(num_ranks, width, whole(rng, 2, 3), whole(rng, 1, 2), 4, whole(rng, 3, 6))


def drawn_weights(rng: torch.Generator, sizes: Sizes) -> Weights:
    """A whole block, whose norms are not ones."""
    num, width = sizes.num_ranks, sizes.width
    kv_rows = num * sizes.kv_per_rank * sizes.head_dim
    rows, hidden = sizes.group * kv_rows, num * sizes.hidden_per_rank

    def draw(*shape: int) -> torch.Tensor:
        return drawn(rng, *shape) / shape[-1] ** 0.5

    return Weights(
        *(1 + draw(width), draw(rows + 2 * kv_rows, width), draw(width, rows), draw(width)),
        *(1 + draw(width), draw(hidden, width), draw(hidden, width)),
        *(draw(width, hidden), draw(width)),
    )


def shards_of(full: Weights, num: int) -> list[Weights]:
    """The shards of all ranks."""
    rows = full.output.shape[1]
    kv_rows = (len(full.qkv) - rows) // 2
    parts = [one.chunk(num) for one in full.qkv.split([rows, kv_rows, kv_rows])]
    return [
        full._replace(
            qkv=torch.cat([part[rank] for part in parts]),
            output=full.output.chunk(num, 1)[rank].contiguous(),
            gate=full.gate.chunk(num)[rank],
            up=full.up.chunk(num)[rank],
            down=full.down.chunk(num, 1)[rank].contiguous(),
        )
        for rank in range(num)
    ]


class Branches(NamedTuple):
    """A whole computed in branches, one for each rank.

    `gradients` are those of the shards by rank; with cut tokens, those of replicated weights are
    what the rank's tokens give.
    """

    output: torch.Tensor
    gradient: torch.Tensor
    gradients: list[Weights]
    forward: list[Any]  # by half: what enters (whole), and the partial sums by rank
    backward: list[Any]  # by half: the gradient at `leave` (whole), and at `enter` by rank


def in_branches(
    case: Any, shards: list[Weights], head_dim: int, part: str, is_norm_inside: bool = False
) -> Branches:
    """The block, or one half of it without its norm and residual, in float64 or bfloat16.

    A norm inside comes behind the way in, on all tokens that a rank then has.
    """
    x, factors, is_cut, dtype = case
    dtype = HALF if dtype == HALF else torch.float64
    x = x.to(dtype).requires_grad_()
    leaves = [leaves_of(shard, dtype) for shard in shards]
    if not is_cut:
        common = {name: leaves[0]._asdict()[name] for name in REPLICATED}
        leaves = [one._replace(**common) for one in leaves]
    halves, sums = [], {"attention": attention_sums, "mlp": mlp_sums}

    def by_tokens(function: Callable[..., Any], hidden: torch.Tensor, name: str) -> torch.Tensor:
        """What it gives with a replicated weight: each rank's copy has its own tokens, if cut."""
        parts = hidden.chunk(len(leaves), 1) if is_cut else [hidden]
        pairs = zip(parts, leaves, strict=False)
        return torch.cat([function(part, one._asdict()[name]) for part, one in pairs], 1)

    def half(name: str, hidden: torch.Tensor, norm: str = "") -> torch.Tensor:
        if norm and not is_norm_inside:
            hidden = by_tokens(rms_norm, hidden, norm)
        entering = inputs = [hidden.view_as(hidden) for _ in shards]
        if norm and is_norm_inside:
            pairs = zip(entering, leaves, strict=True)
            inputs = [rms_norm(one, shard._asdict()[norm]) for one, shard in pairs]
        extra = (head_dim,) if name == "attention" else ()
        pairs = zip(inputs, leaves, strict=True)
        partial = [sums[name](one, shard, *extra) for one, shard in pairs]
        total = torch.stack(partial).sum(0)
        for one in (*entering, total):
            one.retain_grad()
        halves.append((hidden, partial, total, entering))
        bias = "output_bias" if name == "attention" else "down_bias"
        return by_tokens(torch.add, total, bias)

    if part == "block":
        y = x + half("attention", x, "attention_norm")
        y = y + half("mlp", y, "mlp_norm")
    else:
        y = half(part, x)
    y.backward(factors.to(dtype))
    return Branches(
        y.detach(),
        x.grad,  # pyright: ignore[reportArgumentType]
        [Weights(*(one.grad for one in of_rank)) for of_rank in leaves],
        [(hidden.detach(), [p.detach() for p in partial]) for hidden, partial, _, _ in halves],
        [(total.grad, [one.grad for one in entering]) for _, _, total, entering in halves],
    )


def wire_of(found: Branches, rank: int, case: Any) -> list[Any]:
    """What a rank sends: the operation, the tensor, what that is, and its dtype."""
    num, steps = len(found.gradients), []
    _, _, is_cut, dtype = case
    last = SCATTER if is_cut else SUM
    for hidden, partial in found.forward:
        if is_cut:
            steps.append((GATHER, own_of(hidden, num, rank), "its tokens of what enters", dtype))
        steps.append((last, partial[rank], "its partial sums", dtype))
    for leaving, entering in reversed(found.backward):
        if is_cut:
            steps.append((GATHER, own_of(leaving, num, rank), "its tokens' gradient", dtype))
        steps.append((last, entering[rank], "its part of the gradient", dtype))
    return steps


def near(dtype: torch.dtype) -> float:
    """How far a number may be off, as a part of the largest one."""
    return 8e-2 if dtype == HALF else 1e-4


def expect_near(
    given: Any, wanted: torch.Tensor, dtype: torch.dtype, what: str, hint: str, mistakes: Any = ()
) -> None:
    """Raise CheckFailed unless it is as wanted, of this type; the hint is that of the mistake."""
    wanted = wanted.to(dtype)
    atol = near(dtype) * max(wanted.abs().max().item(), 1e-6)
    expect_like(given, wanted, what, hint, mistakes, rtol=0.0, atol=atol)


def has_numbers(call: Exchange, rank: int, wanted: torch.Tensor, num_parts: int) -> bool:
    """True where a rank sent these numbers, in any order within each of the parts by tokens."""
    sent = call.tensor(rank)
    if sent.numel() != wanted.numel() or sent.dtype != wanted.dtype:
        return False
    atol = near(wanted.dtype) * max(wanted.abs().max().item(), 1e-6)
    parts = [wanted] if num_parts == 1 else wanted.chunk(num_parts, 1)
    pairs = zip(sent.chunk(num_parts), parts, strict=True)
    return all(
        torch.allclose(a.double().sort()[0], b.double().flatten().sort()[0], rtol=0, atol=atol)
        for a, b in pairs
    )


def expect_wire(run: Run, rank: int, steps: Sequence[Any], hint: str) -> None:
    """Raise CheckFailed unless a rank sends this and nothing else.

    A step is an operation, a tensor, what that is, and its dtype. An all-reduce may be a
    reduce-scatter and an all-gather.
    """
    calls = posts_of(run, rank)
    said = ", ".join(one.op for one in calls) or "nothing"
    failed = CheckFailed(f"{', '.join(op for op, *_ in steps)} from rank {rank}", said, hint)
    turns = iter(calls)
    for op, wanted, what, dtype in steps:
        call = next(turns, None)
        is_halved = op == SUM and call is not None and call.op == SCATTER
        if call is None or not (call.op == op or is_halved):
            raise failed
        num = len(call.ranks)
        if not has_numbers(call, rank, wanted.to(dtype), num if op == SCATTER else 1):
            kind = f"{wanted.numel()} numbers of {str(dtype).removeprefix('torch.')}"
            actual = f"others, {call.tensor(rank).numel()} of {call.dtype} in {call.op}"
            raise CheckFailed(f"rank {rank} to send {what}: {kind}", actual, hint)
        if is_halved:
            call = next(turns, None)
            if call is None or call.op != GATHER:
                raise failed
            if call.tensor(rank).numel() * num != wanted.numel():
                raise failed
    if next(turns, None) is not None:
        raise failed


def sent_by(run: Run, rank: int) -> torch.Tensor:
    """All numbers that a rank sent, in ascending order."""
    sent = [one.tensor(rank).double() for one in posts_of(run, rank)]
    return torch.cat([torch.empty(0, dtype=torch.float64), *sent]).sort()[0]


def are_among(sent: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> bool:
    """True where all wanted numbers are among those in ascending order."""
    wanted = wanted.double().flatten()
    if not len(wanted) or not len(sent):
        return not len(wanted)
    atol = near(dtype) * max(wanted.abs().max().item(), 1e-6)
    after = torch.searchsorted(sent, wanted)
    pairs = (sent[after.clamp(max=len(sent) - 1)], sent[(after - 1).clamp(min=0)])
    distance = torch.minimum(*((one - wanted).abs() for one in pairs))
    return bool((distance <= atol).all())


def expect_sent(run: Run, rank: int, *forms: Sequence[Any]) -> None:
    """Raise CheckFailed unless a rank sends the numbers of steps in one of some forms.

    They may go in any operations, in any order, and with whatever else.
    """
    sent = sent_by(run, rank)
    missing = [
        [what for _, wanted, what, dtype in steps if not are_among(sent, wanted, dtype)]
        for steps in forms
    ]
    if all(missing):
        raise CheckFailed(f"rank {rank} to send {missing[0][0]}", "other numbers", BY_WIRE)


def expect_same_on_all(run: Run, what: str, rank: int, *places: int) -> None:
    """Raise CheckFailed unless a rank has the same bits there as rank 0."""
    if not is_same(entry(run.values[rank], *places), entry(run.values[0], *places)):
        hint = "Every rank must add up and compute the same."
        raise CheckFailed(f"{what} to have the same bits as on rank 0", "others", hint)


def is_lean(run: Run, sizes_bytes: float) -> bool:
    """True where no rank sends more than it does in all-reduces of these bytes."""
    num = len(run.values)
    sent = max(run.timeline.bytes_sent(rank) for rank in range(num))
    return sent <= 1.02 * 2 * (num - 1) / num * sizes_bytes


def expect_lean(run: Run, sizes_bytes: float) -> None:
    """Raise PartlyHeld where ranks send more: all that holds then counts half, so call it last."""
    if not is_lean(run, sizes_bytes):
        expected = f"this with no more sent than in all-reduces of {sizes_bytes:.0f} bytes"
        raise PartlyHeld(0.5, expected, "it with more", HALF_POINTS)


# copy_to_ranks and reduce_from_ranks; gather_tokens and reduce_scatter_tokens


class Passed(NamedTuple):
    """A run of two functions, and by rank the cases: which, x, and the gradient that comes in."""

    run: Run
    cases: list[list[Any]]
    pair: Pair


class Pair(NamedTuple):
    """Two functions: how they run, their names, and what each sends in forward and backward."""

    on_rank: Any
    names: tuple[str, str]
    sends: tuple[tuple[str | None, str | None], ...]
    is_cut: bool


NUM_PASSING = 3


def whole_pair() -> Pair:
    names = ("copy_to_ranks", "reduce_from_ranks")
    return Pair(whole_on_rank, names, ((None, SUM), (SUM, None)), False)


def cut_pair() -> Pair:
    names = ("gather_tokens", "reduce_scatter_tokens")
    return Pair(cut_on_rank, names, ((GATHER, SCATTER), (SCATTER, GATHER)), True)


def passed(student: Any, rng: torch.Generator, pair: Pair) -> Passed:
    """Both functions in float32 and bfloat16, with tensors of odd layouts."""
    rows, width, own = whole(rng, 2, 3), whole(rng, 3, 5), whole(rng, 2, 3)

    def laid_out(is_own: bool, dtype: torch.dtype) -> torch.Tensor:
        num_tokens = own if is_own else own * NUM_PASSING
        x = drawn(rng, width, num_tokens, rows).to(dtype).permute(2, 1, 0)
        return x if dtype == HALF else x.contiguous()

    def case(number: int, dtype: torch.dtype) -> Any:
        factors = laid_out(pair.is_cut and number == 1, dtype)
        if dtype == HALF:  # one number seen as many
            factors = factors[:, :, :1].expand(-1, -1, width)
        return number, laid_out(pair.is_cut and number == 0, dtype), factors

    kinds = [(number, dtype) for number in (0, 1) for dtype in (FLOAT, HALF)]
    cases = [[case(*kind) for kind in kinds] for _ in range(NUM_PASSING)]
    with hinted(ALL_RANKS):
        each = [(of_rank,) for of_rank in cases]
        run = student.emulated(pair.on_rank, world_size=NUM_PASSING, each=each, **SEEN)
    return Passed(run, cases, pair)


def own_of(x: torch.Tensor, num: int, rank: int) -> torch.Tensor:
    return x.chunk(num, 1)[rank]


def total_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([one.double() for one in tensors]).sum(0)


def expect_passes(seen: Passed, is_backward: bool) -> None:
    """Raise CheckFailed unless each case gives its output, or its gradient, from what was sent."""
    num, side = NUM_PASSING, int(is_backward)
    for place, (number, x, _) in enumerate(seen.cases[0]):
        given = [of_rank[place][1 + side] for of_rank in seen.cases]
        is_cut, name, total = seen.pair.is_cut, seen.pair.names[number], total_of(given)
        is_summed = is_backward == (number == 0)
        for rank in range(num):
            what = f"the {'gradient' if is_backward else 'output'} of {name} on rank {rank}"
            value = entry(seen.run.values[rank], place, side)
            if is_summed:
                wanted, mine = (
                    own_of(one, num, rank) if is_cut else one for one in (total, given[rank])
                )
                hint = "Add up over the ranks."
                mistakes = [
                    (wanted / num, "That is the mean: the parts add up, do not divide."),
                    (mine, "That is this rank's part alone: add up over the ranks."),
                ]
            else:
                wanted = torch.cat(given, 1) if is_cut else given[rank]
                hint = "Hand on what there is."
                mistakes = [] if is_cut else [(total, "Here nothing is added up: hand it on.")]
            expect_near(value, wanted, x.dtype, what, hint, mistakes)
            if is_summed and not is_cut:
                expect_same_on_all(seen.run, what, rank, place, side)
    for rank in range(num):
        expect_sent(seen.run, rank, sent_in(seen, rank, (side,)))
    expect_lean(seen.run, 1.5 * sum(total_bytes(one) for one in seen.cases[0]))


def total_bytes(case: Any) -> int:
    return max(one.numel() * one.element_size() for one in case[1:])


def sent_in(seen: Passed, rank: int, sides: Sequence[int]) -> list[Any]:
    """What a rank sends by case in forward (0) or backward (1), as steps of `expect_wire`."""
    steps = []
    for number, *given in seen.cases[rank]:
        turns = list(zip(seen.pair.sends[number], given, ("x", "the gradient"), strict=True))
        steps += [(op, one, what, one.dtype) for op, one, what in (turns[i] for i in sides) if op]
    return steps


def expect_passing_wire(seen: Passed, hint: str) -> None:
    """Raise CheckFailed unless each case sends what it must, and leaves what it got as it is."""
    for rank, of_rank in enumerate(seen.cases):
        expect_wire(seen.run, rank, sent_in(seen, rank, (0, 1)), hint)
        for place, (number, *given) in enumerate(of_rank):
            for after, before in enumerate(given, 2):
                value = tensor_like(entry(seen.run.values[rank], place, after), before)
                if value is None or not torch.equal(value, before):
                    what = f"x of {seen.pair.names[number]}, and its gradient, to stay as they are"
                    raise CheckFailed(what, "others", "Clone what you give to a collective.")


@points(1, cell="check_copy_and_reduce")
def check_forward_copies_and_adds_up(student, rng):
    """In forward, `copy_to_ranks` gives x itself, and `reduce_from_ranks` the sum over the ranks,
    for float32 and bfloat16.
    """
    expect_passes(shared(student, rng, passed, whole_pair()), is_backward=False)


@points(1, cell="check_copy_and_reduce")
def check_backward_adds_up_and_copies(student, rng):
    """In backward, `copy_to_ranks` gives the sum of the gradients over the ranks, and
    `reduce_from_ranks` the gradient itself.
    """
    expect_passes(shared(student, rng, passed, whole_pair()), is_backward=True)


@points(1, cell="check_copy_and_reduce")
def check_one_all_reduce_for_both_directions(student, rng):
    """Each sends one all-reduce in its dtype, `copy_to_ranks` in backward and `reduce_from_ranks`
    in forward; x and the gradients that come in do not change, whatever their layout.
    """
    hint = "copy_to_ranks sends in backward alone, reduce_from_ranks in forward alone."
    expect_passing_wire(shared(student, rng, passed, whole_pair()), hint)


@points(1, cell="check_gather_and_scatter")
def check_tokens_are_gathered_and_scattered(student, rng):
    """In forward, `gather_tokens` gives the tokens of all ranks in their order, and
    `reduce_scatter_tokens` this rank's tokens of the sum, with several sequences, too.
    """
    expect_passes(shared(student, rng, passed, cut_pair()), is_backward=False)


@points(1, cell="check_gather_and_scatter")
def check_gradients_are_scattered_and_gathered(student, rng):
    """In backward, `gather_tokens` gives this rank's tokens of the gradients' sum, and
    `reduce_scatter_tokens` the gradients of all tokens.
    """
    expect_passes(shared(student, rng, passed, cut_pair()), is_backward=True)


@points(1, cell="check_gather_and_scatter")
def check_one_gather_and_one_scatter(student, rng):
    """Each function sends one all-gather and one reduce-scatter in its dtype, and no all-reduce; x
    and the gradients that come in do not change, whatever their layout.
    """
    hint = "One operation in each direction: the other one in backward."
    expect_passing_wire(shared(student, rng, passed, cut_pair()), hint)


# shard_weights


def sharded(student: Any, rng: torch.Generator) -> Any:
    """Blocks on 1, 2, 3 and 4 ranks, and two that do not go round."""
    cases, wanted = [], []
    for num in (2, 3, 1, 4):
        sizes = drawn_sizes(rng, num)
        if num > 2:
            sizes = sizes._replace(width=10)  # which N need not divide
        full = drawn_weights(rng, sizes)
        cases.append((list(full), sizes.head_dim, num, True))
        wanted.append(shards_of(full, num))
    few = drawn_sizes(rng, 2)._replace(group=2, kv_per_rank=1, hidden_per_rank=6)
    cases.append((list(drawn_weights(rng, few)), 4, 4, False))  # 4 query heads, but 2 key heads
    odd = Sizes(2, 6, 2, 3, 4, 2)  # 6 key heads, and a hidden width of 4
    cases.append((list(drawn_weights(rng, odd)), 4, 3, False))
    (found,) = student.run(shard_on_rank, cases, world_size=1, allow=())
    return cases, wanted, found


NUM_KEPT = 30  # so many that one matrix of each is seen
SLICE = "A slice keeps the whole weight alive: clone it."


def kept_shards(student: Any, rng: torch.Generator) -> tuple[Run, int, int]:
    """Shards of large weights that nobody else keeps, weighed by the kernel; rows, and ranks."""
    rows = 48 * whole(rng, 15, 16)  # 2 MiB a matrix
    num_ranks = (8, 12, 16, 24)[whole(rng, 0, 3)]
    args = (shard_many_on_rank, rows, NUM_KEPT, whole(rng, 0, num_ranks - 1), num_ranks)
    return student.emulated(*args, world_size=1, memory=True, **RULES), rows, num_ranks


def most_kept(rows: int, num_ranks: int) -> float:
    """The shards, the whole weights of two blocks, and room for the framework."""
    square = 4 * rows * rows
    return NUM_KEPT * 7 * square / num_ranks + 2 * 7 * square + 16 * MB


def expect_shards(student: Any, rng: torch.Generator, names: Sequence[str], hint: str) -> None:
    """Raise CheckFailed unless these are the ranks' shards."""
    _, wanted, found = shared(student, rng, sharded)
    for place, of_ranks in enumerate(wanted):
        for rank, shard in enumerate(of_ranks):
            for name in names:
                given = entry(found, place, 0, rank, Weights._fields.index(name))
                one = shard._asdict()[name]
                where = f"{name} on rank {rank} of {len(of_ranks)}"
                if tensor_like(given, one) is None or not torch.equal(given, one):
                    same_shape = tensor_like(given, one) is not None
                    actual = "other numbers" if same_shape else shown(given)
                    raise CheckFailed(f"{where}, of shape {tuple(one.shape)}", actual, hint)


@points(1.25, cell="check_shard_weights")
def check_heads_stay_together(student, rng):
    """`qkv` has the rows of the rank's query heads, then of the key heads that serve them, then of
    the value heads; `output` the columns of these query heads.
    """
    hint = "Cut queries, keys and values apart, and then each by ranks; `output` along dimension 1."
    expect_shards(student, rng, ("qkv", "output"), hint)


@points(0.75, cell="check_shard_weights")
def check_columns_and_rows(student, rng):
    """`gate` and `up` are cut by outputs, `down` by inputs; norms and biases are whole. What does
    not go round is refused, and the whole weights do not change.
    """
    hint = "gate and up along dimension 0, down along dimension 1."
    expect_shards(student, rng, ("gate", "up", "down"), hint)
    expect_shards(student, rng, REPLICATED, "Norms and biases are whole on every rank.")
    cases, _, found = shared(student, rng, sharded)
    for place in (4, 5):
        if entry(found, place, 0) != "refused":
            hint = "Does N divide the number of key/value heads, and F?"
            raise CheckFailed("a ValueError where N does not divide them", "none", hint)
    for place, (full, *_) in enumerate(cases):
        for before, after in zip(full, entries(entry(found, place, 1), 9), strict=True):
            if tensor_like(after, before) is None or not torch.equal(after, before):
                raise CheckFailed("whole weights that stay as they are", "others", "Clone.")


@points(1, cell="check_shard_weights")
def check_shards_hold_no_more_than_themselves(student, rng):
    """Shards have memory of their own: the whole weights from which they were cut can go, and may
    be overwritten.
    """
    _, wanted, found = shared(student, rng, sharded)
    for place, of_ranks in enumerate(wanted):
        for rank in range(len(of_ranks)):
            for number, name in enumerate(Weights._fields):
                before, after = (entry(found, place, when, rank, number) for when in (0, 2))
                if before is None or not is_same(before, after):
                    expected = f"{name} on rank {rank} with memory of its own"
                    actual = "other numbers once the whole weights are overwritten"
                    hint = "Clone norms and biases, too." if name in REPLICATED else SLICE
                    raise CheckFailed(expected, actual, hint)
    run, rows, num = shared(student, rng, kept_shards)
    for total in entries(run.values[0], NUM_KEPT):
        expect_close(total, rows * rows / num, "the sum of a shard of ones", f"One of {num}.")
    what = f"{NUM_KEPT} shards for {num} ranks, each of a block of {28 * rows * rows // MB} MiB"
    expect_grown(run, most_kept(rows, num), what, SLICE)


# parallel_mlp and parallel_attention


class Ran(NamedTuple):
    """A run of a block or half of one, what it must give by case, and how it is run again.

    What it gives may also come from norms `inside`, which is judged by what is sent.
    """

    run: Run
    cases: list[Any]
    found: list[Branches]
    inside: list[Branches]
    shards: list[Weights]
    again: Callable[[], Run]


Kinds = tuple[tuple[bool, torch.dtype], ...]  # of cases: whether tokens are cut, and the dtype
WHOLE_TOKENS: Kinds = ((False, FLOAT), (False, HALF))
CUT_TOKENS: Kinds = ((True, FLOAT), (True, HALF))
BOTH: Kinds = (*WHOLE_TOKENS, *CUT_TOKENS)


def ran_mlp(student: Any, rng: torch.Generator) -> Ran:
    return ran(student, rng, lambda cases, _: (mlp_on_rank, cases), "mlp", BOTH, 2)


def ran_attention(student: Any, rng: torch.Generator) -> Ran:
    return ran(student, rng, lambda *given: (attention_on_rank, *given), "attention", BOTH, 2)


def ran_block(student: Any, rng: torch.Generator, kinds: Kinds, num: int = 2) -> Ran:
    return ran(student, rng, lambda *given: (block_on_rank, *given), "block", kinds, num)


def ran(student: Any, rng: torch.Generator, job: Any, part: str, kinds: Kinds, num: int) -> Ran:
    """A block or half of one on some ranks; `job` of cases and head_dim is what runs there."""
    sizes = drawn_sizes(rng, num)
    if num > 4:
        sizes = sizes._replace(kv_per_rank=1, hidden_per_rank=3)
    shards = shards_of(drawn_weights(rng, sizes), num)
    shape = (2, num * whole(rng, 1, 2), sizes.width)
    cases = [(drawn(rng, *shape), drawn(rng, *shape), *kind) for kind in kinds]
    each = [(list(shard),) for shard in shards]

    def run() -> Run:
        with hinted(ALL_RANKS):
            args = job(cases, sizes.head_dim)
            return student.emulated(*args, world_size=num, each=each, **SEEN)

    found, inside = (
        [in_branches(case, shards, sizes.head_dim, part, is_inside) for case in cases]
        for is_inside in (False, True)
    )
    return Ran(run(), cases, found, inside, shards, run)


def expect_outputs(seen: Ran, hint: str, bias: str = "") -> None:
    """Raise CheckFailed unless each rank has the output of each case."""
    num = len(seen.shards)
    for place, ((_, _, is_cut, dtype), found) in enumerate(
        zip(seen.cases, seen.found, strict=True)
    ):
        wanted, mistakes = found.output, []
        if bias:
            extra = seen.shards[0]._asdict()[bias]
            many = "The bias comes N times into the sum: add it after `leave`."
            mistakes = [(wanted + (num - 1) * extra, many), (wanted - extra, "Where is the bias?")]
        for rank in range(num):
            here = [
                (own_of(x, num, rank) if is_cut else x, why) for x, why in [(wanted, ""), *mistakes]
            ]
            what = f"the output {'with' if is_cut else 'without'} cut tokens on rank {rank}"
            given = entry(seen.run.values[rank], place, 0)
            expect_near(given, here[0][0], dtype, what, hint, here[1:])
            if not is_cut:
                expect_same_on_all(seen.run, what, rank, place, 0)


def expect_gradients(seen: Ran, hint: str) -> None:
    """Raise CheckFailed unless each rank has the gradients of x and of its shard."""
    num = len(seen.shards)
    for place, ((_, _, is_cut, dtype), found) in enumerate(
        zip(seen.cases, seen.found, strict=True)
    ):
        how = f"{'with' if is_cut else 'without'} cut tokens"
        for rank in range(num):
            wanted = own_of(found.gradient, num, rank) if is_cut else found.gradient
            given = entry(seen.run.values[rank], place, 1)
            expect_near(given, wanted, dtype, f"the gradient of x {how} on rank {rank}", hint)
        for number, name in enumerate(Weights._fields):
            wanted_of = [of_rank._asdict()[name] for of_rank in found.gradients]
            if wanted_of[0] is None:
                continue
            each = [entry(value, place, 2, number) for value in seen.run.values]
            for rank, given in enumerate(each):
                wanted = wanted_of[rank]
                mistakes = [
                    (num * wanted, "That is N times too much: is something added up twice?"),
                    (wanted / num, "That is an N-th of it."),
                    (total_of(wanted_of) / num, "Each rank has what its own tokens give."),
                ]
                what = f"the gradient of {name} {how} on rank {rank}"
                expect_near(given, wanted, dtype, what, hint, mistakes)
                if name in REPLICATED and not is_cut:
                    expect_same_on_all(seen.run, what, rank, place, 2, number)


def expect_wires(seen: Ran, hint: str) -> None:
    """Raise CheckFailed unless ranks send what these cases must, and nothing else."""
    pairs = list(zip(seen.found, seen.cases, strict=True))
    for rank in range(len(seen.shards)):
        steps = [step for found, case in pairs for step in wire_of(found, rank, case)]
        expect_wire(seen.run, rank, steps, hint)


def bytes_of(seen: Ran) -> int:
    """What is all-reduced in these cases, or gathered and scattered."""
    return sum(
        2 * len(found.forward) * x.numel() * dtype.itemsize
        for found, (x, _, _, dtype) in zip(seen.found, seen.cases, strict=True)
    )


def expect_results(seen: Ran, hint: str, bias: str = "") -> None:
    """Raise CheckFailed unless outputs and gradients are right, and made of what was sent.

    Ranks that send more than they must may send their parts of gradients in other forms.
    """
    expect_outputs(seen, hint, bias)
    expect_gradients(seen, hint)
    is_forward_alone = not is_lean(seen.run, bytes_of(seen))
    for rank in range(len(seen.shards)):
        for *both, case in zip(seen.found, seen.inside, seen.cases, strict=True):
            forms = [wire_of(one, rank, case) for one in both]
            num = len(forms[0]) // (2 if is_forward_alone else 1)
            expect_sent(seen.run, rank, *(steps[:num] for steps in forms))


def expect_whole(seen: Ran, hint: str, bias: str = "") -> None:
    """Raise CheckFailed unless the results are right, PartlyHeld if too much travels."""
    expect_results(seen, hint, bias)
    expect_lean(seen.run, bytes_of(seen))


@points(1, cell="check_parallel_mlp")
def check_mlp_is_the_whole_mlp(student, rng):
    """Outputs and all gradients of the MLP are those of the whole, with whole and with cut tokens,
    in float32 and bfloat16.
    """
    hint = "SiLU of the gate, times up, on the rank's part of F; then down, leave, bias."
    expect_whole(shared(student, rng, ran_mlp), hint, "down_bias")


@points(1, cell="check_parallel_mlp")
def check_mlp_enters_and_leaves_once(student, rng):
    """A rank sends its partial sums in forward and its part of the gradient in backward, once each
    and in x's dtype, and nothing else.
    """
    hint = "Enter once with x, leave once before the bias."
    expect_wires(shared(student, rng, ran_mlp), hint)


@points(1.5, cell="check_parallel_attention")
def check_attention_is_the_whole_attention(student, rng):
    """Outputs and all gradients of attention are those of the whole, with several query heads for
    each key/value head, with whole and with cut tokens, in float32 and bfloat16.
    """
    hint = "The rank's queries, keys and values by `attend`; then output, leave, bias."
    expect_whole(shared(student, rng, ran_attention), hint, "output_bias")


@points(1.5, cell="check_parallel_attention")
def check_attention_enters_and_leaves_once(student, rng):
    """A rank sends the partial sums of its own heads in forward and its part of the gradient in
    backward, once each and in x's dtype, and nothing else.
    """
    hint = "Queries, keys and values come out of one product: enter once, leave once."
    expect_wires(shared(student, rng, ran_attention), hint)


# parallel_block


BLOCK = (
    "Norm, half, residual; norm, half, residual. Norms stand before `enter`, outside the region."
)


@points(1.5, cell="check_parallel_block")
def check_block_is_the_whole_block(student, rng):
    """Without sequence parallelism, outputs and gradients are those of the whole block in float32
    and bfloat16, with the same bits on every rank where ranks have the same, and in a second run.
    """
    seen = shared(student, rng, ran_block, WHOLE_TOKENS)
    expect_same_again(seen.run.values, seen.again().values)
    expect_whole(seen, BLOCK)


@points(1.5, cell="check_parallel_block")
def check_block_with_cut_tokens(student, rng):
    """With sequence parallelism, each rank has the output and gradient of its tokens, and gradients
    of norms and biases are what its tokens give. A second run gives the same bits.
    """
    seen = shared(student, rng, ran_block, CUT_TOKENS)
    expect_same_again(seen.run.values, seen.again().values)
    expect_whole(seen, BLOCK)


@points(1.25, cell="check_parallel_block")
def check_one_all_reduce_a_half(student, rng):
    """Without sequence parallelism, a rank sends its partial sums of each half, and in backward its
    part of each half's gradient, each in one all-reduce, and nothing else.
    """
    hint = "One `enter` and one `leave` for each half: copy_to_ranks and reduce_from_ranks."
    expect_wires(shared(student, rng, ran_block, WHOLE_TOKENS), hint)


@points(1.25, cell="check_parallel_block")
def check_one_gather_and_scatter_a_half(student, rng):
    """With sequence parallelism, a rank sends its tokens behind the norm and its partial sums, and
    in backward the gradients at the same places: an all-gather and a reduce-scatter for each half.
    """
    hint = "gather_tokens behind the norm, reduce_scatter_tokens before the bias and the residual."
    expect_wires(shared(student, rng, ran_block, CUT_TOKENS), hint)


@points(0.75, cell="check_parallel_block")
def check_block_on_eight_ranks(student, rng):
    """On 8 ranks outputs and gradients are right, and a rank sends what it must, in both modes."""
    seen = shared(student, rng, ran_block, BOTH[::2], 8)
    expect_results(seen, BLOCK)
    expect_wires(seen, "The number of ranks is dist.get_world_size().")


@points(0.75, cell="check_parallel_block")
def check_block_on_64_ranks_on_paper(student, rng):
    """On paper, a large block on 64 ranks sends what the formula says; a small one, emulated, sends
    the same as on paper.
    """
    expect_results(shared(student, rng, ran_block, CUT_TOKENS), BLOCK)
    num, width = 64, 1024 * whole(rng, 2, 4)
    large = Large(num * whole(rng, 8, 16), width, 1, 64, 128)
    small = Large(2 * whole(rng, 4, 8), 16 * whole(rng, 2, 4), 2, 8, 24)
    paper = student.on_paper(
        *(large_block_on_rank, large),
        world_size=num,
        cluster="h100-ndr-x8",
        small=(small,),
        small_world_size=2,
        forbid=ON_PAPER,
    )
    wanted = 4 * 2 * (num - 1) / num * 2 * large.num_tokens * width
    expect_close(paper.sent_bytes, wanted, "the bytes that a rank of 64 sends", BLOCK, 1e-3)


# sync_replicated


def synced(student: Any, rng: torch.Generator) -> Any:
    """Gradients with cut tokens, some of them missing, and with whole tokens."""
    sizes = drawn_sizes(rng, 2)
    frozen = REPLICATED[whole(rng, 0, 3)]
    kinds = [
        ((), True, FLOAT), ((), True, HALF), ((frozen,), True, FLOAT), (REPLICATED, True, FLOAT),
        ((), False, FLOAT),
    ]  # fmt: skip

    def gradients(without: Sequence[str], dtype: torch.dtype) -> Any:
        shard = shards_of(drawn_weights(rng, sizes), 2)[0]
        pairs = zip(Weights._fields, shard, strict=True)
        return [(one.to(dtype), name not in without) for name, one in pairs]

    cases = [[(gradients(gone, dtype), cut) for gone, cut, dtype in kinds] for _ in range(2)]
    with hinted("Every rank calls it, and what has no gradient has none on all ranks."):
        each = [(of_rank,) for of_rank in cases]
        run = student.emulated(sync_on_rank, world_size=2, each=each, **SEEN)
    return run, cases


@points(1.25, cell="check_sync_replicated")
def check_replicated_gradients_are_added_up(student, rng):
    """With cut tokens, gradients of norms and biases become the sum over the ranks, bit by bit; all
    others stay as they are. Without cut tokens, all stay as they are.
    """
    run, cases = shared(student, rng, synced)
    for rank, of_rank in enumerate(cases):
        for place, (gradients, is_cut) in enumerate(of_rank):
            for number, (name, (own, is_there)) in enumerate(
                zip(Weights._fields, gradients, strict=True)
            ):
                given = entry(run.values[rank], place, number)
                if not is_there:
                    if given is not None:
                        raise CheckFailed(f"no gradient of {name}", shown(given), "Leave it out.")
                    continue
                other = cases[1 - rank][place][0][number][0]
                is_summed = is_cut and name in REPLICATED
                wanted = own + other if is_summed else own
                hint = "Sharded weights, and all without cut tokens, keep their gradients."
                mistakes = []
                if is_summed:
                    hint = "The sum over the ranks, written back into .grad."
                    mistakes = [(wanted / 2, "That is the mean: the ranks saw other tokens.")]
                else:
                    mistakes = [(own + other, "This is whole already: nothing is added up.")]
                where = f"the gradient of {name} on rank {rank}"
                expect_near(given, wanted, own.dtype, where, hint, mistakes)
                if not torch.equal(given, wanted):
                    raise CheckFailed(f"{where} to the last bit", "another", hint)
        expect_sent(run, rank, sent_to_sync(of_rank))


def sent_to_sync(of_rank: Any) -> list[Any]:
    """What a rank sends by case, as steps of `expect_wire`."""
    steps = []
    for gradients, is_cut in of_rank:
        pairs = zip(Weights._fields, gradients, strict=True)
        flat = [one for name, (one, is_there) in pairs if is_there and name in REPLICATED]
        if is_cut and flat:
            steps.append((SUM, torch.cat(flat), "its gradients", flat[0].dtype))
    return steps


@points(1, cell="check_sync_replicated")
def check_one_all_reduce_for_all(student, rng):
    """With cut tokens all gradients of norms and biases travel in one all-reduce, in their dtype;
    where there are none, and without cut tokens, nothing is sent.
    """
    run, cases = shared(student, rng, synced)
    for rank, of_rank in enumerate(cases):
        hint = "Join the gradients that there are, and all-reduce once."
        expect_wire(run, rank, sent_to_sync(of_rank), hint)


@points(0.75, cell="check_sync_replicated")
def check_copies_stay_equal(student, rng):
    """After a step of training with cut tokens on 4 ranks, all copies of a norm or bias have the
    same bits, and are those of one process.
    """
    sizes = drawn_sizes(rng, 4)
    full = drawn_weights(rng, sizes)
    shards, shape = shards_of(full, 4), (2, 8, sizes.width)
    case = (drawn(rng, *shape), drawn(rng, *shape), True, FLOAT)
    with hinted(ALL_RANKS):
        each = [(list(shard),) for shard in shards]
        args = (step_on_rank, case, sizes.head_dim)
        run = student.emulated(*args, world_size=4, each=each, **SEEN)
    found = in_branches(case, shards, sizes.head_dim, "block")
    for rank, of_rank in enumerate(found.gradients):
        own = torch.cat([of_rank._asdict()[name] for name in REPLICATED])
        expect_sent(run, rank, [(SUM, own, "its gradients", FLOAT)])
    for number, name in enumerate(REPLICATED):
        total = total_of([of_rank._asdict()[name] for of_rank in found.gradients])
        wanted = full._asdict()[name] - 0.1 * total.float()
        each = [entry(value, number) for value in run.values]
        hint = "Each rank saw other tokens: add up over the ranks before the step."
        for rank, given in enumerate(each):
            expect_near(given, wanted, FLOAT, f"{name} after a step on rank {rank}", hint)
            if not is_same(given, each[0]):
                raise CheckFailed(f"the same bits of {name} on every rank", "others", hint)


# vocabulary_loss


class Lost(NamedTuple):
    """A run of the loss: logits by case, whole, with a factor; and the targets."""

    run: Run
    cases: list[Any]
    targets: torch.Tensor
    num: int


def lost(student: Any, rng: torch.Generator, num: int) -> Lost:
    own, shape = whole(rng, 9, 12), (2, whole(rng, 4, 6))
    vocabulary = num * own
    targets = torch.randint(vocabulary, shape, generator=rng)
    targets[0, : min(num, 3)] = own * torch.arange(min(num, 3))  # the first entries of shards
    targets[1, : min(num, 3)] = own * torch.arange(1, 1 + min(num, 3)) - 1  # and the last ones
    small = 2 * drawn(rng, *shape, vocabulary)
    steps = 120.0 * torch.arange(num).repeat_interleave(own)  # a power of e that float32 lacks
    steps = torch.stack([steps, steps.flip(0)])[:, None]  # largest on the last rank, or the first
    far_below = -150.0 * (1 + torch.arange(targets.numel()) % 2).view(*shape, 1)  # by token
    cases = [(small, between(rng, 2, 4)), (small + steps, 1.0), (small + far_below, 1.0),
             (small.to(HALF), between(rng, 2, 4))]  # fmt: skip
    with hinted(ALL_RANKS):
        each = [
            ([(one.chunk(num, -1)[rank].clone(), factor) for one, factor in cases],)
            for rank in range(num)
        ]
        run = student.emulated(lose_on_rank, targets, world_size=num, each=each, **SEEN)
    return Lost(run, cases, targets, num)


def whole_loss(seen: Lost, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of a case, and the gradient of the whole logits."""
    logits, factor = seen.cases[place]
    leaf = logits.double().requires_grad_()
    loss = F.cross_entropy(leaf.flatten(0, 1), seen.targets.flatten())
    (factor * loss).backward()
    return loss.detach(), leaf.grad  # pyright: ignore[reportReturnType]


def expect_loss(seen: Lost, places: Sequence[int]) -> None:
    """Raise CheckFailed unless every rank has the loss of these cases, to the same bits."""
    for place in places:
        wanted, _ = whole_loss(seen, place)
        logits = seen.cases[place][0].double()
        for rank in range(seen.num):
            given = entry(seen.run.values[rank], place, 0)
            hint = "log of the ranks' sums of exp(logit - m), minus the target's logit - m."
            own = F.cross_entropy(logits.flatten(0, 1), seen.targets.flatten(), reduction="sum")
            mistakes = [(own, "That is the sum over the tokens: take the mean.")]
            if isinstance(given, torch.Tensor) and not torch.isfinite(given).all():
                hint = "All ranks subtract the same m: the largest logit of all ranks."
            expect_near(given, wanted, FLOAT, f"the loss on rank {rank}", hint, mistakes)
            if not is_same(given, entry(seen.run.values[0], place, 0)):
                raise CheckFailed("the same bits of the loss on every rank", "others", hint)


def expect_loss_gradient(seen: Lost, places: Sequence[int]) -> None:
    for place in places:
        _, gradient = whole_loss(seen, place)
        dtype = seen.cases[place][0].dtype
        for rank in range(seen.num):
            wanted = gradient.chunk(seen.num, -1)[rank]
            mistakes = [(seen.num * wanted, "N times too much: backward adds nothing up.")]
            hint = "A logit's share of the sum, minus 1 for the target, over the number of tokens."
            given = entry(seen.run.values[rank], place, 1)
            what = f"the logits' gradient on rank {rank}"
            expect_near(given, wanted, dtype, what, hint, mistakes)
            if dtype == HALF:  # of a softmax in float32 only the result is rounded
                hint = "Make the logits float32 first, and the gradient bfloat16 at the end."
                atol = 1e-5 * wanted.abs().max().item()
                expect_close(given, wanted.to(HALF), what, hint, rtol=1e-2, atol=atol)


def largest_of(seen: Lost, place: int) -> torch.Tensor:
    """What ranks take off the logits of each token of a case: the maximum that they agreed on."""
    calls = [one for one in seen.run.exchanges if one.reduction == "MAX"]
    sent = [[call.tensor(rank).double() for rank in call.bodies] for call in calls]
    if len(calls) == len(seen.cases) and all(len(x) == seen.targets.numel() for x in sent[place]):
        return torch.stack(sent[place]).amax(0)
    return seen.cases[place][0].double().amax(-1).flatten()


def sends_parts(seen: Lost, rank: int, place: int) -> bool:
    """True where a rank sends its sums of powers, and the logits of the targets that it has."""
    sent, top = sent_by(seen.run, rank), largest_of(seen, place)
    logits = seen.cases[place][0].double().flatten(0, 1).chunk(seen.num, -1)[rank]
    targets = seen.targets.flatten() - rank * logits.shape[1]
    is_own = (targets >= 0) & (targets < logits.shape[1])
    hits = logits[is_own, targets[is_own]]
    sums = (logits - top[:, None]).exp().sum(-1)
    forms = (hits - top[is_own], hits)
    return are_among(sent, sums, FLOAT) and any(are_among(sent, one, FLOAT) for one in forms)


def expect_loss_sent(seen: Lost, places: Sequence[int]) -> None:
    """Raise CheckFailed unless ranks send what the loss is made of, PartlyHeld if more travels.

    Logits will do, too: they are more.
    """
    for place in places:
        whole_logits = seen.cases[place][0]
        for rank in range(seen.num):
            logits = whole_logits.chunk(seen.num, -1)[rank]
            is_all_sent = are_among(sent_by(seen.run, rank), logits, FLOAT)
            if not (is_all_sent or sends_parts(seen, rank, place)):
                expected = f"rank {rank} to send its sums and its targets' logits"
                raise CheckFailed(expected, "other numbers", BY_WIRE)
    expect_lean(seen.run, len(seen.cases) * 3 * 4 * seen.targets.numel())


@points(1.25, cell="check_vocabulary_loss")
def check_loss_is_that_of_the_whole_softmax(student, rng):
    """The loss is the mean cross-entropy over all logits, float32 and the same bits on every rank,
    wherever the targets are.
    """
    seen = shared(student, rng, lost, 2)
    expect_loss(seen, [0])
    expect_loss_sent(seen, [0])


@points(1.25, cell="check_vocabulary_loss")
def check_gradient_is_that_of_the_whole_softmax(student, rng):
    """Each rank gets the gradient of its logits, for a loss with a factor, too."""
    seen = shared(student, rng, lost, 2)
    expect_loss_gradient(seen, [0])
    expect_loss_sent(seen, [0])


@points(1, cell="check_vocabulary_loss")
def check_large_logits_are_not_lost(student, rng):
    """Where a rank's or a token's logits are far larger, or all are far below 0, nothing is lost;
    bfloat16 logits are computed in float32, and their gradient is bfloat16. On 4 ranks.
    """
    seen = shared(student, rng, lost, 4)
    expect_loss(seen, [1, 2, 3])
    expect_loss_gradient(seen, [1, 2, 3])
    expect_loss_sent(seen, [1, 2, 3])


@points(1.5, cell="check_vocabulary_loss")
def check_logits_do_not_travel(student, rng):
    """Three float32 numbers a token travel, in all-reduces in forward; backward sends nothing."""
    for seen in (shared(student, rng, lost, 2), shared(student, rng, lost, 4)):
        for rank in range(seen.num):
            calls = posts_of(seen.run, rank)
            sizes = [one.tensor(rank).numel() for one in calls]
            most = len(seen.cases) * 3 * seen.targets.numel()
            hint = "m, the sum and the target's logit travel, once each; backward has all it needs."
            is_right = all(one.op == SUM and one.dtype == "float32" for one in calls)
            if not sizes or sum(sizes) > most or not is_right:
                kinds = ", ".join(sorted({f"{one.op} of {one.dtype}" for one in calls}))
                actual = f"{sum(sizes)} in {kinds or 'nothing'}"
                raise CheckFailed(f"{most} numbers of float32 in all-reduces", actual, hint)
            if not all(sends_parts(seen, rank, place) for place in range(len(seen.cases))):
                raise CheckFailed("each token's m, sum and target's logit", "other numbers", hint)
