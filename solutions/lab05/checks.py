"""Hidden checks of lab 5: the student's hooks under torch's DDP, on emulated clusters.

Points rest on the bytes that each rank gave to each operation, which the conductor saw and the
judge computes. What a rank returns, such as its memory, is compared beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from autograder.checks import (
    Outcome,
    PartlyHeld,
    StudentFailed,
    call_each,
    draw_bars,
    entries,
    entry,
    expect_like,
    expect_same_again,
    hinted,
    is_same,
    points,
    shown,
    tensor_like,
    whole,
)
from worldsize.check import CheckFailed, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch import Run

Tensors = list[torch.Tensor]
Gradients = list[list[Tensors]]  # by rank, step and parameter
OF_DDP = {"all_gather", "broadcast", "barrier"}  # what DDP itself calls
TOP_K, POWER = ("top_k_hook", "TopKState"), ("power_hook", "PowerState")
ALLOWED = {TOP_K: OF_DDP, POWER: OF_DDP | {"all_reduce"}}
HOOKS_OF_TORCH = "torch's own hooks are not allowed here: write a hook of your own"
RULES = {
    "cluster": "a100-10gbe",
    "forbid": {"torch.distributed.algorithms.ddp_comm_hooks": HOOKS_OF_TORCH},
    "keeps_exchanges": True,
}
HINTS = {
    Outcome.HUNG: "All ranks must start the same operations in the same order, for every bucket.",
    Outcome.TIME_LIMIT: "DDP waits for the future that a hook returned: did it get its result, by"
    " set_result or by what `then` is given?",
    Outcome.CRASHED: "A bucket may hold any parameters: vectors alone, matrices alone, a number.",
}
ONE_BUCKET_MB, SMALL_BUCKETS_MB = 25.0, 0.001
FOUND = 1e-3  # numbers are what they should be if they are this close, relative to their size
NEAR = {"rtol": 5e-3, "atol": 5e-3}
SENT = {"rtol": 1e-3, "atol": 1e-4}
SMALL = 1e-3  # of gradients


class GivenGradients(nn.Module):
    """A model whose parameters get exactly the gradients that are handed in."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(torch.zeros(one)) for one in shapes])

    def forward(self, gradients: Tensors) -> torch.Tensor:
        pairs = zip(self.tensors, gradients, strict=True)
        return torch.stack([(one * given).sum() for one, given in pairs]).sum()


# What runs on the ranks. Only the two functions that hooks call know an answer.


