"""Hidden checks of lab 3: the student's DDP on emulated clusters, and its test on many others."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from PIL import Image
from torch import nn

from autograder.checks import (
    Made,
    Outcome,
    PartlyHeld,
    StudentFailed,
    entry,
    is_same,
    points,
    shown,
    tensor_like,
)
from worldsize import pricing
from worldsize.check import CheckFailed, Drawn, expect_close
from worldsize.event import COMMUNICATION, Event
from worldsize.faults import SilentError
from worldsize.hardware import H100, Cluster, Link
from worldsize.launch import Run
from worldsize.timeline import Timeline

COLLECTIVES = {"all_reduce", "broadcast"}
NO_DDP = {
    "torch.distributed.Reducer": (
        "torch's DistributedDataParallel and its Reducer are not allowed here: this is what you"
        " write"
    )
}
RULES = {"allow": COLLECTIVES, "forbid": NO_DDP}
TOLERANCE = 1.01  # of a time: emulated ones come out to all digits
Gradients = list[torch.Tensor | None]
Spec = list[
    tuple[list[int], str, bool]
]  # of parameters: shape, dtype, whether it requires a gradient


# What runs on the ranks. Nothing here knows an answer.


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
    """A model with branches that may stay unused, with or without tied and frozen layers."""

    def __init__(self, is_tangled: bool) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.frozen = nn.Linear(5, 5)
        self.tied = nn.Linear(5, 5)
        if is_tangled:
            self.frozen.requires_grad_(False)
            self.tied.weight = self.first.weight
        self.branches = nn.ModuleList([nn.Linear(5, 5) for _ in range(3)])
        self.last = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor, branches: Sequence[int] = (0, 1, 2)) -> torch.Tensor:
        hidden = self.tied(self.frozen(torch.tanh(self.first(inputs))))
        for branch in branches:
            hidden = torch.tanh(self.branches[branch](hidden))
        return self.last(hidden)


class Working(torch.autograd.Function):
    """An identity that takes a given time forward, and twice that backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, time_s: float) -> torch.Tensor:
        import worldsize as ws
        from worldsize import emulate

        ctx.time_s = time_s
        with ws.span("forward", kind="forward"):
            emulate.spend(time_s)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        import worldsize as ws
        from worldsize import emulate

        with ws.span("backward", kind="backward"):
            emulate.spend(2 * ctx.time_s)
        return gradient, None


class TimedLayer(nn.Linear):
    """A linear layer whose forward and backward take known times."""

    def __init__(self, width: int, time_s: float) -> None:
        super().__init__(width, width, bias=False)
        self.time_s = time_s

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return Working.apply(super().forward(tensor), self.time_s)


class Stateful(nn.Module):
    """Parameters, frozen and tied ones, and buffers of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 4).requires_grad_(False)
        )
        self.again = nn.Linear(4, 6)
        self.again.weight = self.body.get_parameter("0.weight")  # pyright: ignore[reportAttributeAccessIssue]
        self.register_buffer("mask", torch.zeros(40, dtype=torch.bool))
        self.register_buffer("table", torch.zeros(3, dtype=torch.float64), persistent=False)


def plain(seed: int) -> nn.Module:
    """A small network, drawn from a seed."""
    torch.manual_seed(seed)
    sizes = [(5, 7), (7, 6), (6, 6), (6, 3)]
    layers = [layer for one in sizes for layer in (nn.Linear(*one), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def branching(seed: int) -> nn.Module:
    """A network with branches, drawn from a seed."""
    torch.manual_seed(seed)
    return Branching(is_tangled=False)


def tangled(seed: int) -> nn.Module:
    """The same with a tied and a frozen layer."""
    torch.manual_seed(seed)
    return Branching(is_tangled=True)


def stateful(seed: int) -> nn.Module:
    """A module with much state, drawn from a seed; its one integer is the seed's last digit."""
    torch.manual_seed(seed)
    module = Stateful()
    for buffer in module.buffers():
        buffer.copy_(torch.randint(0, 2 if buffer.dtype == torch.bool else 999, buffer.shape))
    module.body.get_buffer("1.num_batches_tracked").fill_(seed % 10)
    return module


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: tensor.detach().clone()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    }


def gradients_of(module: nn.Module) -> Gradients:
    return [None if one.grad is None else one.grad.detach().clone() for one in module.parameters()]


def broadcast_on_rank(student: Any, seed: int) -> Any:
    module = stateful(seed)
    held = dict(module.named_parameters()) | dict(module.named_buffers())  # what the caller keeps
    student.broadcast_state(module)
    return {name: tensor.detach().clone() for name, tensor in held.items()}


def average_on_rank(student: Any, name: str, spec: Spec, gradients: Gradients) -> Any:
    module = Held(spec)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        parameter.grad = gradient
    getattr(student, name)(module)
    return gradients_of(module)


def buckets_on_rank(student: Any, specs: list[Spec], sizes_bytes: list[int]) -> Any:
    found = []
    for spec, bucket_bytes in zip(specs, sizes_bytes, strict=True):
        parameters = list(Held(spec).parameters())
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        buckets = student.make_buckets(parameters, bucket_bytes)
        found.append([[places.get(id(one), -1) for one in bucket] for bucket in buckets])
    return found


def start_on_rank(student: Any, seed: int) -> Any:
    module = stateful(seed)
    student.DataParallel(module, 100)
    return state_of(module)


def steps_on_rank(
    student: Any,
    make: Callable[[int], nn.Module],
    bucket_bytes: int,
    seed: int,
    batches: list[list[Any]],
) -> Any:
    """The gradients after each step; a batch is inputs and whatever else the module takes."""
    module = make(seed)
    parallel = student.DataParallel(module, bucket_bytes)
    found = []
    for batch in batches:
        parallel(*batch).square().mean().backward()
        parallel.finish()
        found.append(gradients_of(module))
        module.zero_grad()
    return found


def timed_on_rank(student: Any, width: int, times_s: list[float], bucket_bytes: int) -> Any:
    module = nn.Sequential(*[TimedLayer(width, time_s) for time_s in times_s])
    parallel = student.DataParallel(module, bucket_bytes)
    parallel(torch.ones(2, width)).sum().backward()
    parallel.finish()


