"""Hidden checks of lab 7: the parts of ZeRO on emulated ranks, by what is sent and what is held.

Points rest on the bodies of collectives, which the conductor saw and the judge computes, on where a
rank posted them among requests to a scripted rank, and on the memory that the kernel counts. What a
rank returns is compared beside them. Each part runs with correct versions of the others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import worldsize as ws
from autograder.checks import (
    Outcome,
    PartlyHeld,
    StudentFailed,
    between,
    draw_timeline,
    drawn_cluster,
    entries,
    entry,
    expect_body,
    expect_end,
    expect_grown,
    expect_like,
    expect_same_again,
    expect_work,
    hinted,
    integer,
    points,
    positive,
    posts_of,
    return_freed_memory,
    shown,
    shuffled,
    take_from_solution,
    tensor_like,
    whole,
)
from worldsize import emulate, pricing
from worldsize.check import CheckFailed, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.event import COMMUNICATION
from worldsize.launch import Run
from worldsize.timeline import Timeline

Tensors = list[torch.Tensor]
Uses = list[tuple[int, bool]]  # of blocks: place, and whether in backward
MB = 2**20
BY_HAND = "torch's own sharding is not allowed here: this is what you write"
RULES = {
    "allow": {"all_gather", "reduce_scatter", "all_reduce"},
    "forbid": {
        "torch.distributed.fsdp": BY_HAND,
        "torch.distributed.tensor": BY_HAND,
        "torch.distributed.optim": BY_HAND,
    },
}
SEEN = {**RULES, "keeps_exchanges": True}
WEIGHED = {"memory": True, "keeps_exchanges": False}
WITH_SCRIPT = {"allow": RULES["allow"] | {"send", "recv"}, "student_ranks": {0, 1}}
LEARNING_RATE = 0.01

SOLUTION = Path(__file__).with_name("lab07.py")
right_shard, right_unshard, right_gather, right_free, right_reduce_gradients = take_from_solution(
    SOLUTION, "shard", "unshard", "gather", "free", "reduce_gradients"
)
(right_prefetching,) = take_from_solution(SOLUTION, "Prefetching")

NO_WAIT = "Use async_op=True, and wait where the contract says so: not in this call."
ALL_RANKS = "All ranks must make the same calls in the same order."
FREED = (
    "Weights were used while they were freed: gather before every use, in forward and in backward."
)
ADVICE = {Outcome.HUNG: ALL_RANKS, Outcome.CRASHED: FREED}


# What runs on the ranks beside the student's code: the parts that it does not judge.


def grouped(modules: Sequence[nn.Module]) -> list[tuple[list[int], list[nn.Parameter]]]:
    """The parameters of each unit of these modules, and the places of its users."""
    users: dict[nn.Parameter, list[int]] = {}
    groups: dict[Any, list[nn.Parameter]] = {}
    for place, module in enumerate(modules):
        for parameter in module.parameters():
            users.setdefault(parameter, []).append(place)
    for parameter, places in users.items():
        kind = (tuple(places), parameter.dtype, parameter.requires_grad)
        groups.setdefault(kind, []).append(parameter)
    return [(list(places), parameters) for (places, *_), parameters in groups.items()]


def with_right_units(student: Any) -> None:
    """Put right functions in place of those that the notebook's `Unit` calls."""
    student.shard, student.unshard, student.free = right_shard, right_unshard, right_free


def with_references(student: Any) -> None:
    """Put right functions in place of the student's small ones."""
    with_right_units(student)
    student.gather, student.reduce_gradients = right_gather, right_reduce_gradients


def unit_of_zeros(
    student: Any, shapes: Any, dtype: torch.dtype = torch.float32, requires_grad: bool = True
) -> Any:
    zeros = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    return student.Unit([nn.Parameter(tensor, requires_grad) for tensor in zeros])


def gathers_of(student: Any, blocks: Sequence[Any], is_kept: bool, ahead: bool = False) -> Any:
    """What gathers on demand, or ahead of use; if `is_kept`, weights stay gathered."""
    gathers = right_prefetching(blocks) if ahead else student.OnDemand(blocks)
    if is_kept:
        gathers.drop = lambda _: None
    return gathers


def units_of(blocks: Sequence[Any]) -> list[Any]:
    """All units, each once."""
    return list(dict.fromkeys(unit for block in blocks for unit in block.units))


def shard_on_rank(student: Any, cases: list[tuple[Tensors, int]]) -> Any:
    found = []
    for tensors, world_size in cases:
        pieces = [student.shard(tensors, rank, world_size) for rank in range(world_size)]
        found.append({"pieces": pieces, "after": tensors})
    return found


def shard_many_on_rank(student: Any, num_elements: int, num_tensors: int) -> Any:
    """Fill the memory with pieces of tensors that nobody else keeps."""
    return_freed_memory()
    pieces = [student.shard([torch.ones(num_elements)], 3, 16) for _ in range(num_tensors)]
    return [piece.sum().item() for piece in pieces]


def unshard_on_rank(student: Any, flat: torch.Tensor, shapes: list[list[int]]) -> Any:
    tensors = student.unshard(flat, [torch.Size(shape) for shape in shapes])
    before = [one.clone() for one in tensors]
    flat.mul_(2)
    return [before, tensors]


def gather_on_rank(student: Any, cases: list[Tensors], in_turn: bool) -> Any:
    """The parameters after each of three gathers of each unit.

    In turn, rank 1 begins when rank 0's first call has returned.
    """
    free, found = student.free, []
    with_right_units(student)
    for weights in cases:
        unit, seen = student.Unit([nn.Parameter(one) for one in weights]), []
        for step in range(3):
            if in_turn and dist.get_rank():
                dist.recv(torch.empty(1), 0)
            handle = student.gather(unit)
            if in_turn and not dist.get_rank():
                dist.send(torch.ones(1), 1)
            handle.wait()
            seen.append([one.detach().clone() for one in unit.parameters])
            unit.piece *= 2
            if step:
                free(unit)
                free(unit)
        found.append(seen)
    return found


def free_on_rank(student: Any, num_units: int, num_elements: int) -> Any:
    """Gather and free units one after the other, and keep what autograd would.

    Nothing here leads to a right `free`: units, too, are made with the student's.
    """
    return_freed_memory()
    student.shard, student.unshard = right_shard, right_unshard
    units, saved, found = [], [], []
    for number in range(num_units):
        units.append(student.Unit([nn.Parameter(torch.full((num_elements,), 1.0 + number))]))
    for unit in units:
        student.gather(unit).wait()
        saved.append(unit.parameters[0].detach()[:2])
        student.free(unit)
    for unit, view in zip(units[:2], saved[:2], strict=True):
        unit.piece *= 2
        student.gather(unit).wait()
        found.append(view.clone())
        student.free(unit)
    return found


def reduce_on_rank(
    student: Any, shapes: Any, dtypes: Sequence[torch.dtype], in_turn: bool, calls: Any
) -> Any:
    """`unit.gradient` after each call.

    In turn, rank 1 begins when rank 0's call has returned.
    """
    with_right_units(student)
    found = []
    for dtype in dtypes:
        unit, seen = unit_of_zeros(student, shapes, dtype), []
        for gradients in calls:
            for parameter, gradient in zip(unit.parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.to(dtype)
            if in_turn and dist.get_rank():
                dist.recv(torch.empty(1), 0)
            take_in = student.reduce_gradients(unit)
            if in_turn and not dist.get_rank():
                dist.send(torch.ones(1), 1)
            take_in()
            seen.append(None if unit.gradient is None else unit.gradient.clone())
        found.append(seen)
    frozen = unit_of_zeros(student, shapes, requires_grad=False)
    student.reduce_gradients(frozen)()
    return [found, frozen.gradient]


def reduce_many_on_rank(student: Any, num_units: int, num_elements: int) -> Any:
    """Fill the memory with what is left of units whose gradients were reduced.

    Of each unit, some of its gradient, and whether `.grad` was None before the piece was taken in.
    """
    return_freed_memory()
    with_right_units(student)
    units, found = [], []
    for _ in range(num_units):
        units.append(unit_of_zeros(student, [(num_elements,)]))
        units[-1].parameters[0].grad = torch.ones(num_elements)
        take_in = student.reduce_gradients(units[-1])
        is_cleared = units[-1].parameters[0].grad is None
        take_in()
        found.append([units[-1].gradient[:2].clone(), is_cleared])
    return found


class Steps(NamedTuple):
    """Steps of Adam with these gradients; `state` is what a checkpoint restored."""

    weights: torch.Tensor
    gradients: Sequence[torch.Tensor | None]
    options: dict[str, Any]
    state: Sequence[Any] = ()


def adam_on_rank(student: Any, cases: Sequence[Steps]) -> Any:
    """By case and step, the piece and the state."""
    with_right_units(student)
    found = []
    for case in cases:
        unit = student.Unit([nn.Parameter(case.weights)])
        piece, seen = unit.piece, []
        if case.state:
            unit.master, unit.exp_avg, unit.exp_avg_sq, unit.num_steps = case.state
        for gradient in case.gradients:
            unit.gradient = gradient
            student.adam_step(unit, LEARNING_RATE, **case.options)
            held = [unit.master, unit.exp_avg, unit.exp_avg_sq]
            is_copy = unit.master is None or unit.master.data_ptr() != piece.data_ptr()
            is_done = unit.gradient is None and unit.piece is piece and is_copy
            copies = [one.clone() if isinstance(one, torch.Tensor) else one for one in held]
            seen.append([unit.piece.clone(), is_done, unit.num_steps, *copies])
        found.append(seen)
    return found


class Passes(nn.Module):
    """A block with two layers of sizes of its own, whose weights other blocks may share.

    An idle one leaves the bias of its first layer unused.
    """

    is_idle = False

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, inputs: torch.Tensor, factor: float | torch.Tensor = 1.0) -> torch.Tensor:
        bias = None if self.is_idle else self.first.bias
        hidden = nn.functional.linear(inputs, self.first.weight, bias)
        return torch.tanh(self.second(torch.tanh(hidden * factor)))


