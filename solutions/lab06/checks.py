"""Hidden checks of lab 6: float16 with a loss scaler, and recomputed activations.

Numbers are compared with the judge's own, or with those of a rank on which no student code runs.
Segments note each of their forward and backward passes by an all-reduce of their rank alone, which
the conductor records. Memory is the kernel's word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from autograder.checks import (
    Made,
    Outcome,
    PartlyHeld,
    StudentFailed,
    between,
    entries,
    entry,
    expect_grown,
    expect_like,
    hinted,
    is_same,
    limit_computing,
    points,
    return_freed_memory,
    shown,
    shuffled,
    take_from_solution,
    tensor_like,
    whole,
)
from worldsize.check import CheckFailed, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch import Run

SCALER_OF_TORCH = "torch's own GradScaler is not allowed here: write a scaler of your own"
CHECKPOINT_OF_TORCH = "torch's own checkpoint is not allowed here: write one of your own"
FORBIDDEN = {
    "torch.amp.grad_scaler.GradScaler": SCALER_OF_TORCH,
    "torch.utils.checkpoint._CheckpointFrame": CHECKPOINT_OF_TORCH,
    "torch.distributed._composable": CHECKPOINT_OF_TORCH,
    "torch.distributed.algorithms._checkpoint": CHECKPOINT_OF_TORCH,
    "torch.utils.checkpoint": CHECKPOINT_OF_TORCH,
}
RULES = {"cluster": "dgx-h100", "allow": {"all_reduce"}, "forbid": FORBIDDEN}
ON_THE_WIRE = RULES | {"keeps_exchanges": True}
HINTS = {
    Outcome.HUNG: "Every rank takes part in the one all-reduce, whatever it knows already.",
}
MB = 2**20
NUM_LARGE = 6  # segments or micro-batches, each of 24 MiB
IGNORED = -100
FORWARD, BACKWARD, LOSS, CHAIN = 0, 1, 2, 3  # kinds of notes
NOTE_NUMBERS = 3  # kind, segment, sum of the segment's input
ONE_NUMBER_BYTES = 8
MEMORY_OF_ONE_BYTES = 80 * MB  # above one micro-batch or segment, below half of all
CPU_S = 4.0  # more than what the text says
NEARLY = 2.0  # times the least cost

CLOSE = {"rtol": 1e-5, "atol": 1e-12}

Tensors = list[torch.Tensor]


def emulated(student: Any, *args: Any, hints: Any = HINTS, **options: Any) -> Run:
    with hinted(hints):
        return student.emulated(*args, **(ON_THE_WIRE | options))


# accumulate


class Batches(NamedTuple):
    """The micro-batches of a rank, and what its parameters are and hold in `grad` before."""

    weights: torch.Tensor
    before: torch.Tensor
    micro_batches: list[tuple[torch.Tensor, torch.Tensor]]

    def tokens(self) -> list[int]:
        return [int((targets != IGNORED).sum()) for _, targets in self.micro_batches]

    def gradients(self) -> Tensors:
        """The gradient of each micro-batch's sum of losses."""
        return [gradient_of(self.weights, *one) for one in self.micro_batches]