def accumulate_on_rank(student: Any, bucket_bytes: int, seed: int, batches: list[list[Any]]) -> Any:
    """The gradients inside no_sync and after finish, in two rounds."""
    module = branching(seed)
    parallel = student.DataParallel(module, bucket_bytes)
    found = []
    for _ in range(2):
        with parallel.no_sync():
            for batch in batches[:-1]:
                parallel(*batch).square().mean().backward()
            found.append(gradients_of(module))
        parallel(*batches[-1]).square().mean().backward()
        parallel.finish()
        found.append(gradients_of(module))
        module.zero_grad()
    return found


def memory_on_rank(student: Any, width: int, num_layers: int, bucket_bytes: int) -> Any:
    """The bytes of tensors on this rank after four steps, without the model and the gradients."""
    module = nn.Sequential(*[nn.Linear(width, width) for _ in range(num_layers)])
    before_bytes = tensor_bytes()
    parallel = student.DataParallel(module, bucket_bytes)
    for _ in range(4):
        parallel(torch.ones(2, width)).sum().backward()
        parallel.finish()
        module.zero_grad()
    return tensor_bytes() - before_bytes


def tensor_bytes() -> int:
    """The bytes of all tensors of this process, what they share counted once."""
    import gc

    gc.collect()
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


def large_on_rank(student: Any, width: int, seed: int, places: torch.Tensor) -> Any:
    """Elements of the gradient after two steps with megabytes of gradients."""
    torch.set_num_threads(1)
    module = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(4)])
    parallel = student.DataParallel(module, 3 * width * width)
    for step in range(2):
        module.zero_grad()
        inputs = torch.rand(2, width, generator=torch.Generator().manual_seed(seed + step))
        parallel(inputs).square().mean().backward()
        parallel.finish()
    gradient = next(module.parameters()).grad
    return None if gradient is None else gradient.flatten()[places]


def class_of(source: str) -> type:
    """The class DataParallel of this source, of which nothing is kept."""
    names: dict[str, Any] = {}
    exec(compile(source, "a class under test", "exec"), names)
    return names["DataParallel"]


def test_on_rank(student: Any, made: type) -> Any:
    """True if the student's test let this class pass; nothing else comes back from the test."""
    try:
        student.test_data_parallel(made)
    except BaseException:
        raise RuntimeError from None  # ends the other rank too, which may wait for this one
    return True


# What the judge draws, computes and compares.


def whole(rng: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=rng))


def shuffled(rng: torch.Generator, items: Sequence[Any]) -> list[Any]:
    return [items[place] for place in torch.randperm(len(items), generator=rng).tolist()]


def seeds_of_ranks(rng: torch.Generator, num_ranks: int) -> list[tuple[int]]:
    """A seed for each rank, with different last digits so that no buffers agree by chance."""
    return [(10 * whole(rng, 0, 10**5) + digit,) for digit in shuffled(rng, range(10))[:num_ranks]]


def positive(rng: torch.Generator, *shape: int, dtype: str = "float32") -> torch.Tensor:
    """Values from 0.5 to 1.5: no mean of them is near zero, so that a changed sign shows."""
    return torch.rand(shape, generator=rng, dtype=torch.float64).add(0.5).to(getattr(torch, dtype))


def drawn_cluster(rng: torch.Generator, num_gpus: int) -> Cluster:
    """GPUs on links of drawn rate."""
    bytes_per_s = 1e9 * whole(rng, 50, 200)
    link = Link("drawn", 3e-6, bytes_per_s, "drawn for one check, 2026", kind="nvlink")
    return Cluster(name="drawn", gpu=H100, gpus_per_node=num_gpus, intra=link)


def mean_of(gradients: Sequence[Gradients]) -> Gradients:
    """The mean over ranks, with zeros for a missing gradient; None if all ranks miss it."""
    means: Gradients = []
    for of_ranks in zip(*gradients, strict=True):
        known = [one.double() for one in of_ranks if one is not None]
        total = torch.stack(known).sum(dim=0) if known else None
        first = next((one for one in of_ranks if one is not None), None)
        means.append(
            None if total is None or first is None else (total / len(gradients)).to(first.dtype)
        )
    return means


def own_gradients(
    make: Callable[[int], nn.Module], seed: int, batches: Sequence[Sequence[Any]]
) -> Gradients:
    """The gradients of one process after these batches, added up."""
    module = make(seed)
    for batch in batches:
        module(*batch).square().mean().backward()
    return gradients_of(module)


def expect_means(
    values: Sequence[Any],
    own: Sequence[Gradients],
    what: str,
    frozen: Sequence[int] = (),
    names: Sequence[str] = (),
    may_be_sum: bool = False,
) -> None:
    """Raise CheckFailed unless each rank has the mean, and frozen parameters no gradient.

    With `may_be_sum` a sum will do too: another check has taken the points for that.
    """
    wanted, num_ranks = mean_of(own), len(own)
    if may_be_sum and are_sums(values, wanted, num_ranks):
        return
    for rank, value in enumerate(values):
        for place, mean in enumerate(wanted):
            given = entry(value, place)
            label = (
                f"the gradient of {names[place] if names else f'parameter {place}'} on rank {rank},"
                f" {what}"
            )
            if place in frozen:
                if given is not None:
                    raise CheckFailed(
                        f"none: {label}", "a gradient", "A frozen parameter takes no part."
                    )
                continue
            if mean is None:
                if isinstance(given, torch.Tensor) and given.any():
                    raise CheckFailed(
                        f"{label}, to be zeros or None: no rank used it", "other numbers"
                    )
                continue
            hint = hint_of(given, mean, own[rank][place], num_ranks)
            rtol = 1e-4 if mean.dtype.itemsize > 2 else 2e-2  # half precision rounds each sum
            picture = partial(draw_right, values, wanted, names)
            expect_close(given, mean, label, hint, rtol=rtol, atol=1e-7, picture=picture)


def are_sums(values: Sequence[Any], means: Gradients, num_ranks: int) -> bool:
    """True when every rank has the sums where the means should be."""
    for value in values:
        for place, mean in enumerate(means):
            given = entry(value, place)
            if mean is None:
                continue
            if not isinstance(given, torch.Tensor) or given.shape != mean.shape:
                return False
            if not torch.allclose(given.double(), mean.double() * num_ranks, rtol=1e-4, atol=1e-7):
                return False
    return True


