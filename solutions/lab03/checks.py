"""Hidden checks of lab 3: the student's DDP on emulated clusters, and its test on many others.

Points of the class rest on what the conductor saw: the bodies of its all-reduces, and where each
rank posted them among requests to a scripted rank, without whose answers backward cannot go on.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import worldsize as ws
from autograder.checks import (
    Outcome,
    PartlyHeld,
    StudentFailed,
    draw_timeline,
    drawn_cluster,
    entry,
    expect_end,
    expect_grown,
    expect_same_again,
    expect_work,
    hinted,
    is_same,
    points,
    positive,
    received,
    shown,
    shuffled,
    whole,
)
from worldsize import emulate, pricing
from worldsize.check import CheckFailed, Drawn, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch import Run

COLLECTIVES = {"all_reduce", "broadcast"}
NO_DDP = {
    "torch.distributed.Reducer": "torch's DistributedDataParallel and its Reducer are not allowed"
    " here: this is what you write",
    "torch.distributed.fsdp": "torch's FSDP, which without sharding is the same, is not allowed"
    " here: this is what you write",
}
RULES = {"allow": COLLECTIVES, "forbid": NO_DDP}
SEEN = {**RULES, "keeps_exchanges": True}
Gradients = list[torch.Tensor | None]
Spec = list[tuple[list[int], str, bool]]  # of parameters: shape, dtype, requires_grad

ASYNC = (
    "Register a hook on each parameter. In the hook of a bucket's last gradient start the"
    " all-reduce with async_op=True; wait only in finish."
)
FINISH = (
    "The hook of an unused parameter is never called: `finish` sends the buckets that have not"
    " left, with zeros for what is missing. Ranks match collectives by order, so send the buckets"
    " in the same order on every rank, even if a later one is full first."
)
QUIET = "Inside no_sync a hook neither sends nor counts, and nothing is sent when the context ends."
ONE_FLAT = (
    "A bucket is one flat tensor, sent once, in the dtype of its gradients, after the bucket before"
    " it. `module.parameters()` gives a shared parameter once."
)


# What runs on the ranks beside the student's code.


class Held(nn.Module):
    """A module with parameters of this spec, and the first of them again under a second name."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        for place, (shape, dtype, requires_grad) in enumerate(spec):
            values = torch.zeros(shape, dtype=getattr(torch, dtype))
            self.register_parameter(f"p{place}", nn.Parameter(values, requires_grad=requires_grad))
        if spec:
            self.again = self.p0


class Branching(nn.Module):
    """A model with a tied layer, a frozen one, and branches that may stay unused."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(5, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.tied = nn.Linear(5, 5)
        self.tied.weight = self.first.weight
        self.branches = nn.ModuleList([nn.Linear(5, 5) for _ in range(3)])
        self.last = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor, branches: Sequence[int]) -> torch.Tensor:
        hidden = self.tied(self.frozen(torch.tanh(self.first(inputs))))
        for branch in branches:
            hidden = torch.tanh(self.branches[branch](hidden))
        return self.last(hidden)


class OfDtypes(Branching):
    """The same with a branch in bfloat16 and a last layer in float64."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.branches[1].bfloat16()
        self.last.double()
        for layer in (*self.branches, self.last):
            layer.register_forward_pre_hook(lambda layer, of: of[0].to(layer.weight.dtype))


class Stateful(nn.Module):
    """Parameters, frozen and tied ones, and buffers of several dtypes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        frozen = nn.Linear(6, 4).requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), frozen)
        self.again = nn.Linear(4, 6)
        self.again.weight = self.body.get_parameter("0.weight")  # pyright: ignore[reportAttributeAccessIssue]
        self.register_buffer("mask", torch.zeros(40, dtype=torch.bool))
        self.register_buffer("table", torch.zeros(3, dtype=torch.float64), persistent=False)
        for buffer in self.buffers():
            high = 2 if buffer.dtype == torch.bool else 999
            buffer.copy_(torch.randint(0, high, buffer.shape))
        self.body.get_buffer("1.num_batches_tracked").fill_(seed % 10)  # differs between ranks


class Asking(torch.autograd.Function):
    """An identity whose backward multiplies the gradient by what `ask` returns."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, ask: Callable[[], torch.Tensor]) -> torch.Tensor:
        ctx.ask = ask
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.ask(), None


class Gated(nn.Module):
    """Layers whose backward cannot go on without factors that only a scripted rank knows.

    A bucket is posted before the factor of the next layer is asked for, or it is not: the conductor
    sees which, whatever a rank says of its clock.
    """

    WIDTH, NUM_LAYERS = 6, 6

    def __init__(self, seed: int, ask: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(seed)
        made = [nn.Linear(self.WIDTH, self.WIDTH, bias=False) for _ in range(self.NUM_LAYERS)]
        self.layers, self.ask = nn.ModuleList(made), ask

    def forward(self, inputs: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        for place in path:
            inputs = Asking.apply(self.layers[place](inputs), self.ask)
        return inputs


FULL = list(range(Gated.NUM_LAYERS))
LAYER_BYTES = 4 * Gated.WIDTH**2


def broadcast_state(module: nn.Module) -> None:
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.data, src=0)


def make_buckets(parameters: list[Any], bucket_bytes: int) -> list[list[Any]]:
    buckets: list[list[Any]] = []
    for parameter in reversed([one for one in parameters if one.requires_grad]):
        last = buckets[-1] if buckets else []
        size_bytes = sum(one.nbytes for one in last) + parameter.nbytes
        if last and size_bytes <= bucket_bytes and last[0].dtype == parameter.dtype:
            last.append(parameter)
        else:
            buckets.append([parameter])
    return buckets


def parallel_of(student: Any, module: nn.Module, bucket_bytes: int) -> Any:
    """The student's class round a module, with right functions in place of the student's first."""
    student.broadcast_state, student.make_buckets = broadcast_state, make_buckets
    return student.DataParallel(module, bucket_bytes)


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    held = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in held}


def gradients_of(module: nn.Module) -> Gradients:
    return [None if one.grad is None else one.grad.detach().clone() for one in module.parameters()]


def broadcast_on_rank(student: Any, seed: int) -> Any:
    module = Stateful(seed)
    held = dict(module.named_parameters()) | dict(module.named_buffers())  # what the caller keeps
    student.broadcast_state(module)
    return {name: tensor.detach().clone() for name, tensor in held.items()}


def average_on_rank(student: Any, name: str, spec: Spec, gradients: Gradients) -> Any:
    module = Held(spec)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        parameter.grad = gradient
    getattr(student, name)(module)
    return {"after": [gradients_of(module)]}


def buckets_on_rank(student: Any, cases: list[tuple[Spec, int]]) -> Any:
    found = []
    for spec, bucket_bytes in cases:
        parameters = list(Held(spec).parameters())
        found.append(places_in(student.make_buckets(parameters, bucket_bytes), parameters))
    return found


def places_in(buckets: Any, parameters: Sequence[nn.Parameter]) -> list[list[int]]:
    """Each bucket as places in the list of parameters."""
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    return [[places.get(id(one), -1) for one in bucket] for bucket in buckets]


def start_on_rank(student: Any, seed: int) -> Any:
    module = Stateful(seed)
    parallel_of(student, module, 100)
    return state_of(module)