def reference_top_k(vector: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    places = vector.abs().topk(k).indices
    return vector[places], places.int()


def reference_orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    return torch.linalg.qr(matrix).Q


class Then(torch.autograd.Function):
    """An identity that sends a number to the other rank, or receives one from it, in backward."""

    @staticmethod
    def forward(ctx, tensor, send_or_recv):
        ctx.send_or_recv = send_or_recv
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.send_or_recv(torch.ones(1), 1 - torch.distributed.get_rank())
        return gradient, None


def step_on_rank(
    student: Any, names: Any, setting: Any, cap_mb: float, seed: int, in_turn: bool, steps: Any
) -> Any:
    """Results and state by step, and what torch's generator gives afterwards.

    In turn, a rank begins each backward pass when the other one's hooks have returned.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def copies(kept: Any) -> list[Any]:
        found = [kept.get(parameter) for parameter in model.tensors]
        return [one.detach().clone() if isinstance(one, torch.Tensor) else None for one in found]

    student.top_k, student.orthogonalise = reference_top_k, reference_orthogonalise
    hook, state = getattr(student, names[0]), getattr(student, names[1])(*setting)
    model, by_step = GivenGradients([given.shape for given in steps[0]]), []
    ddp = DistributedDataParallel(model, bucket_cap_mb=cap_mb)
    ddp.register_comm_hook(state, lambda state, bucket: hook(state, bucket))
    torch.default_generator.manual_seed(seed + dist.get_rank())
    for step, gradients in enumerate(steps):
        model.zero_grad()
        # made before all else in forward, it is last in backward
        last = Then.apply(torch.zeros((), requires_grad=True), dist.send)
        loss = ddp(gradients)
        if in_turn:
            is_first = dist.get_rank() == step // 2 % 2
            loss = loss + last if is_first else Then.apply(loss, dist.recv)
        loss.backward()
        results = [parameter.grad.clone() for parameter in model.tensors]
        of_state = {"kept": copies(state.memory), "q": copies(getattr(state, "q", {}))}
        by_step.append({"results": results, **of_state})
    return {"steps": by_step, "drawn": torch.empty(4).uniform_()}


def without_hook_on_rank(_: None, cap_mb: float, steps: list[Tensors]) -> list[list[torch.Tensor]]:
    """The places of DDP's buckets in all gradients, by step; runs where no student code is."""
    from torch.nn.parallel import DistributedDataParallel

    model, found = GivenGradients([given.shape for given in steps[0]]), []
    parts = torch.arange(len(flat(steps[0]))).split([given.numel() for given in steps[0]])
    places = dict(zip(model.tensors, parts, strict=True))

    def send_nothing(_, bucket):  # annotated, its arguments would have to be what DDP expects
        found[-1].append(torch.cat([places[parameter] for parameter in bucket.parameters()]))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp = DistributedDataParallel(model, bucket_cap_mb=cap_mb)
    ddp.register_comm_hook(None, send_nothing)
    for gradients in steps:
        found.append([])
        ddp(gradients).backward()
    return found


def top_k_on_rank(student: Any, vectors: Tensors, counts: Sequence[int]) -> Any:
    return [[*student.top_k(vector, k), vector] for vector, k in zip(vectors, counts, strict=True)]


def low_rank_on_rank(student: Any, q: torch.Tensor, matrix: torch.Tensor) -> Any:
    student.orthogonalise = reference_orthogonalise
    return [*student.low_rank(matrix, q), matrix, q]


# Runs, and what went over the wire in them.


class Played(NamedTuple):
    """A run of a hook: what it sent, in order, and DDP's buckets by step, as places in all."""

    run: Run
    gradients: Gradients
    sent: list[Exchange]
    buckets: list[list[torch.Tensor]]

    def fresh(self, step: int, number: int) -> Tensors:
        """The gradients of one parameter in one step, by rank."""
        return [steps[step][number] for steps in self.gradients]

    def read(self, step: int, what: str, number: int | None = None) -> list[Any]:
        """The results, or what is kept, in a step, by rank: of one parameter, or all in a vector.

        Raises:
            CheckFailed: one is not a finite tensor of its parameter's shape and type.
        """
        numbers = range(len(self.gradients[0][0])) if number is None else [number]
        found = [
            [self._read(value, step, what, one) for one in numbers] for value in self.run.values
        ]
        return [flat(of_rank) if number is None else of_rank[0] for of_rank in found]

    def _read(self, value: Any, step: int, what: str, number: int) -> torch.Tensor:
        given = entry(value, "steps", step, what, number)
        found = tensor_like(given, self.gradients[0][0][number])
        if found is None or not found.isfinite().all():
            hint = "The keys of state.memory are the parameters." if what == "kept" else ""
            name = "state.memory[parameter]" if what == "kept" else "the result"
            expected = f"{name} of finite numbers in the shape of parameter {number}"
            raise CheckFailed(expected, shown(given) if found is None else "nan or infinity", hint)
        return found


def play(
    student: Any,
    names: tuple[str, str],
    setting: Any,
    gradients: Gradients,
    cap_mb: float = ONE_BUCKET_MB,
    seed: int = 0,
) -> Played:
    """A run of one hook on these gradients. Its failure says what to look for."""
    options = {"world_size": len(gradients), "each": [(steps,) for steps in gradients]} | RULES
    args = (step_on_rank, names, setting, cap_mb, seed, False)
    with hinted(HINTS):
        run = student.emulated(*args, allow=ALLOWED[names], **options)
    shapes = tuple(tuple(one.shape) for one in gradients[0][0])
    plain = without_hook(student, len(gradients), len(gradients[0]), shapes, cap_mb)
    of_ddp, sent = Counter(map(identity, plain.exchanges)), []
    for exchange in run.exchanges:
        of_ddp[identity(exchange)] -= 1
        if of_ddp[identity(exchange)] < 0:
            sent.append(exchange)
    return Played(run, gradients, sent, plain.values[0])


@cache
def without_hook(student: Any, num_ranks: int, num_steps: int, shapes: Any, cap_mb: float) -> Run:
    """A run of DDP with a hook that sends nothing: what is sent is what DDP itself sends."""
    each = [([[torch.zeros(one) for one in shapes]] * num_steps,)] * num_ranks
    options = {"world_size": num_ranks, "each": each, "student_ranks": ()} | RULES
    return student.emulated(without_hook_on_rank, cap_mb, **options)


def identity(exchange: Exchange) -> tuple[str, tuple[tuple[int, bytes], ...]]:
    return exchange.op, tuple(sorted(exchange.bodies.items()))


def is_dense(game: Played) -> bool:
    """True where ranks send half of what all-reduces of the gradients would send, or more."""
    num_ranks = len(game.gradients)
    sent = sum(
        len(body) * (2 / num_ranks if one.op == "all_reduce" else 1)
        for one in game.sent
        for body in one.bodies.values()
    )
    return sent >= sum(4 * given.numel() for step in game.gradients[0] for given in step)


def expect_compression(game: Played) -> None:
    """Raise PartlyHeld where the hook compresses too little: then all else counts half."""
    if is_dense(game):
        raise PartlyHeld(
            0.5,
            "this from a hook that sends less than half of what a plain all-reduce sends",
            "it from one that sends more",
            "Until then, everything else earns half its points.",
        )


# What the judge draws, computes and compares.


def drawn(rng: torch.Generator, num_ranks: int, num_steps: int, shapes: Any) -> Gradients:
    """Normal gradients by rank, step and parameter."""
    return [
        [[torch.randn(tuple(shape), generator=rng) for shape in shapes] for _ in range(num_steps)]
        for _ in range(num_ranks)
    ]


def mean(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean, taken in float64."""
    return torch.stack([tensor.double() for tensor in tensors]).mean(dim=0).to(tensors[0].dtype)


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def is_multiple(given: torch.Tensor, wanted: torch.Tensor) -> bool:
    """True where one is the other times a number above 0: a lost division is for one check."""
    factor = (given.double() * wanted).sum() / wanted.double().square().sum()
    missed = (given - factor * wanted.double()).norm() / given.double().norm()
    return bool(factor > 0 and missed < 5 * FOUND)


def expect_same_bits(game: Played, again: Played) -> None:
    """Raise CheckFailed unless all ranks have the same results, in both runs."""
    hint = "All ranks must make the same sum of the same numbers in the same order."
    for step in range(len(game.buckets)):
        first, *others = game.read(step, "results")
        if not all(is_same(first, other) for other in others):
            raise CheckFailed("the same bits on all ranks", "other results on some rank", hint)
        expect_same_again([first, *others], again.read(step, "results"))


# What top-k must send, with all gradients of a rank as one vector.


def num_sent(fraction: float, num_elements: int) -> int:
    return max(1, round(fraction * num_elements))


def largest(vector: torch.Tensor, k: int) -> torch.Tensor:
    """The vector with all but its k largest entries 0."""
    places = vector.abs().topk(k).indices
    return torch.zeros_like(vector).index_copy(0, places, vector[places])


def sent_of(vector: torch.Tensor, parts: Sequence[torch.Tensor], fraction: float) -> torch.Tensor:
    """What is sent of a vector, with only the largest entries of each part, given by its places."""
    sent = torch.zeros_like(vector)
    for places in parts:
        sent[places] = largest(vector[places], num_sent(fraction, len(places)))
    return sent


def exchanges_of(game: Played, step: int) -> list[list[Exchange]]:
    """What a step sent for each bucket.

    Raises:
        CheckFailed: there are not one or two operations for each.
    """
    before, num = (sum(map(len, game.buckets[:one])) for one in (step, None))
    num_each, left = divmod(len(game.sent), num)
    if left or num_each not in (1, 2):
        hint = "Gather values and places, each in one operation or both in one."
        actual = f"{len(game.sent)} operations"
        raise CheckFailed(f"one or two operations for each of {num} buckets", actual, hint)
    starts = [num_each * (before + bucket) for bucket in range(len(game.buckets[step]))]
    return [game.sent[start : start + num_each] for start in starts]


def gathered(game: Played, step: int, rank: int) -> torch.Tensor:
    """All gradients with only the entries that a rank sent, in any layout.

    A place, read as an int32, is below the number of elements; the values that are drawn never are.

    Raises:
        CheckFailed: values and places cannot be told apart, or are not as many.
    """
    total = torch.zeros(sum(map(len, game.buckets[step])))
    for inside, exchanges in zip(game.buckets[step], exchanges_of(game, step), strict=True):
        words = torch.cat([words_of(one, rank, len(inside)) for one in exchanges])
        is_place = (words >= 0) & (words < len(inside))
        places, values = words[is_place].long(), words[~is_place].view(torch.float32)
        if not len(values) or len(places) != len(values) or len(places) != len(places.unique()):
            raise CheckFailed(
                f"values as float32 and as many places as int32, sent by rank {rank}",
                "numbers that cannot be read so",
                "A place is the entry's number in the bucket. What ranks know of each other comes"
                " from what they gather.",
            )
        total[inside[places]] = values
    return total


def words_of(exchange: Exchange, rank: int, num: int) -> torch.Tensor:
    """What a rank gave, as int32, for a bucket of `num` elements.

    Places as int64, which take too many bytes, can be read too; other int64 words are two of int32.
    """
    given = exchange.tensor(rank)
    if given.dtype == torch.int64 and ((given >= 0) & (given < num)).all():
        return given.int()
    return given.view(torch.uint8).view(torch.int32)


def shares_of(game: Played, fraction: float, step: int = 0) -> Tensors:
    """What each rank sent in a step, by the wire; as in the first one where all was sent."""
    if is_dense(game):
        sums = [flat(steps[0]) for steps in game.gradients]
        return [sent_of(one, game.buckets[0], fraction) for one in sums]
    return [gathered(game, step, rank) for rank in range(len(game.gradients))]


# top_k


@points(1, cell="check_top_k")
def check_top_k_takes_the_largest(student, rng):
    """The k entries of largest magnitude with their signs, and their places as int32; the vector
    does not change.
    """
    vectors = [torch.randn(whole(rng, 50, 99), generator=rng) - 0.5 for _ in range(2)]
    expect_top_k(student, vectors, [whole(rng, 5, 25) for _ in vectors])


@points(1, cell="check_top_k")
def check_top_k_takes_any_k_and_type(student, rng):
    """k may be 1 or all; there may be equal entries and zeros; float64 and bfloat16 keep their
    types.
    """
    num = whole(rng, 6, 12)
    wide = torch.rand(num, generator=rng, dtype=torch.float64) + 0.1
    equal = torch.tensor([2.0, 2.0, 0.0, 2.0, 0.0, 2.0])
    vectors = [wide, wide, wide.bfloat16(), equal, torch.zeros(4), torch.ones(1)]
    expect_top_k(student, vectors, [1, num, num // 2, 3, 2, 1])


def expect_top_k(student: Any, vectors: Tensors, counts: list[int]) -> None:
    """Raise CheckFailed unless `top_k` gives k largest entries of each vector."""
    given = [one.clone() for one in vectors]
    (results,) = student.run(top_k_on_rank, given, counts, world_size=1)
    for vector, k, result in zip(vectors, counts, entries(results, len(counts)), strict=True):
        values, places, after = entries(result, 3)
        for what, one, dtype in (("values", values, vector.dtype), ("places", places, torch.int32)):
            if tensor_like(one, torch.empty(k, dtype=dtype)) is None:
                hint = "A place as int32 costs 4 bytes, as int64 8."
                raise CheckFailed(f"{what}: {k} elements of type {dtype}", shown(one), hint)
        rows = places.long()
        if len(rows.unique()) != k or rows.min() < 0 or rows.max() >= len(vector):
            raise CheckFailed(f"{k} different places in the vector", shown(rows.tolist()))
        hint = "A value is the vector's entry at its place, with its sign."
        expect_close(values, vector[rows], "the values", hint)
        wanted, given = (one.abs().sort(descending=True).values[:k] for one in (vector, values))
        hint = "Large means far from 0: choose by magnitude, and send the entries themselves."
        expect_close(given, wanted, "the magnitudes, sorted,", hint)
        expect_close(after, vector, "the vector afterwards", "`top_k` must not change it.")


# top_k_hook


def two_scales(rng: torch.Generator) -> Gradients:
    """Gradients of three ranks whose largest entries lie mostly in one of two parameters."""
    gradients = drawn(rng, 3, 2, [(14, 10), (127,)])
    return [[[first, 3 * second] for first, second in steps] for steps in gradients]


@points(2, cell="check_top_k_hook")
def check_hook_sends_the_largest_entries(student, rng):
    """Each rank gathers the k largest entries of the bucket and their places, k float32 and k int32
    numbers in at most two all-gathers.
    """
    gradients, fraction = two_scales(rng), whole(rng, 7, 10) / 100
    game = play(student, TOP_K, (fraction,), gradients)
    by_step = [exchanges_of(game, step)[0] for step in range(2)]
    if others := {one.op for one in game.sent} - {"all_gather"}:
        raise CheckFailed("all-gathers alone", f"{', '.join(sorted(others))}")
    limit = 8 * num_sent(fraction, len(game.buckets[0][0]))
    given = max(sum(len(one.bodies[rank]) for one in of) for of in by_step for rank in range(3))
    if given > limit:
        raise CheckFailed(
            f"at most {limit:,} bytes from each rank: 8 for each entry that is sent",
            f"{given:,} bytes",
            "Send the k values as float32 and their places as int32, and no more.",
            lambda: draw_bars({"a rank": limit}, {"a rank": given}, "For the bucket", "bytes"),
        )
    for rank in range(3):
        vector, sizes = flat(gradients[rank][0]), [one.numel() for one in gradients[0][0]]
        each = sent_of(vector, torch.arange(len(vector)).split(sizes), fraction)
        expect_like(
            gathered(game, 0, rank),
            sent_of(vector, game.buckets[0], fraction),
            f"what rank {rank} gathers",
            "Send the entries that `top_k` takes of the bucket, each with its place in it.",
            [(each, "Not the largest of each parameter: the largest of the whole bucket.")],
            **SENT,
        )


@points(2, cell="check_top_k_hook")
def check_hook_averages_what_ranks_send(student, rng):
    """In each step and bucket, the result is the sum of what all ranks send divided by their
    number, with the same bits on all ranks and in a second run.
    """
    # from the second step on there are two buckets, the same ones in each
    gradients = drawn(rng, 3, 3, [(14, 10), (127,), (300,)])
    game, again = (play(student, TOP_K, (0.1,), gradients, SMALL_BUCKETS_MB) for _ in range(2))
    for step in range(1 if is_dense(game) else 3):
        shares = shares_of(game, 0.1, step)
        total, latest = torch.stack(shares).sum(dim=0), shares[0]
        num_senders = torch.stack([share != 0 for share in shares]).sum(dim=0).clamp(1)
        for share in shares:
            latest = torch.where(share != 0, share, latest)
        replaced = "Where several ranks send an entry, one has replaced the other: add them up."
        mistakes = [
            (total, "That is the sum over the ranks: DDP leaves the division to the hook."),
            (latest / 3, replaced),
            (latest, replaced),
            (total / num_senders, "Divide by the number of ranks: who does not send counts as 0."),
        ]
        hint = "Add up what all ranks send, and divide by the number of ranks."
        if step:
            hint += " Do so in each bucket, and begin with zeros in every step."
        for rank, result in enumerate(game.read(step, "results")):
            what = f"the result on rank {rank} in step {step + 1}"
            expect_like(result, total / 3, what, hint, mistakes, **SENT)
    expect_same_bits(game, again)
    expect_compression(game)


@points(1, cell="check_top_k_hook")
def check_what_was_kept_is_sent_later(student, rng):
    """In each of eight steps a rank sends the largest entries of gradient + kept before, so that
    what was not sent comes back.
    """
    gradients = drawn(rng, 2, 8, [(whole(rng, 60, 90),)])
    game = play(student, TOP_K, (0.1,), gradients)
    hint = "Add what was kept, choose from the sum, and keep what you do not send of the sum."
    for step, rank, _, sent in sums_of(game, 0.1):
        fresh = sent_of(gradients[rank][step][0], game.buckets[step], 0.1)
        mistakes = [(fresh, "What was kept is not added to the gradient.")]
        what = f"what rank {rank} gathers in step {step + 1}"
        expect_like(gathered(game, step, rank), sent, what, hint, mistakes, **SENT)


def sums_of(game: Played, fraction: float) -> Iterator[tuple[int, int, torch.Tensor, torch.Tensor]]:
    """By step and rank: gradient + kept before, and what is sent of it."""
    for rank, steps in enumerate(game.gradients):
        kept = torch.zeros(len(flat(steps[0])))
        for step, gradients in enumerate(steps):
            total = flat(gradients) + kept
            sent = sent_of(total, game.buckets[step], fraction)
            yield step, rank, total, sent
            kept = total - sent


@points(1.5, cell="check_top_k_hook")
def check_memory_follows_its_parameter(student, rng):
    """state.memory holds for every parameter what this rank did not send of it, however small, also
    after DDP has put the parameters into other buckets.
    """
    shapes = [(20, whole(rng, 10, 15)), (20,), (4, 5, 3, 3), (whole(rng, 300, 400),)]
    gradients = drawn(rng, 2, 3, shapes)
    gradients = [[[1e-6 * first, *others] for first, *others in steps] for steps in gradients]
    game = play(student, TOP_K, (0.1,), gradients, SMALL_BUCKETS_MB)
    by_bucket = "Store it by parameter: what is stored by bucket number goes to other parameters."
    for step, rank, total, sent in sums_of(game, 0.1):
        of_step = f"of rank {rank} in step {step + 1}"
        expect_like(gathered(game, step, rank), sent, f"what is sent {of_step}", by_bucket, **SENT)
        fresh, result = flat(gradients[rank][step]), game.read(step, "results")[rank]
        mistakes = [
            (total, "That is the whole sum: what was sent is kept too, and will be sent again."),
            (total - result, "That is the sum less the mean. Keep what you do not send yourself."),
            (result, "That is the result: DDP reuses the bucket's memory, so keep a copy."),
            (fresh - sent, by_bucket),
        ]
        kept, hint = game.read(step, "kept")[rank], "What was sent is kept as 0."
        what = f"what is kept {of_step}"
        expect_like(kept, total - sent, what, hint, mistakes, rtol=1e-3, atol=1e-9)


@points(0.5, cell="check_top_k_hook")
def check_hook_takes_any_shape_and_fraction(student, rng):
    """With fraction 1 the result is the mean of the gradients, for parameters of any shape; at
    least one entry is sent.
    """
    shapes = [(), (3, 4, 2), (1,), (2, 3, 3, 3), (whole(rng, 5, 9),)]
    gradients = drawn(rng, 2, 2, shapes)
    for fraction in (1.0, 1e-6):
        game = play(student, TOP_K, (fraction,), gradients)
        expect_multiple(game, fraction, f"the result with fraction {fraction:g}")
    expect_compression(game)


def expect_multiple(game: Played, fraction: float, what: str) -> None:
    """Raise CheckFailed unless the first result is, up to a factor, the mean of what was sent."""
    wanted = mean(shares_of(game, fraction))
    for given in game.read(0, "results"):
        if not is_multiple(given, wanted):
            expect_close(given, wanted, what, "Add up the entries that were gathered, and no more.")


# orthogonalise


def well_conditioned(rng: torch.Generator, num_rows: int, num_columns: int) -> torch.Tensor:
    """A matrix whose columns, of strengths from 1.5 to 3, have other lengths than 1 and angles.

    A normal square one is singular to float32 often enough for a right Gram-Schmidt to fail.
    """
    columns = torch.linalg.qr(torch.randn(num_rows, num_columns, generator=rng)).Q
    mixed = torch.linalg.qr(torch.randn(num_columns, num_columns, generator=rng)).Q
    return columns * torch.linspace(1.5, 3, num_columns) @ mixed


def orthogonalised(student: Any, matrices: Tensors) -> Tensors:
    """The student's results for these matrices.

    Raises:
        CheckFailed: one is not a matrix of finite numbers of the same shape and type.
    """
    given = [one.clone() for one in matrices]
    (results,) = student.run(call_each, "orthogonalise", [(one,) for one in given], world_size=1)
    for matrix, one in zip(matrices, entries(results, len(matrices)), strict=True):
        if tensor_like(one, matrix) is None:
            raise CheckFailed(f"a float32 matrix of shape {tuple(matrix.shape)}", shown(one))
        if not one.isfinite().all():
            hint = "Do not divide a column by a length of 0."
            raise CheckFailed("finite numbers", "nan or infinity", hint)
    return results


def expect_orthonormal(columns: torch.Tensor, what: str) -> None:
    """Raise CheckFailed unless the columns have length 1 and are at right angles."""
    products, ones = columns.t() @ columns, torch.eye(columns.shape[1])
    hint = "Subtract from each column its part along those before it, then divide by its length."
    if torch.allclose(products * (1 - ones), 0 * ones, atol=1e-3):
        hint = "They are at right angles, but not of length 1."
    elif torch.allclose(products.diagonal(), torch.ones(len(ones)), atol=1e-3):
        hint = "They have length 1, but are not at right angles."
    expect_close(products, ones, f"the products of the columns of {what}", hint, atol=1e-3)


@points(1.5, cell="check_orthogonalise")
def check_columns_are_orthonormal(student, rng):
    """Columns of length 1 at right angles that span the same space as the columns of the matrix."""
    shapes = [(whole(rng, 20, 40), 4), (9, 9), (whole(rng, 5, 9), 1)]
    matrices = [well_conditioned(rng, *shape) for shape in shapes]
    scaled = [*matrices, 1e-4 * matrices[0]]  # gradients may be small
    matrices.append(matrices[0])  # the columns span the same space
    for matrix, given in zip(matrices, orthogonalised(student, scaled), strict=True):
        expect_orthonormal(given, f"the result of shape {tuple(matrix.shape)}")
        spanned, hint = given @ (given.t() @ matrix), "The columns span a different space."
        expect_close(spanned, matrix, "the matrix from the new columns", hint, **NEAR)


@points(0.5, cell="check_orthogonalise")
def check_dependent_columns_stay_finite(student, rng):
    """Zeros, and columns that are multiples of each other, give finite numbers."""
    column = torch.randn(whole(rng, 5, 9), 1, generator=rng)
    orthogonalised(student, [torch.zeros(6, 3), torch.cat([column, 2 * column, -column], dim=1)])


# Matrices, and finding their factors on the wire.


def spread(rng: torch.Generator, num_ranks: int, wanted: torch.Tensor) -> Tensors:
    """Tensors whose mean is the wanted one, each far from it."""
    apart = [torch.randn(wanted.shape, generator=rng) for _ in range(num_ranks)]
    return [wanted + one - mean(apart) for one in apart]


def of_rank_two(rng: torch.Generator, num_rows: int, num_columns: int) -> torch.Tensor:
    """A matrix of matrix rank 2: compressed to rank 3 it is exact whatever the first Q is."""
    return well_conditioned(rng, num_rows, 2) @ torch.randn(2, num_columns, generator=rng)


def span(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """An orthonormal basis of the strongest `rank` directions of the columns, in float64."""
    return torch.linalg.svd(matrix.double(), full_matrices=False).U[:, :rank]


def located(bodies: torch.Tensor, basis: torch.Tensor, rank: int) -> torch.Tensor | None:
    """The block of `rank` columns in the span of a basis that is somewhere in what was sent.

    `bodies` has a row of numbers for each of N ranks. Basis and block have N n rows, the ranks' n
    one below the other; on the wire they go row by row.
    """
    size = len(basis) // len(bodies) * rank
    windows = bodies.double().unfold(1, size, 1).transpose(0, 1)  # (places, N, n rank)
    blocks = windows.reshape(len(windows), len(basis), rank)
    inside = span(basis, min(basis.shape))
    missed = (blocks - inside @ (inside.t() @ blocks)).norm(dim=(1, 2))
    shares = (missed / blocks.norm(dim=(1, 2))).nan_to_num(1.0)
    return blocks[shares.argmin()] if shares.min() < FOUND else None


def steps_sent(game: Played, rank: int) -> list[torch.Tensor]:
    """The numbers that each rank sent in each step, (N, numbers).

    Raises:
        CheckFailed: they are not as many as all P, all Q and the other parameters have.
    """
    num_due, num_ranks = 0, len(game.gradients)
    for one in game.gradients[0][0]:
        n = one.shape[0] if one.dim() > 1 else 1
        m = one.numel() // n
        num_due += min(min(rank, n, m) * (n + m) if n > 1 else one.numel(), one.numel())
    sent = [[one.tensor(of).float() for one in game.sent] for of in range(num_ranks)]
    bodies = [torch.cat([torch.empty(0), *of_rank]) for of_rank in sent]
    num_given = max(map(len, bodies)) / len(game.buckets)
    if {len(body) for body in bodies} != {num_due * len(game.buckets)}:
        hint = "Of a compressed matrix only P and Q travel, r (n + m) numbers; all others go once."
        expected = f"{num_due:,} numbers from each rank in each step"
        raise CheckFailed(
            expected,
            f"{num_given:,.0f}",
            hint,
            lambda: draw_bars({"a rank": num_due}, {"a rank": num_given}, "Sent in a step", ""),
        )
    return list(torch.stack(bodies).split(num_due, dim=1))


def expect_made_of_what_was_sent(
    game: Played, rank: int, number: int, step: int = 0, num_directions: int = 2
) -> None:
    """Raise CheckFailed unless a result is in the span of a P and a Q that ranks have sent.

    Where all was sent, the result counts half anyway.
    """
    if is_dense(game):
        return
    total = steps_sent(game, rank)[step].double().sum(dim=0, keepdim=True)
    result = game.read(step, "results", number)[0].flatten(1)
    for name, side in (("P", result), ("Q", result.t())):
        if located(total, span(side, num_directions), rank) is None:
            raise CheckFailed(
                f"the result of parameter {number} to be P Qᵀ of what the ranks all-reduced",
                f"no {name} of its directions among the numbers that they sent",
                "Send P and Q row by row, as float32. What ranks know of each other comes from it.",
            )


def expect_sent_whole(game: Played, number: int) -> None:
    """Raise CheckFailed unless each rank sent its gradients of a parameter that is not compressed.

    They may be anywhere among its numbers of that step, as they are or divided by the ranks.
    """
    for step, bodies in enumerate(steps_sent(game, 2)):
        for rank, given in enumerate(game.fresh(step, number)):
            sent, own = bodies[rank][None], given.flatten()[:, None]
            is_there = [torch.isclose(k * sent, own).any(dim=1).all() for k in (1, len(bodies))]
            if not any(is_there):
                raise CheckFailed(
                    f"rank {rank} to send its gradient of parameter {number} in step {step + 1}",
                    "other numbers",
                    "What is not compressed is all-reduced: the mean comes over the wire.",
                )


def expect_projection(result: torch.Tensor, matrix: torch.Tensor, rank: int, what: str) -> None:
    """Raise CheckFailed unless it is, up to a factor, the matrix's part in `rank` directions."""
    strengths = torch.linalg.svdvals(result.double())
    if strengths[rank] > 5 * FOUND * strengths[0]:
        hint = "It is P Qᵀ, and P has r columns."
        raise CheckFailed(f"{what}, of matrix rank at most {rank}", "a higher matrix rank", hint)
    basis = span(result, rank)
    wanted = (basis @ (basis.t() @ matrix.double())).float()
    if not is_multiple(result, wanted):
        hint = "Q is the mean of Mᵀ P, and the result P Qᵀ, put back where the gradient was."
        expect_like(result, wanted, what, hint, **NEAR)


# low_rank


def factored(student: Any, rng: torch.Generator) -> tuple[Run, Tensors, torch.Tensor, Any, Any]:
    """A run of `low_rank` on three ranks; each rank's M, their Q, and each rank's P and new Q.

    Raises:
        CheckFailed: P and Q are not of the right shapes, and of finite numbers.
    """
    matrix = of_rank_two(rng, whole(rng, 16, 20), whole(rng, 22, 28))
    matrices, q = spread(rng, 3, matrix), torch.randn(matrix.shape[1], 3, generator=rng)
    options = {"each": [(one,) for one in matrices], "allow": {"all_reduce"}} | RULES
    run = student.emulated(low_rank_on_rank, q, world_size=3, **options)
    like = [torch.empty(len(matrix), 3), q]
    for value in run.values:
        pairs = zip(entries(value, 2), like, strict=True)
        if any(tensor_like(*pair) is None or not pair[0].isfinite().all() for pair in pairs):
            expected = f"P and Q of {len(matrix)} and {len(q)} rows, 3 columns and finite numbers"
            raise CheckFailed(expected, shown(entries(value, 2)))
    return run, matrices, q, *zip(*(value[:2] for value in run.values), strict=True)


@points(1, cell="check_low_rank")
def check_low_rank_has_one_p(student, rng):
    """P has orthonormal columns that span the sum over the ranks of M Q, with the same bits on all
    ranks; M and Q stay as they were.
    """
    run, matrices, q, ps, new_qs = factored(student, rng)
    total = sum(matrices) @ q
    for rank, p in enumerate(ps):
        hint = "P is the sum over all ranks of M Q, made orthonormal after it was summed."
        spanned = p @ torch.linalg.lstsq(p, total).solution
        expect_close(spanned, total, f"the sum of M Q from P on rank {rank}", hint, **NEAR)
        expect_orthonormal(p, f"P on rank {rank}")
        if not is_same([p, new_qs[rank]], [ps[0], new_qs[0]]):
            raise CheckFailed("the same bits on all ranks", f"others on rank {rank}")
        for place, given in ((2, matrices[rank]), (3, q)):
            hint = "The arguments are the caller's: make new tensors."
            expect_close(entry(run.values[rank], place), given, "M or Q afterwards", hint)


@points(1, cell="check_low_rank")
def check_low_rank_has_the_mean_q(student, rng):
    """Q is the mean over the ranks of Mᵀ P."""
    _, matrices, _, ps, new_qs = factored(student, rng)
    for rank, (p, new_q) in enumerate(zip(ps, new_qs, strict=True)):
        wanted = mean(matrices).t() @ p
        mistakes = [
            (3 * wanted, "That is the sum over the ranks: Q is the mean."),
            (matrices[rank].t() @ p, "That is this rank's own Mᵀ P, and not the mean."),
        ]
        hint = "Sum Mᵀ P over all ranks, with the summed P."
        expect_like(new_q, wanted, f"Q on rank {rank}", hint, mistakes, **NEAR)


@points(1, cell="check_low_rank")
def check_low_rank_sends_p_and_q(student, rng):
    """Two all-reduces: n r numbers for P, and then m r for Q. What is returned is made of them."""
    run, matrices, q, ps, _ = factored(student, rng)
    sizes, sent = [ps[0].numel(), q.numel()], run.exchanges
    given = [one.tensor(one.ranks[0]).numel() for one in sent]
    if given != sizes:
        hint = "Of a matrix only P and Q travel."
        raise CheckFailed(f"two all-reduces, of {sizes} numbers", f"{given}", hint)
    first, second = (torch.stack([one.tensor(rank) for rank in range(3)]) for one in sent)
    own = flat([one.t() @ p for one, p in zip(matrices, ps, strict=True)])
    is_sent = {
        "part of P first": located(first.sum(dim=0)[None], ps[0], 3) is not None,
        "own Mᵀ P second": is_multiple(second.flatten(), own),
    }
    for what, is_there in is_sent.items():
        if not is_there:
            raise CheckFailed(f"each rank to send its {what}", "other numbers")


# power_hook


@points(2.5, cell="check_power_hook")
def check_power_sends_thin_factors(student, rng):
    """At most three all-reduces for a bucket: r (n + m) numbers for each compressed parameter, the
    others once. What comes out is made of them.
    """
    shapes = [(whole(rng, 24, 28), 18), (11,), (whole(rng, 18, 22), 30), (3, 4)]
    game = play(student, POWER, (2,), drawn(rng, 2, 2, shapes), SMALL_BUCKETS_MB)
    if others := {one.op for one in game.sent} - {"all_reduce"}:
        raise CheckFailed("all-reduces alone", f"{', '.join(sorted(others))}")
    steps_sent(game, 2)
    for number in (0, 2):
        expect_made_of_what_was_sent(game, 2, number)
    for number in (1, 3):
        expect_sent_whole(game, number)
    # the first step has all in one bucket; in the second a bucket may be of vectors alone
    due = steps_sent(game, 2)[0].shape[1]
    num_first = 1 + sum(one < due for one in accumulate(one.tensor(0).numel() for one in game.sent))
    for num, buckets in ((num_first, game.buckets[:1]), (len(game.sent), game.buckets)):
        num_most = 3 * sum(map(len, buckets))
        if num > num_most:
            hint = "Put all P of a bucket into one tensor, all Q into one, and all others into one."
            expected = f"at most {num_most} operations: three for each of {num_most // 3} buckets"
            raise PartlyHeld(0.6, expected, f"{num}", hint)


@points(2, cell="check_power_hook")
def check_power_is_exact_at_its_rank(student, rng):
    """A mean gradient of rank r or less arrives exactly, although no rank's own gradient has that
    rank; vectors are averaged. All ranks and a second run get the same bits.
    """
    matrix = of_rank_two(rng, whole(rng, 20, 24), whole(rng, 26, 32))
    vector, seed = torch.randn(9, generator=rng), whole(rng, 2**30, 2**40)
    by_rank = zip(spread(rng, 3, matrix), spread(rng, 3, vector), strict=True)
    gradients = [[list(pair)] * 2 for pair in by_rank]
    game, again = (play(student, POWER, (3,), gradients, seed=seed) for _ in range(2))
    pairs = zip(game.read(0, "results", 0), game.read(0, "results", 1), strict=True)
    for rank, (result, of_vector) in enumerate(pairs):
        hint = "A vector is not compressed: its result is the mean over the ranks."
        expect_close(of_vector, vector, f"the vector's result on rank {rank}", hint, atol=1e-4)
        mistakes = [
            (3 * matrix, "That is the sum over the ranks: Q is the mean."),
            (matrix / 3, "That is divided by the number of ranks twice."),
        ]
        hint = "P is the sum of M Q, with the same Q on all ranks; then Q is the mean of Mᵀ P."
        what = f"a mean of matrix rank 2, compressed to rank 3, on rank {rank},"
        expect_like(result, matrix, what, hint, mistakes, **NEAR)
    expect_same_bits(game, again)
    expect_made_of_what_was_sent(game, 3, 0)
    expect_compression(game)


class Step(NamedTuple):
    """One matrix in a step on the wire: M and P of each rank, the mean Q, and what is kept.

    `result` is what should come out: the part of the mean M in the directions of P.
    """

    matrices: Tensors
    p: torch.Tensor
    mean_q: torch.Tensor
    kept: Tensors
    result: torch.Tensor


def followed(game: Played, number: int, memory: str) -> list[Step]:
    """The steps of one matrix, as far as its P and Q are on the wire if ranks keep this.

    `memory` is "own" for M less P times the rank's own Qᵀ, "mean" for M - P Qᵀ, "result" for M less
    what came out, and "none".
    """
    steps, kept, num_ranks = [], [0] * len(game.gradients), len(game.gradients)
    for step, bodies in enumerate(steps_sent(game, 2)):
        matrices = [a + b for a, b in zip(game.fresh(step, number), kept, strict=True)]
        p = located(bodies, torch.block_diag(*matrices), 2)
        if p is None:
            break
        basis = span(p.view(num_ranks, -1, 2).sum(dim=0), 2).float()
        q = located(bodies, torch.cat([one.t() @ basis for one in matrices]), 2)
        if q is None:
            break
        part = basis @ (basis.t() @ mean(matrices))
        gone = {
            "own": [basis @ (basis.t() @ one) for one in matrices],
            "mean": [part] * num_ranks,
            "result": game.read(step, "results", number),
            "none": matrices,
        }
        kept = [one - less for one, less in zip(matrices, gone[memory], strict=True)]
        steps.append(Step(matrices, p, q.view(num_ranks, -1, 2).mean(dim=0), kept, part))
    return steps


def played_tall(student: Any, rng: torch.Generator) -> Played:
    """Six steps with a vector and matrices of so many rows that a P of other columns stands out.

    The gradients of the second matrix are small.
    """
    gradients = drawn(rng, 2, 6, [(26, 12), (14,), (33, 16)])
    gradients = [[[*others, SMALL * last] for *others, last in steps] for steps in gradients]
    return play(student, POWER, (2,), gradients, SMALL_BUCKETS_MB)


@points(1.5, cell="check_power_hook")
def check_power_sends_later_what_it_kept(student, rng):
    """In each of six steps gradient + kept before is compressed, also after DDP has moved the
    parameters to other buckets; the result is that of this step alone, and state.memory holds what
    it lacks.
    """
    game = played_tall(student, rng)
    for number in (0, 2):
        steps = max((followed(game, number, one) for one in ("own", "mean", "result")), key=len)
        if len(steps) < 6:
            hint = "M is the gradient plus what was kept for that parameter, M - P Qᵀ."
            if len(followed(game, number, "none")) > len(steps):
                hint = "What was kept is not added to the gradient."
            expected = f"P and Q of gradient + kept before, in step {len(steps) + 1}"
            raise CheckFailed(expected, "other numbers on the wire", hint)
        scale = SMALL if number == 2 else 1.0
        for step, found in enumerate(steps):
            kept = mean(game.read(step, "kept", number)) / scale
            all_of_it = "That is all of M: what was sent is kept too, and will be sent again."
            what = f"what is kept of parameter {number} in step {step + 1}, averaged over the ranks"
            hint = "Keep the part of the sum that the result lacks: M - P Qᵀ."
            mistakes = [(mean(found.matrices) / scale, all_of_it)]
            expect_like(kept, mean(found.kept) / scale, what, hint, mistakes, **NEAR)
        results = [game.read(step, "results", number)[0] for step in range(6)]
        is_right = [
            is_multiple(*pair) for pair in zip(results, [s.result for s in steps], strict=True)
        ]
        if is_right[0] and not all(is_right):  # one that is wrong at once is for another check
            what = f"the result of parameter {number} in step {1 + is_right.index(False)}"
            expected = f"{what} to be P Qᵀ of this step"
            raise CheckFailed(expected, "another matrix", "Nothing of earlier results is in it.")


@points(0.5, cell="check_power_hook")
def check_power_starts_warm(student, rng):
    """Each of six steps begins with the mean Q of the step before, which state.q holds by
    parameter.
    """
    game = played_tall(student, rng)
    for number in (0, 2):
        ways = ("own", "mean", "result", "none")
        steps = max((followed(game, number, one) for one in ways), key=len)
        for step, (before, now) in enumerate(pairwise(steps), 2):
            wanted = torch.cat([one.double() @ before.mean_q for one in now.matrices])
            if not is_multiple(now.p, wanted):
                hint = "Keep the mean Q in state.q[parameter], and begin the next step with it."
                expected = f"M Q on the wire in step {step}, with the mean Q of the step before"
                raise CheckFailed(expected, "another P", hint)
        if len(steps) < 6:
            raise CheckFailed("P and Q of six steps on the wire", "other numbers")
        held = tensor_like(entry(game.run.values, 0, "steps", 5, "q", number), now.mean_q.float())
        if held is None or not is_multiple(held, now.mean_q):
            raise CheckFailed("the new Q in state.q[parameter]", "another tensor, or none")
        # P Qᵀ has the norm of Q; where the result lacks the division, so may Q: for another check
        sizes = [one.norm() for one in (now.result, game.read(5, "results", number)[0])]
        if not any(torch.isclose(held.norm(), size, rtol=1e-2) for size in sizes):
            expected = "the mean of Mᵀ P over the ranks in state.q[parameter]"
            actual = f"{held.norm() / sizes[0]:.3g} times that"
            raise CheckFailed(expected, actual, "Divide before you keep it.")


@points(0.5, cell="check_power_hook")
def check_power_takes_any_shape_in_any_bucket(student, rng):
    """Kernels are matrices of shape[0] rows, and what would not get smaller is averaged, with any
    parameters in a bucket.
    """
    matrices = (whole(rng, 12, 16), 3, 3, 3), (30, whole(rng, 18, 24))
    # of more than a small bucket: one bucket of the second step holds nothing but vectors
    shapes = [matrices[0], (265,), (), (4, 4), matrices[1], (17,), (1, 50)]
    game = play(student, POWER, (2,), drawn(rng, 2, 2, shapes), SMALL_BUCKETS_MB)
    for step in range(2):
        for number, shape in enumerate(shapes):
            result = game.read(step, "results", number)[0]
            wanted, what = mean(game.fresh(step, number)), f"the result of shape {shape}"
            if shape in matrices and step == 0:
                what += f", a matrix of {shape[0]} rows,"
                expect_projection(result.flatten(1), wanted.flatten(1), 2, what)
                expect_made_of_what_was_sent(game, 2, number)
            elif shape not in matrices and not is_multiple(result, wanted):
                expect_close(result, wanted, what, "It is compressed only if r (n + m) < n m.")
            elif shape not in matrices:
                first = game.read(0, "results", number)[0]
                if torch.allclose(first, mean(game.fresh(0, number)), 5e-3, 5e-3):
                    hint = "Divide also where a bucket holds no matrix."
                    expect_like(result, wanted, what, hint, [], 5e-3, 5e-3)
    expect_compression(game)


@points(0.5, cell="check_power_hook")
def check_power_survives_a_gradient_of_zeros(student, rng):
    """A gradient of zeros gives zeros, and the step after it works as usual."""
    gradients = drawn(rng, 2, 2, [(whole(rng, 20, 24), whole(rng, 26, 32))])
    gradients = [[[0 * zeros], [later]] for (zeros,), (later,) in gradients]
    game = play(student, POWER, (3,), gradients)
    zeros, result = (game.read(step, "results", 0)[0] for step in range(2))
    hint = "M = 0 gives Q = 0, and then M Q = 0 forever; if Q is all zeros, draw it anew."
    expect_close(zeros, 0 * zeros, "the result of zeros", hint)
    if not is_dense(game):
        p = steps_sent(game, 3)[1][:, : 3 * len(result)].sum(dim=0).view(-1, 3)
        if not p.any():
            raise CheckFailed("a P other than 0 in the step after zeros", "zeros", hint)
        strengths = torch.linalg.svdvals(p)
        if strengths[2] < FOUND * strengths[0]:
            expected = "M Q of independent columns in the step after zeros"
            hint = "Where Q is all zeros, draw normal numbers as in the first step."
            raise CheckFailed(expected, "columns that are multiples of each other", hint)
    expect_projection(result, mean(game.fresh(1, 0)), 3, "the result in the step after zeros")
    expect_made_of_what_was_sent(game, 3, 0, step=1, num_directions=3)
    expect_compression(game)


@points(0.5, cell="check_power_hook")
def check_power_draws_from_its_own_generator(student, rng):
    """The first Q has normal numbers that depend on state.seed alone, and torch's global generator
    is left as it was.
    """
    gradients, seed, found = drawn(rng, 2, 2, [(100, 80)]), whole(rng, 2**30, 2**40), []
    hint = "Draw Q with `generator=torch.Generator().manual_seed(state.seed)`."
    for own_seed in (whole(rng, 1, 99), whole(rng, 100, 199)):
        game = play(student, POWER, (2, own_seed), gradients, seed=seed)
        for rank, value in enumerate(game.run.values):
            wanted = torch.empty(4).uniform_(generator=torch.Generator().manual_seed(seed + rank))
            if not is_same(entry(value, "drawn"), wanted):
                expected = "numbers from torch's global generator as if the hook had not run"
                raise CheckFailed(expected, f"other numbers on rank {rank}", hint)
        for one in followed(game, 0, "none")[:1]:
            found.append(torch.linalg.lstsq(torch.block_diag(*one.matrices).double(), one.p)[0])
            if abs(found[-1].mean()) > 0.6 * found[-1].std():
                raise CheckFailed("normal numbers in Q: use torch.randn", "a mean far from 0")
    if len(found) < 2 or is_multiple(*found):
        raise CheckFailed("another Q with another state.seed", "the same one, or none", hint)
    # of 320 normal numbers one is surely further out; of uniform ones none is
    if all(one.abs().max() < 1.9 * one.std() for one in found):
        raise CheckFailed("normal numbers in Q: use torch.randn", "none far from 0")


# last, because what hangs leaves less time for the checks after it


@points(2, cell="check_top_k_hook")
def check_hook_does_not_wait(student, rng):
    """The hook starts its operations and returns a future: on real links, a rank's backward pass
    goes on to its end before the other rank has begun to send.
    """
    gradients = drawn(rng, 2, 4, [(whole(rng, 300, 400),)] * 3)
    game = play(student, TOP_K, (0.1,), gradients, SMALL_BUCKETS_MB)
    hint = (
        "Here a rank begins when the other one's hooks have returned, so a hook must not wait: use"
        " async_op=True, and do the rest in the future's `then`."
    )
    options = {"each": [(steps,) for steps in gradients], "forbid": RULES["forbid"]}
    options["allow"] = OF_DDP | {"send", "recv"}
    with hinted({Outcome.HUNG: hint, Outcome.TIME_LIMIT: hint}):
        args = (step_on_rank, TOP_K, (0.1,), SMALL_BUCKETS_MB, 0, True)
        values = student.run(*args, world_size=2, **options)
    wanted = mean(shares_of(game, 0.1))
    for given in game._replace(run=Run(values, [], 0.0)).read(0, "results"):
        # without the other rank's share it is 0.7; mistakes in the mean cost points elsewhere
        if torch.cosine_similarity(given, wanted, dim=0) < 0.9:
            expect_close(given, wanted, "the result, without a wait in the hook,")
    expect_compression(game)