def hint_of(given: Any, mean: torch.Tensor, own: torch.Tensor | None, num_ranks: int) -> str:
    """The hint for what this gradient looks like."""
    if given is None:
        return (
            "This rank did not use the parameter, but another did: it still receives the mean, and"
            " its own gradient counts as zeros."
        )
    if not isinstance(given, torch.Tensor) or given.shape != mean.shape:
        return ""
    if torch.allclose(given.double(), mean.double() * num_ranks, rtol=1e-3):
        return "Is that the sum? Divide by the number of ranks."
    if own is not None and torch.allclose(given.double(), own.double(), rtol=1e-3):
        return (
            "That is this rank's own gradient: it was never sent, or the mean never came back into"
            " grad."
        )
    if torch.allclose(given.double() * num_ranks, mean.double(), rtol=1e-3):
        return "That is the mean, divided by the number of ranks a second time."
    return (
        "All ranks' gradients count once, and one that has none counts as zeros. Ranks match"
        " collectives by order, so send the buckets in the same order on every rank, even if a"
        " later one is full first."
    )


def draw_right(values: Sequence[Any], wanted: Gradients, names: Sequence[str]) -> Drawn:
    """Which gradient is the mean, on which rank."""
    from worldsize.draw.contrast import grid

    means = {place: mean for place, mean in enumerate(wanted) if mean is not None}
    rows = {}
    for rank, value in enumerate(values):
        row = []
        for place, mean in means.items():
            given = entry(value, place)
            is_fit = isinstance(given, torch.Tensor) and given.shape == mean.shape
            row.append(
                "mean" if is_fit and torch.allclose(given, mean, rtol=1e-3, atol=1e-6) else "wrong"
            )
        rows[f"rank {rank}"] = row
    columns = [names[place] if names else f"parameter {place}" for place in means]
    return grid(rows, columns, "mean", "Which gradient is the mean, on which rank")


def calls_of(timeline: Timeline, rank: int, name: str) -> list[Event]:
    """The collectives of this name that a rank took part in, in order."""
    return [one for one in timeline.of(rank) if one.kind == COMMUNICATION and one.name == name]


def draw_run(timeline: Timeline, title: str) -> Drawn:
    """When each rank was busy."""
    from worldsize.draw import timeline as drawn

    return InFewColours(drawn(timeline, title))


class InFewColours:
    """A picture in a quarter of its bytes: a page may hold many."""

    def __init__(self, picture: Drawn) -> None:
        self._picture, self.alt = picture, picture.alt

    def png(self) -> bytes:
        """The bytes of a PNG file of 32 colours."""
        file = io.BytesIO()
        drawn = Image.open(io.BytesIO(self._picture.png())).convert("RGB")
        drawn.quantize(32).save(file, "png", optimize=True)
        return file.getvalue()


def expect_sizes(
    timeline: Timeline, wanted: list[int], what: str, hint: str, in_order: bool = True
) -> None:
    """Raise CheckFailed unless the all-reduces of rank 0 are of these bytes."""
    given = [one.size_bytes for one in calls_of(timeline, 0, "all_reduce")]
    if (given if in_order else sorted(given)) == (wanted if in_order else sorted(wanted)):
        return
    picture = partial(draw_run, timeline, "What your ranks sent")
    if len(given) != len(wanted):
        raise CheckFailed(f"{len(wanted)} all-reduces: {what}", f"{len(given)}", hint, picture)
    raise CheckFailed(f"all-reduces of {wanted} bytes: {what}", f"{given}", hint, picture)


def expect_over_the_wire(
    student: Any, rng: torch.Generator, clean: Run, on_rank: Any, *args: Any, **options: Any
) -> None:
    """Raise CheckFailed unless one number changed in an all-reduce changes this run's result."""
    rank = whole(rng, 0, len(clean.values) - 1)
    calls = [one for one in clean.timeline.of(rank) if one.kind == COMMUNICATION]
    places = [place for place, one in enumerate(calls) if one.name == "all_reduce"]
    if not places:
        raise CheckFailed(
            "gradients that travel by all-reduces",
            f"no all-reduce of rank {rank}",
            "What ranks know of each other comes from what they receive.",
        )
    error = SilentError(rank, places[whole(rng, 0, len(places) - 1)], seed=whole(rng, 0, 10**6))
    spoilt = student.emulated(on_rank, *args, **RULES, faults=[error], **options)
    if is_same(clean.values, spoilt.values):
        raise CheckFailed(
            "one number that was changed on its way to show in the result",
            "the same result as without it",
            "What ranks know of each other comes from what they receive.",
        )


# broadcast_state


def expect_state_of_rank_0(values: Sequence[Any], seed: int) -> None:
    """Raise CheckFailed unless every rank has the state that the seed of rank 0 draws."""
    module = stateful(seed)
    kinds = {name: "buffer" for name, _ in module.named_buffers()}
    for rank, value in enumerate(values):
        for name, wanted in state_of(module).items():
            given = entry(value, name)
            hint = (
                "Buffers count too, of any dtype."
                if name in kinds
                else "All parameters count, frozen ones too."
            )
            what = f"the {kinds.get(name, 'parameter')} {name} on rank {rank}"
            expect_close(
                given,
                wanted,
                what,
                f"{hint} Write in place: {name} is the tensor that the module holds.",
            )


@points(1.5, cell="check_broadcast_state")
def check_broadcast_gives_everybody_the_state_of_rank_0(student, rng):
    """All parameters and buffers become those of rank 0, in place: frozen ones, integers and
    booleans too.
    """
    world_size = whole(rng, 3, 4)  # of 2 ranks, a message to rank 1 would do
    seeds = seeds_of_ranks(rng, world_size)
    run = student.emulated(broadcast_on_rank, world_size=world_size, each=seeds, **RULES)
    expect_state_of_rank_0(run.values, *seeds[0])


@points(
    0.5, cell="check_broadcast_state", needs=["check_broadcast_gives_everybody_the_state_of_rank_0"]
)
def check_broadcast_sends_each_tensor_once(student, rng):
    """Rank 0 sends each tensor once, even a shared parameter, and no gradients or copies."""
    seeds = [(whole(rng, 0, 10**6),) for _ in range(2)]
    run = student.emulated(broadcast_on_rank, world_size=2, each=seeds, **RULES)
    size_bytes = sum(tensor.nbytes for tensor in state_of(stateful(0)).values())
    sent_bytes = sum(
        one.size_bytes for name in COLLECTIVES for one in calls_of(run.timeline, 0, name)
    )
    if sent_bytes != size_bytes:
        hint = (
            "`module.parameters()` and `module.buffers()` give each tensor once;"
            " `state_dict()` gives a shared one twice."
        )
        raise CheckFailed(
            f"{size_bytes} bytes, those of all parameters and buffers", f"{sent_bytes} bytes", hint
        )