def steps_on_rank(
    student: Any, model: type[Branching], bucket_bytes: int, seed: int, steps: list[list[Any]]
) -> Any:
    """The gradients after each step, and inside no_sync, where all its batches but one belong."""
    module = model(seed)
    parallel = parallel_of(student, module, bucket_bytes)
    found: dict[str, list[Gradients]] = {"inside": [], "after": []}
    for *quiet, last in steps:
        if quiet:
            with parallel.no_sync():
                for batch in quiet:
                    parallel(*batch).square().mean().backward()
                found["inside"].append(gradients_of(module))
        parallel(*last).square().mean().backward()
        parallel.finish()
        found["after"].append(gradients_of(module))
        module.zero_grad()
    return found


def work(time_s: float, _: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
    """A layer's output, after this time, and with a backward that takes twice as long."""
    spend("forward", time_s)
    return Asking.apply(output, partial(spend, "backward", 2 * time_s))


def spend(kind: str, time_s: float) -> torch.Tensor:
    with ws.span(kind, kind=kind):
        emulate.spend(time_s)
    return torch.ones(())


def timed_on_rank(student: Any, width: int, times_s: list[float], bucket_bytes: int) -> Any:
    module = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in times_s])
    parallel = parallel_of(student, module, bucket_bytes)
    for layer, time_s in zip(module, times_s, strict=True):
        layer.register_forward_hook(partial(work, time_s))
    parallel(torch.ones(2, width)).sum().backward()
    parallel.finish()


def memory_on_rank(student: Any, width: int) -> Any:
    """Fill the memory after some steps, when all that is left of them is what the class keeps."""
    torch.set_num_threads(1)
    module = nn.Linear(width, width, bias=False)
    parallel = parallel_of(student, module, 4 * width * width)
    for _ in range(10):
        parallel(torch.ones(1, width)).sum().backward()
        parallel.finish()
        module.zero_grad()
    return len([torch.ones(width, width) for _ in range(3)])


class BatchFailed(Exception):
    """What ends no_sync before its end."""


def gated_on_rank(student: Any, seed: int, mine: Any, server: int) -> Any:
    """One step whose backward asks the scripted rank `server` for factors.

    `mine` is a rank's passes, or the scripted rank's program. The default group of the student's
    two ranks holds no other.
    """
    world, pair = dist.group.WORLD, dist.new_group([0, 1])
    if student is None:
        for peer, answer in mine:
            dist.recv(torch.empty(1), peer) if answer is None else dist.send(answer, peer)
        return None

    def ask() -> torch.Tensor:
        factor = torch.empty(Gated.WIDTH)
        dist.send(torch.zeros(1), server, group=world)
        dist.recv(factor, server, group=world)
        return factor

    dist.distributed_c10d.GroupMember.WORLD = pair  # pyright: ignore[reportAttributeAccessIssue]
    module = Gated(seed, ask)
    parallel = parallel_of(student, module, LAYER_BYTES)
    for inputs, path, quiet in mine:
        place = parallel.no_sync() if quiet else contextlib.nullcontext()
        with contextlib.suppress(BatchFailed), place:
            parallel(inputs, path).square().mean().backward()
            if quiet == "until an error":
                raise BatchFailed
    parallel.finish()
    return None


def or_scripted(student: Any, on_rank: Any, script: Any, *args: Any) -> Any:
    """What a rank returns; a scripted one only takes part in the calls of its script."""
    if student is not None:
        return on_rank(student, *args)
    for op, dtype, num_items, root, reduction, number in script:
        tensor = torch.full((num_items,), number, dtype=getattr(torch, dtype))
        if op == "broadcast":
            dist.broadcast(tensor, src=root)
        else:
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, reduction))
    return None


# What the judge computes and compares.


def own_gradients(
    seed: int, batches: Sequence[Sequence[Any]], model: type[Branching] = Branching
) -> Gradients:
    """The gradients of one process after these batches, added up."""
    module = model(seed)
    for batch in batches:
        module(*batch).square().mean().backward()
    return gradients_of(module)


def mean_of(gradients: Sequence[Gradients]) -> Gradients:
    """The mean over ranks, with zeros for a missing gradient; None if all ranks miss it."""
    means: Gradients = []
    for of_ranks in zip(*gradients, strict=True):
        known = [one for one in of_ranks if one is not None]
        total = torch.stack([one.double() for one in known]).sum(dim=0) if known else None
        means.append(None if total is None else (total / len(gradients)).to(known[0].dtype))
    return means


def expect_means(values: Sequence[Any], own: list[Gradients], step: int, module: nn.Module) -> None:
    """Raise CheckFailed unless each rank has the means, or zeros or None of what no rank used."""
    wanted = mean_of(own)
    picture = partial(draw_right, values, wanted, module)
    for rank, value in enumerate(values):
        for place, (name, parameter) in enumerate(module.named_parameters()):
            given, mean = entry(value, place), wanted[place]
            label = f"the gradient of {name} on rank {rank} after step {step + 1}"
            if mean is not None:
                hint, rtol = hint_of(given, mean, rank, [one[place] for one in own]), rtol_of(mean)
                atol = min(1e-7, 1e-3 * rtol)
                expect_close(given, mean, label, hint, rtol=rtol, atol=atol, picture=picture)
            elif given is not None and not parameter.requires_grad:
                raise CheckFailed(f"none: {label}", "one", "A frozen parameter takes no part.")
            elif isinstance(given, torch.Tensor) and given.any():
                raise CheckFailed(f"{label}, to be zeros or None: no rank used it", "other numbers")


def rtol_of(tensor: torch.Tensor) -> float:
    return {2: 2e-2, 4: 1e-4, 8: 1e-10}[tensor.dtype.itemsize]  # half precision rounds each sum


def is_near(given: Any, wanted: torch.Tensor, rtol: float = 1e-3) -> bool:
    is_like = isinstance(given, torch.Tensor) and given.shape == wanted.shape
    rtol = max(rtol, rtol_of(wanted))
    atol = min(1e-7, 1e-3 * rtol)
    return is_like and torch.allclose(given.double(), wanted.double(), rtol=rtol, atol=atol)


def are_means(
    values: Sequence[Any], own: list[Gradients], factor: float, rtol: float = 0.0
) -> bool:
    """True if each rank has the means times a factor, each in its own dtype."""
    pairs = [(entry(one, place), mean) for one in values for place, mean in enumerate(mean_of(own))]
    return all(
        mean is None or (is_near(given, mean * factor, rtol) and given.dtype == mean.dtype)
        for given, mean in pairs
    )


def expect_means_in_each_dtype(
    values: Sequence[Any], own: list[Gradients], module: nn.Module, step: int = 0, rtol: float = 0.0
) -> None:
    """Raise CheckFailed unless gradients of all dtypes are means, or all sums, judged elsewhere."""
    if not any(are_means(values, own, factor, rtol) for factor in (1, len(own))):
        expect_means(values, own, step, module)


def hint_of(given: Any, mean: torch.Tensor, rank: int, of_ranks: Gradients) -> str:
    """The hint for what this gradient of a rank looks like, beside those that the ranks had."""
    own, num_ranks = of_ranks[rank], len(of_ranks)
    if given is None:
        return (
            "This rank did not use the parameter, but another did: it still receives the mean, and"
            " its own gradient counts as zeros."
        )
    if is_near(given, mean * num_ranks):
        return "Is that the sum? Divide by the number of ranks."
    if own is not None and is_near(given, own):
        return (
            "That is this rank's own gradient: it was never sent, or the mean never came back into"
            " grad. Wait for the handle before you read its data."
        )
    if is_near(given, mean / num_ranks):
        return "That is the mean, divided by the number of ranks a second time."
    if mean.dtype == torch.float64 and is_near(given, mean):
        return "That is right to a few digits only: float64 gradients went through float32."
    if missing := missing_in(given, mean, of_ranks):
        return (
            f"The gradient of rank {missing[0]} is missing in it: its bucket left before that was"
            " there. Are the counts of a step those with which it begins?"
        )
    return (
        "All ranks' gradients count once, and one that has none counts as zeros. A flat tensor that"
        " is used again must not keep old numbers."
    )