class Sizes(NamedTuple):
    """A model of blocks: which share the first weight, and which parameters have no gradient."""

    seed: int
    width: int
    hidden: Sequence[int]
    tied: Sequence[tuple[int, int]] = ()
    frozen: Sequence[tuple[int, str]] = ()
    idle: Sequence[int] = ()
    others: Sequence[torch.Tensor] = ()  # what each block is given besides


def model_of(sizes: Sizes) -> list[nn.Module]:
    generator = torch.Generator().manual_seed(sizes.seed)
    widths = list(sizes.hidden)
    for one, other in sizes.tied:
        widths[other] = widths[one]
    modules: list[nn.Module] = [Passes(sizes.width, hidden) for hidden in widths]
    for module in modules:
        for parameter in module.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            parameter.data = values / parameter.shape[-1] ** 0.5
    for one, other in sizes.tied:
        modules[other].first.weight = modules[one].first.weight  # pyright: ignore[reportAttributeAccessIssue]
    for place, name in sizes.frozen:
        modules[place].get_parameter(name).requires_grad_(False)
    for place in sizes.idle:
        modules[place].is_idle = True  # pyright: ignore[reportAttributeAccessIssue]
    return modules


def passed(modules: Sequence[nn.Module], order: Sequence[int], inputs: Any, *others: Any) -> Any:
    for place in order:
        inputs = modules[place](inputs, *others)
    return inputs


def shard_model_on_rank(student: Any, sizes: Sizes, is_kept: bool, ahead: bool, steps: Any) -> Any:
    """By step, the pieces of the gradients, whether units stay gathered, and outputs without grad.

    A step is a list of passes; a pass whose order is negative runs without gradients.
    """
    with_references(student)
    modules = model_of(sizes)
    blocks = student.make_blocks(modules)
    gathers, found = gathers_of(student, blocks, is_kept, ahead), []
    sharded = student.FullyShard(blocks, gathers)
    for passes in steps:
        outputs = []
        for order, inputs, has_gradients in passes:
            if has_gradients:
                passed(modules, order, inputs).square().mean().backward()
                sharded.finish()
            else:
                with torch.no_grad():
                    outputs.append(passed(modules, order, inputs, *sizes.others).clone())
                gathers.use(order[0], False)  # as one that gathers ahead leaves it
                sharded.finish()
        units = units_of(blocks)
        gathered = [unit.is_gathered for unit in units]
        found.append([[unit.gradient for unit in units], gathered, outputs])
        for unit in units:
            unit.gradient = None
    return found


class Heavy(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width, width) / width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, self.weight)


def hold_on_rank(student: Any, width: int, num_blocks: int) -> Any:
    """A step of a model that is made block by block, so that the whole of it is never there."""
    return_freed_memory()
    with_references(student)
    blocks = []
    for _ in range(num_blocks):
        module = Heavy(width)
        blocks.append(student.Block(module, [student.Unit(list(module.parameters()))]))
    sharded = student.FullyShard(blocks, student.OnDemand(blocks))
    hidden = torch.ones(1, width)
    for block in blocks:
        hidden = block.module(hidden)
    hidden.sum().backward()
    sharded.finish()
    return len(blocks)


class Scale(nn.Module):
    """A block of one number: of 1,024 ranks, all but the first have a piece that is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.scale


def whole_step(student: Any, widths: Sequence[int], is_own: bool) -> tuple[torch.Tensor, list[Any]]:
    """The output and the units of a step of stage 3.

    The student's own parts make it, or the student's class with the references.
    """
    if not is_own:
        with_references(student)
    blocks = []
    for previous, width in pairwise(widths):  # one at a time: the whole of the model is never there
        blocks += student.make_blocks([nn.Linear(previous, width, bias=False)])
    blocks += student.make_blocks([Scale()])
    sharded = student.FullyShard(blocks, student.OnDemand(blocks))
    hidden = torch.ones(1, widths[0])
    for block in blocks:
        hidden = block.module(hidden)
    hidden.sum().backward()
    sharded.finish()
    return hidden.detach(), [unit for block in blocks for unit in block.units]


def whole_step_on_rank(student: Any, widths: Sequence[int], is_own: bool) -> None:
    whole_step(student, widths, is_own)


def numbers_on_rank(student: Any, seed: int, widths: Sequence[int], is_own: bool) -> list[Any]:
    """The output of a step, and this rank's pieces of the gradients."""
    torch.manual_seed(seed)
    output, units = whole_step(student, widths, is_own)
    return [output, [unit.gradient for unit in units]]


class Asking(torch.autograd.Function):
    """An identity that multiplies by what `ask` returns, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, ask: Callable[[], torch.Tensor]) -> torch.Tensor:
        ctx.ask = ask
        return tensor * ask()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.ask(), None


class Gated(nn.Module):
    """A block that cannot go on without factors that only a scripted rank knows."""

    def __init__(self, inner: nn.Module, ask: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.ask = inner, ask

    def forward(self, _: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return Asking.apply(self.inner(inputs), self.ask)


def passed_second(modules: Sequence[nn.Module], inputs: torch.Tensor) -> torch.Tensor:
    """Pass modules of two inputs, of which only the second needs a gradient."""
    for module in modules:
        inputs = module(torch.ones(()), inputs)
    return inputs


def or_scripted(student: Any, on_rank: Callable[..., Any], mine: Any, *args: Any) -> Any:
    """What a student's rank returns; the last rank follows its script, and answers requests.

    The default group of the student's ranks does not hold it.
    """
    world, size = dist.group.WORLD, dist.get_world_size()
    pair = dist.new_group(list(range(size - 1)))
    if student is None:
        for peer, answer in mine:
            dist.recv(torch.empty(1), peer) if answer is None else dist.send(answer, peer)
        return None

    def ask() -> torch.Tensor:
        factor = torch.empty(())
        dist.send(torch.zeros(1), size - 1, group=world)
        dist.recv(factor, size - 1, group=world)
        return factor

    dist.distributed_c10d.GroupMember.WORLD = pair  # pyright: ignore[reportAttributeAccessIssue]
    return on_rank(student, ask, mine, *args)


def gated_step_on_rank(
    student: Any, ask: Any, inputs: torch.Tensor, sizes: Sizes, is_kept: bool
) -> Any:
    with_references(student)
    modules = [Gated(module, ask) for module in model_of(sizes)]
    blocks = student.make_blocks(modules)
    sharded = student.FullyShard(blocks, gathers_of(student, blocks, is_kept))
    passed_second(modules, inputs.requires_grad_()).square().mean().backward()
    sharded.finish()
    return [unit.gradient for unit in units_of(blocks)]


def spend(kind: str, time_s: float) -> torch.Tensor:
    with ws.span(kind, kind=kind):
        emulate.spend(time_s)
    return torch.ones(())


class Timed(Heavy):
    """A layer that works for some time in forward, and twice as long in backward."""

    def __init__(self, width: int, time_s: float) -> None:
        super().__init__(width)
        self.time_s, self.num_calls = time_s, 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        turns = iter(
            (partial(spend, "forward", self.time_s), partial(spend, "backward", 2 * self.time_s))
        )
        return Asking.apply(super().forward(inputs), lambda: next(turns)())


def timed_step_on_rank(student: Any, width: int, times_s: list[float]) -> Any:
    with_references(student)
    modules = [Timed(width, time_s) for time_s in times_s]
    blocks = student.make_blocks(modules)
    sharded = student.FullyShard(blocks, gathers_of(student, blocks, is_kept=True))
    inputs = torch.ones(1, width, requires_grad=True)
    passed(modules, range(len(modules)), inputs).sum().backward()
    sharded.finish()


def prefetch_on_rank(student: Any, ask: Any, weights: Any, uses: Uses, tied: bool) -> Any:
    """The sums of the weights at each use, units gathered at the end, and those freed too early.

    Between the uses a rank asks for a factor. Blocks that nobody used are dropped at the end.
    """
    with_right_units(student)
    units = [student.Unit([nn.Parameter(one) for one in of_block]) for of_block in weights]
    under_way, early = [], []

    class Handle:
        def __init__(self, unit: Any, inner: Any) -> None:
            self.unit, self.inner = unit, inner

        def wait(self) -> Any:
            under_way[:] = [one for one in under_way if one is not self.unit]
            return self.inner.wait()

    def gather(unit: Any) -> Handle:
        under_way.append(unit)
        return Handle(unit, right_gather(unit))

    def free(unit: Any) -> None:
        early.extend([True] if unit in under_way else [])
        right_free(unit)

    student.gather, student.free = gather, free
    owned = [[unit] for unit in units]
    if tied:
        owned = [[one, units[-1]] for one in units[:-1]]
    blocks = [student.Block(nn.Identity(), of_block) for of_block in owned]
    gathers, sums = student.Prefetching(blocks), []
    for place, is_backward in uses:
        gathers.use(place, is_backward)
        parameters = [one for unit in blocks[place].units for one in unit.parameters]
        sums.append(torch.stack([one.detach().double().sum() for one in parameters]) * ask())
        gathers.drop(place)
    for place in range(len(blocks)):
        gathers.drop(place)
    return [sums, [unit.is_gathered for unit in units], early]


def prefetch_timed_on_rank(
    student: Any, num_elements: int, uses: Uses, times_s: list[float]
) -> Any:
    with_references(student)
    num_blocks = 1 + max(place for place, _ in uses)
    units = [student.Unit([nn.Parameter(torch.ones(num_elements))]) for _ in range(num_blocks)]
    blocks = [student.Block(nn.Identity(), [unit]) for unit in units]
    gathers, sums = student.Prefetching(blocks), []
    for (place, is_backward), time_s in zip(uses, times_s, strict=True):
        gathers.use(place, is_backward)
        sums.append(units[place].parameters[0].detach().sum().item())
        spend("backward" if is_backward else "forward", time_s)
        gathers.drop(place)
    return sums


def clip_on_rank(student: Any, cases: Any) -> Any:
    with_right_units(student)
    found = []
    for max_norm, pieces in cases:
        units = [unit_of_zeros(student, [(2,)]) for _ in pieces]
        for unit, piece in zip(units, pieces, strict=True):
            unit.gradient = piece
        norm = student.clip_gradients(units, max_norm)
        is_kept = all(unit.gradient is one for unit, one in zip(units, pieces, strict=True))
        found.append([norm, [unit.gradient for unit in units], is_kept])
    return found


# What the judge draws, computes and compares.


def emulated(student: Any, *args: Any, hint: Any = None, **options: Any) -> Run:
    with hinted(ADVICE if hint is None else hint, Outcome.CRASHED):
        return student.emulated(*args, **(SEEN | options))


def script_of(factors: Sequence[Tensors]) -> list[tuple[int, torch.Tensor | None]]:
    """The turns of a scripted rank, which answers each rank's requests with its factors."""
    by_turn = [
        (rank, one) for turns in zip(*factors, strict=True) for rank, one in enumerate(turns)
    ]
    return [turn for rank, one in by_turn for turn in ((rank, None), (rank, one))]