# average_one_by_one, average_flat


def drawn_spec(rng: torch.Generator, dtypes: Sequence[str]) -> Spec:
    """Some trainable parameters of each dtype and some frozen ones.

    The first one is trainable and the largest, the second an odd number of float32: in reverse
    order, or one dtype after the other, they never have the same sizes.
    """
    rest = [
        ([whole(rng, 1, 4), whole(rng, 1, 5)], dtype, True) for dtype in dtypes for _ in range(2)
    ]
    rest += [([whole(rng, 1, 9)], "float32", False)]
    first = [([whole(rng, 21, 29)], dtypes[0], True), ([2 * whole(rng, 0, 4) + 1], "float32", True)]
    return [*first, *shuffled(rng, rest)]


def drawn_gradients(rng: torch.Generator, spec: Spec, world_size: int) -> list[Gradients]:
    """Gradients for each rank: some ranks lack some, and all lack one."""
    trainable = [place for place, (_, _, requires_grad) in enumerate(spec) if requires_grad]
    unused, *partly = shuffled(rng, trainable[1:])
    found: list[Gradients] = []
    for rank in range(world_size):
        lacking = {unused, partly[rank % len(partly)]}
        found.append(
            [
                (
                    positive(rng, *shape, dtype=dtype)
                    if requires_grad and place not in lacking
                    else None
                )
                for place, (shape, dtype, requires_grad) in enumerate(spec)
            ]
        )
    return found


def bytes_of(spec: Spec, place: int) -> int:
    shape, dtype, _ = spec[place]
    return torch.Size(shape).numel() * getattr(torch, dtype).itemsize


def run_average(
    student: Any, rng: torch.Generator, name: str, dtypes: Sequence[str], lacks: bool
) -> tuple[Run, Spec]:
    """A run of one of the two, with its result compared."""
    world_size, spec = (
        whole(rng, 3, 4),
        drawn_spec(rng, dtypes),
    )  # of 2 ranks, halves would be means
    frozen = [place for place, one in enumerate(spec) if not one[2]]
    gradients = drawn_gradients(rng, spec, world_size)
    if not lacks:
        gradients = [
            [
                None if place in frozen else positive(rng, *one[0], dtype=one[1])
                for place, one in enumerate(spec)
            ]
        ]
        gradients = [
            [one if one is None else one * (rank + 1) for one in gradients[0]]
            for rank in range(world_size)
        ]
    each = [(of_rank,) for of_rank in gradients]
    options = {"world_size": world_size, "each": each}
    run = student.emulated(average_on_rank, name, spec, **RULES, **options)
    expect_means(run.values, gradients, f"with {world_size} ranks", frozen)
    if not lacks:
        expect_over_the_wire(student, rng, run, average_on_rank, name, spec, **options)
    return run, spec


@points(0.5, cell="check_average_one_by_one")
def check_one_by_one_gives_means(student, rng):
    """Every rank ends with the mean of all ranks' gradients, sent over the wire; frozen parameters
    have none.
    """
    run_average(student, rng, "average_one_by_one", ["float32"], lacks=False)


@points(1, cell="check_average_one_by_one", needs=["check_one_by_one_gives_means"])
def check_one_by_one_counts_missing_gradients_as_zeros(student, rng):
    """A rank without a gradient for a parameter counts as zeros, and gets the mean too."""
    run_average(student, rng, "average_one_by_one", ["float32", "float64"], lacks=True)


@points(0.5, cell="check_average_one_by_one", needs=["check_one_by_one_gives_means"])
def check_one_by_one_sends_each_gradient_once(student, rng):
    """One all-reduce for each parameter that is not frozen, in their order; one for a shared
    parameter.
    """
    run, spec = run_average(student, rng, "average_one_by_one", ["float64", "float32"], lacks=False)
    wanted = [bytes_of(spec, place) for place, one in enumerate(spec) if one[2]]
    expect_sizes(
        run.timeline, wanted, "one for each parameter that requires a gradient, in order", ""
    )


@points(1, cell="check_average_flat")
def check_flat_gives_means(student, rng):
    """Every rank ends with the mean of all ranks' gradients, sent over the wire; frozen parameters
    have none.
    """
    run_average(student, rng, "average_flat", ["float32"], lacks=False)


@points(1, cell="check_average_flat", needs=["check_flat_gives_means"])
def check_flat_counts_missing_gradients_as_zeros(student, rng):
    """A rank without a gradient for a parameter counts as zeros, and gets the mean too; with
    several dtypes.
    """
    run_average(student, rng, "average_flat", ["float32", "float64"], lacks=True)


@points(1, cell="check_average_flat", needs=["check_flat_gives_means"])
def check_flat_sends_one_tensor_for_each_dtype(student, rng):
    """One all-reduce for each dtype, of as many bytes as all gradients of that dtype have."""
    run, spec = run_average(student, rng, "average_flat", ["float64", "bfloat16"], lacks=False)
    dtypes = {dtype for _, dtype, requires_grad in spec if requires_grad}
    wanted = [
        sum(bytes_of(spec, place) for place, one in enumerate(spec) if one[2] and one[1] == dtype)
        for dtype in dtypes
    ]
    hint = "Numbers travel in the dtype of their gradient, all of one dtype in one tensor."
    expect_sizes(
        run.timeline, wanted, f"one for each of {', '.join(sorted(dtypes))}", hint, in_order=False
    )


# make_buckets


def buckets_of(spec: Spec, bucket_bytes: int) -> list[list[int]]:
    """The places of the parameters in each bucket."""
    buckets: list[list[int]] = []
    for place in reversed(range(len(spec))):
        if not spec[place][2]:
            continue
        last = buckets[-1] if buckets else []
        size_bytes = sum(bytes_of(spec, one) for one in last) + bytes_of(spec, place)
        if last and size_bytes <= bucket_bytes and spec[last[0]][1] == spec[place][1]:
            last.append(place)
        else:
            buckets.append([place])
    return buckets


