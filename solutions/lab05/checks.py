"""Hidden checks of lab 5: the student's hooks under torch's DDP, on emulated clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from autograder.checks import StudentFailed, entries, entry, is_same, points, shown, tensor_like
from worldsize.check import CheckFailed, Drawn, expect_close
from worldsize.event import COMMUNICATION, Event
from worldsize.faults import SilentError
from worldsize.launch import Run
from worldsize.timeline import Timeline

TOP_K, POWER = ("top_k_hook", "TopKState"), ("power_hook", "PowerState")
ALLOWED = {
    TOP_K: {"all_gather", "broadcast", "barrier"},
    POWER: {"all_reduce", "all_gather", "broadcast", "barrier"},  # DDP's constructor gathers
}
NO_HOOKS = {
    "torch.distributed.algorithms.ddp_comm_hooks": (
        "torch's own hooks are not allowed here: write a hook of your own"
    )
}
OF_DDP = ("broadcast", "barrier")  # operations that DDP itself uses once it is built
ONE_BUCKET_MB, SMALL_BUCKETS_MB = 25.0, 0.001
Tensors = list[torch.Tensor]


class GivenGradients(nn.Module):
    """A model whose parameters get exactly the gradients that are handed in."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(
            [nn.Parameter(torch.zeros(tuple(shape))) for shape in shapes]
        )

    def forward(self, gradients: Tensors) -> torch.Tensor:
        """The sum of all parameters, each times its gradient."""
        return torch.stack(
            [(one * given).sum() for one, given in zip(self.tensors, gradients, strict=True)]
        ).sum()


# What runs on the ranks. Nothing here knows an answer.


def step_on_rank(
    student: Any,
    names: Sequence[str],
    setting: float,
    bucket_cap_mb: float,
    is_timed: bool,
    steps: list[Tensors],
) -> Any:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from worldsize import emulate

    hook, make_state = getattr(student, names[0]), getattr(student, names[1])
    model, state, taken_s = (
        GivenGradients([given.shape for given in steps[0]]),
        make_state(setting),
        [],
    )

    def noted(state, bucket):  # annotated, they would have to be what DDP expects
        start_s = emulate.elapsed() if is_timed else 0.0  # all ranks meet in that call
        future = hook(state, bucket)
        if is_timed:
            taken_s.append(emulate.elapsed() - start_s)
        return future

    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    ddp.register_comm_hook(state, noted)
    by_step = []
    dist.barrier()
    random_state = torch.get_rng_state()
    for gradients in steps:
        model.zero_grad()
        ddp(gradients).backward()
        kept = [state.memory.get(parameter) for parameter in model.tensors]
        kept = [one.detach().clone() if isinstance(one, torch.Tensor) else None for one in kept]
        results = [parameter.grad.clone() for parameter in model.tensors]
        by_step.append({"results": results, "kept": kept})
    return {
        "steps": by_step,
        "taken_s": taken_s,
        "is_random_state_left": torch.equal(random_state, torch.get_rng_state()),
    }


def buckets_on_rank(_: None, bucket_cap_mb: float, steps: list[Tensors]) -> list[list[list[int]]]:
    """The parameters in each of DDP's buckets, by step; runs where there is no student code."""
    from torch.nn.parallel import DistributedDataParallel

    model, found = GivenGradients([given.shape for given in steps[0]]), []
    numbers = {parameter: number for number, parameter in enumerate(model.tensors)}

    def noted(_, bucket):  # annotated, they would have to be what DDP expects
        found[-1].append([numbers[parameter] for parameter in bucket.parameters()])
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    ddp.register_comm_hook(None, noted)
    for gradients in steps:
        found.append([])
        model.zero_grad()
        ddp(gradients).backward()
    return found


def learn_on_rank(
    student: Any,
    names: Sequence[str],
    setting: float,
    start: Tensors,
    num_steps: int,
    x: torch.Tensor,
    y: torch.Tensor,
) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(network(start))
    hook = getattr(student, names[0])
    ddp.register_comm_hook(
        getattr(student, names[1])(setting), lambda state, bucket: hook(state, bucket)
    )
    descend(ddp, x, y, num_steps)
    return [parameter.detach() for parameter in ddp.module.parameters()]


def top_k_on_rank(student: Any, vectors: Tensors, counts: Sequence[int]) -> Any:
    return [[*student.top_k(vector, k), vector] for vector, k in zip(vectors, counts, strict=True)]


def orthogonalise_on_rank(student: Any, matrices: Tensors) -> Any:
    return [student.orthogonalise(matrix) for matrix in matrices]


def network(start: Tensors) -> nn.Sequential:
    """A small classifier that begins with these weights."""
    first, first_bias, second, second_bias = start
    model = nn.Sequential(
        nn.Linear(first.shape[1], len(first)), nn.Tanh(), nn.Linear(second.shape[1], len(second))
    )
    with torch.no_grad():
        for parameter, value in zip(
            model.parameters(), (first, first_bias, second, second_bias), strict=True
        ):
            parameter.copy_(value)
    return model