def expect_no_wait(student: Any, on_rank: Any, *args: Any, **options: Any) -> Run:
    """The run in which rank 1 begins when rank 0's call has returned.

    Raises:
        CheckFailed: the call waits for rank 1.
    """
    rules = SEEN | {"allow": RULES["allow"] | {"send", "recv"}}
    try:
        return student.emulated(on_rank, *args, world_size=2, **rules, **options)
    except StudentFailed as error:
        if error.outcome is not Outcome.HUNG:
            raise
        actual = "one that waits for another rank, which has not come so far"
        raise CheckFailed("a call that returns at once", actual, NO_WAIT) from None


def calls_of(run: Run, rank: int, *ops: str) -> list[Exchange]:
    """What a rank posted of these operations, in its program's order."""
    return [one for one in posts_of(run, rank) if one.op in ops]


def flat_of(tensors: Sequence[torch.Tensor | None], shapes: Any, dtype: Any, num: int) -> Any:
    """These tensors end to end, zeros for a missing one, with zeros at the end: `num` pieces."""
    parts = [
        torch.zeros(torch.Size(shape).numel(), dtype=dtype) if one is None else one.flatten()
        for one, shape in zip(tensors, shapes, strict=True)
    ]
    flat = torch.cat(parts)
    return nn.functional.pad(flat, (0, -len(flat) % num))