def expect_buckets(student: Any, cases: list[tuple[Spec, int]], hint: str) -> None:
    """Raise CheckFailed unless the student's buckets of these specs are as promised."""
    specs, sizes = [spec for spec, _ in cases], [size for _, size in cases]
    (found,) = student.emulated(buckets_on_rank, specs, sizes, world_size=1, **RULES).values
    for place, (spec, bucket_bytes) in enumerate(cases):
        wanted, given = buckets_of(spec, bucket_bytes), entry(found, place)
        if given == wanted:
            continue
        sizes = [
            f"{bytes_of(spec, one)} B{'' if spec[one][2] else ' frozen'}"
            for one in range(len(spec))
        ]
        of = f"bucket_bytes={bucket_bytes} and parameters of {sizes}"
        is_reversed = wanted and entry(given, 0, 0) == min(map(min, wanted))
        found_hint = "Start at the last parameter." if is_reversed else hint
        raise CheckFailed(
            f"buckets {wanted} (places of parameters) for {of}", shown(given), found_hint
        )


@points(2, cell="check_make_buckets")
def check_buckets_are_filled_from_the_last_parameter_on(student, rng):
    """Parameters in reverse order, each bucket as full as `bucket_bytes` allows and never fuller;
    no frozen ones.
    """
    cases = []
    for _ in range(4):
        spec = [
            ([whole(rng, 1, 20)], "float32", whole(rng, 0, 3) > 0) for _ in range(whole(rng, 6, 12))
        ]
        cases.append((spec, 4 * whole(rng, 20, 45)))
    # one more, where it always shows that a frozen one is listed or counted, or that the first
    # bucket takes a third
    sizes = [whole(rng, 5, 9) for _ in range(5)]
    spec = [([size], "float32", place != 3) for place, size in enumerate(sizes)]
    cases.append((spec, 4 * (sizes[2] + sizes[4] + whole(rng, 1, 4))))
    expect_buckets(
        student, cases, "A bucket ends where the next parameter would bring it above bucket_bytes."
    )


@points(1, cell="check_make_buckets", needs=["check_buckets_are_filled_from_the_last_parameter_on"])
def check_buckets_keep_to_dtypes_and_edges(student, rng):
    """A bucket has one dtype and may be exactly full; a large parameter is alone; without
    parameters there are no buckets.
    """
    half = [
        ([whole(rng, 1, 9)], dtype, True)
        for dtype in ("float32", "float64", "float64", "float32", "bfloat16")
    ]
    size = whole(rng, 2, 9)
    equal = [([size], "float32", True) for _ in range(6)]
    large = [([size], "float32", True), ([9 * size], "float32", True), ([size], "float32", True)]
    cases = [
        (half, 10**6),
        (equal, 8 * size),
        (large, 8 * size),
        ([], 8),
        ([([3], "float32", False)], 8),
    ]
    expect_buckets(
        student,
        cases,
        "Another dtype starts another bucket; a bucket that is exactly full is allowed.",
    )


# DataParallel


def drawn_batches(rng: torch.Generator, world_size: int, num_steps: int) -> list[list[list[Any]]]:
    """For each rank, the arguments of each step."""
    size = whole(rng, 3, 5)
    return [
        [[torch.randn(size, 5, generator=rng)] for _ in range(num_steps)] for _ in range(world_size)
    ]


def expect_steps(
    run: Run,
    make: Callable[[int], nn.Module],
    seed: int,
    batches: list[list[list[Any]]],
    may_be_sum: bool = True,
) -> None:
    """Raise CheckFailed unless each step's gradients are the means, or sums."""
    frozen, names = frozen_of(make(0)), names_of(make(0))
    for step in range(len(batches[0])):
        own = [own_gradients(make, seed, [of_rank[step]]) for of_rank in batches]
        values = [entry(value, step) for value in run.values]
        expect_means(values, own, f"after step {step + 1}", frozen, names, may_be_sum)