def missing_in(given: Any, mean: torch.Tensor, of_ranks: Gradients) -> list[int]:
    """The ranks without whose gradients this is the mean; none if it is not such a mean."""
    known = [rank for rank, one in enumerate(of_ranks) if one is not None]
    for num in range(1, len(known)):
        for missing in combinations(known, num):
            less = sum(of_ranks[rank].double() for rank in missing) / len(of_ranks)
            if is_near(given, mean - less):
                return list(missing)
    return known if len(known) == 1 and is_near(given, 0 * mean) else []


def draw_right(values: Sequence[Any], wanted: Gradients, module: nn.Module) -> Drawn:
    """Which gradient is the mean, on which rank."""
    from worldsize.draw.contrast import grid

    names = [name for name, _ in module.named_parameters()]
    means = {place: mean for place, mean in enumerate(wanted) if mean is not None}
    rows = {}
    for rank, value in enumerate(values):
        fits = [is_near(entry(value, place), mean) for place, mean in means.items()]
        rows[f"rank {rank}"] = ["mean" if one else "wrong" for one in fits]
    title = "Which gradient is the mean, on which rank"
    return grid(rows, [names[place] for place in means], "mean", title)


def all_reduces(run: Run, rank: int) -> list[Exchange]:
    """The all-reduces that a rank took part in, in the order in which it posted them."""
    calls = [one for one in run.exchanges if one.op == "all_reduce" and rank in one.numbers]
    return sorted(calls, key=lambda one: one.numbers[rank])


def expect_bodies(run: Run, rank: int, wanted: list[Any], what: str, hint: str) -> None:
    """Raise CheckFailed unless a rank put these gradients into its all-reduces, in this order."""
    calls = all_reduces(run, rank)
    sizes = [sum(one.nbytes for one in gradients) for gradients in wanted]
    given = [len(one.bodies[rank]) for one in calls]
    picture = partial(draw_timeline, run.timeline, "What your ranks sent")
    if given != sizes:
        expected = f"all-reduces of {sizes} bytes by rank {rank}: {what}"
        raise CheckFailed(expected, f"{given}", hint, picture)
    for number, (call, gradients) in enumerate(zip(calls, wanted, strict=True)):
        if not holds(call.tensor(rank), gradients, len(call.ranks)):
            expected = f"rank {rank}'s own gradients in all-reduce {number}: {what}"
            raise CheckFailed(expected, "other numbers", hint, picture)


def holds(sent: torch.Tensor, gradients: list[torch.Tensor], num_ranks: int) -> bool:
    """True if these were sent, side by side in any order, or divided by the number of ranks."""
    wanted = torch.cat([one.flatten() for one in gradients])
    one, other = sent.double().sort().values, wanted.double().sort().values
    is_alike = sent.dtype == wanted.dtype and sent.shape == wanted.shape
    return is_alike and any(
        is_near(one * k, other, max(1e-4, rtol_of(wanted))) for k in (1, num_ranks)
    )


def bucketed(module: nn.Module, own: Gradients, bucket_bytes: int) -> list[list[torch.Tensor]]:
    """One rank's gradients in the buckets in which they travel, with zeros for missing ones."""
    gradients = {
        parameter: torch.zeros_like(parameter) if one is None else one
        for parameter, one in zip(module.parameters(), own, strict=True)
    }
    return [
        [gradients[one] for one in bucket] for bucket in make_buckets([*gradients], bucket_bytes)
    ]


def expect_means_over_the_wire(
    student: Any,
    rng: torch.Generator,
    each: list[Any],
    own: list[list[Gradients]],
    module: nn.Module,
    *call: Any,
    hint: str = "",
    takes_sums: bool = False,
) -> None:
    """Raise CheckFailed unless means come back, also when a script stands for the last of 3 ranks.

    The script puts one number in for all gradients, which is nowhere but on the wire. `own[step]`
    are the ranks' gradients. Sums hold in part, or altogether with `takes_sums`.
    """
    with hinted(hint, Outcome.CRASHED):
        run = student.emulated(
            or_scripted, call[0], None, *call[1:], world_size=3, each=each, **SEEN
        )
    sums = None
    for step, of_step in enumerate(own):
        values = [entry(value, "after", step) for value in run.values]
        try:
            expect_means(values, of_step, step, module)
        except CheckFailed as error:
            if not are_means(values, of_step, len(of_step)):
                raise
            sums = error
    number = whole(rng, 20, 40) / 10
    script, options = script_of(run, number, own), {"world_size": 3, "student_ranks": {0, 1}}
    again = student.emulated(or_scripted, call[0], script, *call[1:], each=each, **options, **RULES)
    scripted = [
        torch.full_like(one, number) if one.requires_grad else None for one in module.parameters()
    ]
    for step, of_step in enumerate(own):
        values = [entry(value, "after", step) for value in again.values[:2]]
        if not are_means(values, [*of_step[:2], scripted], 3 if sums else 1):
            raise CheckFailed(
                "gradients that follow from what came over the wire",
                "other ones, when one rank sent other numbers",
                "What ranks know of each other comes from the all-reduces.",
            )
    if sums and not takes_sums:
        partly = PartlyHeld(1 / 3, sums.expected, sums.actual, sums.hint)
        partly.picture = sums.picture
        raise partly


def script_of(run: Run, number: float, own: list[list[Gradients]]) -> list[tuple[Any, ...]]:
    """The last rank's calls with a number for its gradients, divided before if it divided those."""
    calls = sorted(
        (one for one in run.exchanges if 2 in one.numbers), key=lambda one: one.numbers[2]
    )
    sent = sum(one.tensor(2).double().abs().sum() for one in calls if one.op == "all_reduce")
    whole_ = sum(
        one.double().abs().sum() for of_step in own for one in of_step[2] if one is not None
    )
    put_in = number if sent > whole_ / 2 else number / 3
    sizes = [one.tensor(one.root if one.op == "broadcast" else 2).numel() for one in calls]
    return [
        (one.op, one.dtype, size, one.root, one.reduction, put_in)
        for one, size in zip(calls, sizes, strict=True)
    ]


# broadcast_state


def expect_state_of_rank_0(run: Run, seed: int, kinds: Sequence[str]) -> None:
    """Raise CheckFailed unless all ranks received the parameters or buffers of rank 0's seed."""
    module = Stateful(seed)
    buffers = {name for name, _ in module.named_buffers()}
    for rank, value in enumerate(run.values):
        came = [one for call in run.exchanges if rank in call.ranks for one in received(call, rank)]
        for name, wanted in state_of(module).items():
            kind = "buffer" if name in buffers else "parameter"
            if kind in kinds:
                hint = (
                    f"All {kind}s count, also frozen ones and those of any dtype. Write in place."
                )
                expect_close(entry(value, name), wanted, f"the {kind} {name} on rank {rank}", hint)
                if rank and not any(stand_in_a_row(wanted, one) for one in came):
                    raise CheckFailed(
                        f"rank {rank} to receive the {kind} {name} of rank 0",
                        "other numbers, or none, over the wire",
                        "Send each tensor as it is, by dist.broadcast.",
                    )