def losses_of(weights: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((inputs @ weights).tanh() - targets)[targets != IGNORED].square().sum()


def gradient_of(weights: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    weights = weights.clone().requires_grad_()
    losses_of(weights, inputs, targets).backward()
    return torch.zeros_like(weights) if weights.grad is None else weights.grad


def drawn_batches(
    rng: torch.Generator, lengths: Sequence[Sequence[int]], seed: int, is_odd: bool = False
) -> Batches:
    """Micro-batches of so many tokens and so many other targets; odd ones are negative, in rows."""
    own = torch.Generator().manual_seed(seed)
    weights = torch.randn(5, generator=own, dtype=torch.float64)  # the same on all ranks
    micro_batches = []
    for num_tokens, num_ignored in lengths:
        num = num_tokens + num_ignored
        targets = torch.randint(-2 if is_odd else 0, 4, (num,), generator=rng)
        targets[torch.randperm(num, generator=rng)[:num_ignored]] = IGNORED
        inputs = torch.randn(num, 5, generator=rng, dtype=torch.float64)
        if is_odd and num % 2 == 0:
            inputs, targets = inputs.view(-1, 2, 5), targets.view(-1, 2)
        micro_batches.append((inputs, targets))
    return Batches(weights, torch.randn(5, generator=rng, dtype=torch.float64), micro_batches)


def accumulate_on_rank(student: Any, notes_calls: bool, batches: Any) -> Any:
    """What is returned, the gradient, and whether there is one."""
    weights, before, micro_batches = batches
    weights = nn.Parameter(weights)
    weights.grad = None if before is None else before.clone()

    def sum_of_losses(inputs, targets):
        if notes_calls:
            note = torch.tensor([-1.0, targets.numel(), 0.0], dtype=torch.float64)
            dist.all_reduce(note)
        return ((inputs @ weights).tanh() - targets)[targets != -100].square().sum()

    num_tokens = student.accumulate(sum_of_losses, micro_batches)
    return [num_tokens, weights.grad]


@points(1, cell="check_accumulate")
def check_accumulate_is_the_mean_over_tokens(student, rng):
    """On one rank: the gradient of the mean over the tokens of all micro-batches, however uneven,
    added to what `grad` held; the number of tokens comes back.
    """
    lengths = [(whole(rng, 1, 2), 3), (2 * whole(rng, 7, 9), 2), (5, whole(rng, 6, 9))]
    batches = drawn_batches(rng, lengths, whole(rng, 0, 10**6), is_odd=True)
    run = emulated(student, accumulate_on_rank, False, tuple(batches), world_size=1)
    tokens, gradients, before = batches.tokens(), batches.gradients(), batches.before
    num_returned, given = entries(run.values[0], 2)
    sums, num = torch.stack(gradients).sum(dim=0), sum(tokens)
    means = sum(one / num_own for one, num_own in zip(gradients, tokens, strict=True))
    ignored = sum(num for _, num in lengths)
    lengthwise = sum(len(targets) for _, targets in batches.micro_batches) - ignored
    elements = sum(targets.numel() for _, targets in batches.micro_batches)
    mistakes = [
        (before + means / len(tokens), "That is the mean of the micro-batches' means."),
        (before + means, "Each micro-batch is divided by its own number of tokens."),
        (before + sums, "That is the sum: divide by the number of tokens."),
        (before + sums / len(tokens), "That is divided by the number of micro-batches."),
        (before + sums / elements, "A target that is IGNORED is no token."),
        (before + sums / lengthwise, "Each element of targets is a token, in all dimensions."),
        (sums / num, "What was in `grad` before stays in the sum."),
    ]
    hint = "Divide each sum of losses by the number of tokens of all micro-batches."
    expect_like(given, before + sums / num, "the gradient", hint, mistakes, **CLOSE)
    if num_returned is not num and (type(num_returned) is not int or num_returned != num):
        raise CheckFailed(f"{num}, the number of tokens, as an int", shown(num_returned))


@points(1, cell="check_accumulate")
def check_accumulate_counts_the_tokens_of_all_ranks(student, rng):
    """On three ranks: each adds its part, so that the parts add up to the gradient of the mean; the
    count of each rank, one number, is all that travels.
    """
    seed = whole(rng, 0, 10**6)
    # inside a rank micro-batches are equal: only ranks differ; no half holds the largest count
    even = shuffled(rng, [2, 5, 1027])
    by_rank = [drawn_batches(rng, [(num, 0)] * 3, seed) for num in even]
    each = [(tuple(one),) for one in by_rank]
    run = emulated(student, accumulate_on_rank, False, each=each, world_size=3)
    num, counts = 3 * sum(even), [3 * one for one in even]
    for rank, batches in enumerate(by_rank):
        sums, before = torch.stack(batches.gradients()).sum(dim=0), batches.before
        mistakes = [
            (before + sums / counts[rank], "Divided by the rank's own tokens: add up all ranks'."),
            (before + sums / counts[rank] / 3, "That is the mean over the ranks of their means."),
            (before + sums / num / 3, "Divided by the number of ranks, too: parts are added."),
            (before + sums / num * 3, "That is N times as much: parts are added, not averaged."),
        ]
        hint = "Divide by the number of tokens of all ranks."
        expect_like(
            entry(run.values[rank], 1),
            before + sums / num,
            f"rank {rank}'s part",
            hint,
            mistakes,
            **CLOSE,
        )
        if entry(run.values[rank], 0) != num:
            expected = f"{num}, the tokens of all ranks, on rank {rank}"
            raise CheckFailed(expected, shown(entry(run.values[rank], 0)))
    expect_small_exchanges(run, 1, "the count of tokens")
    for rank, wanted in enumerate(counts):
        given = run.exchanges[0].tensor(rank).double()
        if given.numel() != 1 or given.item() != wanted:
            hint = (
                "What the ranks know of each other comes from this all-reduce; half types round it."
            )
            actual = shown(given)
            raise CheckFailed(f"rank {rank} to send its number of tokens, {wanted}", actual, hint)


def expect_small_exchanges(run: Run, num: int, what: str) -> None:
    """Raise CheckFailed unless so many all-reduces of one number went over the wire."""
    given = len(run.exchanges)
    if given != num:
        expected = f"{num} all-reduce{'s' * (num > 1)}, for {what}"
        raise CheckFailed(expected, f"{given} operations", "One number from each rank is enough.")
    most = max(len(body) for one in run.exchanges for body in one.bodies.values())
    if most > ONE_NUMBER_BYTES:
        expected = f"one number of at most {ONE_NUMBER_BYTES} bytes from each rank for {what}"
        raise CheckFailed(expected, f"{most} bytes", "The ranks need no more to agree.")


@points(0.5, cell="check_accumulate")
def check_accumulate_takes_empty_batches(student, rng):
    """`sum_of_losses` is called only where there are tokens; a rank without micro-batches takes
    part; where no rank has a token, `grad` stays None and 0 is returned.
    """
    seed = whole(rng, 0, 10**6)
    lengths = shuffled(rng, [(whole(rng, 3, 6), 1), (0, 4), (0, 3)])
    batches = drawn_batches(rng, lengths, seed)
    run = emulated(student, accumulate_on_rank, True, tuple(batches), world_size=1)
    called = [int(one.tensor(0)[1]) for one in run.exchanges if is_note(one)]
    wanted = [sum(one) for one in lengths if one[0]]
    if called != wanted:
        hint = "Leave out a micro-batch all of whose targets are IGNORED."
        raise CheckFailed("a call for each micro-batch with tokens", f"{len(called)} calls", hint)

    def of_ranks(*lengths: Any) -> Run:
        drawn = [drawn_batches(rng, one, seed) for one in lengths]
        each = [((one.weights, None, one.micro_batches),) for one in drawn]
        return emulated(student, accumulate_on_rank, False, each=each, world_size=2)

    run = of_ranks([], [(whole(rng, 3, 6), 1)])
    if entry(run.values[0], 1) is not None or entry(run.values[1], 1) is None:
        actual = "another gradient"
        raise CheckFailed("a gradient exactly on the rank that has tokens", actual)
    for rank, value in enumerate(of_ranks([(0, 3)], []).values):
        num_tokens, gradient = entries(value, 2)
        if num_tokens != 0 or gradient is not None:
            actual = "another gradient or another number"
            hint = "Without a token there is no backward pass, and nothing to divide by."
            raise CheckFailed(f"0 tokens and no gradient on rank {rank}", actual, hint)


def large_batches_on_rank(student: Any, num: int, seed: int) -> Any:
    """Accumulate micro-batches with large activations."""
    return_freed_memory()
    torch.manual_seed(seed)
    weights, places = nn.Parameter(torch.rand(64)), torch.ones(2**15)

    def sum_of_losses(inputs, targets):
        rows = (weights[:, None] + inputs[0]) * places[None, :]  # 8 MiB
        return rows.tanh().sigmoid().exp()[:, : len(targets)].sum()  # each keeps its own result

    batches = [(torch.rand(1), torch.ones(2, dtype=torch.long)) for _ in range(num)]
    return [student.accumulate(sum_of_losses, batches), weights.grad]


@points(0.5, cell="check_accumulate")
def check_accumulate_holds_one_micro_batch(student, rng):
    """The activations of one micro-batch are held at a time."""
    args = (large_batches_on_rank, NUM_LARGE, whole(rng, 0, 10**6))
    run = emulated(student, *args, world_size=1, memory=True)
    hint = "Call backward for each micro-batch, before the forward pass of the next one."
    expect_grown(
        run, MEMORY_OF_ONE_BYTES, f"{NUM_LARGE} micro-batches of 24 MiB of activations", hint
    )
    if tensor_like(entry(run.values[0], 1), torch.empty(64)) is None:
        raise CheckFailed("a gradient", shown(entry(run.values[0], 1)))


# unscale


def unscale_on_rank(student: Any, cases: Any) -> Any:
    """Of each case: the verdict, the masters' gradients, and whether something else changed."""
    found = []
    for gradients, dtype, scale in cases:
        halves, masters = [], []
        for gradient in gradients:
            like = torch.zeros(3) if gradient is None else gradient
            halves.append(nn.Parameter(torch.ones_like(like, dtype=dtype)))
            halves[-1].grad = None if gradient is None else gradient.to(dtype)
            masters.append(nn.Parameter(torch.ones_like(like, dtype=torch.float32)))
            masters[-1].grad = torch.full_like(masters[-1], 3.0)
        before = [None if one.grad is None else one.grad.clone() for one in halves]
        verdict = student.unscale(halves, masters, scale)
        same = [
            (
                one.grad is None
                if was is None
                else torch.equal(one.grad.nan_to_num(), was.nan_to_num())
            )
            for one, was in zip(halves, before, strict=True)
        ]
        kept = all(bool((one == 1).all()) for one in (*halves, *masters))
        given = [None if one.grad is None else one.grad.clone() for one in masters]
        found.append([verdict, given, all(same) and kept])
    return found


@points(1, cell="check_unscale")
def check_unscale_divides_in_float32(student, rng):
    """The masters' gradients are those of the halves, divided in float32; None where a half has
    none; the halves and the masters' values do not change.
    """
    cases = []
    for dtype, power in ((torch.float16, 16), (torch.bfloat16, 30), (torch.float16, 0)):
        small = 1e-5 * torch.randn(4, 3, generator=rng)
        cases.append(([small, None, 3 * torch.randn(5, generator=rng)], dtype, 2.0**power))
    cases.append(([torch.randn((), generator=rng), torch.zeros(0)], torch.float16, 1000.0))
    run = emulated(student, unscale_on_rank, cases, world_size=1)
    for case, value in zip(cases, entries(run.values[0], len(cases)), strict=True):
        gradients, dtype, scale = case
        _, given, is_kept = entries(value, 3)
        for one, gradient in zip(entries(given, len(gradients)), gradients, strict=True):
            if gradient is None:
                if one is not None:
                    hint = "The gradient of an earlier step is still there: set it to None."
                    raise CheckFailed("None for a half without a gradient", shown(one), hint)
                continue
            wanted = gradient.to(dtype).float() / scale
            in_half = (gradient.to(dtype) / scale).float()
            mistakes = [
                (in_half * scale, "Divided in half precision, small ones are lost."),
                (wanted * scale * scale, "That is not divided by the scale."),
            ]
            hint = "Convert to float32 first, and divide then."
            scaled = one * scale if isinstance(one, torch.Tensor) else one
            what = "a master's gradient times the scale"
            expect_like(scaled, wanted * scale, what, hint, mistakes, rtol=1e-6, atol=1e-12)
        if is_kept is not True:
            raise CheckFailed("halves and masters' values as they were", "others", "")


@points(1, cell="check_unscale")
def check_unscale_sees_every_overflow(student, rng):
    """The result is True where all gradients are finite, and False where one element of any is
    infinite or nan.
    """
    cases, wanted = [], []
    for bad in (None, float("inf"), float("-inf"), float("nan")):
        for place in range(3):
            for dtype in (torch.float16, torch.bfloat16):
                gradients: list[Any] = [torch.randn(4, 3, generator=rng) for _ in range(3)]
                if bad is not None:
                    gradients[place][whole(rng, 0, 3), whole(rng, 0, 2)] = bad
                    gradients.insert(place, None)
                cases.append((gradients, dtype, 8.0))
                wanted.append(bad is None)
    # finite numbers whose sum is not
    cases.append(([torch.full((4,), 6e4), torch.full((4,), -6e4)], torch.float16, 1.0))
    cases.append(([torch.zeros(0), None], torch.float16, 1.0))
    # a finite half whose quotient is not
    cases.append(([torch.full((2,), 3e38)], torch.bfloat16, 2.0**-4))
    wanted += [True, True, True]
    run = emulated(student, unscale_on_rank, cases, world_size=1)
    for right, value in zip(wanted, entries(run.values[0], len(cases)), strict=True):
        if (given := entry(value, 0)) is not right:
            hint = "All elements of all gradients, and a bool rather than a tensor."
            raise CheckFailed(f"{right} as the result", shown(given), hint)


# update


class Scale:
    """The judge's own scaler: the scale, its limits, and the steps so far."""

    def __init__(self, scale, growth_interval, min_scale, max_scale, num_good=0, num_skipped=0):
        self.scale, self.growth_interval = scale, growth_interval
        self.min_scale, self.max_scale = min_scale, max_scale
        self.num_good_steps, self.num_skipped = num_good, num_skipped

    def update(self, is_finite):
        if is_finite:
            self.num_good_steps += 1
            if self.num_good_steps == self.growth_interval:
                self.scale, self.num_good_steps = min(2 * self.scale, self.max_scale), 0
        else:
            self.scale, self.num_good_steps = max(self.scale / 2, self.min_scale), 0
            self.num_skipped += 1


def update_on_rank(student: Any, cases: Any) -> Any:
    """Scale, good steps in a row and skipped steps after each step of each case."""
    found = []
    for (scale, interval, least, most, num_good, num_skipped), steps in cases:
        state = student.ScalerState(scale, interval, least, most)
        state.num_good_steps, state.num_skipped = num_good, num_skipped
        after = []
        for step in steps:
            student.update(state, step == "+")
            after.append([float(state.scale), state.num_good_steps, state.num_skipped])
        found.append(after)
    return found


def expect_scales(
    student: Any,
    cases: Sequence[tuple[Any, str]],
    hint: str,
    places: Sequence[int] = (0,),
    at_end: bool = False,
) -> None:
    """Raise CheckFailed unless the scale, or a count, is the judge's after each step."""
    run = emulated(student, update_on_rank, list(cases), world_size=1)
    names = ["scale", "num_good_steps", "num_skipped"]
    for (setting, steps), value in zip(cases, entries(run.values[0], len(cases)), strict=True):
        state, after = Scale(*setting), entries(value, len(steps))
        for number, step in enumerate(steps):
            state.update(step == "+")
            if at_end and number < len(steps) - 1:
                continue
            for place in places:
                wanted = [state.scale, state.num_good_steps, state.num_skipped][place]
                given = entry(after[number], place)
                if type(given) not in (int, float) or given != wanted:
                    past = f"{steps[: number + 1]}, with growth_interval {setting[1]}"
                    expected = f"{names[place]} {wanted:g} after {past}"
                    raise CheckFailed(expected, shown(given), hint)


def setting_of(rng: torch.Generator, interval: int) -> tuple[Any, ...]:
    return (2.0 ** whole(rng, 8, 12), interval, 2.0**-40, 2.0**60, 0, 0)


@points(0.5, cell="check_update")
def check_update_halves_after_an_overflow(student, rng):
    """After each step with an overflow the scale is half of what it was."""
    cases = [(setting_of(rng, interval), "-" * whole(rng, 3, 6)) for interval in (1, 4)]
    expect_scales(student, cases, "Halve the scale in every step with an overflow.")


@points(1, cell="check_update")
def check_update_doubles_after_good_steps(student, rng):
    """After each growth_interval good steps in a row the scale is twice what it was."""
    intervals = (whole(rng, 3, 6), 1)
    cases = [(setting_of(rng, interval), "+" * (3 * interval + 1)) for interval in intervals]
    hint = "Count a good step first, double when growth_interval is reached, and begin again at 0."
    expect_scales(student, cases, hint)


@points(0.5, cell="check_update")
def check_update_counts_good_steps_in_a_row(student, rng):
    """An overflow ends the row of good steps, as in torch.amp.GradScaler."""
    interval = whole(rng, 3, 5)
    row = "+" * (interval - 1)
    mixed = "".join(shuffled(rng, [*"-" * 6, *"+" * 40]))
    cases = [(setting_of(rng, interval), one) for one in (f"{row}-{row}-{row}", mixed)]
    expect_scales(student, cases, "Set num_good_steps to 0 after an overflow.")


@points(0.5, cell="check_update")
def check_update_stays_within_limits(student, rng):
    """The scale never falls below min_scale nor rises above max_scale."""
    least = 2.0 ** whole(rng, -2, 2)
    setting = (5 * least, 2, least, 16 * least, 0, 0)  # neither limit is reached by doubling
    cases = [(setting, "-----"), (setting, "+" * 20)]
    expect_scales(
        student, cases, "max(..., state.min_scale), min(..., state.max_scale).", at_end=True
    )


@points(0.5, cell="check_update")
def check_update_keeps_its_counts_in_the_state(student, rng):
    """num_good_steps and num_skipped are kept in the state, also in one that was loaded from a
    checkpoint.
    """
    setting = (2.0**10, 5, 1.0, 2.0**24, whole(rng, 2, 3), whole(rng, 5, 9))
    hint = "Keep nothing outside of the state, and count every step in it."
    expect_scales(student, [(setting, "+-+++-+")], hint, (1, 2))
    hint = "At its limits the scale stays, but steps are counted as everywhere."
    at_limits = [((4.0, 2, 4.0, 4.0, 0, 0), "--+++"), ((4.0, 3, 1.0, 4.0, 0, 0), "+++++")]
    expect_scales(student, at_limits, hint, (1, 2))


# scaled_step


Momentum, right_unscale = take_from_solution(
    Path(__file__).with_name("lab06.py"), "Momentum", "unscale"
)


def reference_update(state: Any, is_finite: bool) -> None:
    Scale.update(state, is_finite)


class Decaying(Momentum):
    """An optimizer that also shrinks all its parameters, those without a gradient, too."""

    def step(self):
        super().step()
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.mul_(1 - 2**-4)


def trained(step: Any, state: Any, dtype: torch.dtype, given: Any, kind: Any = Momentum) -> Any:
    """What is so after each step: the decision, the state, and the values of everything.

    `given` are by step the gradients of the parameters, with None for one that is not used.
    """
    shapes = [(4, 3), (7,)]
    # from 0, where float32 keeps the smallest step
    halves = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    masters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer, objects, found = kind(masters), [*map(id, halves)], []
    halves_list, masters_list = list(halves), list(masters)
    for gradients in given:
        pairs = [(h, g) for h, g in zip(halves, gradients, strict=True) if g is not None]
        loss = sum((half.float() * gradient).sum() for half, gradient in pairs)
        is_done = step(state, loss, halves_list, masters_list, optimizer)
        is_clear = all(one.grad is None for one in (*halves, *masters))
        is_clear = is_clear and [*map(id, halves_list)] == objects
        values = [one.detach().clone() for one in (*halves, *masters, *optimizer.velocities)]
        found.append([is_done, float(state.scale), state.num_skipped, is_clear, values])
        for one in (*halves, *masters):  # what was left is for one check, not for the next steps
            one.grad = None
    return found


def scaled_step_on_rank(
    student: Any, scale: float, dtype: torch.dtype, given: Any, kind: Any
) -> Any:
    student.unscale, student.update = right_unscale, reference_update
    return trained(student.scaled_step, student.ScalerState(scale, 3), dtype, given, kind)


def steps_of(
    student: Any, dtype: torch.dtype, by_rank: Any, scale: float, kind: Any = Momentum
) -> Run:
    each = [(one, kind) for one in by_rank]
    options = {"each": each, "world_size": len(by_rank)}
    return emulated(student, scaled_step_on_rank, scale, dtype, **options)


def expected_steps(dtype: torch.dtype, by_rank: Any, scale: float) -> list[Any]:
    """The judge's own training, by rank."""
    num_steps, settled = len(by_rank[0]), []
    for step in range(num_steps):
        of_all = [one for of_rank in by_rank for one in of_rank[step] if one is not None]
        settled.append(all(one.to(dtype).isfinite().all() for one in of_all))

    def right_step(state, loss, halves, masters, optimizer):
        is_done = settled[len(done)]
        done.append(is_done)
        (loss * state.scale).backward()
        right_unscale(halves, masters, state.scale)
        if is_done:
            optimizer.step()
            with torch.no_grad():
                for half, master in zip(halves, masters, strict=True):
                    half.copy_(master)
        for one in (*halves, *masters):
            one.grad = None
        state.update(is_done)
        return is_done

    found = []
    for of_rank in by_rank:
        done: list[bool] = []
        found.append(trained(right_step, Scale(scale, 3, 1.0, 2.0**24), dtype, of_rank))
    return found


def drawn_steps(rng: torch.Generator, num: int, size: float = 1.0) -> list[Any]:
    """Gradients by step, large and small."""
    return [
        [size * 1e-6 * torch.randn(4, 3, generator=rng), size * torch.randn(7, generator=rng) / 8]
        for _ in range(num)
    ]


def overflowing(
    rng: torch.Generator, steps: list[Any], number: int, size: float = float("inf")
) -> None:
    """Make a gradient of one step infinite in float16; that of 1e5 leaves the loss finite."""
    flat = steps[number][whole(rng, 0, 1)].view(-1)
    flat[whole(rng, 0, len(flat) - 1)] = size


@points(1.5, cell="check_scaled_step")
def check_step_trains_with_the_scaled_loss(student, rng):
    """Without an overflow: the masters get steps of the optimizer with unscaled gradients, small
    ones included, and the halves their values.
    """
    for dtype, scale in ((torch.float16, 2.0**16), (torch.bfloat16, 2.0**10)):
        by_rank = [drawn_steps(rng, 4) for _ in range(2)]
        by_rank = [[[1e-3 * a, b] for a, b in steps] for steps in by_rank]
        run, wanted = (
            steps_of(student, dtype, by_rank, scale),
            expected_steps(dtype, by_rank, scale),
        )
        plain = expected_steps(dtype, by_rank, 1.0)
        for rank, value in enumerate(run.values):
            for step in range(4):
                given, right = entry(value, step, 4), wanted[rank][step][4]
                where = f"on rank {rank} after step {step + 1}"
                for place, unit in ((2, 1e9), (3, 1.0)):
                    hint = "Scale the loss before backward, unscale the gradients before step()."
                    one = entry(given, place)
                    if tensor_like(one, right[place]) is None:
                        raise CheckFailed("float32 masters", shown(one), hint)
                    mistake = "Small gradients are lost: is the loss multiplied by the scale?"
                    mistakes = [(unit * plain[rank][step][4][place], mistake)]
                    what = f"a master, which began with 0, times {unit:g}, {where}"
                    wanted_here = unit * right[place]
                    expect_like(unit * one, wanted_here, what, hint, mistakes, 1e-3, 1e-4)
                for place in (0, 1):
                    master = entry(given, place + 2)
                    hint = "After the optimizer's step, half.copy_(master) for every half."
                    if not is_same(entry(given, place), master.to(dtype)):
                        raise CheckFailed(
                            f"each half's values to be its master's {where}", "not so", hint
                        )


@points(2, cell="check_scaled_step")
def check_step_is_skipped_on_all_ranks(student, rng):
    """A gradient that is infinite on any one rank, though its loss may be finite, makes all ranks
    skip the step and halve the scale; what ranks with and without an overflow send shows it.
    """
    by_rank = [drawn_steps(rng, 8) for _ in range(3)]
    skipped = {1: [whole(rng, 0, 2)], 2: shuffled(rng, [0, 1, 2])[:2], 6: [whole(rng, 0, 2)]}
    for step, ranks in skipped.items():
        for rank in ranks:
            overflowing(rng, by_rank[rank], step, float("inf") if step == 2 else 1e5)
    run = steps_of(student, torch.float16, by_rank, 2.0**8)
    wanted = expected_steps(torch.float16, by_rank, 2.0**8)
    for rank, value in enumerate(run.values):
        for step in range(8):
            given, right = entry(value, step, 0), wanted[rank][step][0]
            what = f"{right} in step {step + 1}, {'with' if not right else 'without'} an overflow"
            if given is not right:
                own = rank in skipped.get(step, []) or all(
                    entry(one, step, 0) is True for one in run.values
                )
                hint = "The ranks decide together: all-reduce whether this rank's are finite."
                if own or right:
                    hint = (
                        "A step is done if all gradients of all ranks are finite. The loss may be"
                        " finite where they are not."
                    )
                raise CheckFailed(f"{what}, on rank {rank}", shown(given), hint)
            for place, name in ((1, "scale"), (2, "num_skipped")):
                given, right = entry(value, step, place), wanted[rank][step][place]
                if given != right:
                    hint = "Call update once in each step, with the decision of all ranks."
                    expected = f"{name} {right:g} on rank {rank} after step {step + 1}"
                    raise CheckFailed(expected, shown(given), hint)
        for step in range(8):
            masters = entries(entry(value, step, 4), 4)[2:]
            if not all(isinstance(one, torch.Tensor) and one.isfinite().all() for one in masters):
                hint = "The optimizer's step was done with an infinite gradient."
                expected = f"finite masters on rank {rank} after step {step + 1}"
                raise CheckFailed(expected, "infinity or nan", hint)
    if len(run.exchanges) != 8:
        expected, given = "an all-reduce in each of 8 steps", f"{len(run.exchanges)}"
        raise CheckFailed(expected, given, "What a rank knows of the others comes over the wire.")
    with_overflow, without = set(), set()
    for step, exchange in enumerate(run.exchanges):
        for rank, body in exchange.bodies.items():
            (with_overflow if rank in skipped.get(step, []) else without).add(body)
    if with_overflow & without or not with_overflow:
        hint = "What it all-reduces has to say whether its own gradients are finite."
        expected = "a rank with an overflow to send another number than one without"
        raise CheckFailed(expected, "the same number", hint)


@points(1, cell="check_scaled_step")
def check_skipped_step_changes_nothing(student, rng):
    """In a skipped step, halves, masters and the optimizer's momentum keep their bits, and the step
    after it goes on from there.
    """
    by_rank = [drawn_steps(rng, 4) for _ in range(2)]
    for steps in by_rank:
        overflowing(rng, steps, 1)
        overflowing(rng, steps, 2, 1e5)
    run = steps_of(student, torch.float16, by_rank, 2.0**8)
    for rank, value in enumerate(run.values):
        like = expected_steps(torch.float16, by_rank, 2.0**8)[rank][0][4]
        values = [entries(entry(value, step, 4), len(like)) for step in range(4)]
        for given in values:
            if any(tensor_like(*pair) is None for pair in zip(given, like, strict=True)):
                raise CheckFailed("halves and masters in their own types", "others")
        for step in (1, 2):
            for place, one in enumerate(values[step]):
                if not is_same(one, values[0][place]):
                    name = ["a half", "a master", "the optimizer's momentum"][place // 2]
                    hint = "Neither call optimizer.step() nor copy masters in a skipped step."
                    expected = f"{name} on rank {rank} to stay as it was in a skipped step"
                    raise CheckFailed(expected, "other numbers", hint)
        if all(is_same(*pair) for pair in zip(values[3], values[0], strict=True)):
            raise CheckFailed("the step after a skipped one to be done", "nothing changed")


@cache
def four_steps(student: Any) -> Run:
    """Steps of two ranks with an overflow on one, for checks to which numbers do not matter."""
    rng = torch.Generator().manual_seed(6)
    by_rank = [drawn_steps(rng, 4) for _ in range(2)]
    overflowing(rng, by_rank[1], 2)
    return steps_of(student, torch.float16, by_rank, 2.0**8)


@points(0.5, cell="check_scaled_step")
def check_step_leaves_no_gradients(student, rng):
    """Afterwards no half and no master has a gradient, also after a skipped step, and the halves
    are the same objects.
    """
    for value in four_steps(student).values:
        for step in range(4):
            if entry(value, step, 3) is not True:
                hint = "Set grad to None in both lists; change halves in place."
                expected = f"no gradients after step {step + 1}, in the same halves"
                raise CheckFailed(expected, "gradients, or other objects", hint)


@points(0.5, cell="check_scaled_step")
def check_step_agrees_by_one_number(student, rng):
    """One all-reduce of one number of at most 8 bytes in each step, with an overflow or without."""
    expect_small_exchanges(four_steps(student), 4, "the decision in each of 4 steps")


@points(0.5, cell="check_scaled_step")
def check_step_takes_parameters_without_gradients(student, rng):
    """A half that the loss does not use keeps its values and its momentum in that step; where the
    optimizer changes its master all the same, it gets the master's values.
    """
    by_rank = [[[a, b], [None, b], [a, None]] for a, b in (drawn_steps(rng, 1)[0] for _ in "ab")]
    run = steps_of(student, torch.float16, by_rank, 2.0**8)
    for value in run.values:
        for step, place in ((1, 0), (2, 1)):
            for number in (place, place + 2, place + 4):
                before, after = (entry(value, one, 4, number) for one in (step - 1, step))
                if before is None or not is_same(before, after):
                    hint = "The gradient of an earlier step must not come back."
                    expected = f"no change in step {step + 1} without a gradient"
                    raise CheckFailed(expected, "other numbers", hint)
            if is_same(*(entry(value, one, 4, 3 - place) for one in (step - 1, step))):
                raise CheckFailed(f"a step of the other parameter in step {step + 1}", "none")
    run = steps_of(student, torch.float16, by_rank, 2.0**8, Decaying)
    for value in run.values:
        for step, place in ((1, 0), (2, 1)):
            values = entries(entry(value, step, 4), 4)
            if not all(isinstance(one, torch.Tensor) for one in values):
                raise CheckFailed("halves and masters", shown(values))
            copied = [is_same(half, values[2 + n].half()) for n, half in enumerate(values[:2])]
            if copied[1 - place] and not copied[place]:  # copying none is for another check
                hint = "Copy every master: weight decay changes those without a gradient, too."
                expected = f"its master's values in a half without a gradient in step {step + 1}"
                raise CheckFailed(expected, "other numbers", hint)


# checkpointed


def is_note(exchange: Exchange) -> bool:
    """True for what `note` puts on the record."""
    is_alone = exchange.op == "all_reduce" and len(exchange.ranks) == 1
    return is_alone and exchange.dtype == "float64" and len(exchange.body) == 8 * NOTE_NUMBERS


class Notes:
    """Notes on the conductor's record, from a rank of which the others know nothing."""

    def __init__(self, group):
        self.group = group

    def note(self, kind, number, total=0.0):
        if self.group is not None:
            note = torch.tensor([kind, number, total], dtype=torch.float64)
            dist.all_reduce(note, group=self.group)


class NotedBackward(torch.autograd.Function):
    """An identity that notes when the backward pass comes through it."""

    @staticmethod
    def forward(tensor, notes, number):
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.notes, ctx.number = inputs

    @staticmethod
    def backward(ctx, gradient):
        ctx.notes.note(BACKWARD, ctx.number)
        return gradient, None, None


class Segment(nn.Module):
    """A module that notes its passes."""

    def __init__(self, number, body, notes):
        super().__init__()
        self.number, self.body, self.notes = number, body, [notes]

    def forward(self, tensor):
        self.notes[0].note(FORWARD, self.number, float(tensor.detach().double().sum()))
        if tensor.is_floating_point():
            tensor = NotedBackward.apply(tensor, self.notes[0], self.number)
        return self.body(tensor)


class Wide(nn.Module):
    """A body with 24 MiB of activations, from 64 numbers to 64."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.rand(2**15))

    def forward(self, tensor):
        rows = tensor[:, None] * self.weights[None, :]
        return rows.tanh().sigmoid().exp().mean(dim=1)  # each keeps a result like no other's


class Narrow(nn.Module):
    """A layer with dropout but without torch's module; it may have a parameter that it ignores."""

    def __init__(self, width, dtype, dropout, has_spare):
        super().__init__()
        self.linear, self.dropout = nn.Linear(width, width, dtype=dtype), dropout
        self.spare = nn.Parameter(torch.ones(2, dtype=dtype)) if has_spare else None

    def forward(self, tensor):
        return nn.functional.dropout(self.linear(tensor).tanh(), self.dropout)


class Setting(NamedTuple):
    """A model and how it is trained: one body for each segment, by kind, with its frozen ones."""

    bodies: tuple[str, ...]
    seed: int
    order: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    dropout: float = 0.0
    autocast: torch.dtype | None = None
    has_spare: bool = False
    num_calls: int = 1
    input: str = "with gradient"
    frozen: tuple[int, ...] = ()
    has_gradients: bool = True
    has_backward: bool = True


def checkpointed_on_rank(student: Any, settings: Any, _: None) -> Any:
    """What comes of each setting; on a rank without a student, that of a plain loop."""
    return_freed_memory()
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    notes = Notes(groups[0] if student else None)
    return [train_chain(student, Setting(*setting), notes) for setting in settings]


def train_chain(student: Any, own: Setting, notes: Notes) -> Any:
    """Outputs, gradients and random numbers."""
    notes.note(CHAIN, 0)
    torch.manual_seed(own.seed)
    segments, width = [], 64 if "wide" in own.bodies else 12
    for number, kind in enumerate(own.bodies):
        body: nn.Module
        if kind == "words":
            body = nn.Embedding(20, width, dtype=own.dtype)
        elif kind == "wide":
            body = Wide()
        else:
            body = Narrow(width, own.dtype, own.dropout, own.has_spare)
        segments.append(Segment(number, body, notes).requires_grad_(number not in own.frozen))
    parameters = list(nn.ModuleList(segments).parameters())
    tensors = []
    for _ in range(own.num_calls):
        if own.input == "words":
            tensors.append(torch.randint(0, 20, (5,)))
            continue
        shape = (width,) if "wide" in own.bodies else (5, width)
        tensors.append(torch.rand(shape, dtype=own.dtype))
        tensors[-1].requires_grad_(own.input == "with gradient")
    chain = [segments[number] for number in own.order]

    def plain_loop(chain, tensor):
        for segment in chain:
            tensor = segment(tensor)
        return tensor

    function = student.checkpointed if student else plain_loop
    is_cast = torch.autocast("cpu", own.autocast or torch.bfloat16, own.autocast is not None)
    with torch.set_grad_enabled(own.has_gradients), is_cast:
        outputs = [function(list(chain), tensor) for tensor in tensors]
    after_call = torch.rand(5)
    notes.note(LOSS, 0)
    for output in outputs:
        if output.requires_grad and own.has_backward:
            (
                output.double() * torch.linspace(0.5, 1.5, output.numel()).view_as(output)
            ).sum().backward()
    results = [one.detach().clone() for one in outputs]
    inputs = [one.grad for one in tensors]
    needed = [one.requires_grad for one in outputs]
    gradients = [one.grad for one in parameters]
    return [results, needed, inputs, gradients, after_call, torch.rand(5)]


def disarm_torch() -> None:
    """Have torch's own checkpoint refuse to run here, by whatever reference it is found."""
    from torch.utils import checkpoint

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError

    setattr(checkpoint.CheckpointFunction, "forward", staticmethod(refuse))  # noqa: B010
    setattr(checkpoint._CheckpointFrame, "__init__", refuse)  # noqa: B010


class Played(NamedTuple):
    """A chain that was trained, and the notes of its segments: before the loss, and after it."""

    given: Any
    right: Any
    grown_bytes: int
    forward: list[tuple[int, int, float]]
    backward: list[tuple[int, int, float]]

    def times_run(self, number: int) -> int:
        """How often a segment's forward ran."""
        return sum(one[:2] == (FORWARD, number) for one in (*self.forward, *self.backward))


def play(student: Any, *settings: Setting, **options: Any) -> list[Played]:
    """What came of each chain on rank 0, with the student's function, and of a plain loop on 1."""
    ranks = {"world_size": 2, "student_ranks": [0], "made": Made(disarm_torch)} | options
    args = (checkpointed_on_rank, [tuple(one) for one in settings])
    run = emulated(student, *args, hints={}, **ranks)
    notes: list[list[list[tuple[int, int, float]]]] = []
    for exchange in run.exchanges:
        if is_note(exchange) and exchange.ranks == (0,):
            kind, number, total = exchange.tensor(0).tolist()
            if kind == CHAIN:
                notes.append([[]])
            elif kind == LOSS and notes:
                notes[-1].append([])
            elif notes:
                notes[-1][-1].append((int(kind), int(number), total))
    grown = next(iter(run.grown_bytes), 0)  # the other rank runs the plain loop
    played = []
    for place, right in enumerate(run.values[1]):
        before, after = [*(notes[place] if place < len(notes) else []), [], []][:2]
        played.append(Played(entry(run.values[0], place), right, grown, before, after))
    return played


def expect_as_plain(game: Played, what: str, hint: str = "") -> None:
    """Raise CheckFailed unless outputs and gradients have the bits of the plain loop."""
    given, right = game.given, game.right
    for place, name in enumerate(("the output", "requires_grad of the output")):
        if not is_same(entry(given, place), right[place]):
            raise CheckFailed(f"{name} of a plain loop {what}", "another", hint)
    for place, name in ((2, "the input"), (3, "a parameter")):
        for one, wanted in zip(
            entries(entry(given, place), len(right[place])), right[place], strict=True
        ):
            if not is_same(one, wanted):
                expected = f"the gradient of {name} {what}, to the bit"
                actual = "none" if one is None else "another one"
                raise CheckFailed(expected, actual, hint)


@cache
def large_game(student: Any, has_backward: bool = True) -> Played | StudentFailed:
    """A run of segments with large activations, weighed by the kernel."""
    order = tuple(range(NUM_LARGE))
    setting = Setting(("wide",) * NUM_LARGE, 6, order, has_backward=has_backward)
    try:
        return play(student, setting, memory=True)[0]
    except StudentFailed as failed:
        return failed


def saves_memory(student: Any, has_backward: bool = True) -> bool:
    """True where less than half of all activations was held at any time, or before backward."""
    game = large_game(student, has_backward)
    return isinstance(game, Played) and game.grown_bytes <= MEMORY_OF_ONE_BYTES


def expect_recomputed(student: Any, game: Played, order: Sequence[int]) -> None:
    """Raise PartlyHeld unless segments are recomputed, one by one: then all else counts less.

    Forward passes are the rank's own word: memory must bear them out.
    """
    is_noted = all(game.times_run(number) >= 2 * order.count(number) for number in set(order))
    if is_noted and saves_memory(student):
        return
    if not is_noted or not saves_memory(student, has_backward=False):
        raise PartlyHeld(
            0.5,
            "this from segments that are recomputed in backward",
            "it from segments whose activations of the first forward were kept",
            "Until they are recomputed instead, everything else earns half its points.",
        )
    raise PartlyHeld(
        0.625,
        "this from segments of which one at a time has its activations",
        "it from more memory than that",
        "Until memory is saved, everything else earns a part of its points.",
    )


def linear_setting(rng: torch.Generator, num: int = 3, **others: Any) -> Setting:
    return Setting(("linear",) * num, whole(rng, 0, 10**6), tuple(range(num)), **others)


def expect_trained(student: Any, *cases: tuple[Setting, str, str]) -> None:
    """Raise CheckFailed unless each setting gives the bits of a plain loop, by recomputing.

    A case is a setting, what it is, and a hint.
    """
    games = play(student, *(setting for setting, *_ in cases))
    for game, (_, what, hint) in zip(games, cases, strict=True):
        expect_as_plain(game, what, hint)
    for game, (setting, *_) in zip(games, cases, strict=True):
        expect_recomputed(student, game, setting.order)


@points(1.5, cell="check_checkpointed")
def check_checkpointed_gives_the_same_bits(student, rng):
    """The output and the gradients of the input and of all parameters are those of a plain loop, to
    the bit.
    """
    setting = linear_setting(rng, whole(rng, 4, 6))
    hint = "Run the segment again under torch.enable_grad(), on a detached input."
    expect_trained(student, (setting, "over the segments", hint))


@points(1, cell="check_checkpointed")
def check_checkpointed_takes_inputs_without_gradients(student, rng):
    """Parameters get their gradients also where the input requires none, or has integers."""
    setting = linear_setting(rng, input="without")
    words = setting._replace(bodies=("words", "linear", "linear"), input="words")
    hint = "A Function's result requires a gradient only if one of its arguments does."
    expect_trained(
        student,
        (setting, "of an input that requires no gradient", hint),
        (words, "of integers", "Integers cannot require a gradient."),
    )


@points(0.5, cell="check_checkpointed")
def check_checkpointed_takes_any_type(student, rng):
    """The same in float64 and bfloat16."""
    types = (torch.float64, torch.bfloat16)
    settings = [(linear_setting(rng, dtype=one), f"in {one}", "Convert nothing.") for one in types]
    expect_trained(student, *settings)


@points(0.5, cell="check_checkpointed")
def check_checkpointed_keeps_the_autocast(student, rng):
    """The second forward is under the autocast of the first, although backward is outside of it."""
    hint = "Note is_autocast_enabled and get_autocast_dtype in forward, and use them in backward."
    kinds = (torch.bfloat16, torch.float16)
    cases = [(linear_setting(rng, autocast=one), f"under autocast to {one}", hint) for one in kinds]
    with hinted({Outcome.CRASHED: hint}):
        expect_trained(student, *cases)


@points(1, cell="check_checkpointed")
def check_checkpointed_draws_the_same_masks(student, rng):
    """With dropout, the second forward has the masks of the first, although other numbers were
    drawn in between.
    """
    setting = linear_setting(rng, dropout=between(rng, 0.3, 0.6))
    hint = "Start the second forward from the generator state that the first one had."
    expect_trained(student, (setting, "with dropout", hint))


@points(0.5, cell="check_checkpointed")
def check_checkpointed_leaves_the_generator(student, rng):
    """Torch's generator goes on as after a plain loop, after the call and after backward."""
    setting = linear_setting(rng, dropout=0.5)
    (game,) = play(student, setting)
    for place, when in ((4, "the call"), (5, "backward")):
        if not is_same(entry(game.given, place), game.right[place]):
            hint = "Put the generator's state back to what backward found."
            raise CheckFailed(f"the numbers of a plain loop after {when}", "others", hint)
    expect_recomputed(student, game, setting.order)


@points(0.5, cell="check_checkpointed")
def check_checkpointed_takes_modules_and_calls_twice(student, rng):
    """A module may be used twice, there may be several calls before the first backward, and
    parameters that a segment does not use have no gradient.
    """
    hint = "A parameter that is not used has no gradient: torch.autograd.grad(allow_unused=True)."
    with hinted({Outcome.CRASHED: hint}):
        (game,) = play(student, linear_setting(rng, has_spare=True))
        expect_as_plain(game, "with a parameter that its segment does not use", hint)
    hint = "Keep what belongs to a call with that call, not with the module."
    twice = linear_setting(rng, dropout=0.5)._replace(order=(0, 1, 0, 2))
    calls = linear_setting(rng, dropout=0.5, num_calls=2)
    expect_trained(
        student,
        (twice, "with a module that is used twice", hint),
        (calls, "of two calls before the first backward", hint),
    )


@points(0.5, cell="check_checkpointed")
def check_checkpointed_recomputes_only_what_is_needed(student, rng):
    """No recomputation under no_grad, nor before the first segment that needs a gradient; a frozen
    segment behind it is recomputed, and gradients pass through it.
    """
    frozen = linear_setting(rng, 4, input="without", frozen=(0, 1))
    hint = "Only a segment whose parameters or input require a gradient has a backward."
    settings = frozen, frozen._replace(has_gradients=False), frozen._replace(frozen=(0, 1, 2, 3))
    *games, passed = play(student, *settings, linear_setting(rng, 4, frozen=(1, 3)))
    expect_as_plain(games[0], "of a chain with frozen segments", hint)
    for game, wanted in zip(games, ([1, 1, 2, 2], [1] * 4, [1] * 4), strict=True):
        given = [game.times_run(number) for number in range(4)]
        if any(one > most for one, most in zip(given, wanted, strict=True)):
            expected = f"forward passes of four segments: {wanted}"
            raise CheckFailed(expected, f"{given}", hint)
        if entry(game.given, 1) != game.right[1]:
            raise CheckFailed("the same requires_grad as after a plain loop", "another", hint)
    hint = (
        "Gradients pass through a frozen segment to those before it: recompute it like any other."
    )
    expect_as_plain(passed, "of a chain with frozen segments behind others", hint)
    expect_recomputed(student, games[0], (2, 3))
    given = [passed.times_run(number) for number in range(4)]
    if given != [2] * 4:
        raise CheckFailed(f"forward passes of four segments: {[2] * 4}", f"{given}", hint)


@points(1, cell="check_checkpointed")
def check_checkpointed_recomputes_each_segment_once(student, rng):
    """The second forward of a segment comes once, from the same input, after the backward of the
    segment behind it and before its own.
    """
    num = whole(rng, 4, 6)
    (game,) = play(student, linear_setting(rng, num))
    wanted = [(FORWARD, number) for number in range(num)]
    if [one[:2] for one in game.forward] != wanted:
        raise CheckFailed("each forward once in the call, in order", "other passes")
    counts = [game.times_run(number) for number in range(num)]
    if counts != [2] * num:
        hint = "Each segment's forward runs once in the call, and once in backward."
        raise CheckFailed(f"two forward passes of each of {num} segments", f"{counts}", hint)
    first = {number: total for kind, number, total in game.forward if kind == FORWARD}
    if any(kind == FORWARD and total != first[number] for kind, number, total in game.backward):
        raise CheckFailed("the second forward from the same input", "another input")
    wanted = [(kind, one) for one in reversed(range(num)) for kind in (FORWARD, BACKWARD)]
    if [one[:2] for one in game.backward] != wanted:
        raise PartlyHeld(
            0.5,
            "each segment's second forward right before its own backward",
            "another order",
            "A checkpoint for each segment, and not one for all: else all activations are there at"
            " the same time.",
        )
    if not saves_memory(student) and not saves_memory(student, has_backward=False):
        expected = "a second forward instead of the activations of the first one"
        hint = "Run the first forward without recording gradients: nothing of it is to be kept."
        raise CheckFailed(expected, "both, by the memory that the operating system counts", hint)


@points(2, cell="check_checkpointed")
def check_checkpointed_holds_one_segment(student, rng):
    """The activations of one segment are held at a time, as the operating system counts them."""
    game = large_game(student)
    if isinstance(game, StudentFailed):
        raise game
    hint = "Keep only the segments' inputs, and recompute one segment at a time."
    own = Run([], [], 0.0, grown_bytes=[game.grown_bytes])
    what = f"{NUM_LARGE} segments of 24 MiB of activations"
    expect_grown(own, MEMORY_OF_ONE_BYTES, what, hint)
    expect_as_plain(game, "over large segments")


# choose_checkpoints


class Chain(NamedTuple):
    """Layers, and a budget."""

    activation_bytes: list[int]
    input_bytes: list[int]
    recompute_s: list[float]
    budget_bytes: int

    def peak_of(self, layers: Sequence[int]) -> int:
        """The most that is held at any layer if these are recomputed."""
        held = peak = 0
        for layer, (activation, kept) in enumerate(zip(*self[:2], strict=True)):
            held += kept if layer in layers else activation
            peak = max(peak, held + (activation if layer in layers else 0))
        return peak

    def cost_of(self, layers: Sequence[int]) -> float:
        return sum(self.recompute_s[layer] for layer in layers)

    def least_cost(self) -> float | None:
        """The cost of the best choice; None where none fits."""
        costs = {0: 0.0}
        for activation, kept, cost_s in zip(*self[:3], strict=True):
            longer: dict[int, float] = {}
            for held, so_far_s in costs.items():
                for after, peak, total_s in (
                    (held + activation, held + activation, so_far_s),
                    (held + kept, held + kept + activation, so_far_s + cost_s),
                ):
                    if peak <= self.budget_bytes:
                        longer[after] = min(total_s, longer.get(after, total_s))
            costs = longer
        return min(costs.values(), default=None)


def choose_on_rank(student: Any, chains: Any, limit_s: float, *_: Any) -> Any:
    """What is chosen of each chain, and None where ValueError is raised."""
    import signal

    def stop(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, stop)
    found: list[Any] = []
    for chain in chains:
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        try:
            found.append(student.choose_checkpoints(*chain))
        except TimeoutError:
            found.append("late")
        except ValueError:
            found.append(None)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
    return found


def chosen(student: Any, chains: Sequence[Chain]) -> list[list[int] | None]:
    """What is chosen of each chain: numbers of layers in order, or None.

    Raises:
        CheckFailed: a choice is none of that, or does not fit.
    """
    late = "Of choices that keep equally much, the cheapest is enough to go on with."
    with hinted({Outcome.TIME_LIMIT: late}):
        # the timer says which chain was late; who takes it away is ended by the kernel
        made = Made(limit_computing, 1 + int(CPU_S) * len(chains))
        job = (choose_on_rank, [tuple(one) for one in chains], CPU_S)
        run = student.emulated(*job, world_size=1, made=made, **RULES)
    found = []
    for chain, layers in zip(chains, entries(run.values[0], len(chains)), strict=True):
        num = len(chain.recompute_s)
        if layers == "late":
            raise CheckFailed(f"a choice for {num} layers within 3 seconds", "none so far", late)
        if layers is not None:
            is_list = isinstance(layers, list) and all(type(one) is int for one in layers)
            if not is_list or sorted({one for one in layers if 0 <= one < num}) != layers:
                raise CheckFailed("a list of numbers of layers, ascending", shown(layers))
            if (peak := chain.peak_of(layers)) > chain.budget_bytes:
                hint = "At layer i: what layers 0 to i keep, and its activations if recomputed."
                raise CheckFailed(f"a peak of at most {chain.budget_bytes:,}", f"{peak:,}", hint)
        found.append(layers)
    return found


def expect_cheapest(student: Any, chains: Sequence[Chain]) -> list[list[int] | None]:
    """The choices; raise CheckFailed unless each fits and costs as little as possible.

    Of choices that cost less than twice as much, a part of the points is earned.
    """
    too_dear: list[tuple[float, float, float]] = []
    found = chosen(student, chains)
    for chain, layers in zip(chains, found, strict=True):
        least_s = chain.least_cost()
        if least_s is None or layers is None:
            if least_s is not layers:
                actual = "ValueError" if layers is None else "a choice"
                raise CheckFailed("ValueError exactly where nothing fits", actual)
        elif (cost_s := chain.cost_of(layers)) > least_s * (1 + 1e-9):
            too_dear.append((cost_s / max(least_s, 1e-12), least_s, cost_s))
    if too_dear:
        times, least_s, cost_s = max(too_dear)
        hint = "Neither the layer that saves most nor the best ratio is always right."
        expected, actual = f"a cost of {least_s:g} s", f"{cost_s:g} s"
        if times > NEARLY:
            raise CheckFailed(expected, actual, hint)
        raise PartlyHeld(0.5, expected, actual, hint)
    return found


def with_large_end(rng: torch.Generator, sizes: Any, inputs: Any, costs: Any, room: int) -> Chain:
    """Layers before one that is too dear to recompute: while the others are, there is room."""
    unit, time = 2 ** whole(rng, 10, 20), between(rng, 1e-4, 1e-2)
    large = 2 * max(sizes)
    return Chain(
        [unit * one for one in (*sizes, large)],
        [unit * one for one in (*inputs, 1)],
        [time * one for one in (*costs, 10 * sum(costs))],
        unit * (large + room),
    )


@points(2, cell="check_choose_checkpoints")
def check_choice_is_the_cheapest(student, rng):
    """The choice fits, and no other that fits costs less."""
    chains = [
        # the best ratios first cost 90; the first and the last one 70
        with_large_end(rng, [60, 100, 45], [0, 0, 0], [30, 60, 40], 104),
        # the largest first costs 90; two small ones 60
        with_large_end(rng, [90, 50, 50], [0, 0, 0], [90, 30, 30], 100),
        # the cheapest first costs 30 + 90; the largest 90
        with_large_end(rng, [30, 100, 30], [0, 0, 0], [30, 90, 40], 60),
    ]
    for num in (7, 9):
        sizes = [whole(rng, 20, 90) for _ in range(num)]
        inputs = [whole(rng, 1, 9) for _ in sizes]
        costs = [whole(rng, 10, 60) for _ in sizes]
        chains.append(with_large_end(rng, sizes, inputs, costs, sum(sizes) // 2))
    expect_cheapest(student, chains)


@points(1, cell="check_choose_checkpoints")
def check_choice_counts_the_recomputed_layer(student, rng):
    """At a recomputed layer, its activations fit in beside what the layers before it keep."""
    unit = 2 ** whole(rng, 10, 20)
    chains = [
        Chain([40 * unit] * 4, [4 * unit] * 4, [4.0, 3.0, 2.0, 1.0], budget * unit)
        for budget in (125, 128, 90, 60)
    ]
    chains.append(Chain([unit * 10, unit * 90], [unit, unit], [1.0, 2.0], unit * 91))
    expect_cheapest(student, chains)


@points(0.5, cell="check_choose_checkpoints")
def check_choice_knows_its_limits(student, rng):
    """[] where everything fits, to the byte; ValueError where nothing does."""
    sizes = [whole(rng, 20, 60) for _ in range(4)]
    inputs, costs = [2, 3, 1, 2], [1.0, 2.0, 3.0, 4.0]
    chains = [Chain(sizes, inputs, costs, one) for one in (sum(sizes), 19)]
    chains += [Chain([50] * 4, [2] * 4, costs, one) for one in (58, 57)]
    # the cheaper of two layers keeps a byte too much
    unit = 2 ** whole(rng, 10, 20)
    ends = [50 * unit, 50 * unit + 1, 110 * unit]
    chains.append(Chain(ends, [0, 0, 1], [1.0, 2.0, 30.0], 160 * unit))
    if expect_cheapest(student, chains)[0]:
        raise CheckFailed("[] where everything fits", "layers to recompute")


# last: it may take all of its time
@points(0.5, cell="check_choose_checkpoints")
def check_choice_is_quick_for_many_layers(student, rng):
    """32 layers of four kinds take at most 3 seconds."""
    kinds = [(37, 2, 21), (52, 3, 34), (44, 1, 26)]
    sizes, inputs, costs = zip(*shuffled(rng, [*kinds * 10, kinds[0]]), strict=True)
    # here the best ratios first cost 5% more than the best choice, in every order
    expect_cheapest(student, [with_large_end(rng, sizes, inputs, costs, 630)])