def names_of(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def frozen_of(module: nn.Module) -> list[int]:
    return [place for place, one in enumerate(module.parameters()) if not one.requires_grad]


@points(1, cell="check_DataParallel")
def check_parallel_starts_like_rank_0(student, rng):
    """After the constructor all ranks have the parameters and buffers of rank 0."""
    seeds = seeds_of_ranks(rng, 3)
    run = student.emulated(start_on_rank, world_size=3, each=seeds, **RULES)
    expect_state_of_rank_0(run.values, *seeds[0])


@points(3, cell="check_DataParallel")
def check_parallel_gives_the_gradients_of_one_process(student, rng):
    """After `finish` each gradient is that of a single process with all batches, in every step,
    sent over the wire.
    """
    world_size, seed = whole(rng, 3, 4), whole(rng, 0, 10**6)  # of 2 ranks, halves would be means
    batches = drawn_batches(rng, world_size, 3)
    each = [(seed, of_rank) for of_rank in batches]
    args = (plain, 4 * whole(rng, 40, 60))
    run = student.emulated(steps_on_rank, *args, world_size=world_size, each=each, **RULES)
    expect_steps(run, plain, seed, batches)
    expect_over_the_wire(student, rng, run, steps_on_rank, *args, world_size=world_size, each=each)
    try:
        expect_steps(run, plain, seed, batches, may_be_sum=False)
    except CheckFailed as sums:
        partly = PartlyHeld(1 / 3, sums.expected, sums.actual, sums.hint)
        partly.picture = sums.picture
        raise partly from None


GRADIENTS = "check_parallel_gives_the_gradients_of_one_process"


@points(1.5, cell="check_DataParallel", needs=[GRADIENTS])
def check_parallel_takes_tied_and_frozen_parameters(student, rng):
    """A parameter that two layers share has the sum of both uses, averaged; a frozen one has no
    gradient.
    """
    world_size = whole(rng, 3, 4)  # of 2 ranks, halves would be means
    batches, seed = drawn_batches(rng, world_size, 2), whole(rng, 0, 10**6)
    each = [(seed, of_rank) for of_rank in batches]
    run = student.emulated(steps_on_rank, tangled, 90, world_size=world_size, each=each, **RULES)
    expect_steps(run, tangled, seed, batches)
    trained = [one.nbytes for one in tangled(0).parameters() if one.requires_grad]
    sent_bytes = sum(one.size_bytes for one in calls_of(run.timeline, 0, "all_reduce"))
    if sent_bytes > 2 * sum(trained):
        expected = (
            f"{2 * sum(trained)} bytes in two steps, each shared gradient once and no frozen one"
        )
        raise CheckFailed(
            expected, f"{sent_bytes}", "`module.parameters()` gives a shared parameter once."
        )


@points(1.5, cell="check_DataParallel", needs=[GRADIENTS])
def check_parallel_takes_unused_parameters(student, rng):
    """Ranks may use different parameters, in different orders, and leave some unused: those count
    as zeros.
    """
    batches, seed = drawn_batches(rng, 2, 3), whole(rng, 0, 10**6)
    taken = [[[0, 1], [1, 0], [2]], [[1, 0], [2], [2]]]
    for of_rank, branches in zip(batches, taken, strict=True):
        for batch, one in zip(of_rank, branches, strict=True):
            batch.append(one)
    each = [(seed, of_rank) for of_rank in batches]
    run = student.emulated(steps_on_rank, branching, 60, world_size=2, each=each, **RULES)
    expect_steps(run, branching, seed, batches)


@points(2, cell="check_DataParallel", needs=[GRADIENTS])
def check_parallel_sends_its_buckets(student, rng):
    """One all-reduce for each bucket, in the order of `make_buckets`, with the bucket's bytes, and
    nothing else.
    """
    num_steps, seed = 2, whole(rng, 0, 10**6)
    batches = drawn_batches(rng, 2, num_steps)
    each = [(seed, of_rank) for of_rank in batches]
    spec = [(list(one.shape), "float32", True) for one in plain(0).parameters()]
    sizes = [bytes_of(spec, place) for place in range(len(spec))]
    bucket_bytes = sum(sizes[-4:]) + whole(rng, 0, 20)
    run = student.emulated(steps_on_rank, plain, bucket_bytes, world_size=2, each=each, **RULES)
    wanted = [sum(sizes[place] for place in bucket) for bucket in buckets_of(spec, bucket_bytes)]
    hint = (
        "A bucket is one flat tensor, sent once, in the dtype of its gradients, after the bucket"
        " before it."
    )
    expect_sizes(
        run.timeline,
        wanted * num_steps,
        f"the buckets of two steps, bucket_bytes={bucket_bytes}",
        hint,
    )
    last_broadcast = max((one.end_s for one in calls_of(run.timeline, 0, "broadcast")), default=0.0)
    if last_broadcast > min(one.start_s for one in calls_of(run.timeline, 0, "all_reduce")):
        raise CheckFailed("broadcasts in the constructor only", "one after the first all-reduce")


def timed_run(student: Any, rng: torch.Generator) -> tuple[Run, float, float]:
    """A run of one step with layers of known times, and its time with and without overlap."""
    world_size, width = whole(rng, 2, 3), 8 * whole(rng, 24, 40)
    cluster, layer_bytes = drawn_cluster(rng, 4), 4 * width * width
    num_layers, per_bucket = whole(rng, 6, 8), 2
    price_s = pricing.price(
        "all_reduce", per_bucket * layer_bytes, range(world_size), cluster
    ).time_s
    times_s = [price_s * whole(rng, 6, 12) / 40 for _ in range(num_layers)]
    bucket_bytes = per_bucket * layer_bytes
    run = student.emulated(
        timed_on_rank,
        width,
        times_s,
        bucket_bytes,
        world_size=world_size,
        cluster=cluster,
        **RULES,
    )
    ready_s = [
        sum(times_s) + passed_s for passed_s in accumulate(2 * one for one in reversed(times_s))
    ]
    through_s, apart_s = 0.0, ready_s[-1]
    for first in range(0, num_layers, per_bucket):
        layers = range(first, min(first + per_bucket, num_layers))
        cost_s = pricing.price(
            "all_reduce", len(layers) * layer_bytes, range(world_size), cluster
        ).time_s
        through_s = max(through_s, ready_s[layers[-1]]) + cost_s
        apart_s += cost_s
    return run, through_s, apart_s


def step_of(timeline: Timeline) -> tuple[float, float]:
    """When the first forward began, and when backward ended, on any rank."""
    work = [one for one in timeline.events if one.kind in ("forward", "backward")]
    if not work:
        raise CheckFailed("the module to run", "no call of it", "`__call__` calls the module.")
    return min(one.start_s for one in work), max(one.end_s for one in work)


@points(1, cell="check_DataParallel", needs=[GRADIENTS])
def check_parallel_sends_before_backward_ends(student, rng):
    """The first all-reduce is issued while backward still works."""
    run, _, _ = timed_run(student, rng)
    _, backward_end_s = step_of(run.timeline)
    for rank in range(len(run.values)):
        first_s = min(
            (one.start_s for one in calls_of(run.timeline, rank, "all_reduce")),
            default=float("inf"),
        )
        if first_s >= backward_end_s:
            hint = (
                "Register a hook on each parameter, and send a bucket from the hook of its last"
                " gradient."
            )
            picture = partial(draw_run, run.timeline, "When your ranks sent")
            raise CheckFailed("an all-reduce that begins during backward", "none", hint, picture)


@points(1.5, cell="check_DataParallel", needs=["check_parallel_sends_before_backward_ends"])
def check_parallel_hides_communication_behind_backward(student, rng):
    """On a cluster with known prices the step ends when e_k = max(r_k, e_(k-1)) + c_k says, and
    exposes no more.
    """
    run, wanted_s, apart_s = timed_run(student, rng)
    start_s, _ = step_of(run.timeline)
    took_s = run.timeline.end_s - start_s
    if took_s > TOLERANCE * wanted_s:
        hint = (
            "Start each with async_op=True, as soon as its last gradient is there, and wait in"
            " finish only."
        )
        actual = f"{took_s * 1e6:.0f} µs; without any overlap it is {apart_s * 1e6:.0f} µs"
        picture = partial(draw_run, run.timeline, "When your ranks sent")
        raise CheckFailed(f"a step of {wanted_s * 1e6:.0f} µs", actual, hint, picture)


@points(1.5, cell="check_DataParallel", needs=[GRADIENTS])
def check_parallel_no_sync_accumulates(student, rng):
    """Inside `no_sync` nothing is sent and gradients are the rank's own; afterwards all sums are
    averaged.
    """
    batches, seed = drawn_batches(rng, 2, 3), whole(rng, 0, 10**6)
    for of_rank in batches:
        for batch, branches in zip(of_rank, ([0, 2], [0, 1], [1, 2]), strict=True):
            batch.append(branches)
        of_rank[-1][1] = [1]
    each = [(seed, of_rank) for of_rank in batches]
    run = student.emulated(accumulate_on_rank, 120, world_size=2, each=each, **RULES)
    names = names_of(branching(0))
    for round_ in range(2):
        for rank, of_rank in enumerate(batches):
            own, given = (
                own_gradients(branching, seed, of_rank[:-1]),
                entry(run.values[rank], 2 * round_),
            )
            for place, wanted in enumerate(own):
                if wanted is not None:
                    what = f"the gradient of {names[place]} on rank {rank} inside no_sync"
                    hint = "Inside no_sync gradients only add up, each rank its own."
                    expect_close(entry(given, place), wanted, what, hint, atol=1e-7)
        sums = [own_gradients(branching, seed, of_rank) for of_rank in batches]
        values = [entry(value, 2 * round_ + 1) for value in run.values]
        try:
            expect_means(values, sums, "after no_sync and finish", [], names, may_be_sum=True)
        except CheckFailed as error:
            hint = (
                "Inside no_sync hooks neither send nor count: the sums leave with the next backward"
                " outside."
            )
            raise CheckFailed(
                error.expected, error.actual, f"{error.hint} {hint}", error.picture
            ) from None
    size_bytes = sum(one.nbytes for one in branching(0).parameters())
    sent_bytes = sum(one.size_bytes for one in calls_of(run.timeline, 0, "all_reduce"))
    if sent_bytes > 2 * size_bytes:
        expected = f"{2 * size_bytes} bytes for two optimizer steps: nothing for no_sync"
        raise CheckFailed(expected, f"{sent_bytes}", "A hook inside no_sync sends nothing.")


@points(0.5, cell="check_DataParallel", needs=[GRADIENTS])
def check_parallel_keeps_no_second_copy(student, rng):
    """Between two steps it keeps at most one copy of the gradients."""
    width, num_layers = whole(rng, 60, 90), whole(rng, 3, 5)
    size_bytes = 4 * num_layers * (width * width + width)
    run = student.emulated(
        memory_on_rank, width, num_layers, size_bytes // 3, world_size=2, **RULES
    )
    for rank, held_bytes in enumerate(run.values):
        if not isinstance(held_bytes, int) or held_bytes > 1.02 * size_bytes:
            hint = "Drop the flat tensors and handles of a step when it is finished, or reuse them."
            expected = f"at most {size_bytes:,} bytes kept by rank {rank} after four steps"
            raise CheckFailed(expected, shown(held_bytes), hint)


@points(0.5, cell="check_DataParallel", needs=[GRADIENTS])
def check_parallel_works_on_real_sockets(student, rng):
    """Over real sockets, with Gloo, megabytes of gradients become the same means on all ranks."""
    width = 512
    places = torch.randint(width * width, (200,), generator=rng)
    each = [(width, whole(rng, 0, 10**9), places) for _ in range(2)]
    values = student.run(large_on_rank, world_size=2, each=each, forbid=NO_DDP)
    first = tensor_like(values[0], torch.zeros(len(places)))
    if first is None:
        raise CheckFailed("a gradient of the first layer", shown(values[0]))
    for rank, value in enumerate(values):
        hint = "Wait for each handle before you read its data."
        expect_close(value, first, f"200 elements of a gradient on rank {rank}", hint, atol=1e-9)


# test_data_parallel

HEAD = """
import torch
import torch.distributed as dist
from contextlib import contextmanager
"""
IN_FINISH = (
    HEAD
    + """
class DataParallel:
    def __init__(self, module, bucket_bytes):
        self.module, self.num_steps = module, 0
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        self.num_steps += 1
        for name, parameter in self.chosen():
            mean = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            parameter.grad = mean

    def chosen(self):
        return [(name, one) for name, one in self.module.named_parameters() if one.requires_grad]

    @contextmanager
    def no_sync(self):
        yield
"""
)
FROM_HOOKS = (
    HEAD
    + """
class DataParallel:
    def __init__(self, module, bucket_bytes):
        self.module, self.works, self.quiet = module, {}, 0
        for tensor in [*module.buffers(), *module.parameters()]:
            dist.broadcast(tensor.data, 0)
        self.used = []
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, parameter):
        if not self.quiet:
            self.used.append(parameter)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        trained = [one for one in self.module.parameters() if one.requires_grad][::-1]
        sent = []
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.div_(dist.get_world_size())
            sent.append(dist.all_reduce(parameter.grad, async_op=True))
        for work in sent:
            work.wait()
        self.used.clear()

    @contextmanager
    def no_sync(self):
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1
"""
)
FLAT = (
    HEAD
    + """
class DataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.inner = module
        with torch.no_grad():
            for tensor in list(module.parameters()) + list(module.buffers()):
                dist.broadcast(tensor, src=0)

    def forward(self, *inputs):
        return self.inner(*inputs)

    def finish(self):
        trained = [one for one in self.inner.parameters() if one.requires_grad]
        users = torch.tensor([float(one.grad is not None) for one in trained])
        dist.all_reduce(users)
        used = [one for one, count in zip(trained, users.tolist()) if count]
        for dtype in dict.fromkeys(one.dtype for one in used):
            alike = [one for one in used if one.dtype == dtype]
            filled = [one * 0 if one.grad is None else one.grad for one in alike]
            flat = torch.cat([gradient.detach().flatten() for gradient in filled])
            dist.all_reduce(flat)
            place = 0
            for parameter in alike:
                part = flat[place : place + parameter.numel()] / dist.get_world_size()
                parameter.grad = part.view(parameter.shape)
                place += parameter.numel()

    @contextmanager
    def no_sync(self):
        yield self
"""
)
RIGHT = {
    "sends each gradient in finish": IN_FINISH,
    "is a module and sends one flat tensor of each dtype": FLAT,
}
RIGHT["divides first, and starts all at once"] = FROM_HOOKS


def changed(source: str, old: str, new: str) -> str:
    """The source with one thing changed, which must be there once."""
    if source.count(old) != 1:
        raise ValueError(f"{old!r} stands there {source.count(old)} times")
    return source.replace(old, new)


TENSORS = "[*module.parameters(), *module.buffers()]"
CHOSEN = "return [(name, one) for name, one in self.module.named_parameters() if one.requires_grad]"
SILENT = changed(
    IN_FINISH, "            dist.all_reduce(mean)\n            mean /= dist.get_world_size()\n", ""
)
WRONG = {
    "sums gradients instead of averaging them": changed(
        IN_FINISH, "            mean /= dist.get_world_size()\n", ""
    ),
    "does not broadcast parameters": changed(IN_FINISH, TENSORS, "module.buffers()"),
    "does not broadcast buffers": changed(IN_FINISH, TENSORS, "module.parameters()"),
    "does not broadcast frozen parameters": changed(
        IN_FINISH,
        TENSORS,
        "[*(one for one in module.parameters() if one.requires_grad), *module.buffers()]",
    ),
    "never sends the gradient of a parameter that two layers share": changed(
        IN_FINISH,
        CHOSEN,
        "every = [one for _, one in self.module.named_parameters(remove_duplicate=False)]\n"
        "        return [\n"
        "            (name, one)\n"
        "            for name, one in self.module.named_parameters()\n"
        "            if one.requires_grad and sum(one is other for other in every) == 1\n"
        "        ]",
    ),
    "never sends its last bucket, that of the first parameters": changed(
        IN_FINISH, CHOSEN, CHOSEN + "[2:]"
    ),
    "leaves a rank without the gradient of a parameter that only another rank used": changed(
        IN_FINISH,
        "            parameter.grad = mean\n",
        "            if parameter.grad is not None:\n                parameter.grad = mean\n",
    ),
    "averages in the first step only": changed(
        IN_FINISH,
        "            parameter.grad = mean\n",
        "            if self.num_steps == 1:\n                parameter.grad = mean\n",
    ),
    "averages inside no_sync too": changed(
        FROM_HOOKS,
        "        if not self.quiet:\n",
        "        if self.quiet:\n"
        "            dist.all_reduce(parameter.grad.div_(dist.get_world_size()))\n"
        "        if not self.quiet:\n",
    ),
    "drops what was accumulated inside no_sync": changed(
        IN_FINISH, "        yield\n", "        yield\n        self.module.zero_grad()\n"
    ),
}


class Respelt(ast.NodeTransformer):
    """The same code with its own names replaced, its methods in another order and lines added."""

    def __init__(self, rng: torch.Generator, tree: ast.Module) -> None:
        self._rng = rng
        nodes = list(ast.walk(tree))
        stored = [one for one in nodes if isinstance(one, ast.Attribute | ast.Name)]
        stored = [one for one in stored if isinstance(one.ctx, ast.Store)]
        methods = {one.name for one in nodes if isinstance(one, ast.FunctionDef)} - PROMISED
        on_self = {one.attr for one in stored if isinstance(one, ast.Attribute) and is_self(one)}
        names = {one.id for one in stored if isinstance(one, ast.Name)}
        names |= {one.arg for one in nodes if isinstance(one, ast.arg)} - PROMISED
        self._attributes, self._names = self._drawn(methods | on_self), self._drawn(names)

    def _drawn(self, names: set[str]) -> dict[str, str]:
        numbers = torch.randperm(900, generator=self._rng)[: len(names)].add(100).tolist()
        words = [WORDS[whole(self._rng, 0, len(WORDS) - 1)] for _ in names]
        pairs = zip(words, numbers, strict=True)
        return dict(zip(sorted(names), (f"{word}_{number}" for word, number in pairs), strict=True))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._names.get(node.arg, node.arg))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = self._attributes.get(node.attr, node.attr) if is_self(node) else node.attr
        return ast.Attribute(self.visit(node.value), name, node.ctx)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.name = self._attributes.get(node.name, node.name)
        added = f"{WORDS[whole(self._rng, 0, len(WORDS) - 1)]} = {whole(self._rng, 0, 99)}"
        node.body[:0] = ast.parse(added).body * whole(self._rng, 0, 1)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.body = shuffled(self._rng, node.body)
        return node