def stand_in_a_row(numbers: torch.Tensor, body: torch.Tensor) -> bool:
    """True if these numbers stand side by side in the body of a message."""
    numbers = numbers.double().flatten()
    if len(body) < len(numbers):
        return False
    return bool((body.unfold(0, len(numbers), 1) == numbers).all(dim=1).any())


def run_start(student: Any, rng: torch.Generator, on_rank: Any) -> tuple[Run, int]:
    """A run of three ranks whose state differs, and the seed of rank 0."""
    seeds = [(10 * whole(rng, 0, 10**5) + digit,) for digit in shuffled(rng, range(10))[:3]]
    return student.emulated(on_rank, world_size=3, each=seeds, **SEEN), seeds[0][0]


@points(1, cell="check_broadcast_state")
def check_broadcast_gives_everybody_the_parameters_of_rank_0(student, rng):
    """All parameters become those of rank 0, in place, frozen ones too."""
    run, seed = run_start(student, rng, broadcast_on_rank)
    expect_state_of_rank_0(run, seed, ["parameter"])


PARAMETERS = "check_broadcast_gives_everybody_the_parameters_of_rank_0"


@points(0.5, cell="check_broadcast_state")
def check_broadcast_gives_everybody_the_buffers_of_rank_0(student, rng):
    """All buffers become those of rank 0, in place, integers and booleans too."""
    run, seed = run_start(student, rng, broadcast_on_rank)
    expect_state_of_rank_0(run, seed, ["buffer"])


@points(0.5, cell="check_broadcast_state", needs=[PARAMETERS])
def check_broadcast_sends_each_tensor_once(student, rng):
    """Rank 0 sends each tensor once, even a shared parameter, and nothing else."""
    run, seed = run_start(student, rng, broadcast_on_rank)
    given = sum(len(one.bodies.get(0, b"")) for one in run.exchanges)
    wanted = sum(one.nbytes for one in state_of(Stateful(seed)).values())
    if given > wanted:
        hint = (
            "`module.parameters()` and `module.buffers()` give each tensor once;"
            " `state_dict()` gives a shared one twice."
        )
        raise CheckFailed(f"at most {wanted} bytes, each tensor once", f"{given}", hint)


# average_one_by_one, average_flat


def drawn_spec(rng: torch.Generator, dtypes: Sequence[str], frozen: str = "float32") -> Spec:
    """Some trainable parameters of each dtype and a frozen one.

    The first one is trainable and the largest, the second an odd number of float32: in reverse
    order, or one dtype after the other, they never have the same sizes.
    """
    rest = [([whole(rng, 1, 4), whole(rng, 1, 5)], one, True) for one in dtypes for _ in range(2)]
    rest += [([whole(rng, 1, 9)], frozen, False)]
    first = [([whole(rng, 21, 29)], dtypes[0], True), ([2 * whole(rng, 0, 4) + 1], "float32", True)]
    return [*first, *shuffled(rng, rest)]


def drawn_gradients(rng: torch.Generator, spec: Spec, lacks: bool = False) -> list[Gradients]:
    """Gradients for three ranks; with `lacks` some ranks lack some, and all lack one."""
    trained = [place for place, one in enumerate(spec) if one[2]]
    unused, *partly = shuffled(rng, trained[1:])
    found: list[Gradients] = []
    for rank in range(3):
        there = set(trained) - ({unused, partly[rank % len(partly)]} if lacks else set())
        drawn = [positive(rng, *shape, dtype=getattr(torch, dtype)) for shape, dtype, _ in spec]
        found.append([one * (rank + 1) if n in there else None for n, one in enumerate(drawn)])
    return found


def expect_averages(
    student: Any, rng: torch.Generator, name: str, *dtypes: str, lacks: bool
) -> None:
    """Raise CheckFailed unless this function takes means of what came over the wire."""
    spec = drawn_spec(rng, dtypes)
    own = drawn_gradients(rng, spec, lacks)
    hint = (
        "A rank whose gradient is None takes part with zeros: otherwise its calls no longer match"
        " those of the others."
    )
    args = student, rng, [(one,) for one in own], [own], Held(spec), average_on_rank, name, spec
    expect_means_over_the_wire(*args, hint=hint, takes_sums=lacks)


def run_average(student: Any, rng: torch.Generator, name: str, spec: Spec) -> tuple[Run, Any]:
    own = drawn_gradients(rng, spec)
    each = [(one,) for one in own]
    return student.emulated(average_on_rank, name, spec, world_size=3, each=each, **SEEN), own


def averaged_in(run: Run) -> list[Any]:
    return [entry(value, "after", 0) for value in run.values]


@points(1, cell="check_average_one_by_one")
def check_one_by_one_gives_means(student, rng):
    """Every rank ends with the mean of all gradients, sent over the wire; frozen ones have none."""
    expect_averages(student, rng, "average_one_by_one", "float32", lacks=False)


@points(0.5, cell="check_average_one_by_one")
def check_one_by_one_counts_missing_gradients_as_zeros(student, rng):
    """A rank without a gradient for a parameter counts as zeros, and gets the mean too."""
    expect_averages(student, rng, "average_one_by_one", "float32", lacks=True)


@points(0.5, cell="check_average_one_by_one")
def check_one_by_one_sends_each_gradient_once(student, rng):
    """One all-reduce for each parameter that is not frozen, in order; one for a shared one."""
    spec = drawn_spec(rng, ["float64", "bfloat16"])
    run, own = run_average(student, rng, "average_one_by_one", spec)
    for rank in range(3):
        wanted = [[one] for one in own[rank] if one is not None]
        hint = "`module.parameters()` gives the parameters in order, a shared one once."
        expect_bodies(run, rank, wanted, "one for each parameter that requires a gradient", hint)
    expect_means_in_each_dtype(averaged_in(run), own, Held(spec))


@points(1, cell="check_average_flat")
def check_flat_gives_means(student, rng):
    """Every rank ends with the mean of all gradients, sent over the wire; frozen ones have none."""
    expect_averages(student, rng, "average_flat", "float32", lacks=False)


@points(1, cell="check_average_flat")
def check_flat_counts_missing_gradients_as_zeros(student, rng):
    """A rank without a gradient for a parameter counts as zeros, and gets the mean too."""
    expect_averages(student, rng, "average_flat", "float32", "bfloat16", lacks=True)


@points(1, cell="check_average_flat")
def check_flat_sends_one_tensor_for_each_dtype(student, rng):
    """One all-reduce for each dtype that is trained, of that dtype's gradients, in that dtype."""
    spec = drawn_spec(rng, ["float64", "bfloat16"], frozen="float16")
    run, own = run_average(student, rng, "average_flat", spec)
    hint = (
        "Numbers travel in the dtype of their gradient, all of one dtype in one tensor; a dtype"
        " that only frozen parameters have does not travel."
    )
    for rank in range(3):
        of_dtypes: dict[str, Any] = {}
        for one in own[rank]:
            if one is not None:
                of_dtypes.setdefault(str(one.dtype).removeprefix("torch."), []).append(one)
        given = [one.dtype for one in all_reduces(run, rank) if one.dtype in of_dtypes]
        order = dict.fromkeys([*given, *of_dtypes])  # whichever goes first
        what = f"one for each of {', '.join(sorted(of_dtypes))}"
        expect_bodies(run, rank, [of_dtypes[one] for one in order], what, hint)
    expect_means_in_each_dtype(averaged_in(run), own, Held(spec))


# make_buckets


def places_of_buckets(spec: Spec, bucket_bytes: int) -> list[list[int]]:
    parameters = list(Held(spec).parameters())
    return places_in(make_buckets(parameters, bucket_bytes), parameters)