def descend(model: nn.Module, x: torch.Tensor, y: torch.Tensor, num_steps: int) -> None:
    """Train on all samples in every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(num_steps):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


# What the judge draws, computes and compares.


def whole(rng: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=rng))


def drawn(
    rng: torch.Generator, num_ranks: int, num_steps: int, shapes: Sequence[Sequence[int]]
) -> list[list[Tensors]]:
    """Normal gradients by rank, step and parameter."""
    return [
        [[torch.randn(tuple(shape), generator=rng) for shape in shapes] for _ in range(num_steps)]
        for _ in range(num_ranks)
    ]


def emulated(
    student: Any,
    names: tuple[str, str],
    setting: float,
    gradients: list[list[Tensors]],
    cap_mb: float,
    is_timed: bool = False,
    faults: Sequence[SilentError] = (),
) -> Run:
    """A run of one hook on these gradients."""
    each = [(steps,) for steps in gradients]
    return student.emulated(
        step_on_rank,
        names,
        setting,
        cap_mb,
        is_timed,
        world_size=len(gradients),
        each=each,
        allow=ALLOWED[names],
        forbid=NO_HOOKS,
        cluster="a100-10gbe",
        faults=faults,
    )


def buckets_of(
    student: Any, gradients: list[list[Tensors]], cap_mb: float
) -> list[list[list[int]]]:
    """The parameters in each of DDP's buckets, by step, from ranks without student code."""
    each = [(steps,) for steps in gradients]
    options = {"world_size": len(gradients), "each": each, "student_ranks": ()}
    return student.emulated(buckets_on_rank, cap_mb, **options).values[0]


def results_of(run: Run, step: int, like: Tensors) -> list[Tensors]:
    """The result for each parameter in one step, by rank.

    Raises:
        CheckFailed: there is something else than a tensor of its parameter's shape and type.
    """
    found = []
    for rank, value in enumerate(run.values):
        given = entries(entry(value, "steps", step, "results"), len(like))
        found.append([tensor_like(one, wanted) for one, wanted in zip(given, like, strict=True)])
        for number, one in enumerate(found[-1]):
            if one is None:
                raise CheckFailed(
                    f"a result of parameter {number}'s shape on rank {rank}", shown(given[number])
                )
    return found


def kept_of(run: Run, step: int, like: Tensors) -> list[list[Any]]:
    """What each rank kept for each parameter; None where that is not of the parameter's shape."""
    kept = [entries(entry(value, "steps", step, "kept"), len(like)) for value in run.values]
    return [
        [tensor_like(one, wanted) for one, wanted in zip(of_rank, like, strict=True)]
        for of_rank in kept
    ]