PROMISED = {
    "__init__",
    "__call__",
    "forward",
    "finish",
    "no_sync",
    "self",
    "module",
    "bucket_bytes",
}
WORDS = (
    "batch",
    "bundle",
    "count",
    "found",
    "held",
    "item",
    "kept",
    "left",
    "mark",
    "note",
    "part",
)


def is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def respelt(rng: torch.Generator, source: str) -> str:
    """The same class, spelt as no other submission gets it: its text gives no mistake away."""
    tree = ast.parse(source)
    return ast.unparse(ast.fix_missing_locations(Respelt(rng, tree).visit(tree)))


def lets_pass(student: Any, rng: torch.Generator, source: str) -> bool:
    """True when the student's test raises on no rank."""
    made = Made(class_of, respelt(rng, source))
    try:
        run = student.emulated(test_on_rank, world_size=2, made=made)
    except StudentFailed as error:
        if error.outcome is Outcome.TIME_LIMIT:  # without its text, in which the class may stand
            raise StudentFailed(Outcome.TIME_LIMIT, "A run of the test took too long.") from None
        return False
    return all(value is True for value in run.values)


@points(1, cell="check_test_data_parallel")
def check_test_tells_right_from_wrong(student, rng):
    """The test lets right classes of different styles pass, and catches one that sends no gradients
    at all.
    """
    for style in shuffled(rng, list(RIGHT)):
        if not lets_pass(student, rng, RIGHT[style]):
            hint = (
                "It keeps every promise about state and gradients. Test promises, not one way to"
                " keep them."
            )
            raise CheckFailed(
                f"a right class to pass, one that {style}", "the test raised an error", hint
            )
    if lets_pass(student, rng, SILENT):
        hint = "Compare the gradients with those that one process has for all batches."
        raise CheckFailed(
            "a class whose gradients never leave their rank to be caught", "it passed", hint
        )


@points(5, cell="check_test_data_parallel", needs=["check_test_tells_right_from_wrong"])
def check_test_catches_wrong_classes(student, rng):
    """The test catches ten classes that each break one promise; each class caught gives a tenth of
    the points.
    """
    missed = [
        mistake for mistake in shuffled(rng, list(WRONG)) if lets_pass(student, rng, WRONG[mistake])
    ]
    if not missed:
        return
    expected, actual = f"all {len(WRONG)} wrong classes to be caught", f"{len(missed)} that passed"
    hint = "\n- ".join(
        [
            "Each class that passed does one of these. How would that change the state or the"
            " gradients of a rank?",
            *sorted(missed),
        ]
    )
    if len(missed) == len(WRONG):
        raise CheckFailed(expected, actual, hint)
    raise PartlyHeld(1 - len(missed) / len(WRONG), expected, actual, hint)