def run_buckets(student: Any, cases: list[tuple[Spec, int]]) -> list[tuple[Spec, int, Any]]:
    """Each case with the places in the student's buckets."""
    (found,) = student.emulated(buckets_on_rank, cases, world_size=1, **RULES).values
    return [(*case, entry(found, place)) for place, case in enumerate(cases)]


def expect_case(is_right: bool, wanted: str, case: tuple[Spec, int, Any], hint: str) -> None:
    spec, bucket_bytes, given = case
    sizes = [
        f"{one.nbytes} B{'' if one.requires_grad else ' frozen'}" for one in Held(spec).parameters()
    ]
    if not is_right:
        of = f"bucket_bytes={bucket_bytes} and parameters of {sizes}"
        raise CheckFailed(f"{wanted} (places of parameters) for {of}", shown(given), hint)


def in_a_row(given: Any) -> list[Any]:
    """All places in all buckets; nothing if these are no buckets."""
    is_nested = isinstance(given, list) and all(isinstance(one, list) for one in given)
    return [place for bucket in given for place in bucket] if is_nested else [None]


@points(1, cell="check_make_buckets")
def check_buckets_begin_with_the_last_parameter(student, rng):
    """All parameters that require a gradient, last first, and no others."""
    spec = [([whole(rng, 1, 20)], "float32", place != 3) for place in range(whole(rng, 6, 12))]
    for case in run_buckets(student, [(spec, 100), (spec[3:4], 8), ([], 8)]):
        wanted = [place for place in reversed(range(len(case[0]))) if case[0][place][2]]
        hint = "Start at the last parameter and leave out frozen ones."
        expect_case(in_a_row(case[2]) == wanted, f"{wanted} in a row", case, hint)


@points(1, cell="check_make_buckets")
def check_buckets_are_as_full_as_allowed(student, rng):
    """Each bucket is as full as `bucket_bytes` allows and never fuller; exactly full is allowed."""
    size = whole(rng, 2, 9)
    cases: list[tuple[Spec, int]] = [
        ([([size], dtype, True)] * 6, 2 * num_bytes * size)
        for dtype, num_bytes in {"float32": 4, "float64": 8, "bfloat16": 2}.items()
    ]
    for _ in range(4):
        spec = [([whole(rng, 1, 20)], "float32", True) for _ in range(whole(rng, 6, 12))]
        cases.append((spec, 4 * whole(rng, 20, 45)))
    for case in run_buckets(student, cases):
        spec, bucket_bytes, given = case
        order = in_a_row(given)
        is_complete = sorted(map(str, order)) == sorted(map(str, range(len(spec))))
        expect_case(is_complete, "each parameter in one bucket", case, "")
        as_listed = [spec[place] for place in reversed(order)]  # the order itself is not asked here
        lengths = [len(bucket) for bucket in places_of_buckets(as_listed, bucket_bytes)]
        hint = "A bucket ends where the next parameter would bring it above bucket_bytes."
        is_right = [len(bucket) for bucket in given] == lengths
        expect_case(is_right, f"buckets of {lengths} parameters", case, hint)


@points(1, cell="check_make_buckets")
def check_buckets_keep_to_dtypes(student, rng):
    """A bucket has one dtype and is never empty; a parameter that is too large is alone."""
    dtypes = ("float32", "float64", "float64", "float32", "bfloat16", "float32")
    mixed: Spec = [([whole(rng, 1, 9)], dtype, True) for dtype in dtypes]
    small, large = ([whole(rng, 1, 9)], "float32", True), ([whole(rng, 90, 99)], "float32", True)
    for case in run_buckets(student, [(mixed, 10**6), ([small, large, small], 80)]):
        wanted = places_of_buckets(*case[:2])
        backwards = [bucket[::-1] for bucket in wanted[::-1]]  # the order is not asked here
        hint = "Another dtype starts another bucket; a parameter that is too large is alone."
        expect_case(case[2] in (wanted, backwards), f"{wanted}", case, hint)


# DataParallel, step 1: the gradients of one process, in buckets


def drawn_steps(rng: torch.Generator, taken: list[Any]) -> list[Any]:
    """The steps of each rank: batches, of which each is inputs and the branches taken."""
    size = whole(rng, 3, 5)
    return [
        [[[torch.randn(size, 5, generator=rng), one] for one in step] for step in of_rank]
        for of_rank in taken
    ]


def own_of_steps(
    seed: int, steps: list[Any], model: type[Branching] = Branching
) -> list[list[Gradients]]:
    """The ranks' own gradients, step by step."""
    return [
        [own_gradients(seed, batches, model) for batches in of_ranks]
        for of_ranks in zip(*steps, strict=True)
    ]


def expect_steps(
    student: Any, rng: torch.Generator, taken: list[Any], bucket_bytes: int, **options: Any
) -> None:
    """Raise CheckFailed unless these steps on `Branching` give means over the wire."""
    seed, steps = whole(rng, 0, 10**6), drawn_steps(rng, taken)
    each, own = [(seed, of_rank) for of_rank in steps], own_of_steps(seed, steps)
    args = student, rng, each, own, Branching(0), steps_on_rank, Branching, bucket_bytes
    expect_means_over_the_wire(*args, **options)


@points(0.5, cell="check_DataParallel")
def check_parallel_starts_like_rank_0(student, rng):
    """After the constructor all ranks have the parameters and buffers of rank 0."""
    run, seed = run_start(student, rng, start_on_rank)
    expect_state_of_rank_0(run, seed, ["parameter", "buffer"])


@points(1.5, cell="check_DataParallel")
def check_parallel_gives_the_gradients_of_one_process(student, rng):
    """After `finish` each gradient is that of a single process with all batches, in every step,
    sent over the wire, with tied and frozen parameters.
    """
    expect_steps(student, rng, [[[[0, 1, 2]]] * 3] * 3, 4 * whole(rng, 40, 60))


@points(0.5, cell="check_DataParallel")
def check_parallel_sends_its_buckets(student, rng):
    """One all-reduce for each bucket, of the gradients in it, and nothing else; a shared parameter
    once and frozen ones never, whatever their dtypes. The same inputs give the same bits.
    """
    seed, bucket_bytes = whole(rng, 0, 10**6), 4 * whole(rng, 45, 60)
    steps = drawn_steps(rng, [[[[0, 1, 2]]] * 2] * 2)
    each = [(seed, of_rank) for of_rank in steps]
    run, again = (
        student.emulated(steps_on_rank, OfDtypes, bucket_bytes, world_size=2, each=each, **SEEN)
        for _ in range(2)
    )
    expect_same_again(run.values, again.values)
    of_steps = own_of_steps(seed, steps, OfDtypes)
    for rank in range(2):
        own = [of_step[rank] for of_step in of_steps]
        wanted = [one for step in own for one in bucketed(OfDtypes(0), step, bucket_bytes)]
        what = f"the buckets of two steps, bucket_bytes={bucket_bytes}"
        expect_bodies(run, rank, wanted, what, ONE_FLAT)
        first = min(one.numbers[rank] for one in all_reduces(run, rank))
        later = {one.op for one in run.exchanges if one.numbers[rank] > first} - {"all_reduce"}
        if later:
            raise CheckFailed(
                "broadcasts in the constructor only", "one after the first all-reduce"
            )
    for step, own in enumerate(of_steps):
        values = [entry(value, "after", step) for value in run.values]
        expect_means_in_each_dtype(values, own, OfDtypes(0), step, rtol=1e-4)


# Step 2: overlap