def mean(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean, taken in float64."""
    return torch.stack([tensor.double() for tensor in tensors]).mean(dim=0).to(tensors[0].dtype)


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def like(vector: torch.Tensor, tensors: Tensors) -> Tensors:
    """The vector cut into tensors of these shapes."""
    parts = vector.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def num_sent(fraction: float, num_elements: int) -> int:
    return max(1, round(fraction * num_elements))


def largest(vector: torch.Tensor, k: int) -> torch.Tensor:
    """The vector with all but its k largest entries 0."""
    return torch.zeros_like(vector).index_copy(
        0, places := vector.abs().topk(k).indices, vector[places]
    )


def sent_of(sums: Tensors, buckets: list[list[int]], fraction: float) -> Tensors:
    """The part of these sums, one for each parameter in these buckets, that top-k sends."""
    sent: dict[int, torch.Tensor] = {}
    for numbers in buckets:
        inside = [sums[number] for number in numbers]
        one = flat(inside)
        parts = like(largest(one, num_sent(fraction, one.numel())), inside)
        sent |= dict(zip(numbers, parts, strict=True))
    return [sent[number] for number in range(len(sums))]


def expect_same_bits(run: Run, step: int) -> None:
    """Raise CheckFailed unless all ranks got the same result."""
    first, *others = [entry(value, "steps", step, "results") for value in run.values]
    for rank, other in enumerate(others, 1):
        if not is_same(first, other):
            hint = "All ranks must make the same sum of the same numbers in the same order."
            raise CheckFailed(
                "the same bits on all ranks",
                f"a result on rank {rank} that differs from rank 0's",
                hint,
            )


def events_of_hook(timeline: Timeline, rank: int) -> list[Event]:
    """The operations after the barrier that are not DDP's own."""
    events = [event for event in timeline.of(rank) if event.kind == COMMUNICATION]
    barriers = (place for place, event in enumerate(events) if event.name == "barrier")
    start = next(barriers, 0)  # it is always there, unless code of the student's takes it away
    return [event for event in events[start:] if event.name not in OF_DDP]


def expect_over_the_wire(
    student: Any,
    rng: torch.Generator,
    names: tuple[str, str],
    setting: float,
    gradients: list[list[Tensors]],
) -> None:
    """Raise CheckFailed unless one number that is changed on its way changes the result."""
    clean = emulated(student, names, setting, gradients, ONE_BUCKET_MB)
    rank = whole(rng, 0, len(gradients) - 1)
    posted = [event for event in clean.timeline.of(rank) if event.kind == COMMUNICATION]
    of_hook = [event for event in events_of_hook(clean.timeline, rank) if event.size_bytes]
    if not of_hook:
        raise CheckFailed("a hook that sends", f"no operation of rank {rank} with data in it", "")
    after_calls = posted.index(of_hook[0])
    error = SilentError(rank, after_calls, seed=whole(rng, 0, 10**6))
    try:
        spoilt = emulated(student, names, setting, gradients, ONE_BUCKET_MB, faults=[error])
    except StudentFailed:
        return  # a place that was changed need not be one: the hook reads what comes
    results = [
        [entry(value, "steps", 0, "results") for value in run.values] for run in (clean, spoilt)
    ]
    if is_same(*results):
        raise CheckFailed(
            "one number that was changed on its way to show in the result",
            "the same result as without it",
            "What ranks know of each other comes from what they receive.",
        )


def draw_entries(wanted: torch.Tensor, given: torch.Tensor) -> Drawn:
    """The entries that should not be 0, expected and actual."""
    from worldsize.draw.contrast import bars  # matplotlib is imported only where something is drawn

    places = wanted.abs().topk(min(8, wanted.numel())).indices.tolist()
    expected, actual = (
        {f"entry {place}": one[place].item() for place in places} for one in (wanted, given)
    )
    return bars(expected, actual, "The largest entries of the result")


def draw_bytes(wanted: dict[int, float], sent: dict[int, float]) -> Drawn:
    """The bytes that each rank may give and those that it gave."""
    from worldsize.draw.contrast import bars

    expected, actual = (
        {f"rank {rank}": float(size) for rank, size in one.items()} for one in (wanted, sent)
    )
    return bars(expected, actual, "Bytes that each rank gives to the hook's operations", "bytes")


def expect_result(
    run: Run, step: int, wanted: Tensors, what: str, hint: Callable[[torch.Tensor], str]
) -> None:
    """Raise CheckFailed unless every rank got this result; `hint` reads the flat result."""
    for rank, results in enumerate(results_of(run, step, wanted)):
        given = flat(results)
        picture = partial(draw_entries, flat(wanted), given)
        expect_close(given, flat(wanted), f"{what} on rank {rank}", hint(given), picture=picture)


def hold_on_one_of_two_draws(
    expect: Callable[..., None], student: Any, rng: torch.Generator
) -> None:
    """Raise CheckFailed if this expectation fails on two draws of the inputs.

    The first Q is the hook's own. To a matrix of just its rank it is in one of some 10,000 draws so
    nearly blind in one direction that M Q in float32 has lost it: no answer can be right then.
    """
    try:
        expect(student, rng)
    except CheckFailed:
        expect(student, rng)


def is_like(given: Any, wanted: torch.Tensor, tolerance: float = 1e-4) -> bool:
    return (
        isinstance(given, torch.Tensor)
        and given.shape == wanted.shape
        and torch.allclose(given.float(), wanted.float(), rtol=1e-3, atol=tolerance)
    )


# top_k


@points(1, cell="check_top_k")
def check_top_k_takes_the_largest(student, rng):
    """The k entries of largest magnitude with their signs, and their places as int32; the vector
    does not change.
    """
    vectors = [torch.randn(whole(rng, 50, 99), generator=rng) - 0.5 for _ in range(2)]
    counts = [whole(rng, 5, 25) for _ in vectors]
    (results,) = student.run(top_k_on_rank, vectors, counts, world_size=1)
    for vector, k, result in zip(vectors, counts, entries(results, len(counts)), strict=True):
        expect_entries(vector, k, *entries(result, 2))
        expect_close(
            entry(result, 2), vector, "the vector afterwards", "`top_k` must not change it."
        )


@points(1, cell="check_top_k", needs=["check_top_k_takes_the_largest"])
def check_top_k_takes_any_k_and_type(student, rng):
    """k may be 1 or all; there may be equal entries and zeros; float64 and bfloat16 keep their
    types.
    """
    num = whole(rng, 6, 12)
    wide = torch.randn(num, generator=rng, dtype=torch.float64)
    equal = torch.tensor([2.0, -2.0, 0.0, 2.0, 0.0, -2.0])
    vectors = [wide, wide, wide.bfloat16(), equal, torch.zeros(4), torch.ones(1)]
    counts = [1, num, num // 2, 3, 2, 1]
    (results,) = student.run(top_k_on_rank, vectors, counts, world_size=1)
    for vector, k, result in zip(vectors, counts, entries(results, len(counts)), strict=True):
        expect_entries(vector, k, *entries(result, 2))


def expect_entries(vector: torch.Tensor, k: int, values: Any, places: Any) -> None:
    """Raise CheckFailed unless these are k largest entries of the vector and their places."""
    for what, one in (("values", values), ("places", places)):
        if not isinstance(one, torch.Tensor) or one.shape != (k,):
            shape = tuple(one.shape) if isinstance(one, torch.Tensor) else type(one).__name__
            raise CheckFailed(f"{what}: a tensor of {k} elements", f"{shape}")
    if places.dtype != torch.int32:
        raise CheckFailed(
            "places of type torch.int32", f"{places.dtype}", "A place then costs 4 bytes, not 8."
        )
    rows = places.long()
    if len(set(rows.tolist())) != k or rows.min() < 0 or rows.max() >= len(vector):
        raise CheckFailed(f"{k} different places in the vector", f"{rows.tolist()[:12]}")
    expect_close(
        values,
        vector[rows],
        "the values",
        "A value is the vector's entry at its place, with its sign.",
    )
    hint = (
        "Large means far from 0: take the magnitudes to choose, and the entries themselves to send."
    )
    wanted = vector.abs().sort(descending=True).values[:k]
    expect_close(values.abs().sort(descending=True).values, wanted, "the magnitudes, sorted,", hint)


# top_k_hook


@points(2, cell="check_top_k_hook")
def check_hook_averages_what_ranks_send(student, rng):
    """The result is the mean over the ranks of each one's k largest entries of the bucket, with the
    same bits on all ranks.
    """
    gradients = drawn(rng, 3, 1, [(whole(rng, 8, 12), 10), (whole(rng, 30, 50),)])
    for one in gradients:
        one[0][1] *= 3  # so that most of the largest entries lie in one parameter
    run = emulated(student, TOP_K, 0.2, gradients, ONE_BUCKET_MB)
    sums = [one[0] for one in gradients]
    sent = [sent_of(one, [[0, 1]], 0.2) for one in sums]
    wanted = [mean([one[number] for one in sent]) for number in (0, 1)]
    expect_result(run, 0, wanted, "the result", partial(hint_for_mean, sums, sent))
    expect_same_bits(run, 0)
    expect_over_the_wire(
        student, rng, TOP_K, 1.0, gradients
    )  # of all entries none is 0, whose sign would not show


def hint_for_mean(sums: list[Tensors], sent: list[Tensors], given: torch.Tensor) -> str:
    """The hint for what this result looks like."""
    shares = [flat(one) for one in sent]
    each = [
        flat([largest(part.flatten(), num_sent(0.2, part.numel())) for part in one]) for one in sums
    ]
    total, latest = torch.stack(shares).sum(dim=0), shares[0]
    for share in shares[1:]:
        latest = torch.where(share != 0, share, latest)
    if is_like(given, total):
        return "That is the sum over the ranks: DDP leaves the division to the hook."
    if is_like(given, mean([flat(one) for one in sums])):
        return "That is the mean of all gradients: everything was sent."
    if is_like(given, mean(each)):
        return (
            "That takes the largest entries of each parameter; it should be the largest of the"
            " whole bucket."
        )
    if is_like(given, latest / len(shares)) or is_like(given, latest):
        return "Where several ranks send the same entry, one has replaced the other: add them up."
    if any(is_like(given, share) or is_like(given, share / len(shares)) for share in shares):
        return "That is what one rank sends: the entries of the others are missing."
    if is_like(
        given,
        torch.where(
            total != 0, total / torch.stack([s != 0 for s in shares]).sum(dim=0).clamp(1), 0.0
        ),
    ):
        return (
            "Divide by the number of ranks, not by the number of those that sent the entry: the"
            " rest count as 0."
        )
    return (
        "Each rank sends its k largest entries, and the result is their sum divided by the number"
        " of ranks."
    )


@points(1.5, cell="check_top_k_hook", needs=["check_hook_averages_what_ranks_send"])
def check_hook_keeps_what_it_does_not_send(student, rng):
    """state.memory holds, for every parameter, what this rank did not send of its gradient."""
    gradients = drawn(rng, 2, 1, [(whole(rng, 8, 12), 10), (whole(rng, 30, 50),)])
    run = emulated(student, TOP_K, 0.2, gradients, ONE_BUCKET_MB)
    results = results_of(run, 0, gradients[0][0])
    for rank, kept in enumerate(kept_of(run, 0, gradients[0][0])):
        given = gradients[rank][0]
        sent = sent_of(given, [[0, 1]], 0.2)
        result = results[rank]
        for number, one in enumerate(kept):
            if one is None:
                raise CheckFailed(
                    f"state.memory[parameter] for parameter {number}, on rank {rank}",
                    "nothing",
                    "The keys of state.memory are the parameters: bucket.parameters() has them.",
                )
            wanted, hint = (
                given[number] - sent[number],
                "Sent + kept = gradient: what was sent is kept as 0.",
            )
            if is_like(one, given[number]):
                hint = (
                    "That is the whole gradient: what was sent is kept too, and will be sent again."
                )
            elif is_like(one, given[number] - result[number]):
                hint = (
                    "That is the gradient less the mean of all ranks. A rank keeps what it did not"
                    " send itself."
                )
            elif is_like(one, result[number]):
                hint = "That is the result: DDP reuses the bucket's memory, so keep a copy."
            what = f"what rank {rank} keeps of parameter {number}"
            expect_close(
                one,
                wanted,
                what,
                hint,
                picture=partial(draw_entries, wanted.flatten(), one.flatten()),
            )


@points(2, cell="check_top_k_hook", needs=["check_hook_averages_what_ranks_send"])
def check_what_was_kept_is_sent_later(student, rng):
    """In each of four steps: sent + kept = gradient + kept before, so that what was not sent comes
    back.
    """
    gradients = drawn(rng, 2, 4, [(whole(rng, 60, 90),)])
    run = emulated(student, TOP_K, 0.1, gradients, ONE_BUCKET_MB)
    kept = [torch.zeros_like(steps[0][0]) for steps in gradients]
    for step in range(4):
        fresh = [steps[step][0] for steps in gradients]
        sums = [one + before for one, before in zip(fresh, kept, strict=True)]
        sent = [sent_of([one], [[0]], 0.1)[0] for one in sums]
        forgotten = mean([sent_of([one], [[0]], 0.1)[0] for one in fresh])

        def hint(given: torch.Tensor, forgotten: torch.Tensor = forgotten) -> str:
            if is_like(given, forgotten):
                return "What was kept is not added to the gradient."
            return (
                "Add what was kept, choose from the sum, and keep the part of the sum that was not"
                " sent."
            )

        expect_result(run, step, [mean(sent)], f"the result of step {step + 1}", hint)
        kept = [one - gone for one, gone in zip(sums, sent, strict=True)]


@points(1, cell="check_top_k_hook", needs=["check_what_was_kept_is_sent_later"])
def check_memory_follows_its_parameter(student, rng):
    """After its first step DDP puts the parameters into other buckets; what was kept stays with its
    parameter.
    """
    shapes = [(20, whole(rng, 10, 15)), (20,), (4, 5, 3, 3), (whole(rng, 300, 400),)]
    gradients = drawn(rng, 2, 3, shapes)
    run = emulated(student, TOP_K, 0.1, gradients, SMALL_BUCKETS_MB)
    kept = [[torch.zeros_like(one) for one in steps[0]] for steps in gradients]
    for step, buckets in enumerate(buckets_of(student, gradients, SMALL_BUCKETS_MB)):
        what = f"the result of step {step + 1}, with the parameters in {len(buckets)} buckets,"
        rows = zip(gradients, kept, strict=True)
        sums = [
            [one + old for one, old in zip(steps[step], before, strict=True)]
            for steps, before in rows
        ]
        sent = [sent_of(one, buckets, 0.1) for one in sums]
        hint = (
            "Store it by parameter. What is stored by bucket number is added to other parameters"
            " once the buckets change."
        )
        wanted = [mean([one[number] for one in sent]) for number in range(len(shapes))]
        expect_result(run, step, wanted, what, lambda _, hint=hint: hint)
        pairs = zip(sums, sent, strict=True)
        kept = [[one - gone for one, gone in zip(ours, left, strict=True)] for ours, left in pairs]
        for rank, memory in enumerate(kept_of(run, step, gradients[0][0])):
            for number, one in enumerate(memory):
                expect_close(
                    one, kept[rank][number], f"what rank {rank} keeps of parameter {number}", hint
                )


@points(1, cell="check_top_k_hook", needs=["check_hook_averages_what_ranks_send"])
def check_hook_sends_k_values_and_places(student, rng):
    """At most two all-gathers for a bucket, to which each rank contributes 8 bytes for each of k
    entries.
    """
    gradients = drawn(rng, 3, 2, [(whole(rng, 300, 400),), (whole(rng, 500, 600),)])
    run = emulated(student, TOP_K, 0.05, gradients, SMALL_BUCKETS_MB)
    sizes = [one.numel() for one in gradients[0][0]]
    by_step = buckets_of(student, gradients, SMALL_BUCKETS_MB)
    buckets = [numbers for step in by_step for numbers in step]
    limit = sum(8 * num_sent(0.05, sum(sizes[number] for number in numbers)) for numbers in buckets)
    given = {
        rank: sum(event.size_bytes for event in events_of_hook(run.timeline, rank)) / 3
        for rank in range(3)
    }
    for rank in range(3):
        if given[rank] > limit:
            raise CheckFailed(
                f"at most {limit:,} bytes from rank {rank}: 8 for each entry that is sent",
                f"{given[rank]:,.0f} bytes",
                "Send the k values as float32 and their places as int32, and no more.",
                partial(draw_bytes, dict.fromkeys(range(3), limit), given),
            )
        num = len(events_of_hook(run.timeline, rank))
        if num > 2 * len(buckets):
            actual = f"{num} operations from rank {rank}"
            raise CheckFailed(
                f"at most {2 * len(buckets)}: two for each of {len(buckets)} buckets", actual
            )


@points(0.5, cell="check_top_k_hook", needs=["check_hook_averages_what_ranks_send"])
def check_hook_takes_any_shape_and_fraction(student, rng):
    """With fraction 1 the result is the mean of the gradients, for parameters of any shape; at
    least one entry is sent.
    """
    shapes = [(), (3, 4, 2), (1,), (2, 3, 3, 3), (5,)]
    gradients = drawn(rng, 2, 2, shapes)
    for fraction in (1.0, 1e-6):
        run = emulated(student, TOP_K, fraction, gradients, ONE_BUCKET_MB)
        sent = [sent_of(steps[0], [list(range(len(shapes)))], fraction) for steps in gradients]
        wanted = [mean([one[number] for one in sent]) for number in range(len(shapes))]
        expect_result(
            run,
            0,
            wanted,
            f"the result with fraction {fraction:g}",
            lambda _: "`k` is `state.num_sent(...)`.",
        )


@points(0.5, cell="check_top_k_hook", needs=["check_hook_averages_what_ranks_send"])
def check_hook_does_not_wait(student, rng):
    """The hook starts its operations and returns a future, so that the backward pass goes on
    meanwhile.
    """
    gradients = drawn(rng, 2, 2, [(whole(rng, 3000, 4000),)] * 2)
    run = emulated(student, TOP_K, 0.5, gradients, SMALL_BUCKETS_MB, is_timed=True)
    for rank, value in enumerate(run.values):
        taken_s = entry(value, "taken_s")
        taken_s = (
            [one for one in taken_s if isinstance(one, float)] if isinstance(taken_s, list) else []
        )
        if (waited_s := max(taken_s, default=float("inf"))) > 0:
            raise CheckFailed(
                "a hook that returns at once",
                f"{waited_s * 1e6:.0f} µs of emulated time in it on rank {rank}",
                "Use async_op=True, and do the rest in the future's `then`.",
            )


def drawn_task(rng: torch.Generator) -> tuple[Tensors, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The start of a small classifier, and two ranks' samples and labels of separate classes."""
    centres = torch.randn(8, 24, generator=rng)
    labels = [torch.randint(8, (64,), generator=rng) for _ in range(2)]
    samples = [centres[one] + 0.8 * torch.randn(64, 24, generator=rng) for one in labels]
    start = [
        0.2 * torch.randn(32, 24, generator=rng),
        torch.zeros(32),
        0.2 * torch.randn(8, 32, generator=rng),
    ]
    return [*start, torch.zeros(8)], list(zip(samples, labels, strict=True))


def expect_learning(
    student: Any, rng: torch.Generator, names: tuple[str, str], setting: float, most: float
) -> None:
    """Raise CheckFailed unless training with the hook comes this close to training without one."""
    start, data = drawn_task(rng)
    args = (names, setting, start, NUM_STEPS)
    run = student.emulated(learn_on_rank, *args, world_size=2, each=data, allow=ALLOWED[names])
    x, y = (torch.cat([one[place] for one in data]) for place in (0, 1))
    plain, trained = network(start), run.values[0]
    trained = [tensor_like(entry(trained, place), one) for place, one in enumerate(start)]
    if any(one is None for one in trained):
        raise CheckFailed("a trained model", "something else than its parameters")
    first = cross_entropy(plain(x), y).item()
    descend(plain, x, y, NUM_STEPS)
    with torch.no_grad():
        wanted, given = (cross_entropy(model(x), y).item() for model in (plain, network(trained)))
    if not given <= most * wanted:
        raise CheckFailed(
            f"a loss of at most {most * wanted:.3f} after {NUM_STEPS} steps (from {first:.2f};"
            f" plain {wanted:.3f})",
            f"{given:.3f}",
            "What is not sent must come back later.",
        )


NUM_STEPS = 40


@points(0.5, cell="check_top_k_hook", needs=["check_hook_averages_what_ranks_send"])
def check_training_with_top_k(student, rng):
    """After 40 steps of training with a twentieth of the entries, the loss is close to the
    uncompressed one's.
    """
    expect_learning(
        student, rng, TOP_K, 0.05, 1.1
    )  # with memory 0.93 at most of 3,000 draws, without 3.9 at least


# orthogonalise


@points(1.5, cell="check_orthogonalise")
def check_columns_are_orthonormal(student, rng):
    """Columns of length 1 at right angles that span the same space as the columns of the matrix."""
    shapes = [(whole(rng, 20, 40), 4), (9, 9), (whole(rng, 5, 9), 1)]
    matrices = [well_conditioned(rng, *shape) for shape in shapes]
    (results,) = student.run(orthogonalise_on_rank, matrices, world_size=1)
    for matrix, given in zip(matrices, entries(results, len(matrices)), strict=True):
        shape = tuple(matrix.shape)
        if not is_of_shape(given, matrix):
            raise CheckFailed(f"a float32 matrix of shape {shape}", shown(given))
        products, hint = (
            given.t() @ given,
            "Subtract from each column its part along those before it, then divide by its length.",
        )
        if is_like(products, torch.diag(products.diagonal())):
            hint = "They are at right angles, but not of length 1."
        elif is_like(products.diagonal(), torch.ones(shape[1])):
            hint = "They have length 1, but are not at right angles."
        expect_close(
            products, torch.eye(shape[1]), f"the columns' products, for {shape},", hint, atol=1e-3
        )
        spanned = given @ (given.t() @ matrix)
        hint = "The columns span a different space."
        expect_close(
            spanned,
            matrix,
            f"the {shape} matrix, from the new columns,",
            hint,
            rtol=1e-3,
            atol=1e-3,
        )


def well_conditioned(rng: torch.Generator, num_rows: int, num_columns: int) -> torch.Tensor:
    """A matrix whose columns are neither of length 1 nor at right angles, of strengths from 1 to 3.

    A normal square one is singular to float32 often enough for a right Gram-Schmidt to lose its
    right angles.
    """
    columns = torch.linalg.qr(torch.randn(num_rows, num_columns, generator=rng)).Q
    mixed = torch.linalg.qr(torch.randn(num_columns, num_columns, generator=rng)).Q
    return columns * torch.linspace(1.5, 3, num_columns) @ mixed


def is_of_shape(given: Any, matrix: torch.Tensor) -> bool:
    return (
        isinstance(given, torch.Tensor)
        and given.shape == matrix.shape
        and given.dtype == matrix.dtype
    )


@points(0.5, cell="check_orthogonalise", needs=["check_columns_are_orthonormal"])
def check_dependent_columns_stay_finite(student, rng):
    """Zeros, and columns that are multiples of each other, give finite numbers."""
    column = torch.randn(whole(rng, 5, 9), 1, generator=rng)
    matrices = [torch.zeros(6, 3), torch.cat([column, 2 * column, -column], dim=1)]
    (results,) = student.run(orthogonalise_on_rank, [one.clone() for one in matrices], world_size=1)
    for matrix, given in zip(matrices, entries(results, len(matrices)), strict=True):
        if not is_of_shape(given, matrix) or not given.isfinite().all():
            raise CheckFailed(
                "finite numbers", "nan or inf", "Do not divide a column by a length of 0."
            )


# power_hook


def spread(rng: torch.Generator, num_ranks: int, wanted: torch.Tensor) -> Tensors:
    """Tensors whose mean is the wanted one, each far from it."""
    apart = [torch.randn(wanted.shape, generator=rng) for _ in range(num_ranks)]
    return [wanted + one - mean(apart) for one in apart]


def low_rank(rng: torch.Generator, num_rows: int, num_columns: int, rank: int) -> torch.Tensor:
    left, right = (
        torch.randn(num_rows, rank, generator=rng),
        torch.randn(rank, num_columns, generator=rng),
    )
    return left @ right


def projected(matrix: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """The part of the matrix in the space that these columns span, taken in float64."""
    basis = torch.linalg.qr(directions.double()).Q
    return (basis @ (basis.t() @ matrix.double())).float()


def own_projection(result: torch.Tensor, matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """The part of a matrix in the first `rank` directions of the result's column space."""
    return projected(matrix, torch.linalg.svd(result.double()).U[:, :rank])


def expect_projection(
    result: torch.Tensor, matrix: torch.Tensor, rank: int, what: str, hint: str
) -> None:
    """Raise CheckFailed unless the result is the matrix's part in `rank` directions."""
    if not result.isfinite().all():
        raise CheckFailed(f"{what} of finite numbers", "nan or infinity", hint)
    strengths = torch.linalg.svdvals(result.double())
    if len(strengths) > rank and strengths[rank] > 1e-3 * strengths[0]:
        actual = f"{int((strengths > 1e-3 * strengths[0]).sum())}"
        raise CheckFailed(
            f"{what}, of matrix rank at most {rank}",
            f"matrix rank {actual}",
            f"It is P Qᵀ, and P has r columns. {hint}",
        )
    wanted = own_projection(result, matrix, rank)
    picture = partial(draw_entries, wanted.flatten(), result.flatten())
    expect_close(result, wanted, what, hint, rtol=5e-3, atol=5e-3, picture=picture)


@points(2, cell="check_power_hook")
def check_power_is_exact_at_its_rank(student, rng):
    """A mean gradient of rank r arrives exactly, although no rank's own gradient has that rank;
    vectors are averaged.
    """
    hold_on_one_of_two_draws(expect_exact_at_its_rank, student, rng)


def expect_exact_at_its_rank(student: Any, rng: torch.Generator) -> None:
    num_rows, num_columns = whole(rng, 12, 16), whole(rng, 18, 24)
    matrix, vector = low_rank(rng, num_rows, num_columns, 3), torch.randn(9, generator=rng)
    by_rank = zip(spread(rng, 3, matrix), spread(rng, 3, vector), strict=True)
    gradients = [[list(pair)] for pair in by_rank]
    run = emulated(student, POWER, 3, gradients, ONE_BUCKET_MB)
    for rank, (result, of_vector) in enumerate(results_of(run, 0, gradients[0][0])):
        hint = "A vector is not compressed: its result is the mean over the ranks."
        expect_close(of_vector, vector, f"the vector's result on rank {rank}", hint, atol=1e-4)
        hint = (
            "P is the sum over the ranks of M Q, with the same Q on all; then Q is the mean of"
            " Mᵀ P."
        )
        if is_like(result, 3 * matrix, 5e-3):
            hint = "That is the sum over the ranks: Q is the mean."
        elif is_like(result, matrix / 3, 5e-3):
            hint = "That is divided by the number of ranks twice."
        picture = partial(draw_entries, matrix.flatten(), result.flatten())
        what = f"a mean of matrix rank 3, compressed to rank 3, on rank {rank},"
        expect_close(result, matrix, what, hint, rtol=5e-3, atol=5e-3, picture=picture)
    expect_same_bits(run, 0)
    expect_over_the_wire(student, rng, POWER, 3, gradients)


@points(1, cell="check_power_hook", needs=["check_power_is_exact_at_its_rank"])
def check_power_keeps_what_the_result_lacks(student, rng):
    """The result has rank r at most, and averaged over the ranks, result + kept = gradient."""
    gradients = drawn(rng, 2, 1, [(whole(rng, 12, 16), whole(rng, 18, 24)), (7,)])
    run = emulated(student, POWER, 2, gradients, ONE_BUCKET_MB)
    matrix = mean([steps[0][0] for steps in gradients])
    result = results_of(run, 0, gradients[0][0])[0][0]
    expect_projection(
        result, matrix, 2, "the result", "Q is the mean of Mᵀ P, and the result P Qᵀ."
    )
    kept = [one[0] for one in kept_of(run, 0, gradients[0][0])]
    if any(one is None for one in kept):
        raise CheckFailed(
            "state.memory[parameter] of the parameter's shape for the compressed one",
            "nothing, or another shape",
            "The keys of state.memory are the parameters: bucket.parameters() has them.",
        )
    hint = "Keep the part of the sum that the result lacks: M - P Qᵀ."
    if is_like(mean(kept), matrix):
        hint = "That is the whole gradient: what was sent is kept too, and will be sent again."
    expect_close(result + mean(kept), matrix, "result + kept", hint, rtol=1e-3, atol=1e-3)


def follow(
    gradients: list[list[Tensors]], run: Run, number: int, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A parameter's result in this step, and the mean of its gradient + kept before."""
    result = results_of(run, step, gradients[0][0])[0][number]
    total = torch.zeros_like(result)
    for one in range(step + 1):
        total += mean([steps[one][number] for steps in gradients])
    for one in range(step):
        total -= results_of(run, one, gradients[0][0])[0][number]
    return result.flatten(1), total.flatten(1)


@points(1, cell="check_power_hook", needs=["check_power_is_exact_at_its_rank"])
def check_power_sends_later_what_it_kept(student, rng):
    """After the first step, gradient + kept before is compressed: what was kept comes back."""
    gradients = drawn(rng, 2, 3, [(whole(rng, 12, 16), whole(rng, 18, 24))])
    run = emulated(student, POWER, 2, gradients, ONE_BUCKET_MB)
    for step in (1, 2):
        result, matrix = follow(gradients, run, 0, step)
        hint = "M is the gradient plus what was kept before."
        fresh = mean([steps[step][0] for steps in gradients])
        if is_like(result, own_projection(result, fresh, 2), 5e-3):
            hint = "What was kept is not added to the gradient."
        expect_projection(result, matrix, 2, f"the result of step {step + 1}", hint)


@points(1, cell="check_power_hook", needs=["check_power_is_exact_at_its_rank"])
def check_power_starts_warm(student, rng):
    """Each step begins with the Q of the step before, so the result approaches the best one of its
    rank.
    """
    gradients = drawn(rng, 2, 3, [(whole(rng, 12, 16), whole(rng, 18, 24))])
    run = emulated(student, POWER, 2, gradients, ONE_BUCKET_MB)
    for step in (1, 2):
        result, matrix = follow(gradients, run, 0, step)
        before = results_of(run, step - 1, gradients[0][0])[0][0]
        # P Qᵀ of the step before has the directions of its Q
        if not (before.isfinite().all() and result.isfinite().all()):
            raise CheckFailed("results of finite numbers", "nan or infinity")
        q = torch.linalg.svd(before.double()).Vh[:2].t()
        fresh = mean([steps[step][0] for steps in gradients])
        wanted = [
            projected(one, one.double() @ q) for one in (matrix, fresh)
        ]  # memory has a check of its own
        if not any(is_like(result, one, 5e-3) for one in wanted):
            raise CheckFailed(
                f"P of step {step + 1} to be M Q with Q of the step before",
                "a result that lies in other directions",
                "Keep the mean Q in state.q, and begin the next step with it.",
                partial(draw_entries, wanted[0].flatten(), result.flatten()),
            )


@points(1, cell="check_power_hook", needs=["check_power_is_exact_at_its_rank"])
def check_power_sends_thin_factors(student, rng):
    """At most three all-reduces for a bucket: r (n + m) numbers for each compressed parameter, the
    others once.
    """
    shapes = [(whole(rng, 20, 25), 30), (11,), (whole(rng, 16, 20), 40), (3, 4)]
    gradients = drawn(rng, 2, 2, shapes)
    run = emulated(student, POWER, 2, gradients, SMALL_BUCKETS_MB)
    by_step = buckets_of(student, gradients, SMALL_BUCKETS_MB)
    buckets = [numbers for step in by_step for numbers in step]
    of_step = sum(2 * sum(shapes[number]) for number in (0, 2)) + 11 + 12
    limit = 2 * 4 * of_step
    events = {rank: events_of_hook(run.timeline, rank) for rank in (0, 1)}
    given = {
        rank: float(sum(event.size_bytes for event in of_rank)) for rank, of_rank in events.items()
    }
    for rank, of_rank in events.items():
        if others := {event.name for event in of_rank} - {"all_reduce"}:
            raise CheckFailed("all-reduces alone", f"{', '.join(sorted(others))} on rank {rank}")
        if given[rank] > limit:
            hint = "Of a matrix only P and Q travel, r (n + m) numbers, in float32."
            picture = partial(draw_bytes, dict.fromkeys(events, limit), given)
            expected = f"at most {limit:,} bytes given by rank {rank} in two steps"
            raise CheckFailed(expected, f"{given[rank]:,.0f} bytes", hint, picture)
        if len(of_rank) > 3 * len(buckets):
            hint = (
                "Put all P of a bucket into one tensor, all Q into one, and everything that is not"
                " compressed into one."
            )
            expected = (
                f"at most {3 * len(buckets)} operations: three for each of {len(buckets)} buckets"
            )
            raise CheckFailed(expected, f"{len(of_rank)} on rank {rank}", hint)


@points(0.5, cell="check_power_hook", needs=["check_power_sends_later_what_it_kept"])
def check_power_takes_any_shape_in_any_bucket(student, rng):
    """Kernels are matrices of shape[0] rows, small ones are averaged, and memory stays with its
    parameter.
    """
    shapes = [(whole(rng, 12, 16), 3, 3, 3), (), (3, 4), (30, whole(rng, 18, 24)), (17,), (1, 50)]
    gradients = drawn(rng, 2, 3, shapes)
    run = emulated(student, POWER, 2, gradients, SMALL_BUCKETS_MB)
    hint = (
        "Store it by parameter: what is stored by bucket number is added to other parameters once"
        " the buckets change."
    )
    for step in range(3):
        for number, shape in enumerate(shapes):
            result = results_of(run, step, gradients[0][0])[0][number]
            if number in (0, 3):
                what, of_kernels = (
                    f"the result of shape {shape} in step {step + 1}",
                    "A kernel has shape[0] rows. ",
                )
                expect_projection(
                    *follow(gradients, run, number, step),
                    2,
                    what,
                    (of_kernels if number == 0 else "") + hint,
                )
            else:
                wanted, why = (
                    mean([steps[step][number] for steps in gradients]),
                    "Compressed where r (n + m) < n m.",
                )
                expect_close(
                    result,
                    wanted,
                    f"the result of shape {shape}, which is not compressed,",
                    why,
                    atol=1e-4,
                )


@points(0.5, cell="check_power_hook", needs=["check_power_is_exact_at_its_rank"])
def check_power_survives_a_gradient_of_zeros(student, rng):
    """A gradient of zeros gives zeros, and the step after it works as usual."""
    hold_on_one_of_two_draws(expect_to_survive_zeros, student, rng)


def expect_to_survive_zeros(student: Any, rng: torch.Generator) -> None:
    matrix = low_rank(rng, whole(rng, 12, 16), whole(rng, 18, 24), 2)
    gradients = [[[torch.zeros_like(matrix)], [one]] for one in spread(rng, 2, matrix)]
    run = emulated(student, POWER, 2, gradients, ONE_BUCKET_MB)
    hint = "M = 0 gives Q = 0, and then M Q = 0 forever; if Q is all zeros, draw a new one."
    like = gradients[0][0]
    expect_close(
        results_of(run, 0, like)[0][0], torch.zeros_like(matrix), "the result of zeros", hint
    )
    given = results_of(run, 1, like)[0][0]
    expect_close(
        given, matrix, "a mean of matrix rank 2 in the step after zeros", hint, rtol=5e-3, atol=5e-3
    )


@points(0.5, cell="check_power_hook", needs=["check_power_is_exact_at_its_rank"])
def check_power_leaves_the_random_state(student, rng):
    """The first Q comes from the hook's own generator: the global random state does not change."""
    gradients = drawn(rng, 2, 1, [(12, 18)])
    run = emulated(student, POWER, 2, gradients, ONE_BUCKET_MB)
    if not all(entry(value, "is_random_state_left") is True for value in run.values):
        hint = (
            "`torch.manual_seed` on all ranks makes their dropout the same, too: use a"
            " torch.Generator."
        )
        raise CheckFailed("the global random state as it was", "another one", hint)


@points(0.5, cell="check_power_hook", needs=["check_power_starts_warm"])
def check_training_with_power(student, rng):
    """After 40 steps of training at rank 1, the loss is close to the uncompressed one's."""
    expect_learning(student, rng, POWER, 1, 1.5)