def mean_of(flats: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([one.double() for one in flats]).mean(dim=0).float()


def expect_given(
    body: Exchange, rank: int, wanted: torch.Tensor, what: str, hint: str, num: int
) -> None:
    """Raise CheckFailed unless a rank put this into a reduce-scatter, or its N-th part."""
    sent = body.tensor(rank)
    if sent.dtype == wanted.dtype and sent.numel() == wanted.numel():
        near = {"rtol": 2e-2 if wanted.dtype.itemsize == 2 else 1e-4, "atol": 1e-7}
        if any(torch.allclose(sent.double(), wanted.double() / part, **near) for part in (1, num)):
            return
    expect_body(body, wanted, what, hint, rank)


# shard


def drawn_tensors(rng: torch.Generator, *shapes: Sequence[int]) -> Tensors:
    return [torch.randn(tuple(shape), generator=rng) for shape in shapes]


@points(1, cell="check_shard")
def check_pieces_hold_the_flat_vector(student, rng):
    """The pieces of all ranks, end to end, are the tensors end to end and then zeros; all have the
    same, smallest length. Tensors have any shape and layout, and keep their dtype.
    """
    first, second, *_ = drawn_tensors(rng, (whole(rng, 3, 9),), (4, whole(rng, 3, 6)))
    odd = [first, second.t(), torch.randn((), generator=rng)]
    cases = [(odd, whole(rng, 3, 5)), (odd, 1), ([second[:, :2].bfloat16()], 3)]
    cases += [
        ([torch.randn(2, generator=rng, dtype=torch.float64)], 5),
        ([torch.arange(1.0, 9)], 4),
    ]
    with hinted(
        "A rank may have nothing but zeros, and a tensor may have no dimension.", Outcome.CRASHED
    ):
        (found,) = student.run(shard_on_rank, cases, world_size=1)
    each = "Lay all tensors end to end first: the whole is cut and padded, not each tensor."
    for (tensors, num), one in zip(cases, entries(found, len(cases)), strict=True):
        shapes = [tensor.shape for tensor in tensors]
        flat = flat_of(tensors, shapes, tensors[0].dtype, num)
        for rank, wanted in enumerate(flat.split(len(flat) // num)):
            what = f"the piece of rank {rank} of {num}"
            expect_like(entry(one, "pieces", rank), wanted, what, each, rtol=0.0, atol=0.0)
        for tensor, after in zip(tensors, entries(entry(one, "after"), len(tensors)), strict=True):
            expect_like(after, tensor, "a tensor afterwards", "They must not change.")


@points(1, cell="check_shard")
def check_a_piece_holds_no_more_than_itself(student, rng):
    """A piece has memory of its own: the large tensors from which it was cut can go."""
    num = whole(rng, 10, 11) * MB // 4
    run = student.emulated(shard_many_on_rank, num, 7, world_size=1, memory=True, **RULES)
    wanted = num / 16
    for total in entries(run.values[0], 7):
        expect_close(total, wanted, "the sum of a piece of ones", "A piece of a 16th.")
    most = 3 * 4 * num + 7 * 4 * num / 16 + 12 * MB
    what = f"7 pieces of a 16th of {4 * num // MB} MiB each, which nobody keeps"
    expect_grown(run, most, what, "A slice keeps the whole vector alive: copy it, as by clone().")


@points(1, cell="check_shard")
def check_unshard_gives_views(student, rng):
    """The tensors come back in their shapes, without the zeros at the end; what is written into the
    flat vector later shows in them.
    """
    shapes = [[whole(rng, 2, 5)], [], [3, whole(rng, 2, 5)], [2, 1, 3]]
    tensors = drawn_tensors(rng, *shapes)
    flat = flat_of(tensors, shapes, torch.float32, 16)
    (found,) = student.run(unshard_on_rank, flat, shapes, world_size=1)
    for place, wanted in enumerate(tensors):
        hint = "Split the vector without its padding, and give each part its shape."
        expect_like(entry(found, 0, place), wanted, f"tensor {place}", hint)
        hint = "They must be views of the flat vector, made by slicing and `view`."
        later = f"tensor {place} after the vector was doubled"
        expect_like(entry(found, 1, place), 2 * wanted, later, hint)


# gather and free


@points(1, cell="check_gather_and_free")
def check_gather_sends_pieces(student, rng):
    """Each gather is one all-gather of the pieces in their dtype, also where the unit is gathered
    already; then the parameters are what the pieces hold.
    """
    weights = drawn_tensors(rng, (whole(rng, 3, 9),), (3, whole(rng, 2, 5)), ())
    cases = [weights, [one.bfloat16() for one in weights]]
    run = emulated(student, gather_on_rank, cases, False, world_size=2)
    for rank in range(2):
        calls = calls_of(run, rank, *RULES["allow"])
        if [one.op for one in calls] != ["all_gather"] * 6:
            actual = f"{', '.join(one.op for one in calls) or 'nothing'}"
            raise CheckFailed("an all-gather in each of 6 calls", actual, "One for each call.")
        for number, typed in enumerate(cases):
            flat = flat_of(typed, [one.shape for one in typed], typed[0].dtype, 2)
            piece = flat.split(len(flat) // 2)[rank]
            for step, call in enumerate(calls[3 * number : 3 * number + 3]):
                hint = "Give unit.piece, as it is now."
                expect_body(call, piece * 2**step, f"the piece of rank {rank}", hint, rank)
                for place, wanted in enumerate(typed):
                    hint = "Gather into unit.full, whose views the parameters are."
                    given = entry(run.values[rank], number, step, place)
                    what = f"parameter {place} after gather {step + 1}"
                    expect_like(given, wanted * 2**step, what, hint)


@points(0.5, cell="check_gather_and_free")
def check_gather_does_not_wait(student, rng):
    """`gather` returns a handle at once, though another rank is late."""
    weights = drawn_tensors(rng, (whole(rng, 3, 9),), (3, 4))
    with hinted({Outcome.CRASHED: "Return the handle of the operation that you start."}):
        run = expect_no_wait(student, gather_on_rank, [weights], True)
    for value in run.values:
        expect_like(
            entry(value, 0, 0, 1), weights[1], "a parameter", "Wait in the handle's wait()."
        )


@points(1.5, cell="check_gather_and_free")
def check_free_gives_memory_back(student, rng):
    """After `free` the memory is gone, although tensors that autograd kept share it; a later gather
    fills the memory that they see.
    """
    num_units, size = 4, whole(rng, 24, 26) * MB // 4
    run = emulated(student, free_on_rank, num_units, size // 4, world_size=2, **WEIGHED)
    most = num_units * size / 2 + 3 * size + 9 * MB
    hint = "Resize the storage of unit.full to 0. Tensors that share it then hold nothing."
    what = f"{num_units} pieces of {size / 2 / MB:.1f} MiB, with one unit gathered at a time"
    expect_grown(run, most, what, hint)
    for number in range(2):
        wanted = torch.full((2,), 2.0 * (1 + number))
        hint = "Give the same storage its memory back, by resize_: autograd's tensors share it."
        for value in run.values:
            expect_like(entry(value, number), wanted, "a view that was made before", hint)


# reduce_gradients


class Reduced(NamedTuple):
    """A run of `reduce_gradients`, with the flat gradients by dtype, call and rank."""

    run: Run
    flats: list[list[list[torch.Tensor]]]


def reduced(
    student: Any, rng: torch.Generator, num: int, missing: Any, *dtypes: torch.dtype
) -> Reduced:
    """Some calls; `missing` has by call and rank the places of parameters without a gradient."""
    shapes = [(whole(rng, 3, 9),), (), (4, whole(rng, 3, 5))]

    def of_rank(gone: Sequence[int], unit: int) -> list[torch.Tensor | None]:
        drawn = [unit * torch.randint(1, 101, one, generator=rng).float() for one in shapes]
        return [None if n in gone else one for n, one in enumerate(drawn)]

    # whole numbers, whose means bfloat16 holds; of the sum over two calls it would lose the second
    units = [256, 1][: len(missing)]
    gradients = [
        [of_rank(gone, unit) for gone in of_call]
        for unit, of_call in zip(units, missing, strict=True)
    ]
    each = [([of_call[rank] for of_call in gradients],) for rank in range(num)]
    hint = {Outcome.HUNG: "A rank without a gradient sends zeros: the others wait for it."}
    args = (reduce_on_rank, shapes, dtypes, False)
    run = emulated(student, *args, hint=hint, world_size=num, each=each)
    flats = [
        [
            [flat_of(one, shapes, torch.float32, num).to(dtype) for one in of_call]
            for of_call in gradients
        ]
        for dtype in dtypes
    ]
    return Reduced(run, flats)


def expect_scattered(seen: Reduced) -> None:
    """Raise PartlyHeld where ranks send what an all-reduce sends, or more: then all counts half."""
    flats = [of_call[0] for of_dtype in seen.flats for of_call in of_dtype]
    num = len(seen.flats[0][0])
    size_bytes = sum(one.nbytes for one in flats) * (num - 1) / num
    if seen.run.timeline.bytes_sent(0) > 1.5 * size_bytes:
        raise PartlyHeld(
            0.5,
            "this from ranks that send half of what an all-reduce sends",
            "it from ranks that send more",
            "Until each rank receives just its piece, everything else earns half its points.",
        )


def expect_pieces(seen: Reduced, hint: str, num_calls: int = 2) -> None:
    """Raise CheckFailed unless each rank has its piece of the mean after these calls."""
    for number, of_dtype in enumerate(seen.flats):
        num, near = len(of_dtype[0]), {"rtol": 1e-6, "atol": 1e-6}
        total = torch.zeros(len(of_dtype[0][0]))
        for call, of_call in enumerate(of_dtype[:num_calls]):
            before, latest = total, mean_of(of_call)
            total = before + latest
            for rank in range(num):
                piece, last, earlier = (
                    one.split(len(one) // num)[rank] for one in (total, latest, before)
                )
                mistakes = [
                    (num * piece, "That is the sum over the ranks: divide by their number."),
                    (piece / num, "Divided twice: once is enough."),
                    (last, "A second call adds to unit.gradient, as a second backward does."),
                    (earlier + num * last, "That is the sum over the ranks: divide."),
                    (piece.bfloat16().float(), "Add up as float32: bfloat16 loses the second."),
                ]
                what = f"unit.gradient on rank {rank} after call {call + 1}"
                given = entry(seen.run.values[rank], 0, number, call)
                expect_like(given, piece, what, hint, mistakes, **near)


@points(1.5, cell="check_reduce_gradients")
def check_gradients_are_reduce_scattered(student, rng):
    """A call is one reduce-scatter of the rank's gradients, in their dtype and padded with zeros:
    half of what an all-reduce sends. Of a frozen unit nothing is sent.
    """
    seen = reduced(student, rng, 2, [[()] * 2], torch.float32, torch.bfloat16)
    for rank in range(2):
        calls = calls_of(seen.run, rank, *RULES["allow"])
        if [one.op for one in calls] != ["reduce_scatter"] * 2:
            actual = ", ".join(one.op for one in calls) or "nothing"
            hint = "No rank needs the others' pieces: reduce_scatter_tensor, once for a unit."
            raise CheckFailed("a reduce-scatter for each of two units", actual, hint)
        for call, ((flats,), _) in zip(calls, zip(seen.flats, range(2), strict=True), strict=True):
            hint = "Lay the gradients end to end as `shard` does, in their own dtype."
            expect_given(call, rank, flats[rank], f"the gradients of rank {rank}", hint, 2)


@points(1, cell="check_reduce_gradients")
def check_each_rank_gets_its_piece_of_the_mean(student, rng):
    """`unit.gradient` is the rank's piece of the mean, as float32; further calls add to it. A
    second run gives the same bits. A frozen unit has none.
    """
    state, dtypes = rng.get_state(), (torch.float32, torch.bfloat16)
    seen = reduced(student, rng, 2, [[(), ()]] * 2, *dtypes)
    expect_pieces(seen, "This rank's piece of the mean gradient, as float32.")
    for value in seen.run.values:
        if entry(value, 1) is not None:
            hint = "Where unit.requires_grad is False, return a function that does nothing."
            raise CheckFailed("no gradient of a frozen unit", shown(entry(value, 1)), hint)
    rng.set_state(state)
    again = reduced(student, rng, 2, [[(), ()]] * 2, *dtypes)
    expect_same_again(seen.run.values, again.run.values)
    expect_scattered(seen)


@points(0.5, cell="check_reduce_gradients")
def check_missing_gradients_count_as_zeros(student, rng):
    """A `.grad` that is None counts as zeros and keeps its place, also on a rank without any."""
    missing = [[(0,), (0, 1, 2), (2,)], [(0, 1, 2), (0, 1, 2), (0, 1, 2)]]
    seen = reduced(student, rng, 3, missing, torch.float32)
    factors = []  # a lost division, or a second call that does not add up, is for another check
    for rank in range(3):
        piece = mean_of(seen.flats[0][0]).split(len(seen.flats[0][0][0]) // 3)[rank]
        given = entry(seen.run.values[rank], 0, 0, 0)
        if tensor_like(given, piece) is not None and torch.allclose(given, 3 * piece, rtol=1e-4):
            factors.append(3)
    if len(factors) < 3:
        hint = "Zeros where a gradient is missing; the others keep their places."
        expect_pieces(seen, hint, num_calls=1)
    expect_scattered(seen)


@points(0.5, cell="check_reduce_gradients")
def check_reduce_does_not_wait(student, rng):
    """`reduce_gradients` returns at once though another rank is late; the waiting is done by the
    function that it returns.
    """
    shapes = [(whole(rng, 3, 9),), (3, 3)]
    each = [([drawn_tensors(rng, *shapes)],) for _ in range(2)]
    args = (reduce_on_rank, shapes, (torch.float32,), True)
    run = expect_no_wait(student, *args, each=each)
    wanted = mean_of([flat_of(of_rank[0], shapes, torch.float32, 2) for (of_rank,) in each])
    for rank, piece in enumerate(wanted.split(len(wanted) // 2)):
        given = entry(run.values[rank], 0, 0, 0)
        is_sum = tensor_like(given, piece) is not None and torch.allclose(given, 2 * piece)
        if not is_sum:  # a lost division is for another check
            expect_like(given, piece, "unit.gradient", "The returned function waits.")


@points(0.5, cell="check_reduce_gradients")
def check_whole_gradients_are_not_kept(student, rng):
    """When `reduce_gradients` returns, every `.grad` is None; afterwards a rank holds its pieces of
    the gradients, and no whole gradient.
    """
    num_units, size = 4, whole(rng, 24, 26) * MB // 4
    run = student.emulated(
        reduce_many_on_rank, num_units, size // 4, world_size=2, memory=True, **RULES
    )
    for value in run.values:
        for number in range(num_units):
            given, is_cleared = entries(entry(value, number), 2)
            if tensor_like(given, torch.ones(2)) is None:
                raise CheckFailed("unit.gradient after each call", shown(given))
            if is_cleared is not True:
                hint = (
                    "Set .grad to None before you return: backward goes on before the piece is in."
                )
                expected = "every .grad to be None when reduce_gradients returns"
                raise CheckFailed(
                    expected, "a whole gradient that stays until it is taken in", hint
                )
    most = num_units * size + 3.5 * size + 8 * MB  # pieces of weights and of gradients, and a unit
    hint = "Set .grad to None, and let go of what was sent once the piece is there."
    expect_grown(
        run, most, f"{num_units} units, whose pieces take {size / 2 / MB:.1f} MiB each", hint
    )


# adam_step


def adam(student: Any, *cases: Steps) -> list[Any]:
    """What the student's steps give, by case."""
    with hinted({Outcome.CRASHED: "unit.master and the moments are None before the first step."}):
        rules = {"allow": (), "forbid": RULES["forbid"]}
        (found,) = student.run(adam_on_rank, cases, world_size=1, **rules)
    return entries(found, len(cases))


def by_torch(case: Steps) -> Tensors:
    """The weights after each step of torch's AdamW in float64."""
    parameter = nn.Parameter(case.weights.double())
    settings = {"lr": LEARNING_RATE, "weight_decay": 0.0, "foreach": False} | case.options
    optimizer, found = torch.optim.AdamW([parameter], **settings), []
    for gradient in case.gradients:
        parameter.grad = gradient.double()
        optimizer.step()
        found.append(parameter.detach().float())
    return found


@points(1, cell="check_adam_step")
def check_steps_are_those_of_adam(student, rng):
    """The piece follows AdamW over several steps, with any betas and eps: both moments are
    corrected for their bias.
    """
    betas = (between(rng, 0.5, 0.8), between(rng, 0.8, 0.95))
    cases = []
    for options in ({}, {"betas": betas, "eps": 0.05}):
        weights, *gradients = drawn_tensors(rng, *[(whole(rng, 5, 9),)] * 7)
        cases.append(Steps(weights, gradients, options))
    hint = (
        "Compare with the formula line by line. Is t 1 in the first step? Is eps outside the root?"
    )
    for case, found in zip(cases, adam(student, *cases), strict=True):
        for step, wanted in enumerate(by_torch(case)):
            what = f"unit.piece after step {step + 1}"
            expect_like(entry(found, step, 0), wanted, what, hint, rtol=1e-3, atol=1e-5)


@points(0.5, cell="check_adam_step")
def check_weight_decay_is_decoupled(student, rng):
    """Weight decay shrinks the weights by learning_rate * weight_decay, and stays out of the
    moments.
    """
    num, decay = whole(rng, 5, 9), between(rng, 0.5, 2.0)
    weights = positive(rng, num)
    state = [weights, torch.ones(num), torch.ones(num), 10**6]  # no bias to correct
    cases = [
        Steps(weights, [torch.zeros(num)] * 4, {"weight_decay": decay}),
        Steps(weights, [torch.zeros(num)], {"weight_decay": 20 * decay}, state),
    ]
    found, after = adam(student, *cases)
    hint = "Decay is not added to the gradient: it shrinks the master weights."
    for step in range(4):  # where gradients are 0, nothing else moves the weights
        wanted = weights * (1 - LEARNING_RATE * decay) ** (step + 1)
        expect_like(entry(found, step, 0), wanted, f"the weights after step {step + 1}", hint)
    late = (weights - LEARNING_RATE * 0.9 / 0.999**0.5) * (1 - LEARNING_RATE * 20 * decay)
    given = tensor_like(entry(after, 0, 0), late)
    if given is not None and torch.allclose(given, late, rtol=1e-5):
        hint = "First the weights shrink, then Adam moves them."
        raise CheckFailed("weight decay of the weights before the step", "of those after it", hint)


@points(0.5, cell="check_adam_step")
def check_a_restored_state_goes_on(student, rng):
    """Master weights, moments and the count of steps that were restored are taken as they are: all
    is as if training had not stopped.
    """
    weights, *gradients = drawn_tensors(rng, *[(whole(rng, 5, 9),)] * 9)
    (whole_run,) = adam(student, Steps(weights, gradients, {}))
    saved = entries(entry(whole_run, 3), 6)
    state = [*(tensor_like(one, weights) for one in saved[3:]), 4]
    hint = "Go on from unit.master, exp_avg, exp_avg_sq and num_steps where they are there."
    if any(one is None for one in state) or entry(saved, 2) != 4:
        what = "unit.master, exp_avg and exp_avg_sq as float32, and num_steps of 4 after 4 steps"
        raise CheckFailed(what, shown(saved[2:]), hint)
    rest = Steps(torch.zeros_like(weights), gradients[4:], {}, state)
    (found,) = adam(student, rest)
    for step in range(4):
        wanted = tensor_like(entry(whole_run, 4 + step, 0), weights)
        what = f"unit.piece {step + 1} steps after the checkpoint"
        if wanted is None:
            raise CheckFailed(what, shown(entry(whole_run, 4 + step, 0)), hint)
        expect_like(entry(found, step, 0), wanted, what, hint)


@points(0.5, cell="check_adam_step")
def check_master_weights_are_float32(student, rng):
    """Updates that bfloat16 would lose add up in float32 master weights, which the piece follows in
    its own dtype; the moments are float32 as well.
    """
    weights = torch.full((4,), 64.0 * whole(rng, 1, 3), dtype=torch.bfloat16)
    gradients = [positive(rng, 4) for _ in range(60)]
    (found,) = adam(student, Steps(weights, gradients, {}))
    hint = "Keep unit.master as float32 from step to step; round only what goes into unit.piece."
    master, *moments = (tensor_like(entry(found, 59, place), torch.empty(4)) for place in (3, 4, 5))
    if master is None:
        raise CheckFailed("unit.master of float32", shown(entry(found, 59, 3)), hint)
    if any(one is None for one in moments):
        why = "Make the moments as zeros like unit.master: in bfloat16 v stops shrinking."
        raise CheckFailed("moments of float32", shown(entries(entry(found, 59), 6)[4:]), why)
    moved = (weights.float() - master).min().item()
    if not moved > 20 * LEARNING_RATE:
        actual = f"that they moved by {moved:.3f}"
        raise CheckFailed("60 steps of about 0.01 to add up in the master weights", actual, hint)
    wanted = master.bfloat16()
    expect_like(entry(found, 59, 0), wanted, "unit.piece", hint, rtol=1e-2, atol=0.0)


@points(0.5, cell="check_adam_step")
def check_steps_change_the_unit_in_place(student, rng):
    """unit.piece stays the same tensor, unit.gradient is None afterwards; without a gradient
    nothing changes, no state is made, and no step is counted.
    """
    num = whole(rng, 5, 9)
    weights, *gradients = drawn_tensors(rng, *[(num,)] * 3)
    steps = [Steps(weights, [gradients[0], None, gradients[1]], {}), Steps(weights, [None], {})]
    found, unused = adam(student, *steps)
    if any(entry(found, step, 1) is not True for step in range(3)):
        hint = "Write by unit.piece.copy_(...), set unit.gradient to None, clone for unit.master."
        expected = "the same unit.piece, no unit.gradient, and memory of its own for unit.master"
        raise CheckFailed(expected, "another state", hint)
    hint = "Return at once where unit.gradient is None."
    if entry(found, 2, 2) != 2:
        raise CheckFailed("unit.num_steps to be 2", shown(entry(found, 2, 2)), hint)
    expect_like(entry(found, 1, 0), entry(found, 0, 0), "the piece without a gradient", hint)
    expect_like(entry(found, 1, 4), entry(found, 0, 4), "exp_avg without a gradient", hint)
    if any(entry(unused, 0, place) is not None for place in (3, 4, 5)):
        expected = "no master weights and no moments of a unit that has never had a gradient"
        raise CheckFailed(expected, "some", hint)


# FullyShard


HELD = {"width": 1050, "num_blocks": 8}


@cache
def growth(student: Any) -> Run:
    """A step of a large model, watched by the kernel."""
    args = (hold_on_rank, HELD["width"], HELD["num_blocks"])
    return emulated(student, *args, world_size=2, **WEIGHED)


def most_held() -> float:
    """The pieces and their gradients, three times a block, and room for the framework."""
    block = 4 * HELD["width"] ** 2
    return HELD["num_blocks"] * block + 3 * block + 10.5 * MB


def freed_or_kept(run_of: Callable[[bool], Run]) -> tuple[Run, bool]:
    """A run whose weights are freed; where that crashes one in which they stay, and whether so."""
    try:
        return run_of(False), False
    except StudentFailed as failed:
        if failed.outcome is not Outcome.CRASHED:
            raise
        try:
            return run_of(True), True
        except StudentFailed:
            raise failed from None


def expect_freed(student: Any, is_kept: bool) -> None:
    """Raise PartlyHeld where weights stay gathered, or have to: then all else counts half."""
    if is_kept:
        expected = "this from ranks that gather a block before each use"
        raise PartlyHeld(
            0.5,
            expected,
            "it only where weights are never freed, and a crash where they are",
            FREED,
        )
    try:
        grown = max(growth(student).grown_bytes)
    except StudentFailed:
        return
    if grown > most_held():
        raise PartlyHeld(
            0.5,
            "this from ranks that hold one or two blocks at a time",
            "it from ranks that hold far more",
            "Until weights are freed after each use, everything else earns half its points.",
        )


class Stepped(NamedTuple):
    """A run of `FullyShard`, the passes of each rank, and what one process has."""

    run: Run
    is_kept: bool  # weights stayed gathered in it
    sizes: Sizes
    steps: list[list[list[Any]]]  # by rank and step: order, inputs, whether with gradients

    @property
    def groups(self) -> list[tuple[list[int], list[nn.Parameter]]]:
        return grouped(model_of(self.sizes))

    def own(self, rank: int, step: int) -> Any:
        """A rank's flat gradient of every unit in a step, and its outputs without gradients."""
        modules, outputs = model_of(self.sizes), []
        for order, inputs, has_gradients in self.steps[rank][step]:
            if has_gradients:
                passed(modules, order, inputs).square().mean().backward()
            else:
                outputs.append(passed(modules, order, inputs, *self.sizes.others).detach())
        flats = []
        for _, parameters in grouped(modules):
            gradients = [one.grad for one in parameters]
            shapes = [one.shape for one in parameters]
            is_unused = all(one is None for one in gradients)
            flats.append(
                None if is_unused else flat_of(gradients, shapes, torch.float32, len(self.steps))
            )
        return flats, outputs


def step_blocks(
    student: Any,
    rng: torch.Generator,
    orders: Any,
    num: int = 2,
    quiet: Sequence[int] = (),
    ahead: bool = False,
    advice: Any = None,
    **more: Any,
) -> Stepped:
    """Steps of a drawn model, with these orders of its blocks by step and pass."""
    num_blocks = 1 + max(place for passes in orders for order in passes for place in order)
    width = whole(rng, 5, 7)
    hidden = shuffled(rng, range(4, 4 + num_blocks))  # all units have sizes of their own
    sizes = Sizes(whole(rng, 0, 10**6), width, hidden, **more)
    steps = [
        [
            [[order, torch.randn(3, width, generator=rng), step not in quiet] for order in passes]
            for step, passes in enumerate(orders)
        ]
        for _ in range(num)
    ]
    each = [(of_rank,) for of_rank in steps]
    options = {"world_size": num, "each": each, "hint": advice}
    run, is_kept = freed_or_kept(
        lambda is_kept: emulated(student, shard_model_on_rank, sizes, is_kept, ahead, **options)
    )
    return Stepped(run, is_kept, sizes, steps)


def expect_gradients(seen: Stepped, hint: str, first_judged: int = 0) -> None:
    """Raise CheckFailed unless every unit has its piece of the mean, made of what was sent.

    From the second block on, backward itself passes every block: what `finish` does not matter.
    """
    num = len(seen.steps)
    for step in range(len(seen.steps[0])):
        owns = [seen.own(rank, step)[0] for rank in range(num)]
        for number, (places, _) in enumerate(seen.groups):
            if min(places) < first_judged:
                continue
            what = f"the gradient of the unit of block {' and '.join(map(str, places))}"
            flats = [of_rank[number] for of_rank in owns]
            wanted = None if flats[0] is None else mean_of(flats)
            for rank in range(num):
                given = entry(seen.run.values[rank], step, 0, number)
                if wanted is None:
                    if given is not None:
                        why = "Reduce a unit only if one of its parameters has a gradient."
                        expected = f"None: {what} that was not used or is frozen"
                        raise CheckFailed(expected, shown(given), why)
                    continue
                piece = wanted.split(len(wanted) // num)[rank]
                expect_like(given, piece, f"{what} on rank {rank}", hint)
    for rank in range(num):
        expect_reduced(seen, rank, hint, first_judged)


def expect_reduced(seen: Stepped, rank: int, hint: str, first_judged: int) -> None:
    """Raise CheckFailed unless a rank's reduce-scatters carry, for each unit, its own gradients."""
    num, wanted = len(seen.steps), {}
    for step in range(len(seen.steps[0])):
        for flat, (places, _) in zip(seen.own(rank, step)[0], seen.groups, strict=True):
            if flat is not None and min(places) >= first_judged:
                wanted[len(flat)] = wanted.get(len(flat), 0) + flat
    sent: dict[int, Any] = {}
    for call in calls_of(seen.run, rank, "reduce_scatter"):
        given = call.tensor(rank)
        sent[len(given)] = sent.get(len(given), 0) + given
    for size, total in wanted.items():
        given = sent.get(size, torch.full_like(total, torch.nan))
        pairs = [(given * part, total) for part in (1, num)]
        if not any(torch.allclose(*pair, rtol=1e-3, atol=1e-6) for pair in pairs):
            actual = "other numbers" if size in sent else "no such reduce-scatter"
            expected = f"rank {rank} to reduce-scatter its own gradients of each unit"
            raise CheckFailed(expected, actual, hint)


@points(1.25, cell="check_FullyShard")
def check_gradients_are_those_of_one_process(student, rng):
    """Two steps through all blocks give every unit the mean gradient that one process has; each
    block is gathered once for each use, in forward and in backward, also by gathers that are ahead
    of the uses, and reduced once.
    """
    num_blocks = whole(rng, 3, 4)
    seen = step_blocks(student, rng, [[range(num_blocks)]] * 2, ahead=True)
    hint = (
        "In order: use and drop in forward; use, reduce and drop in backward; the rest in finish."
    )
    expect_gradients(seen, hint)
    num, sizes = len(seen.steps), {}
    for _, parameters in seen.groups:
        total = sum(one.numel() for one in parameters)
        sizes[-(-total // num)] = total
    for rank in range(num):
        gathers = [len(one.tensor(rank)) for one in calls_of(seen.run, rank, "all_gather")]
        reductions = calls_of(seen.run, rank, "reduce_scatter")
        for size in sizes:
            if gathers.count(size) > 4:
                hint = (
                    "Gather once for a use in forward, and once for it in backward, each with its"
                    " own is_backward: for gathers ahead, it says which block comes next."
                )
                actual = f"{gathers.count(size)}"
                raise CheckFailed("4 gathers of a block in two steps", actual, hint)
        if len(reductions) > 2 * len(sizes):
            hint = "Reduce each unit once, when backward has passed its block."
            expected = f"{2 * len(sizes)} reductions in two steps"
            raise CheckFailed(expected, f"{len(reductions)}", hint)
    expect_freed(student, seen.is_kept)


@points(1, cell="check_FullyShard")
def check_a_block_may_be_used_twice(student, rng):
    """A block that is used twice in a step gets the gradients of both uses; several backward passes
    before the optimizer's step add up.
    """
    hint = (
        "After the first of its two passes in backward a block has no .grad yet: reduce it after"
        " the second, or in finish. Over several passes with finish, unit.gradient adds up."
    )
    twice = [0, *shuffled(rng, [1, 2]), 1, whole(rng, 1, 2)]
    seen = step_blocks(student, rng, [[twice], [[0, 1, 2], [0, 2, 1]]])
    # where finish loses the first block's gradients of one pass, they are for the check above
    wanted = mean_of([seen.own(rank, 0)[0][0] for rank in range(2)]).chunk(2)
    given = [tensor_like(entry(seen.run.values[n], 0, 0, 0), wanted[n]) for n in range(2)]
    is_first_right = all(
        one is not None and torch.allclose(one, piece, rtol=1e-4, atol=1e-6)
        for one, piece in zip(given, wanted, strict=True)
    )
    expect_gradients(seen, hint, 0 if is_first_right else 1)
    expect_freed(student, seen.is_kept)


@points(0.75, cell="check_FullyShard")
def check_tied_frozen_and_unused_units(student, rng):
    """A tied weight gets the gradient of both its blocks; frozen parameters and blocks that were
    not used have none, and frozen weights are there in backward. A unit is reduced also where one
    of its parameters has no gradient. All of the first block may be frozen.
    """
    names = [f"{name}.{kind}" for name in ("first", "second") for kind in ("weight", "bias")]
    frozen = [(place, name) for place in (0, 3) for name in names]
    frozen += [(2, "second.bias"), (2, "second.weight")]
    hint = (
        "A tied weight's gradient is complete after its last block in backward. Gather frozen units"
        " too, in backward as well, and reduce what has a gradient in any of its parameters."
    )
    orders = [[range(5)], [[0, 1, 4, 3]]]
    more = {"tied": [(2, 4)], "frozen": frozen, "idle": [4]}
    crashed = f"{FREED} The output of a frozen block may need no gradient: then it takes no hook."
    advice = ADVICE | {Outcome.CRASHED: crashed}
    seen = step_blocks(student, rng, orders, advice=advice, **more)
    expect_gradients(seen, hint, 2)  # backward itself passes these
    expect_freed(student, seen.is_kept)


@points(1, cell="check_FullyShard")
def check_weights_are_held_one_block_at_a_time(student, rng):
    """Beside its pieces, a rank holds the weights and gradients of the block at work: the others
    are freed, in forward and in backward.
    """
    run, block = growth(student), 4 * HELD["width"] ** 2
    what = (
        f"the pieces of {HELD['num_blocks']} blocks and of their gradients,"
        f" {block / 2 / MB:.0f} MiB each, and the block at work"
    )
    hint = "Drop a block after each use, in forward and in backward, and reduce it at once."
    expect_grown(run, most_held(), what, hint)


@points(0.75, cell="check_FullyShard")
def check_reduction_begins_when_backward_has_passed(student, rng):
    """The gradients of a block leave before backward enters the block before it, whichever of its
    inputs needs a gradient, and travel while it works there.
    """
    num_blocks, width = 4, whole(rng, 5, 7)
    sizes = Sizes(whole(rng, 0, 10**6), width, shuffled(rng, range(4, 4 + num_blocks)))
    inputs = drawn_tensors(rng, *[(3, width)] * 2)
    factors = [[positive(rng).reshape(()) for _ in range(2 * num_blocks)] for _ in range(2)]

    def run_of(is_kept: bool) -> Run:
        of_ranks = [*inputs, script_of(factors)]
        each = [(gated_step_on_rank, mine, sizes, is_kept) for mine in of_ranks]
        return emulated(student, or_scripted, world_size=3, each=each, **WITH_SCRIPT)

    run, is_kept = freed_or_kept(run_of)
    hint = (
        "Reduce a block's units in what call_after_backward calls, not all of them in finish; give"
        " it all inputs."
    )
    for rank in range(2):
        modules = [Gated(one, iter(()).__next__) for one in model_of(sizes)]
        answers = iter(factors[rank])
        for module in modules:
            module.ask = answers.__next__
        passed_second(modules, inputs[rank]).square().mean().backward()
        asked = [one.numbers[rank] for one in calls_of(run, rank, "send")][num_blocks:]
        calls = calls_of(run, rank, "reduce_scatter")
        if len(calls) != num_blocks:
            raise CheckFailed(f"{num_blocks} reduce-scatters", f"{len(calls)}", hint)
        for turn, call in enumerate(calls):
            place = num_blocks - 1 - turn
            gradients = [one.grad for one in modules[place].parameters()]
            flat = flat_of(gradients, [one.shape for one in gradients], torch.float32, 2)
            expect_given(call, rank, flat, f"the gradients of block {place}", hint, 2)
            if turn + 1 < num_blocks and call.numbers[rank] > asked[turn + 1]:
                what = f"the gradients of block {place}"
                expected = f"{what} to leave before backward enters the next"
                raise CheckFailed(expected, "they left later", hint)
    expect_hidden_reductions(student, rng)
    expect_freed(student, is_kept)


def expect_hidden_reductions(student: Any, rng: torch.Generator) -> None:
    """Raise CheckFailed unless all reductions but the last one hide behind backward."""
    width, num_layers = 8 * whole(rng, 20, 30), whole(rng, 4, 5)
    cluster = drawn_cluster(rng, 2)
    size_bytes = 4 * width * width
    gather_s = pricing.price("all_gather", size_bytes, range(2), cluster).time_s
    reduce_s = pricing.price("reduce_scatter", size_bytes, range(2), cluster).time_s
    times_s = [reduce_s * whole(rng, 25, 45) / 40 for _ in range(num_layers)]
    options = {"world_size": 2, "cluster": cluster}
    run = emulated(student, timed_step_on_rank, width, times_s, **options)
    expect_work(run, dict.fromkeys(range(2), 3 * sum(times_s)))
    end_s = num_layers * gather_s + 3 * sum(times_s) + reduce_s
    hint = "Call what reduce_gradients returned just before the next reduction, or in finish."
    expect_end(run, end_s, end_s, "a step whose weights stay gathered", hint)


@points(0.5, cell="check_FullyShard")
def check_evaluation_works_without_gradients(student, rng):
    """Under `torch.no_grad()` the outputs are right, nothing is reduced, and weights are freed
    after each use; after finish none stay gathered.
    """
    others = [between(rng, 0.3, 0.6) * torch.ones(())]  # a second input of each block
    seen = step_blocks(student, rng, [[range(3), [2, 0]]], quiet=(0,), others=others)
    for rank, value in enumerate(seen.run.values):
        outputs = entries(entry(value, 0, 2), 2)
        for wanted, given in zip(seen.own(rank, 0)[1], outputs, strict=True):
            hint = f"{FREED} All inputs of a block go on to it."
            expect_like(given, wanted, "the output without gradients", hint)
        if entry(value, 0, 1) != [False] * 3:
            hint = "Drop a block after each use, and every block in finish."
            raise CheckFailed("no unit gathered after finish", "some that are", hint)
        gathers = len(calls_of(seen.run, rank, "all_gather"))
        if calls_of(seen.run, rank, "reduce_scatter") or gathers < 7:
            actual = f"{gathers} gathers, or a reduction"
            hint = "Gather before each use and drop after it, with gradients and without."
            expected = "a gather for each of 5 uses, and of 2 made ahead; no reduction"
            raise CheckFailed(expected, actual, hint)
    expect_freed(student, seen.is_kept)


# all parts together, on paper


NUM_ON_PAPER = 1024
NO_NUMBERS = "On paper a tensor has no numbers: decide by shapes, and by what is None."


def sizes_of(widths: Sequence[int], num: int) -> list[int]:
    """The bytes of each block's unit on so many ranks, with its padding."""
    return [4 * num * -(-count // num) for count in [*map(math.prod, pairwise(widths)), 1]]


def expect_step(
    timeline: Timeline, most_bytes: float, widths: Sequence[int], num: int, num_blocks: float
) -> None:
    """Raise CheckFailed unless a rank of so many sends and holds what a step of stage 3 does."""
    sizes = sizes_of(widths, num)
    wanted = [("all_gather", size) for size in sizes]
    for size in reversed(sizes):
        wanted += [("all_gather", size), ("reduce_scatter", size)]
    calls = [(one.name, one.size_bytes) for one in timeline.of(0) if one.kind == COMMUNICATION]
    for number, (call, due) in enumerate(zip_longest(calls, wanted), 1):
        if call != due:
            said, expected = (
                "{} of {} bytes".format(*one) if one else "none" for one in (call, due)
            )
            hint = "Gather a block in forward; in backward gather it, and reduce-scatter it."
            what = f"{expected} as call {number} of {len(wanted)} on {num} ranks"
            raise CheckFailed(what, said, hint)
    room = num_blocks * max(sizes) + 2 * sum(sizes) / num  # pieces and their gradients
    if most_bytes > room:
        raise CheckFailed(
            f"at most {room / MB:.0f} MiB held as one of {num} ranks: a few blocks, and the pieces",
            f"{most_bytes / MB:.0f} MiB",
            "What a rank keeps shrinks with their number, and a block is freed after its use.",
        )


@points(0.75, cell="check_FullyShard")
def check_step_on_1024_ranks_on_paper(student, rng):
    """On paper, all parts together as one of 1,024 ranks gather each block in forward, gather and
    reduce-scatter it in backward, 3 P (N - 1)/N bytes in all, hold a few blocks at a time, and take
    hardly longer than the messages; on two emulated ranks they do the same, with the numbers of
    one process.
    """
    steps = [whole(rng, 1, 3) + 4 * place for place in range(5)]  # blocks of about the same size
    large, small = [8 * (1024 + one) for one in steps], [256 + one for one in steps]
    try:
        with hinted({Outcome.CRASHED: NO_NUMBERS}):
            expect_on_paper(student, large, small, is_own=True)
            expect_numbers(student, small, is_own=True)
    except (CheckFailed, StudentFailed):
        if is_right_on_two(student, small):
            raise
        with hinted(ADVICE):  # a slip in a smaller part has cost its points there
            expect_on_paper(student, large, small, is_own=False)
            expect_numbers(student, small, is_own=False)


def expect_on_paper(student: Any, large: list[int], small: list[int], is_own: bool) -> None:
    """Raise CheckFailed unless the step on paper is right, and a small one with data the same."""
    paper = student.on_paper(
        *(whole_step_on_rank, large, is_own),
        world_size=NUM_ON_PAPER,
        cluster="h100-ndr-x128",
        small=(small, is_own),
        small_world_size=2,
        forbid=RULES["forbid"],
    )
    expect_step(paper.timeline, paper.peak_bytes, large, NUM_ON_PAPER, num_blocks=5.3)
    events = paper.timeline.of(0)
    messages_s = sum(one.duration_s for one in events if one.kind == COMMUNICATION)
    if paper.step_s > 1.5 * messages_s:
        raise CheckFailed(
            f"a step on {NUM_ON_PAPER} ranks of at most 1.5 times its messages' time",
            f"{paper.step_s / messages_s:.1f} times",
            "Go over a block's gradients once, and not once for each rank.",
        )


def expect_numbers(student: Any, widths: list[int], is_own: bool, **watched: bool) -> Run:
    """The run of a step on two emulated ranks: messages of the right sizes alone are not the work.

    Raises:
        CheckFailed: its output or its gradients are not those of one process.
    """
    seed = sum(widths)
    run = emulated(student, numbers_on_rank, seed, widths, is_own, world_size=2, **watched)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        modules = [nn.Linear(one, other, bias=False) for one, other in pairwise(widths)]
    modules.append(Scale())
    output = passed(modules, range(len(modules)), torch.ones(1, widths[0]))
    output.sum().backward()
    hint = "What is gathered are the weights that a block uses; what is reduced, its gradients."
    for rank in range(2):
        given, pieces = entries(run.values[rank], 2)
        expect_like(given, output.detach(), "the output of a step of all parts", hint)
        for place, module in enumerate(modules):
            gradients = [one.grad for one in module.parameters()]
            flat = flat_of(gradients, [one.shape for one in gradients], torch.float32, 2)
            what = f"the gradient's piece of block {place} on rank {rank} of 2"
            expect_like(entry(pieces, place), flat.chunk(2)[rank], what, hint)
    return run


def is_right_on_two(student: Any, widths: list[int]) -> bool:
    """True if the student's own parts together do on two emulated ranks what they should."""
    try:
        run = expect_numbers(student, widths, is_own=True, memory=True)
        most_bytes = max((one.most_bytes for one in run.memory), default=math.inf)
        expect_step(run.timeline, most_bytes, widths, 2, num_blocks=4.5)
    except (CheckFailed, StudentFailed):
        return False
    return True


# Prefetching


AHEAD = "Start the next block's gather in `use`, and wait only for this block's own units."


def drawn_uses(num_blocks: int) -> Uses:
    forward = [(place, False) for place in range(num_blocks)]
    return [*forward, *((place, True) for place in reversed(range(num_blocks)))]


def play(student: Any, rng: torch.Generator, uses: Uses, num: int, tied: bool = False) -> Run:
    """These uses of blocks, with a factor asked for in each.

    Raises:
        CheckFailed: the weights at a use are not those that the ranks hold.
    """
    weights = [drawn_tensors(rng, (whole(rng, 9, 15) + 8 * place,), (3,)) for place in range(num)]
    factors = [[positive(rng).reshape(()) for _ in uses] for _ in range(2)]
    each = [(prefetch_on_rank, weights, uses, tied)] * 2
    each += [(prefetch_on_rank, script_of(factors))]
    run = emulated(student, or_scripted, world_size=3, each=each, **WITH_SCRIPT)
    for rank in range(2):
        for number, (place, _) in enumerate(uses):
            of_block = [*weights[place], *(weights[-1] if tied else [])]
            wanted = torch.stack([one.double().sum() for one in of_block]) * factors[rank][number]
            given, what = entry(run.values[rank], 0, number), f"the weights at use {number + 1}"
            hint = "Wait for the handle of every unit of this block before `use` returns."
            expect_like(given, wanted, what, hint, rtol=1e-5, atol=1e-5)
        if any(entry(run.values[rank], 1) or [True]):
            hint = "`drop` frees what nobody has used, too, once its gather has ended."
            raise CheckFailed("no unit gathered after drop", "some that are", hint)
        if entry(run.values[rank], 2) != []:
            hint = "In `drop`, wait for the unit's handle before you free it."
            raise CheckFailed("no memory freed while a gather is under way", "some that is", hint)
    return run


@points(1.25, cell="check_Prefetching")
def check_the_next_block_is_on_its_way(student, rng):
    """When a block begins its work, the gather of the next one has started: place + 1 in forward,
    place - 1 in backward. No other has.
    """
    num = whole(rng, 4, 5)
    uses = drawn_uses(num)
    run = play(student, rng, uses, num)
    for rank in range(2):
        gathers = [one.numbers[rank] for one in calls_of(run, rank, "all_gather")]
        asked = [one.numbers[rank] for one in calls_of(run, rank, "send")]
        if len(gathers) != len(uses):
            hint = "What is there or on its way is not gathered again: look at unit.is_gathered."
            raise CheckFailed(f"{len(uses)} gathers, one for each use", f"{len(gathers)}", hint)
        # in forward, all but the last use start one ahead; backward starts with the last block
        for number, work in enumerate(asked):
            started = sum(one < work for one in gathers)
            place = number if number < num else number - num
            wanted = number + 2 if place + 1 < num else number + 1
            if started != wanted:
                way = "forward" if number < num else "backward"
                expected = f"{wanted} gathers begun when use {number + 1} begins its work, in {way}"
                picture = partial(draw_timeline, run.timeline, "What your ranks sent")
                raise CheckFailed(expected, f"{started}", AHEAD, picture)


@points(1, cell="check_Prefetching")
def check_gathers_hide_behind_work(student, rng):
    """On a cluster with known prices the uses end when gathers that travel during work let them."""
    num, num_elements = whole(rng, 4, 6), 1024 * whole(rng, 30, 60)
    uses, cluster = drawn_uses(num), drawn_cluster(rng, 2)
    gather_s = pricing.price("all_gather", 4 * num_elements, range(2), cluster).time_s
    times_s = [gather_s * whole(rng, 30, 60) / 40 for _ in uses]
    options = {"world_size": 2, "cluster": cluster}
    run = emulated(student, prefetch_timed_on_rank, num_elements, uses, times_s, **options)
    expect_work(run, dict.fromkeys(range(2), sum(times_s)))
    for value in run.values:
        for total in entries(value, len(uses)):
            expect_close(total, float(num_elements), "the sum of a block's weights", AHEAD)
    end_s = end_of(uses, times_s, gather_s, num)
    expect_end(run, end_s, end_s, f"{len(uses)} uses of blocks", AHEAD)


def end_of(uses: Uses, times_s: Sequence[float], gather_s: float, num: int) -> float:
    """When these uses end, if each starts the next block's gather before its work."""
    now_s, link_s, done_s = 0.0, 0.0, {}
    for (place, is_backward), time_s in zip(uses, times_s, strict=True):
        for one in (place, place - 1 if is_backward else place + 1):
            if 0 <= one < num and one not in done_s:
                link_s = max(now_s, link_s) + gather_s
                done_s[one] = link_s
        now_s = max(now_s, done_s.pop(place)) + time_s
    return now_s


@points(0.75, cell="check_Prefetching")
def check_blocks_come_in_any_order(student, rng):
    """A block that was skipped is freed, one that is missing is gathered, a unit of two blocks is
    there for both; and no memory goes while a gather is under way.
    """
    num = 4
    uses = [*((place, False) for place in (0, 2, 1)), *((place, True) for place in (2, 2, 0))]
    play(student, rng, [*uses, *drawn_uses(num - 1), (1, False)], num, tied=True)


# clip_gradients


def clipped(student: Any, *cases: tuple[float, Any]) -> Run:
    """A run on these cases: max_norm, and pieces by rank and unit."""
    num, hint = len(cases[0][1]), "All ranks call it, also those whose units have no gradient."
    each = [([(most, of[rank]) for most, of in cases],) for rank in range(num)]
    return emulated(student, clip_on_rank, hint=hint, world_size=num, each=each)


def norm_of(pieces: Any) -> float:
    return math.sqrt(
        sum(one.double().square().sum().item() for of in pieces for one in of if one is not None)
    )


def expect_norm(run: Run, pieces: Any, number: int = 0) -> float:
    """The norm, which every rank returned for this case.

    Raises:
        CheckFailed: one returned something else.
    """
    wanted = norm_of(pieces)
    for rank, of_rank in enumerate(pieces):
        given = entry(run.values[rank], number, 0)
        if isinstance(given, torch.Tensor) and given.numel() == 1:
            given = given.item()
        given = given if isinstance(given, float) else integer(given)
        if given is None:
            raise CheckFailed("the norm as a number", shown(given), "Return total.sqrt().item().")
        hint = "The root of the sum of all squares, over all units and ranks."
        own = norm_of([of_rank])
        mistakes = {
            own: "That is the norm of this rank's pieces: add the squares up over the ranks.",
            sum(norm_of([of]) for of in pieces): "Norms do not add up. Their squares do.",
            wanted**2: "That is the square of the norm.",
        }
        is_near = partial(math.isclose, rel_tol=1e-4)
        found = [why for one, why in mistakes.items() if is_near(given, one)]
        hint = found[0] if found and not is_near(given, wanted) else hint
        expect_close(float(given), wanted, f"the norm on rank {rank}", hint, rtol=1e-4, atol=1e-7)
    return wanted


@points(1, cell="check_clip_gradients")
def check_clips_by_the_norm_of_all_pieces(student, rng):
    """The norm is that of all units and all ranks' pieces; every rank scales its pieces by the same
    factor, so that the norm becomes max_norm.
    """
    pieces = [[*drawn_tensors(rng, (whole(rng, 3, 9),), (4,)), None] for _ in range(2)]
    pieces[1][0] *= 3  # no two ranks have the same norm
    max_norm = norm_of(pieces) * between(rng, 0.2, 0.6)
    run = clipped(student, (max_norm, pieces))
    wanted = expect_norm(run, pieces)
    for rank, of_rank in enumerate(pieces):
        for number, piece in enumerate(of_rank[:2]):
            own = max_norm / norm_of([of_rank])
            mistakes = [(piece * own, "That is clipped by the norm of this rank's own pieces.")]
            what = f"the piece of unit {number} on rank {rank}"
            hint = "Multiply every piece by max_norm / norm, in place."
            given, scaled = entry(run.values[rank], 0, 1, number), piece * (max_norm / wanted)
            expect_like(given, scaled, what, hint, mistakes)


@points(0.5, cell="check_clip_gradients")
def check_one_number_travels(student, rng):
    """There is one all-reduce of one float32: the sum of the rank's squares."""
    pieces = [drawn_tensors(rng, (whole(rng, 3, 9),), (4,), (2,)) for _ in range(2)]
    run = clipped(student, (0.1, pieces))
    for rank, of_rank in enumerate(pieces):
        calls = calls_of(run, rank, *RULES["allow"])
        hint = "Add up the squares of all units first, as one float32 number."
        if [one.op for one in calls] != ["all_reduce"]:
            actual = ", ".join(one.op for one in calls) or "nothing"
            raise CheckFailed("one all-reduce", actual, hint)
        squares = torch.tensor([norm_of([of_rank]) ** 2])
        expect_body(
            calls[0], squares, f"the sum of the squares of rank {rank}", hint, rank, rtol=1e-4
        )
        if entry(run.values[rank], 0, 2) is not True:
            hint = "Multiply in place, as by mul_."
            raise CheckFailed("each unit.gradient to stay the same tensor", "another one", hint)


@points(0.5, cell="check_clip_gradients")
def check_small_norms_change_nothing(student, rng):
    """A norm of at most max_norm changes nothing, zeros stay zeros, a rank without a gradient takes
    part, and small gradients are clipped to max_norm as well.
    """
    pieces = [drawn_tensors(rng, (whole(rng, 3, 9),)), [None]]
    hint = "Multiply only where the norm is larger than max_norm, and divide by no 0."
    zeros = [[None if one is None else 0 * one for one in of_rank] for of_rank in pieces]
    cases = [(norm_of(pieces) * between(rng, 1.5, 3), pieces), (1.0, zeros)]
    small: Any = [[None if one is None else 1e-6 * one for one in of_rank] for of_rank in pieces]
    most = norm_of(small) * between(rng, 0.2, 0.6)
    run = clipped(student, *cases, (most, small))
    for number, (_, given) in enumerate(cases):
        expect_norm(run, given, number)
        found = [entry(value, number, 1, 0) for value in run.values]
        expect_like(found[0], given[0][0], "the piece", hint, rtol=1e-6, atol=0.0)
        if found[1] is not None:
            raise CheckFailed("no gradient where there was none", shown(found[1]))
    wanted = small[0][0] * (most / norm_of(small))
    hint = "Multiply by max_norm / norm, and add nothing to the norm: it is not 0 here."
    given = entry(run.values[0], len(cases), 1, 0)
    expect_like(given, wanted, "the piece of a small gradient", hint, rtol=1e-3, atol=0.0)