def run_gated(
    student: Any,
    rng: torch.Generator,
    paths: list[Any],
    is_late: bool = False,
    quiet: str = "whole",
) -> Any:
    """A step whose backward asks for factors: the run, and what each rank's backward was made of.

    Each layer is a bucket. `paths` are the layers of each rank's passes, of which all but the last
    are inside no_sync, until its end or an error. With `is_late`, rank 1 gets a factor once rank 0
    has asked for the next one.
    """
    seed = whole(rng, 0, 10**6)
    passes, factors = [], []
    for of_rank in paths:
        inputs = [torch.randn(3, Gated.WIDTH, generator=rng) for _ in of_rank]
        is_quiet = [quiet] * (len(of_rank) - 1) + [""]
        passes.append(list(zip(inputs, of_rank, is_quiet, strict=True)))
        factors.append([positive(rng, Gated.WIDTH) for path in of_rank for _ in path])
    programs = [
        [turn for one in factors[rank] for turn in ((rank, None), (rank, one))] for rank in (0, 1)
    ]
    if is_late:
        before, after = programs[1], [*programs[0], *[None] * 2]
        pairs = [(before[n : n + 2], after[n + 2 : n + 4]) for n in range(0, len(before), 2)]
        turns = [turn for mine, next_one in pairs for turn in (next_one[0], *mine, next_one[1])]
        programs = [programs[0][:2] + [turn for turn in turns if turn]]
    servers = [2, 2] if is_late else [2, 3]
    each = [*zip(passes, servers, strict=True), *((program, 0) for program in programs)]
    rules = SEEN | {"allow": COLLECTIVES | {"send", "recv"}, "student_ranks": {0, 1}}
    run = student.emulated(gated_on_rank, seed, world_size=len(each), each=each, **rules)
    return run, seed, passes, factors


def expect_on_time(seen: Any, hint: str, is_strict: bool = True) -> None:
    """Raise CheckFailed unless the buckets hold the judge's gradients and left during backward.

    At least the first one did; with `is_strict`, each as soon as it and those before it were full.
    """
    run, seed, passes, factors = seen
    for rank, of_rank in enumerate(passes):
        module = Gated(seed, iter(factors[rank]).__next__)
        for inputs, path, _ in of_rank:
            module(inputs, path).square().mean().backward()
        buckets = bucketed(module, gradients_of(module), LAYER_BYTES)
        expect_bodies(run, rank, buckets, "a bucket for each layer, last first", hint)
        requests = [one for one in run.exchanges if one.op == "send" and one.ranks[0] == rank]
        order = of_rank[-1][1][::-1]  # of backward
        asked = sorted(one.numbers[rank] for one in requests)[-len(order) :]
        full = 0  # the place in this order where the buckets until here have their last gradient
        for layer, call in zip(reversed(FULL), all_reduces(run, rank), strict=True):
            full = max(full, order.index(layer) if layer in order else len(order))
            latest = full + 1 if is_strict else len(order) - 1
            if latest < len(order) and call.numbers[rank] > asked[latest]:
                raise CheckFailed(
                    f"rank {rank} to send the bucket of layer {layer} before backward goes on to"
                    f" layer {order[latest]}",
                    "it left later",
                    hint,
                )
            if not is_strict:
                break


@points(2, cell="check_overlap")
def check_parallel_sends_during_backward(student, rng):
    """The first bucket leaves while backward still works on other layers."""
    expect_on_time(run_gated(student, rng, [[FULL], [FULL]]), ASYNC, is_strict=False)


@points(1.5, cell="check_overlap")
def check_parallel_goes_on_while_buckets_travel(student, rng):
    """Each bucket leaves as soon as it is full; backward goes on though another rank is late."""
    try:
        seen = run_gated(student, rng, [[FULL], [FULL]], is_late=True)
    except StudentFailed as error:
        if error.outcome is not Outcome.HUNG:
            raise
        actual = "one that waits for another rank, which has not come so far"
        raise CheckFailed("a backward that goes on while a bucket travels", actual, ASYNC) from None
    expect_on_time(seen, ASYNC)


@points(2.5, cell="check_overlap", needs=["check_parallel_goes_on_while_buckets_travel"])
def check_parallel_hides_communication_behind_backward(student, rng):
    """On a cluster with known prices the step ends when e_k = max(r_k, e_(k-1)) + c_k says."""
    world_size, width, num_layers = whole(rng, 2, 3), 8 * whole(rng, 24, 40), whole(rng, 6, 8)
    cluster, layer_bytes = drawn_cluster(rng, 4), 4 * width * width

    def cost_s(num_layers: int) -> float:
        size_bytes = num_layers * layer_bytes
        return pricing.price("all_reduce", size_bytes, range(world_size), cluster).time_s

    times_s = [cost_s(2) * whole(rng, 6, 12) / 40 for _ in range(num_layers)]
    options = {"world_size": world_size, "cluster": cluster}
    run = student.emulated(timed_on_rank, width, times_s, 2 * layer_bytes, **options, **SEEN)
    expect_work(run, dict.fromkeys(range(world_size), 3 * sum(times_s)))
    broadcasts = [one for one in run.exchanges if one.op == "broadcast"]
    start_s = max((max(one.done_s.values()) for one in broadcasts), default=0.0)
    end_s = start_s + sum(times_s)
    ready_s = [end_s + passed_s for passed_s in accumulate(2 * one for one in reversed(times_s))]
    for first in range(0, num_layers, 2):
        in_bucket = ready_s[first : first + 2]
        end_s = max(end_s, in_bucket[-1]) + cost_s(len(in_bucket))
    expect_end(run, end_s, end_s, "the constructor and one step", ASYNC)


# Step 3: unused parameters


@points(1, cell="check_unused")
def check_parallel_counts_unused_parameters_as_zeros(student, rng):
    """A parameter that a rank did not use counts as zeros there; with a single bucket."""
    taken = [[[[0, 1]], [[1]], [[2]]], [[[1, 0]], [[2]], [[2]]], [[[0, 1, 2]], [[0]], [[2]]]]
    expect_steps(student, rng, taken, 10**6, hint=FINISH, takes_sums=True)


@points(1.5, cell="check_unused")
def check_parallel_keeps_the_order_of_buckets(student, rng):
    """Ranks may use different layers in different orders: the buckets leave in one order, and those
    that are complete leave during backward.
    """
    swapped = [0, 2, 4, 3, 5]  # without layer 1, and with layer 3 before layer 4 in backward
    with hinted(FINISH, Outcome.CRASHED):
        seen = run_gated(student, rng, [[FULL], [swapped]])
    expect_on_time(seen, FINISH)


# Step 4: no_sync


@points(0.5, cell="check_no_sync")
def check_no_sync_sends_nothing(student, rng):
    """Inside `no_sync` nothing is sent, and gradients are the rank's own."""
    seed, steps = whole(rng, 0, 10**6), drawn_steps(rng, [[[[0, 1, 2]] * 3] * 2] * 2)
    each = [(seed, of_rank) for of_rank in steps]
    with hinted(QUIET, Outcome.CRASHED):
        run = student.emulated(steps_on_rank, Branching, 10**6, world_size=2, each=each, **SEEN)
    given = sum(len(one.body) for one in run.exchanges if one.op != "all_reduce")
    at_start = sum(one.nbytes for one in state_of(Branching(0)).values())
    if given > 2 * at_start:  # what is sent twice at the start is for another check
        raise CheckFailed(f"broadcasts of {at_start} bytes, at the start only", f"{given}", QUIET)
    for rank, of_rank in enumerate(steps):
        for number, step in enumerate(of_rank):
            own, given = own_gradients(seed, step[:-1]), entry(run.values[rank], "inside", number)
            for place, (name, _) in enumerate(Branching(0).named_parameters()):
                if (wanted := own[place]) is not None:
                    what = f"the gradient of {name} on rank {rank} inside no_sync"
                    expect_close(entry(given, place), wanted, what, QUIET, atol=1e-7)
        if (num_calls := len(all_reduces(run, rank))) > 2:
            expected = "2 all-reduces for two optimizer steps with a single bucket"
            raise CheckFailed(expected, f"{num_calls}", QUIET)


@points(1.25, cell="check_no_sync")
def check_no_sync_sends_sums_with_the_next_backward(student, rng):
    """The next backward outside sends what has been added up, each bucket as soon as it is full."""
    with hinted(QUIET, Outcome.CRASHED):
        seen = run_gated(student, rng, [[FULL, FULL], [FULL, FULL]])
    expect_on_time(seen, QUIET)


@points(0.25, cell="check_no_sync")
def check_no_sync_ends_with_an_error(student, rng):
    """After an error inside `no_sync`, the next backward sends each bucket once it is full."""
    hint = "An error leaves the context too: end it in a finally."
    with hinted(hint, Outcome.CRASHED):
        seen = run_gated(student, rng, [[FULL, FULL], [FULL, FULL]], quiet="until an error")
    expect_on_time(seen, hint)


@points(0.5, cell="check_no_sync")
def check_no_sync_averages_what_the_last_backward_did_not_use(student, rng):
    """Gradients of `no_sync` are averaged even where the last backward does not use a parameter."""
    taken = [[[[0, 2], [0, 1], [1]]] * 2] * 3
    expect_steps(student, rng, taken, 10**6, hint=f"{QUIET} {FINISH}", takes_sums=True)


# test_data_parallel: the student's ranks hold an object that asks a rank without student code


class Remote:
    """A data-parallel class whose every decision another rank takes.

    It is the same object whatever class is under test, so nothing in its process says which.
    """

    def __init__(self, peer: int, world: Any, module: nn.Module, bucket_bytes: int) -> None:
        self.peer, self.world, self.module = peer, world, module
        self.parameters, self.arrived = list(module.parameters()), None
        every = [one for _, one in module.named_parameters(remove_duplicate=False)]
        uses = [next(n for n, one in enumerate(self.parameters) if one is use) for use in every]
        is_trained = [one.requires_grad for one in self.parameters]
        state = [*(one.data for one in self.parameters), *module.buffers()]
        for tensor, new in zip(state, self.asked("make", [uses, is_trained], state), strict=True):
            tensor.copy_(new)
        for place, parameter in enumerate(self.parameters):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self.on_gradient, place))

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def on_gradient(self, place: int, _: Any) -> None:
        if self.arrived is not None:  # inside no_sync
            if not self.arrived:
                torch.autograd.Variable._execution_engine.queue_callback(self.after_backward)
            self.arrived.append(place)

    def after_backward(self) -> None:
        places, self.arrived = self.arrived, []
        self.exchange("inside", places)

    def finish(self) -> None:
        self.exchange("finish")

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.arrived = self.arrived, []
        try:
            yield
        finally:
            self.arrived = before
            self.exchange("leave")

    def exchange(self, method: str, about: Any = ()) -> None:
        """Have the gradients of this rank replaced."""
        gradients = self.asked(method, list(about), [one.grad for one in self.parameters])
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def asked(self, method: str, about: Any, tensors: list[Any]) -> Any:
        say([method, id(self), about, tensors], self.peer, self.world).wait()
        answer = heard(self.peer, self.world)
        if answer is None:
            raise RuntimeError("this class failed")
        return answer


def say(message: Any, peer: int, world: Any) -> Any:
    file = io.BytesIO()
    torch.save(message, file)
    body = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    head = torch.cat([torch.tensor([len(body)]).view(torch.uint8), body[:HEAD_BYTES]])
    first = nn.functional.pad(head, (0, 8 + HEAD_BYTES - len(head)))
    sent = dist.isend(first, peer, group=world)
    return dist.isend(body[HEAD_BYTES:], peer, group=world) if len(body) > HEAD_BYTES else sent


def heard(peer: int, world: Any) -> Any:
    head = torch.empty(8 + HEAD_BYTES, dtype=torch.uint8)
    dist.recv(head, peer, group=world)
    rest = torch.empty(max(0, int(head[:8].view(torch.int64)) - HEAD_BYTES), dtype=torch.uint8)
    if len(rest):
        dist.recv(rest, peer, group=world)
    body = torch.cat([head[8:], rest])[: int(head[:8].view(torch.int64))]
    return torch.load(io.BytesIO(body.numpy().tobytes()), weights_only=True)


HEAD_BYTES = 1 << 13  # of a message, nearly always all of it


def test_on_rank(student: Any, num_classes: int, serve: Any) -> Any:
    """For each class, whether the student's test let it pass; nothing else comes back."""
    world, rank, pair = dist.group.WORLD, dist.get_rank(), dist.new_group([0, 1])
    if student is None:
        return serve(rank, world)
    dist.distributed_c10d.GroupMember.WORLD = pair  # pyright: ignore[reportAttributeAccessIssue]
    verdicts = []
    for _ in range(num_classes):
        try:
            student.test_data_parallel(class_of(rank + 2, world))
            verdicts.append(True)
        except Exception:
            verdicts.append(False)
        say(["end"], rank + 2, world).wait()
    return verdicts


def class_of(peer: int, world: Any) -> type:
    class DataParallel(Remote):
        def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
            super().__init__(peer, world, module, bucket_bytes)

    return DataParallel


# What answers it: the classes under test, on two ranks of their own


class Pair:
    """The exchange of two ranks, of which either may end before the other."""

    def __init__(self, rank: int, peer: int, world: Any) -> None:
        self.rank, self._peer, self._world, self._is_over = rank, peer, world, False

    def other(self, tensors: Any) -> Any:
        """What the other rank gives for these."""
        say(tensors, self._peer, self._world)
        if self._is_over or (found := heard(self._peer, self._world)) is None:
            self._is_over = True
            raise RuntimeError("the other rank's test has ended")
        return found

    def end(self) -> None:
        """Take in what the other rank still sends."""
        say(None, self._peer, self._world)
        while not self._is_over:
            self._is_over = heard(self._peer, self._world) is None


class InFinish:
    """A right class that sends the gradients in finish."""

    def __init__(self, module: nn.Module, pair: Pair) -> None:
        self.module, self.pair, self.num_steps = module, pair, 0
        mine = [one.data for one in self.state()]
        for tensor, other in zip(mine, pair.other(mine), strict=True):
            tensor.copy_(other if pair.rank else tensor)

    def state(self) -> list[torch.Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]

    def chosen(self) -> list[nn.Parameter]:
        return [one for one in self.module.parameters() if one.requires_grad]

    def finish(self) -> None:
        self.num_steps += 1
        self.average(self.chosen())

    def average(self, chosen: list[nn.Parameter]) -> None:
        mine = [torch.zeros_like(one) if one.grad is None else one.grad for one in chosen]
        for parameter, one, other in zip(chosen, mine, self.pair.other(mine), strict=True):
            parameter.grad = self.mean(parameter.grad, one, other)

    def mean(self, before: Any, mine: torch.Tensor, other: torch.Tensor) -> Any:
        return (mine + other) / 2

    def inside(self, places: list[int]) -> None:
        """Do what hooks do in a backward inside no_sync."""

    def leave(self) -> None:
        """Do what the end of no_sync does."""


def used_only(self: Any) -> list[nn.Parameter]:
    """What some rank used, last first."""
    mine = [one.grad is not None for one in InFinish.chosen(self)]
    pairs = zip(InFinish.chosen(self), mine, self.pair.other(mine), strict=True)
    return [parameter for parameter, one, other in pairs if one or other][::-1]


def unshared(self: Any) -> list[nn.Parameter]:
    every = [one for _, one in self.module.named_parameters(remove_duplicate=False)]
    return [one for one in InFinish.chosen(self) if sum(one is other for other in every) == 1]


def average_these(self: Any, places: list[int]) -> None:
    self.average([one for place, one in enumerate(self.module.parameters()) if place in places])


def derived(methods: dict[str, Callable[..., Any]]) -> type:
    return type("DataParallel", (InFinish,), methods)


RIGHT = {
    "sends the gradients in finish": InFinish,
    "leaves out what no rank used": derived({"chosen": used_only}),
    "divides before it adds": derived({"mean": lambda self, _, mine, other: mine / 2 + other / 2}),
}
SILENT = derived({"mean": lambda self, before, mine, other: before})
CHANGED: dict[str, dict[str, Callable[..., Any]]] = {
    "sums gradients instead of averaging them": {
        "mean": lambda self, before, mine, other: mine + other
    },
    "does not broadcast parameters": {"state": lambda self: [*self.module.buffers()]},
    "does not broadcast buffers": {"state": lambda self: [*self.module.parameters()]},
    "does not broadcast frozen parameters": {
        "state": lambda self: [*self.chosen(), *self.module.buffers()]
    },
    "never sends the gradient of a parameter that two layers share": {"chosen": unshared},
    "never sends its last bucket, that of the first parameters": {
        "chosen": lambda self: InFinish.chosen(self)[2:]
    },
    "leaves a rank without the gradient of a parameter that only another rank used": {
        "mean": lambda self, before, mine, other: None if before is None else (mine + other) / 2
    },
    "averages in the first step only": {
        "mean": lambda self, before, mine, other: (
            (mine + other) / 2 if self.num_steps == 1 else before
        )
    },
    "averages inside no_sync too": {"inside": average_these},
    "drops what was accumulated inside no_sync": {"leave": lambda self: self.module.zero_grad()},
}
WRONG = {mistake: derived(methods) for mistake, methods in CHANGED.items()}


def mirrored(uses: list[int], is_trained: list[bool], state: list[torch.Tensor]) -> nn.Module:
    """A module with the same parameters and buffers."""
    module = nn.Module()
    parameters = [nn.Parameter(*pair) for pair in zip(state, is_trained, strict=False)]
    for number, place in enumerate(uses):
        module.register_parameter(f"p{number}", parameters[place])
    for number, buffer in enumerate(state[len(is_trained) :]):
        module.register_buffer(f"b{number}", buffer)
    return module


def serve_classes(classes: list[type], rank: int, world: Any) -> None:
    """Be these classes, one after the other, for the objects on the rank two before this one."""
    for one in classes:
        pair, made = Pair(rank - 2, 5 - rank, world), {}
        while (message := heard(rank - 2, world)) != ["end"]:
            try:
                answer = answer_to(one, pair, made, *message)
            except Exception:
                answer = None
            say(answer, rank - 2, world)
        pair.end()


def answer_to(
    made_of: type,
    pair: Pair,
    made: dict[int, Any],
    method: str,
    number: int,
    about: Any,
    given: Any,
) -> list[torch.Tensor | None]:
    """The state of a new object, or the gradients after a method of an old one."""
    if method == "make":
        made[number] = made_of(mirrored(*about, given), pair)
        module = made[number].module
        return [one.detach() for one in [*module.parameters(), *module.buffers()]]
    parameters = list(made[number].module.parameters())
    for parameter, gradient in zip(parameters, given, strict=True):
        parameter.grad = gradient
    getattr(made[number], method)(*[about] * (method == "inside"))
    return [one.grad for one in parameters]


TOO_LONG = "The test of one class, alone, was not done in time. It may take a second."


def passing(student: Any, classes: list[type]) -> list[type]:
    """The classes for which the student's test raises on no rank."""
    server = partial(serve_classes, classes)
    each, num_classes = [(None,)] * 2 + [(server,)] * 2, len(classes)
    options = {"world_size": 4, "each": each, "student_ranks": {0, 1}}
    try:
        values = student.emulated(test_on_rank, num_classes, **options).values[:2]
    except StudentFailed as error:
        if num_classes > 1:  # a test that hangs on one of them, or is slow with all
            return [one for each_alone in classes for one in passing(student, [each_alone])]
        if error.may_be_external and error.outcome is not Outcome.CRASHED:
            raise StudentFailed(Outcome.TIME_LIMIT, TOO_LONG) from None
        return []
    verdicts = [[entry(value, place) for value in values] for place in range(num_classes)]
    return [
        one
        for one, of_ranks in zip(classes, verdicts, strict=True)
        if is_same(of_ranks, [True] * 2)
    ]


def expect_let_pass(style: str, right: type, found: list[type]) -> None:
    """Raise CheckFailed where a right class is not among those that the test let pass."""
    if right not in found:
        hint = "It keeps every promise. Test promises, not one way to keep them."
        expected = f"a right class to pass, one that {style}"
        raise CheckFailed(expected, "the test raised an error", hint)


@points(1, cell="check_test_data_parallel")
def check_test_tells_right_from_wrong(student, rng):
    """The test lets right classes of several styles pass, and catches one that sends nothing."""
    found = passing(student, shuffled(rng, [*RIGHT.values(), SILENT]))
    for style, right in RIGHT.items():
        expect_let_pass(style, right, found)
    if SILENT in found:
        hint = "Compare the gradients with those that one process has for all batches."
        expected = "a class whose gradients never leave their rank to be caught"
        raise CheckFailed(expected, "it passed", hint)


@points(5, cell="check_test_data_parallel", needs=["check_test_tells_right_from_wrong"])
def check_test_catches_wrong_classes(student, rng):
    """The test catches ten classes that each break one promise, a tenth of the points for each."""
    style, right = shuffled(rng, list(RIGHT.items()))[0]
    found = passing(student, shuffled(rng, [right, *WRONG.values()]))
    expect_let_pass(style, right, found)
    missed = sorted(mistake for mistake, wrong in WRONG.items() if wrong in found)
    if not missed:
        return
    expected, actual = f"all {len(WRONG)} wrong classes to be caught", f"{len(missed)} that passed"
    question = "How would that change the state or the gradients of a rank?"
    hint = "\n- ".join([f"Each class that passed does one of these. {question}", *missed])
    if len(missed) == len(WRONG):
        raise CheckFailed(expected, actual, hint)
    raise PartlyHeld(1 - len(missed) / len(WRONG), expected, actual, hint)


# Last, because it takes longest on a machine that is busy


@points(0.5, cell="check_DataParallel")
def check_parallel_keeps_no_second_copy(student, rng):
    """Between two steps it keeps at most one copy of the gradients."""
    width = 8 * whole(rng, 89, 91)
    size_bytes = 4 * width * width
    run = student.emulated(memory_on_rank, width, world_size=2, memory=True, **RULES)
    hint = "Drop the flat tensors and handles of a step when it is finished, or reuse them."
    what = f"the model, one copy of its {size_bytes >> 20} MiB of gradients and the check itself"
    room_bytes = 8 * size_bytes  # freed, but not given back; what 10 steps keep takes more
    expect_grown(run, (1 + 1 + 3) * size_bytes + room_bytes, what, hint)
