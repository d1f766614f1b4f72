"""Hidden checks of lab 1: functions run on ranks, and the judge computes what to expect."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image
from torch import nn

from autograder.checks import PartlyHeld, StudentFailed, points, shown
from worldsize import pricing
from worldsize.check import CheckFailed, Drawn, expect_close
from worldsize.event import COMMUNICATION, Event, operations
from worldsize.faults import SilentError
from worldsize.hardware import H100, Cluster, Link
from worldsize.memory.meter import MemoryMeter
from worldsize.timeline import Timeline

NEEDS_TALK = ["check_result_is_made_of_what_travels"]
NO_DDP = {
    "torch.distributed.Reducer": (
        "torch's DistributedDataParallel and its Reducer are not allowed here: this is what you"
        " build"
    )
}
ALLOWED = {"broadcast", "all_reduce", "reduce", "send", "recv", "barrier"}
BESIDES = 256  # bytes that each rank may send for counts or a loss, each time
MOST_COPIES = 3  # of the gradients, themselves among them, while they are averaged
MOST_ALL_REDUCES = 2.5  # whose time the average may take
MAX_SEED = 400_000  # times 10,000 and an epoch it is still a seed for NumPy
MOST_STEPS = 1.5  # of the largest part's time, where computing takes far longer than talking
EXACT = {"rtol": 0.0, "atol": 0.0}
TOLERANCES = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
}
Tensors = dict[str, torch.Tensor]
Steps = list[list[torch.Tensor]]  # [step][rank]: sample indices


# What runs on the ranks. Nothing here knows an answer.


def classifier(state: Tensors) -> nn.Sequential:
    """A model with these tensors and their dtype, with BatchNorm if they include its statistics."""
    if "0.running_mean" in state:
        model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))
    else:
        width = len(state["0.bias"])
        model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3)).to(
            state["0.weight"].dtype
        )
    model.load_state_dict(state)
    return model


def buffered_model(tensors: Tensors) -> nn.Module:
    """A model with a frozen parameter and buffers of three dtypes, one of them not persistent."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].bias.requires_grad_(False)
    model.register_buffer("history", torch.zeros(3, dtype=torch.float64), persistent=False)
    with torch.no_grad():
        for name, tensor in every_tensor(model).items():
            if name in tensors:
                tensor.copy_(tensors[name])
    return model


def every_tensor(model: nn.Module) -> Tensors:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


class TimedClassifier(nn.Module):
    """A linear classifier that takes a known time for each sample, forward and backward."""

    def __init__(self, sample_s: float) -> None:
        super().__init__()
        self.linear, self.sample_s, self.num_rows = nn.Linear(5, 3), sample_s, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        import worldsize as ws
        from worldsize import emulate

        self.num_rows += len(images)
        with ws.span("forward and backward"):
            emulate.spend(self.sample_s * len(images))
        return self.linear(images)


def batches_on_rank(student: Any, calls: list[list[int]]) -> list[Any]:
    batches = []
    for global_seed, *arguments in calls:
        torch.manual_seed(global_seed)  # ranks need not share torch's global random state
        batches.append(student.rank_batches(*arguments))
    return batches


def broadcast_on_rank(student: Any, tensors: Tensors) -> dict[str, Tensors]:
    model = buffered_model(tensors)
    held: Tensors = dict(
        model.named_parameters()
    )  # what an optimiser made before the call would hold
    student.broadcast_model(model)
    return {"held": held, "model": every_tensor(model)}


def average_on_rank(
    student: Any,
    state: Tensors,
    frozen: list[str],
    images: torch.Tensor,
    labels: torch.Tensor,
    empty: str,
) -> dict[str, Any]:
    model = classifier(state)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    if len(images) > 0:
        F.cross_entropy(model(images), labels).backward()
    elif empty == "nan":
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float("nan"))
    student.average_gradients(model, len(images))
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def average_given_on_rank(
    student: Any, num_local_samples: int, gradients: list[torch.Tensor]
) -> list[torch.Tensor]:
    model = nn.Sequential(
        *[
            nn.Linear(gradient.shape[1], gradient.shape[0], bias=False, dtype=gradient.dtype)
            for gradient in gradients
        ]
    )
    for layer, gradient in zip(model, gradients, strict=True):
        layer.weight.grad = gradient
    student.average_gradients(model, num_local_samples)
    return [layer.weight.grad for layer in model]


def memory_of_average_on_rank(student: Any, shapes: list[list[int]], num_local_samples: int) -> Any:
    """The most bytes of tensors at once while gradients are averaged, gradients included."""
    model = nn.Sequential(*[nn.Linear(shape[1], shape[0], bias=False) for shape in shapes])
    for parameter in model.parameters() if num_local_samples else ():
        parameter.grad = torch.ones_like(parameter)
    given = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    meter = MemoryMeter(given, counts_read=False)
    del given  # a gradient that is replaced is free
    with meter:
        student.average_gradients(model, num_local_samples)
    return meter.most_bytes


def synchronise_on_rank(student: Any, tensors: Tensors) -> Tensors:
    model = buffered_model(tensors)
    student.synchronise_buffers(model)
    return every_tensor(model)


def counting_classifier(state: Tensors) -> tuple[nn.Module, list[int]]:
    """A model, and a list of the number of samples in every batch that goes through it."""
    model, num_rows = classifier(state), []
    model.register_forward_pre_hook(lambda module, inputs: num_rows.append(len(inputs[0])))
    return model, num_rows


def train_with_given_batches(
    student: Any, model: nn.Module, data: Tensors, epochs: list[Steps], settings: dict[str, Any]
) -> Any:
    """What `train` returns when these batches stand in for the student's own `rank_batches`."""

    def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
        given = {
            "num_samples": len(data["images"]),
            "batch_size": settings["batch_size"],
            "seed": settings["seed"],
        }
        asked = {"num_samples": num_samples, "batch_size": batch_size, "seed": seed}
        for name, value in given.items():
            if asked[name] != value:
                raise ValueError(
                    f"train called rank_batches with another {name} than it was called with itself"
                )
        if epoch not in range(len(epochs)):
            raise ValueError("train called rank_batches with an epoch outside 0 ... num_epochs - 1")
        if world_size == 1:
            return [torch.cat(parts) for parts in epochs[epoch]]
        if rank not in range(world_size) or world_size != len(epochs[epoch][0]):
            raise ValueError(
                "train called rank_batches with a rank or world_size that this run does not have"
            )
        return [parts[rank] for parts in epochs[epoch]]

    with mock.patch.object(student, "rank_batches", rank_batches):
        return student.train(model, data["images"], data["labels"], **settings)


def weights_on_rank(
    student: Any, data: Tensors, epochs: list[Steps], settings: dict[str, Any], state: Tensors
) -> dict[str, Any]:
    model, num_rows = counting_classifier(state)
    train_with_given_batches(student, model, data, epochs, settings)
    return {"model": every_tensor(model), "num_rows": sum(num_rows)}


def statistics_on_rank(
    student: Any, data: Tensors, epochs: list[Steps], settings: dict[str, Any], state: Tensors
) -> dict[str, Any]:
    """The trained model, and the running means with which each batch went through it."""
    model, before = classifier(state), []
    model.register_forward_pre_hook(
        lambda module, inputs: before.append(module[0].running_mean.clone())
    )
    train_with_given_batches(student, model, data, epochs, settings)
    return {"model": every_tensor(model), "before": before}


def losses_on_rank(
    student: Any, data: Tensors, epochs: list[Steps], settings: dict[str, Any], state: Tensors
) -> Any:
    return train_with_given_batches(student, classifier(state), data, epochs, settings)


def memory_of_training_on_rank(
    student: Any,
    data: Tensors,
    trainings: list[list[Steps]],
    settings: dict[str, Any],
    state: Tensors,
) -> Any:
    """For each training of a model, its most bytes of tensors at once and its samples."""
    import gc

    model, num_rows = counting_classifier(state)
    meter = MemoryMeter([*model.parameters()], counts_read=False)
    found = []
    for epochs in trainings:
        gc.collect()
        seen = sum(num_rows)
        meter.restart()
        with meter:
            train_with_given_batches(student, model, data, epochs, settings)
        found += [meter.most_bytes, sum(num_rows) - seen]
    return found


def timed_training_on_rank(
    student: Any, data: Tensors, epochs: list[Steps], settings: dict[str, Any], sample_s: float
) -> Any:
    model = TimedClassifier(sample_s)
    train_with_given_batches(student, model, data, epochs, settings)
    return model.num_rows


def own_weights_on_rank(
    student: Any,
    data: Tensors,
    world_size: int,
    settings: dict[str, Any],
    rank: int,
    state: Tensors,
) -> dict[str, Any]:
    torch.manual_seed(rank)  # ranks need not share torch's global random state
    model, num_rows = counting_classifier(state)
    student.train(model, data["images"], data["labels"], **settings)
    batches = [
        student.rank_batches(
            len(data["images"]), settings["batch_size"], epoch, settings["seed"], rank, world_size
        )
        for epoch in range(settings["num_epochs"])
    ]
    return {"model": every_tensor(model), "num_rows": sum(num_rows), "batches": batches}


# What the judge draws, computes and compares.


def whole(rng: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=rng))


def random_state(
    rng: torch.Generator, dtype: torch.dtype = torch.float32, width: int = 7
) -> Tensors:
    shapes = {"0.weight": (width, 5), "0.bias": (width,), "2.weight": (3, width), "2.bias": (3,)}
    return {name: torch.randn(shape, generator=rng, dtype=dtype) for name, shape in shapes.items()}


def random_data(
    rng: torch.Generator, num_samples: int, dtype: torch.dtype = torch.float32
) -> Tensors:
    images = torch.randn(num_samples, 5, generator=rng, dtype=dtype)
    return {"images": images, "labels": torch.randint(3, (num_samples,), generator=rng)}


def random_tensors(rng: torch.Generator) -> Tensors:
    """Values for a `buffered_model`, with integers too large to survive in float32."""
    values = {}
    for name, tensor in every_tensor(buffered_model({})).items():
        if tensor.is_floating_point():
            values[name] = torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
        else:
            values[name] = torch.randint(2**40, 2**41, tensor.shape, generator=rng)
    return values


def random_epochs(
    rng: torch.Generator, num_samples: int, batch_size: int, world_size: int, num_epochs: int
) -> list[Steps]:
    """Batches as `rank_batches` might give them, of all ranks."""
    orders = [torch.randperm(num_samples, generator=rng) for _ in range(num_epochs)]
    return [
        [list(batch.tensor_split(world_size)) for batch in order.split(batch_size)]
        for order in orders
    ]


def entry(value: Any, name: str) -> Any:
    """What a rank returned under this name; None when it returned something else altogether."""
    return value.get(name) if isinstance(value, dict) else None


def is_close(value: Any, wanted: Tensors) -> bool:
    """True when all the wanted tensors are in `value`, up to rounding."""
    for name, expected in wanted.items():
        actual = entry(value, name)
        if (
            not isinstance(actual, torch.Tensor)
            or actual.shape != expected.shape
            or actual.dtype != expected.dtype
        ):
            return False
        if not torch.allclose(actual, expected, rtol=1e-3, atol=1e-5):
            return False
    return True


def hint_for(value: Any, mistakes: list[tuple[Tensors, str]], otherwise: str) -> str:
    """The hint of the first known mistake that gives exactly this value."""
    return next((hint for wrong, hint in mistakes if is_close(value, wrong)), otherwise)


def expect_tensors(
    value: Any,
    wanted: Tensors,
    what: str,
    rank: int,
    hint: str,
    tolerance: dict[str, float] = TOLERANCES[torch.float32],
    picture: Callable[[], Drawn] | None = None,
) -> None:
    for name, expected in wanted.items():
        label = f"{what} {name} on rank {rank}"
        expect_close(entry(value, name), expected, label, hint, picture=picture, **tolerance)


def read_parts(value: Any, rank: int) -> list[torch.Tensor]:
    """The parts that `rank_batches` returned for one rank.

    Raises:
        CheckFailed: it is not a list of 1-D int64 tensors.
    """
    wanted = "rank_batches to return a list of 1-D int64 tensors"
    if not isinstance(value, list | tuple):
        raise CheckFailed(wanted, f"{shown(value)} for rank {rank}")
    for part in value:
        if not isinstance(part, torch.Tensor):
            raise CheckFailed(wanted, f"a list that holds {shown(part)}")
        if part.dtype != torch.int64 or part.dim() != 1:
            raise CheckFailed(wanted, f"a part of shape {tuple(part.shape)} and type {part.dtype}")
    return list(value)


def read_epoch(values: list[Any], num_samples: int, batch_size: int) -> Steps:
    """The parts of all ranks by step, from what `rank_batches` returned for each of them.

    Raises:
        CheckFailed: they do not share out all samples as the contract says.
    """
    parts_by_rank = [read_parts(value, rank) for rank, value in enumerate(values)]
    num_steps, rest = -(-num_samples // batch_size), num_samples % batch_size
    for parts in parts_by_rank:
        if len(parts) != len(parts_by_rank[0]):
            raise CheckFailed(
                "as many steps on every rank",
                "lists of different lengths",
                "A rank whose part is empty still needs an entry for it, or the others wait"
                " for it.",
            )
        if len(parts) != num_steps:
            hint = "`batch_size` is the size of the global batch, of all ranks together."
            if rest and len(parts) == num_steps - 1:
                hint = "The last batch is shorter than the others, and it is kept."
            raise CheckFailed(
                "one step for every global batch",
                f"{len(parts)} in place of {num_steps} steps",
                hint,
            )
    steps = [list(parts) for parts in zip(*parts_by_rank, strict=True)]
    for number, parts in enumerate(steps):
        refuse_bad_step(parts, min(batch_size, num_samples - number * batch_size))
    indices = torch.cat([part for parts in steps for part in parts])
    if not torch.equal(indices.sort().values, torch.arange(num_samples)):
        raise CheckFailed(
            "every sample once in an epoch",
            "samples that are missing or come twice",
            "All batches of an epoch are slices of one order.",
        )
    return steps


def refuse_bad_step(parts: list[torch.Tensor], num_samples: int) -> None:
    """Raise CheckFailed unless these parts share out one global batch of this many samples."""
    sizes = [len(part) for part in parts]
    picture = partial(draw_sizes, sizes, num_samples)
    if len(parts) > 1 and all(size == num_samples for size in sizes):
        raise CheckFailed(
            "every rank to get its own part of a global batch",
            (
                "the same data everywhere"
                if all(torch.equal(part, parts[0]) for part in parts)
                else "a whole batch each"
            ),
            "Split each global batch among the ranks: the parts together have batch_size samples.",
            picture,
        )
    if sum(sizes) != num_samples:
        raise CheckFailed(
            "parts that make up the global batch",
            f"parts with {sum(sizes)} samples together for a batch of {num_samples}",
            "No sample of a batch is dropped or repeated to make the parts even.",
            picture,
        )
    if max(sizes) - min(sizes) > 1:
        raise CheckFailed(
            "parts whose sizes differ by at most one",
            f"sizes {sizes}",
            "Share out the remainder, one sample a rank.",
            picture,
        )
    if len(torch.cat(parts).unique()) != num_samples:
        raise CheckFailed(
            "disjoint parts",
            "a sample on two ranks in one step",
            "All ranks must draw the same order, each from its own generator with the same seed,"
            " and split it the same way.",
        )


def draw_sizes(sizes: list[int], num_samples: int) -> Drawn:
    """The number of samples of one global batch on each rank; any ranks may get the extra ones."""
    from worldsize.draw.contrast import bars  # matplotlib is imported only where something is drawn

    fair = [
        len(part) for part in torch.arange(num_samples).tensor_split(len(sizes))
    ]  # the longest first
    by_size = sorted(
        range(len(sizes)), key=lambda rank: -sizes[rank]
    )  # a larger part may be on any rank
    expected = {
        f"rank {rank}": float(size) for rank, size in sorted(zip(by_size, fair, strict=True))
    }
    actual = {f"rank {rank}": float(size) for rank, size in enumerate(sizes)}
    return bars(expected, actual, "Samples of one global batch on each rank", "samples")


def read_losses(value: Any, num_steps: int, rank: int) -> torch.Tensor:
    """The losses that `train` returned on one rank, as float32.

    Raises:
        CheckFailed: it is not a list of `num_steps` numbers.
    """
    wanted = f"train to return a list of {num_steps} losses, one per step"
    if not isinstance(value, list | tuple):
        raise CheckFailed(wanted, f"{shown(value)} on rank {rank}")
    if len(value) != num_steps:
        raise CheckFailed(
            wanted, f"{len(value)} of them on rank {rank}", "One loss for every global batch."
        )
    try:
        return torch.tensor([float(loss) for loss in value])
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise CheckFailed(wanted, f"a list that holds something else on rank {rank}") from None


def mean_gradient(state: Tensors, images: torch.Tensor, labels: torch.Tensor) -> Tensors:
    """The gradient of the mean loss over these samples, by parameter."""
    model = classifier(state)
    loss = F.cross_entropy(model(images), labels)
    return dict(zip(state, torch.autograd.grad(loss, [*model.parameters()]), strict=True))


def weighted_sum(gradients: list[Tensors], weights: list[float]) -> Tensors:
    return {
        name: (
            torch.stack(
                [w * gradient[name] for gradient, w in zip(gradients, weights, strict=True)]
            ).sum(dim=0)
        )
        for name in gradients[0]
    }


def train_in_one_process(
    state: Tensors, data: Tensors, steps: Steps, lr: float
) -> tuple[Tensors, list[list[torch.Tensor]]]:
    """The weights after one SGD step a batch, and the losses of samples by step and part."""
    weights, losses = state, []
    for parts in steps:
        batch = torch.cat(parts)
        logits = classifier(weights)(data["images"][batch]).detach()
        sample_losses = F.cross_entropy(logits, data["labels"][batch], reduction="none")
        losses.append(list(sample_losses.split([len(part) for part in parts])))
        gradient = mean_gradient(weights, data["images"][batch], data["labels"][batch])
        weights = {name: weight - lr * gradient[name] for name, weight in weights.items()}
    return weights, losses


def expect_trained(
    values: list[Any], states: list[Tensors], data: Tensors, epochs: list[Steps], lr: float
) -> None:
    """Raise CheckFailed unless every rank has one process's weights and computed its own parts."""
    steps = [parts for epoch in epochs for parts in epoch]
    in_turn = [parts for number in range(len(epochs)) for parts in epochs[number % 2]]
    wanted, _ = train_in_one_process(states[0], data, steps, lr)
    mistakes = [
        (states[0], "The weights are still those of the start: no step was taken."),
        (
            train_in_one_process(states[0], data, len(epochs) * epochs[0], lr)[0],
            (
                "These are the weights after every epoch in the order of epoch 0: pass the epoch to"
                " rank_batches."
            ),
        ),
        (
            train_in_one_process(states[0], data, in_turn, lr)[0],
            (
                "These are the weights after the orders of epochs 0 and 1 in turn: pass every"
                " epoch from 0 to num_epochs - 1."
            ),
        ),
        (
            train_in_one_process(states[0], data, steps, lr * len(values))[0],
            (
                f"The steps are {len(values)} times too long: the gradients were summed, not"
                " averaged."
            ),
        ),
        (
            train_in_one_process(states[0], data, steps, lr / len(values))[0],
            (
                f"The steps are {len(values)} times too short: the mean was divided by the number"
                " of ranks a second time."
            ),
        ),
    ]
    otherwise = "Check zero_grad, the average of the gradients and the step, in this order."
    if not all(is_close(entry(value, "model"), as_tensors(values[0])) for value in values):
        otherwise = (
            "The ranks end with different weights: they must start alike, and step along the same"
            " gradient."
        )
    for rank, value in enumerate(values):
        hint = hint_for(entry(value, "model"), mistakes, otherwise)
        expect_tensors(entry(value, "model"), wanted, "the trained", rank, hint)
    everyone = sum(len(part) for parts in steps for part in parts)
    for rank, value in enumerate(values):
        num_rows, own = entry(value, "num_rows"), sum(len(parts[rank]) for parts in steps)
        if type(num_rows) is not int or num_rows != own:
            amount = (
                "all samples of every"
                if type(num_rows) is int and num_rows == everyone
                else "other samples of the"
            )
            raise CheckFailed(
                "each rank's model to see only its own part of every global batch, once",
                f"{amount} batch on rank {rank}",
                "The ranks are there to share the work: compute this rank's part, and let the"
                " average do the rest.",
            )


def as_tensors(value: Any) -> Tensors:
    """The trained tensors that a rank returned, without anything else that may be among them."""
    model = entry(value, "model")
    return (
        {name: t for name, t in model.items() if isinstance(t, torch.Tensor)}
        if isinstance(model, dict)
        else {}
    )


# rank_batches: the inputs and outputs are plain, so one process asks for the parts of every rank.


def ask_for_epochs(
    student: Any, rng: torch.Generator, sizes: list[tuple[int, int, int]]
) -> list[Steps]:
    """An epoch for each (num_samples, batch_size, world_size), if it shares out all samples."""
    calls = []
    for num_samples, batch_size, world_size in sizes:
        # 0 has checks of its own
        epoch, seed = whole(rng, 1, 9), whole(rng, 1, MAX_SEED)
        for rank in range(world_size):
            global_seed = whole(rng, 0, MAX_SEED)
            calls.append([global_seed, num_samples, batch_size, epoch, seed, rank, world_size])
    (values,) = student.run(batches_on_rank, calls, world_size=1)
    left = iter(listed(values, len(calls)))
    return [
        read_epoch([next(left) for _ in range(world_size)], num_samples, batch_size)
        for num_samples, batch_size, world_size in sizes
    ]


def listed(values: Any, length: int) -> list[Any]:
    """`values` when it is a list of this length, else that many times None."""
    return values if isinstance(values, list) and len(values) == length else [None] * length


@points(1, cell="check_rank_batches")
def check_parts_make_up_each_batch(student, rng):
    """At every step the parts of the ranks are disjoint, equal in size, and make up the global
    batch.
    """
    world_size = 3
    batch_size = world_size * whole(rng, 2, 5)
    # of few samples, parts of two different orders may be disjoint by chance
    num_samples = batch_size * whole(rng, 5, 8)
    ask_for_epochs(student, rng, [(num_samples, batch_size, world_size)])


@points(1, cell="check_rank_batches")
def check_uneven_sizes_lose_nothing(student, rng):
    """When sizes do not divide, no sample is lost, parts differ by at most one, and every rank has
    as many steps.
    """
    world_size = 4
    batch_size = 2 * world_size + 1
    num_samples = batch_size * whole(rng, 2, 4)
    # fewer are left over than there are ranks: someone's part is empty
    sizes = [(num_samples + rest, batch_size, world_size) for rest in range(1, world_size)]
    ask_for_epochs(student, rng, sizes)


@points(1, cell="check_rank_batches")
def check_every_epoch_has_a_new_order(student, rng):
    """Every epoch goes through the samples in another order, also with seed 0."""
    num_epochs, global_seed = 5, whole(rng, 0, MAX_SEED)
    calls = [
        [global_seed, 48, 12, epoch, seed, 0, world_size]
        for seed, world_size in ((whole(rng, 1, MAX_SEED), 3), (0, 1))
        for epoch in range(num_epochs)
    ]
    (values,) = student.run(batches_on_rank, calls, world_size=1)
    orders = [read_order(value) for value in listed(values, len(calls))]
    wanted, hint = "a new order in every epoch", "Seed the generator from seed and epoch."
    if comes_twice(orders[:num_epochs]):
        raise CheckFailed(wanted, "the same order in two epochs", hint)
    if comes_twice(orders[num_epochs:]):
        hint = f"{hint} Multiplied, a seed of 0 hides the epoch."
        raise PartlyHeld(0.5, wanted, "the same order in two epochs with seed 0", hint)


def comes_twice(orders: list[list[list[int]]]) -> bool:
    """True where two of these orders are the same."""
    return any(order in orders[:epoch] for epoch, order in enumerate(orders))


@points(1, cell="check_rank_batches")
def check_order_depends_on_the_seed_alone(student, rng):
    """The order follows from seed and epoch: in epoch 0 as in epoch 1, another seed gives another
    order, and the global random state does not.
    """
    seed, global_seed = whole(rng, 1, MAX_SEED), whole(rng, 0, MAX_SEED)
    others = [(global_seed + 1, seed), (global_seed, seed + 1), (global_seed, seed + 1000)]
    calls = [
        [state, 48, 12, epoch, its_seed, 0, 2]
        for epoch in (0, 1)
        for state, its_seed in ((global_seed, seed), *others)
    ]
    (values,) = student.run(batches_on_rank, calls, world_size=1)
    orders = [read_order(value) for value in listed(values, len(calls))]
    for epoch, of_epoch in enumerate((orders[:4], orders[4:])):
        first, other_state, *other_seeds = of_epoch
        if first != other_state:
            raise CheckFailed(
                "the same order for the same seed and epoch",
                "another one when torch's global random state differs",
                "Ranks need not share the global state: draw from a torch.Generator of your own.",
            )
        if first in other_seeds:
            raise CheckFailed(
                "another order for another seed",
                f"the same one in epoch {epoch}",
                "Seed the generator from seed and epoch; of a product with epoch 0, nothing is left"
                " of the seed.",
            )


def read_order(value: Any) -> list[list[int]]:
    """The samples of rank 0 by step, sorted within a step, which the contract leaves open."""
    return [sorted(part.tolist()) for part in read_parts(value, rank=0)]


# broadcast_model


def broadcast(
    student: Any, rng: torch.Generator, world_size: int
) -> tuple[list[Any], list[Tensors]]:
    """What every rank held and holds after the broadcast, and what each had before."""
    tensors = [random_tensors(rng) for _ in range(world_size)]
    values = student.run(
        broadcast_on_rank, world_size=len(tensors), each=[(own,) for own in tensors]
    )
    return values, tensors


def expect_rank_0s(
    values: list[Any], tensors: list[Tensors], names: list[str], otherwise: str
) -> None:
    """Raise CheckFailed unless the named tensors of every rank are exactly those of rank 0."""
    wanted = {name: tensors[0][name] for name in names}
    for rank, value in enumerate(values):
        own = {name: tensors[rank][name] for name in names}
        is_untouched = rank > 0 and is_close(value, own)
        hint = f"Rank {rank} still has its own values. {otherwise}" if is_untouched else otherwise
        picture = partial(draw_owners, values, tensors, names)
        expect_tensors(value, wanted, "the model's", rank, hint, EXACT, picture)


def draw_owners(values: list[Any], tensors: list[Tensors], names: list[str]) -> Drawn:
    """Whose values each rank holds, by tensor."""
    from worldsize.draw.contrast import grid

    def owner(name: str, rank: int) -> str:
        value = entry(values[rank], name)
        if not isinstance(value, torch.Tensor):
            return "nothing"
        for whose, other in {"rank 0's": 0, "its own": rank}.items():
            own = tensors[other][name]
            if value.shape == own.shape and value.dtype == own.dtype and torch.equal(value, own):
                return whose
        return "others"

    ranks = range(len(tensors))
    rows = {name: [owner(name, rank) for rank in ranks] for name in names}
    title = "Whose values each rank holds afterwards"
    return grid(rows, [f"rank {rank}" for rank in ranks], good="rank 0's", title=title)


def is_buffer(name: str) -> bool:
    return name in dict(buffered_model({}).named_buffers())


@points(1, cell="check_broadcast_model")
def check_parameters_become_those_of_rank_0(student, rng):
    """Every parameter, even a frozen one, becomes that of rank 0 on every rank."""
    values, tensors = broadcast(student, rng, 4)
    names = [name for name in tensors[0] if not is_buffer(name)]
    hint = "All parameters take the values of rank 0: no average, and none left out."
    expect_rank_0s([entry(value, "model") for value in values], tensors, names, hint)


@points(1, cell="check_broadcast_model")
def check_buffers_become_those_of_rank_0(student, rng):
    """Every buffer becomes that of rank 0 on every rank: floats, integers, and what state_dict
    leaves out.
    """
    values, tensors = broadcast(student, rng, 3)
    names = [name for name in tensors[0] if is_buffer(name)]
    hint = "All of model.buffers() take exactly the values of rank 0, each in its own dtype."
    expect_rank_0s([entry(value, "model") for value in values], tensors, names, hint)


@points(1, cell="check_broadcast_model")
def check_broadcast_is_in_place(student, rng):
    """An optimiser created before the broadcast still holds the parameters of the model."""
    values, tensors = broadcast(student, rng, 2)
    names = [name for name in tensors[0] if not is_buffer(name)]
    hint = (
        "The Parameter objects of before must receive the values; do not put new ones in their"
        " place."
    )
    expect_rank_0s([entry(value, "held") for value in values], tensors, names, hint)


# average_gradients


def expect_average(
    student: Any,
    rng: torch.Generator,
    counts: list[int],
    empties: list[str] | None = None,
    frozen: list[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Any]:
    """The gradients of every rank after the average, if they are those of the global batch."""
    tolerance = TOLERANCES[dtype]
    state, data = random_state(rng, dtype), random_data(rng, sum(counts), dtype)
    images, labels = data["images"].split(counts), data["labels"].split(counts)
    each = list(zip(images, labels, empties or [""] * len(counts), strict=True))
    values = student.run(average_on_rank, state, frozen or [], world_size=len(counts), each=each)

    trained = [name for name in state if name not in (frozen or [])]
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    local = [
        {name: (mean_gradient(state, x, y) if len(x) else zeros)[name] for name in trained}
        for x, y in zip(images, labels, strict=True)
    ]
    num_ranks, num_samples = len(counts), sum(counts)
    wanted = weighted_sum(local, [count / num_samples for count in counts])
    mistakes = [
        (
            weighted_sum(local, [1] * num_ranks),
            (
                f"These are {num_ranks} times too large: a sum, not a mean."
                if len(set(counts)) == 1
                else (
                    "That is the sum of the gradients of the ranks, not their mean weighted by"
                    " samples."
                )
            ),
        ),
        (
            weighted_sum(local, [1 / num_ranks] * num_ranks),
            (
                "That is the unweighted mean over the ranks: a rank with more samples must count"
                " for more."
            ),
        ),
        (
            weighted_sum(local, [bool(count) / sum(map(bool, counts)) for count in counts]),
            (
                "That is the unweighted mean over the ranks that have samples: one with more must"
                " count for more."
            ),
        ),
        (
            weighted_sum(local, [float(count) for count in counts]),
            (
                "That is the sum over all samples: divide by the number of samples on all ranks"
                " together."
            ),
        ),
        (
            weighted_sum(local, [count / num_samples / num_ranks for count in counts]),
            (
                f"These are {num_ranks} times too small: the mean was divided by the number of"
                " ranks a second time."
            ),
        ),
    ]
    for rank, value in enumerate(values):
        own = (
            local[rank],
            f"Rank {rank} still has the gradient of its own samples: nothing was exchanged.",
        )
        hint = hint_for(value, [own, *mistakes], hint_for_shape(value, trained))
        if is_close(value, wanted) and dtype == torch.float64:
            hint = "That is right to seven digits: float64 gradients went through float32."
        picture = partial(draw_weights, value, local, counts, rank)
        expect_tensors(value, wanted, "the gradient of", rank, hint, tolerance, picture)
    return values


def draw_weights(value: Any, local: list[Tensors], counts: list[int], rank: int) -> Drawn:
    """How much of each rank's own gradient is in the result of one rank."""
    from worldsize.draw.contrast import bars

    busy = [other for other, count in enumerate(counts) if count]
    names = [
        name for name, tensor in local[0].items() if isinstance(entry(value, name), torch.Tensor)
    ]
    expected = {f"rank {other}'s gradient": counts[other] / sum(counts) for other in busy}
    actual = dict.fromkeys(expected, float("nan"))
    if not names:
        actual = {}
    elif all(value[name].shape == local[0][name].shape for name in names):
        own = torch.stack(
            [torch.cat([local[other][name].flatten() for name in names]) for other in busy], dim=1
        )
        result = torch.cat([value[name].flatten().to(own.dtype) for name in names])
        if result.isfinite().all():
            weights = torch.linalg.lstsq(own.double(), result.double()[:, None]).solution.flatten()
            actual = dict(zip(expected, weights.tolist(), strict=True))
    return bars(expected, actual, f"What the result on rank {rank} is made of", "weight in the sum")


def hint_for_shape(value: Any, names: list[str]) -> str:
    """A hint by the kind of gradient, when its values fit no known mistake."""
    tensors = [entry(value, name) for name in names]
    if any(tensor is None for tensor in tensors):
        return "A rank without a gradient receives the result like every other rank."
    if any(isinstance(tensor, torch.Tensor) and tensor.isnan().any() for tensor in tensors):
        return (
            "The nan of a rank without samples spreads to all: 0 * nan is nan, so it must be"
            " replaced, not weighted."
        )
    return (
        "Weigh each rank's gradient by its samples, add up, and divide by the samples of all ranks."
    )


def given_gradients(
    rng: torch.Generator, num_ranks: int, dtype: torch.dtype = torch.float32
) -> tuple[list[tuple[int, list[torch.Tensor]]], int]:
    """The count and the gradients of each rank, and the bytes of one rank's gradients."""
    shapes = [(whole(rng, 30, 60), whole(rng, 30, 60)) for _ in range(3)]
    gradients = [
        [(torch.rand(shape, generator=rng) + 0.5).to(dtype) for shape in shapes]
        for _ in range(num_ranks)
    ]
    count = whole(rng, 2, 9)
    return [(count, of_rank) for of_rank in gradients], sum(one.nbytes for one in gradients[0])


@points(1, cell="check_average_gradients")
def check_result_is_made_of_what_travels(student, rng):
    """A rank knows of the others by what it receives: where numbers are changed on their way, the
    result changes.
    """
    num_ranks = 3  # an odd number: as many changed signs of a count do not cancel
    each, _ = given_gradients(rng, num_ranks)
    clean = student.emulated(average_given_on_rank, world_size=num_ranks, each=each)
    num_sends = [sum(map(sends_numbers, clean.timeline.of(rank))) for rank in range(num_ranks)]
    if not min(num_sends):
        raise CheckFailed(
            "every rank to send numbers", f"calls that send numbers, by rank: {num_sends}"
        )
    # one number in every call: a call may be of no consequence, such as one that only waits
    errors = [
        SilentError(rank, 0, seed=whole(rng, 0, MAX_SEED))
        for rank in range(num_ranks)
        for _ in range(num_sends[rank])
    ]
    try:
        spoilt = student.emulated(
            average_given_on_rank, world_size=num_ranks, each=each, faults=errors
        )
    except StudentFailed:
        return  # it shows: objects that were pickled can no longer be read
    before, after = (
        [numbers_like(own[1], value) for own, value in zip(each, run.values, strict=True)]
        for run in (clean, spoilt)
    )
    if all(map(is_multiple, after, before)):
        own = [torch.cat([one.double().flatten() for one in gradients]) for _, gradients in each]
        raise CheckFailed(
            "numbers that were changed on their way, one in each call, to show in the result",
            "the gradients that come out without it",
            (
                "Each rank still has its own gradients: what it received did not go into them."
                if all(map(torch.equal, before, own))
                else "What a rank knows of the others' gradients comes from what it receives."
            ),
        )


def sends_numbers(event: Event) -> bool:
    """True for a call whose numbers leave its rank: no barrier, and no receive."""
    return event.kind == COMMUNICATION and event.size_bytes > 0 and event.name != "recv"


def numbers_like(given: list[torch.Tensor], value: Any) -> torch.Tensor:
    """The numbers of the gradients that a rank returned; none where they are not like the given."""
    tensors = listed(value, len(given))
    for tensor, own in zip(tensors, given, strict=True):
        is_tensor = isinstance(tensor, torch.Tensor)
        if not is_tensor or (tensor.shape, tensor.dtype) != (own.shape, own.dtype):
            return torch.empty(0)
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def is_multiple(numbers: torch.Tensor, others: torch.Tensor) -> bool:
    """True where `numbers` are `others` times one factor, all that a count can change by itself."""
    if len(numbers) != len(others) or not len(others):
        return len(numbers) == len(others)
    largest = others.abs().argmax()
    crossed = numbers * others[largest], others * numbers[largest]
    return torch.allclose(*crossed, rtol=1e-4, atol=0.0)


@points(1, cell="check_average_gradients", needs=NEEDS_TALK)
def check_equal_parts_give_the_mean(student, rng):
    """Ranks with equally many samples all end with the mean of their gradients, not the sum."""
    num_ranks = 3
    count = (2, 4, 5)[whole(rng, 0, 2)]  # never as many as there are ranks
    expect_average(student, rng, [count] * num_ranks)


@points(1.5, cell="check_average_gradients", needs=NEEDS_TALK)
def check_uneven_parts_are_weighted(student, rng):
    """Ranks with more samples count for more, so that the result is the gradient over the global
    batch.
    """
    counts = [1, 2, whole(rng, 4, 5)]  # together neither 3 nor its square
    expect_average(
        student, rng, [counts[place] for place in torch.randperm(3, generator=rng).tolist()]
    )


@points(1, cell="check_average_gradients", needs=NEEDS_TALK)
def check_rank_without_samples_takes_part(student, rng):
    """A rank without samples counts as zero, whether its gradient is None or nan, and receives the
    result.
    """
    counts = [0, whole(rng, 1, 2), 0, whole(rng, 4, 5)]  # never as many as there are ranks
    expect_average(student, rng, counts, ["none", "", "nan", ""])


@points(0.5, cell="check_average_gradients", needs=NEEDS_TALK)
def check_frozen_parameters_stay_without_gradient(student, rng):
    """Frozen parameters keep no gradient, while the others, here in float64, get the average to all
    digits.
    """
    frozen = ["0.weight", "2.weight"]
    counts = [whole(rng, 2, 3)] * 4  # equal parts are a quarter each, which float32 holds exactly
    values = expect_average(student, rng, counts, frozen=frozen, dtype=torch.float64)
    for rank, value in enumerate(values):
        for name in frozen:
            if entry(value, name) is not None:
                raise CheckFailed(
                    f"the frozen parameter {name} to keep no gradient",
                    f"one on rank {rank}",
                    "Leave out parameters whose requires_grad is False.",
                )


def least_bytes(timeline: Timeline, num_ranks: int) -> float:
    """The bytes that all ranks together must send for a run's operations, by any algorithm."""
    ways = {
        "all_reduce": 2 * (num_ranks - 1),
        "broadcast": num_ranks - 1,
        "reduce": num_ranks - 1,
        "send": 1,
    }
    done = [
        parts[0] for parts in operations(timeline.events)
    ]  # one event of each, a message's send
    return sum(ways.get(one.name, 0) * one.size_bytes for one in done if one.kind == COMMUNICATION)


def expect_bytes(timeline: Timeline, num_ranks: int, least: int, most: int, what: str) -> None:
    """Raise CheckFailed unless all ranks together had to send as many bytes as that."""
    sent = least_bytes(timeline, num_ranks)
    picture = partial(draw_bytes, least, sent)
    if sent > most:
        hint = (
            "Each gradient goes through one all-reduce; samples, and what is the same on every"
            " rank, need not be sent."
        )
        raise CheckFailed(
            f"at most {most:,} bytes from {num_ranks} ranks: {what}", f"{sent:,.0f}", hint, picture
        )
    if sent < least:
        hint = "Every rank has to learn of the gradients of all others, in their own dtype."
        raise CheckFailed(
            f"at least {least:,} bytes from {num_ranks} ranks: {what}",
            f"{sent:,.0f}",
            hint,
            picture,
        )


def draw_bytes(wanted: float, sent: float) -> Drawn:
    """The bytes that have to travel and those that did."""
    from worldsize.draw.contrast import bars

    return bars(
        {"all ranks": wanted / 1e3},
        {"all ranks": sent / 1e3},
        "Bytes sent by all ranks together",
        "kB",
    )


@points(1, cell="check_average_gradients", needs=NEEDS_TALK)
def check_gradients_travel_as_in_one_all_reduce(student, rng):
    """All ranks together send what an all-reduce of the gradients must send, and little else."""
    num_ranks = 3  # of two ranks, each may send all to the other, and no byte is too many
    for dtype in (torch.float32, torch.bfloat16):
        each, size_bytes = given_gradients(rng, num_ranks, dtype)
        run = student.emulated(
            average_given_on_rank, world_size=num_ranks, each=each, allow=ALLOWED
        )
        least = 2 * (num_ranks - 1) * size_bytes
        what = f"2(N - 1) times the gradients, here of {dtype}"
        expect_bytes(run.timeline, num_ranks, least, least + BESIDES * num_ranks, what)


@points(0.5, cell="check_average_gradients", needs=NEEDS_TALK)
def check_averaging_takes_the_time_of_an_all_reduce(student, rng):
    """With large gradients the average takes at most 2.5 times as long as one all-reduce of all of
    them.
    """
    num_ranks = 4
    link = Link("drawn", 2e-6, 1e9 * whole(rng, 2, 4), "drawn for one check, 2026", kind="nvlink")
    cluster = Cluster(name="drawn", gpu=H100, gpus_per_node=num_ranks, intra=link)
    shape = (whole(rng, 300, 400), whole(rng, 400, 500))
    each = [(whole(rng, 1, 5), [torch.ones(shape), torch.ones(3, 5)]) for _ in range(num_ranks)]
    size_bytes = sum(one.nbytes for one in each[0][1])
    run = student.emulated(
        average_given_on_rank, world_size=num_ranks, each=each, cluster=cluster, allow=ALLOWED
    )
    limit_s = (
        MOST_ALL_REDUCES * pricing.price("all_reduce", size_bytes, range(num_ranks), cluster).time_s
    )
    end_s = run.timeline.end_s
    if end_s > limit_s:
        raise CheckFailed(
            f"{num_ranks} ranks to average {size_bytes:,} bytes in at most {limit_s * 1e6:.0f} µs, "
            f"{MOST_ALL_REDUCES} times the time of one all-reduce",
            f"{end_s * 1e6:.0f} µs",
            "The same bytes take longer when all go through one rank: its link is full, and"
            " those of the others are idle. In an all-reduce every rank's link carries an equal"
            " part.",
            partial(draw_times, limit_s, end_s),
        )


def draw_times(limit_s: float, end_s: float) -> Drawn:
    """The most emulated time that it may take and the time that it took."""
    from worldsize.draw.contrast import bars

    title = "Time on the described cluster, emulated"
    return bars({"emulated time": limit_s * 1e6}, {"emulated time": end_s * 1e6}, title, "µs")


@points(0.5, cell="check_average_gradients", needs=NEEDS_TALK)
def check_averaging_holds_few_copies(student, rng):
    """However many ranks there are, the gradients and everything computed from them take at most
    three times their bytes.
    """
    num_ranks = 4
    rows, columns = whole(rng, 30, 60), whole(rng, 30, 60)
    shapes = [
        [rows, columns],
        [columns, rows],
    ] * 2  # of one size, so that one at a time is a quarter
    each = [(shapes, 0 if rank == 1 else whole(rng, 1, 5)) for rank in range(num_ranks)]
    values = student.emulated(memory_of_average_on_rank, world_size=num_ranks, each=each).values
    size_bytes = 4 * rows * columns * len(shapes)
    limit_bytes = MOST_COPIES * size_bytes
    for rank, most_bytes in enumerate(values):
        if not isinstance(most_bytes, int) or most_bytes > limit_bytes + BESIDES:
            raise CheckFailed(
                f"at most {limit_bytes:,} bytes of tensors at once on rank {rank}: {MOST_COPIES}"
                " times its gradients",
                f"{most_bytes:,} bytes" if isinstance(most_bytes, int) else "none",
                "A tensor stays in memory as long as a name or a list holds it. Work in place"
                " (mul_, div_, copy_), one parameter at a time or on one flat tensor, and never"
                " keep what came from each rank.",
                partial(
                    draw_held, dict.fromkeys(range(num_ranks), limit_bytes), dict(enumerate(values))
                ),
            )


def draw_held(wanted: dict[int, int], held: dict[int, Any]) -> Drawn:
    """The bytes that each rank may hold at once and those that it held."""
    from worldsize.draw.contrast import bars

    expected = {f"rank {rank}": size / 1e3 for rank, size in wanted.items()}
    actual = {f"rank {rank}": size / 1e3 for rank, size in held.items() if isinstance(size, int)}
    return bars(expected, actual, "Most bytes of tensors at once, on each rank", "kB")


# synchronise_buffers


def synchronise(
    student: Any, rng: torch.Generator, world_size: int
) -> tuple[list[Any], list[Tensors]]:
    """What every rank holds after the synchronisation, and what each had before."""
    tensors = [random_tensors(rng) for _ in range(world_size)]
    values = student.run(
        synchronise_on_rank, world_size=len(tensors), each=[(own,) for own in tensors]
    )
    return values, tensors


@points(1, cell="check_synchronise_buffers")
def check_float_buffers_become_those_of_rank_0(student, rng):
    """Running statistics and other float buffers become those of rank 0."""
    values, tensors = synchronise(student, rng, 4)
    names = [
        name for name in tensors[0] if is_buffer(name) and tensors[0][name].is_floating_point()
    ]
    expect_rank_0s(
        values,
        tensors,
        names,
        "All buffers take the values of rank 0: no average, and none left out.",
    )


@points(1, cell="check_synchronise_buffers")
def check_integer_buffers_and_parameters_are_respected(student, rng):
    """Integer buffers become those of rank 0 without rounding, and parameters are left alone."""
    values, tensors = synchronise(student, rng, 3)
    names = [
        name for name in tensors[0] if is_buffer(name) and not tensors[0][name].is_floating_point()
    ]
    expect_rank_0s(
        values, tensors, names, "Integers keep their dtype and never pass through a float."
    )
    for rank, value in enumerate(values):
        parameters = {name: tensor for name, tensor in tensors[rank].items() if not is_buffer(name)}
        hint = "`synchronise_buffers` changes buffers only; the gradients keep parameters the same."
        expect_tensors(value, parameters, "the parameter", rank, hint, EXACT)


# train


@points(1.5, cell="check_train")
def check_ranks_reach_the_weights_of_one_process(student, rng):
    """Ranks with different initial weights that compute only their own parts reach the weights of
    one process.
    """
    world_size, num_epochs = 3, 3
    # of few samples, two epochs may have the same batches by chance
    batch_size = world_size * whole(rng, 3, 4)
    data = random_data(rng, 3 * batch_size)
    epochs = random_epochs(rng, 3 * batch_size, batch_size, world_size, num_epochs)
    settings = {
        "num_epochs": num_epochs,
        "batch_size": batch_size,
        "lr": 0.3,
        "seed": whole(rng, 0, MAX_SEED),
    }
    states = [random_state(rng) for _ in range(world_size)]
    each = [(state,) for state in states]
    values = student.run(
        weights_on_rank, data, epochs, settings, world_size=world_size, each=each, forbid=NO_DDP
    )
    expect_trained(values, states, data, epochs, settings["lr"])


@points(0.5, cell="check_train")
def check_all_five_work_together_on_uneven_batches(student, rng):
    """All five functions together reach the weights of one process, even with uneven batches and
    empty parts.
    """
    world_size, num_epochs = 4, 2
    batch_size = 2 * world_size + 1
    num_samples = 3 * batch_size + 2  # the last batch leaves two ranks without samples
    data = random_data(rng, num_samples)
    # steps on a sample alone are long ones: with a larger lr they make too much of float32's
    # rounding
    settings = {
        "num_epochs": num_epochs,
        "batch_size": batch_size,
        "lr": 0.2,
        "seed": whole(rng, 0, MAX_SEED),
    }
    states = [random_state(rng) for _ in range(world_size)]
    each = list(enumerate(states))
    values = student.run(
        own_weights_on_rank,
        data,
        world_size,
        settings,
        world_size=world_size,
        each=each,
        forbid=NO_DDP,
    )
    batches = [listed(entry(value, "batches"), num_epochs) for value in values]
    epochs = [
        read_epoch([own[epoch] for own in batches], num_samples, batch_size)
        for epoch in range(num_epochs)
    ]
    expect_trained(values, states, data, epochs, settings["lr"])


@points(1, cell="check_train")
def check_training_sends_gradients_and_little_else(student, rng):
    """Training sends the model once and the gradients in every step, by the operations that are
    allowed.
    """
    world_size, num_steps = 3, 2
    batch_size = 40 * world_size  # one sample of five numbers is small, a batch is not
    data = random_data(rng, num_steps * batch_size)
    epochs = random_epochs(rng, num_steps * batch_size, batch_size, world_size, num_epochs=1)
    settings = {
        "num_epochs": 1,
        "batch_size": batch_size,
        "lr": 0.1,
        "seed": whole(rng, 0, MAX_SEED),
    }
    width = whole(rng, 400, 900)  # a model whose bytes are many more than those of a count
    states = [random_state(rng, width=width) for _ in range(world_size)]
    each = [(state,) for state in states]
    run = student.emulated(
        weights_on_rank,
        data,
        epochs,
        settings,
        world_size=world_size,
        each=each,
        cluster="pcie-box",
        allow=ALLOWED,
        forbid=NO_DDP,
    )
    size_bytes = sum(tensor.nbytes for tensor in states[0].values())
    # of the gradients; the start is judged elsewhere
    least = 2 * num_steps * (world_size - 1) * size_bytes
    most = least + (world_size - 1) * size_bytes + 2 * num_steps * world_size * BESIDES
    expect_bytes(
        run.timeline,
        world_size,
        least,
        most,
        "the model once, then 2(N - 1) times the gradients a step",
    )


@points(1, cell="check_train")
def check_losses_are_those_of_the_global_batch(student, rng):
    """Every rank returns the same list: the mean loss over the whole global batch at each step."""
    world_size = 3
    batch_size = world_size + 2
    num_samples = 8 * batch_size + 2  # so many steps that no rounding of the losses goes unnoticed
    data, state = random_data(rng, num_samples), random_state(rng)
    (steps,) = random_epochs(rng, num_samples, batch_size, world_size, num_epochs=1)
    # with lr 0 the weights stay, so that a mistake in the gradients, judged elsewhere, does not
    # count again
    settings = {
        "num_epochs": 1,
        "batch_size": batch_size,
        "lr": 0.0,
        "seed": whole(rng, 0, MAX_SEED),
    }
    each = [(state,)] * world_size
    values = student.run(
        losses_on_rank, data, [steps], settings, world_size=world_size, each=each, forbid=NO_DDP
    )

    _, by_part = train_in_one_process(state, data, steps, lr=0.0)
    wanted = torch.stack([torch.cat(parts).mean() for parts in by_part])
    part_means = [[part.mean() for part in parts if len(part)] for parts in by_part]
    mistakes = [
        (
            torch.stack([torch.stack(means).mean() for means in part_means]),
            "ranks with more samples must count for more.",
        ),
        (
            torch.stack([torch.stack(means).sum() for means in part_means]),
            "that is the sum of the ranks' mean losses.",
        ),
        (
            torch.stack([torch.cat(parts).sum() for parts in by_part]),
            "that is the sum over the batch, not its mean.",
        ),
    ]
    for rank, value in enumerate(values):
        losses = read_losses(value, len(steps), rank)
        own = torch.stack([parts[rank].mean() for parts in by_part])  # nan where the part is empty
        hint = (
            "sum the losses of the samples over all ranks, and divide by the samples of all ranks."
        )
        if losses.isnan().any():
            hint = (
                "the mean over an empty part is nan, and it spreads: let an empty part add 0 to the"
                " sum."
            )
        for wrong, reason in [*mistakes, (own, "this is the loss of the rank's own part.")]:
            known = ~wrong.isnan()
            if torch.allclose(losses[known], wrong[known], rtol=1e-3, atol=1e-5):
                hint = reason
        if torch.allclose(losses, wanted, rtol=1e-3, atol=1e-3):
            hint = "return it as it is, not rounded."
        hint = f"A step's loss belongs to the global batch: {hint}"
        picture = partial(draw_losses, wanted, losses, rank)
        what = f"the losses on rank {rank}"
        expect_close(losses, wanted, what, hint, rtol=1e-5, atol=1e-6, picture=picture)


def draw_losses(wanted: torch.Tensor, losses: torch.Tensor, rank: int) -> Drawn:
    """The losses that should be and those that came, by step."""
    from worldsize.draw.contrast import bars

    expected, actual = (
        {f"step {step}": loss for step, loss in enumerate(one.tolist(), start=1)}
        for one in (wanted, losses)
    )
    return bars(expected, actual, f"The loss at each step, on rank {rank}", "loss")


@points(1, cell="check_train")
def check_training_keeps_the_buffers_alike(student, rng):
    """While a model with BatchNorm trains, every rank begins each step with the running statistics
    of rank 0, and it holds them afterwards.
    """
    world_size = 3
    batch_size = world_size * whole(rng, 3, 4)
    data = random_data(rng, 3 * batch_size)
    (steps,) = random_epochs(rng, 3 * batch_size, batch_size, world_size, num_epochs=1)
    settings = {
        "num_epochs": 1,
        "batch_size": batch_size,
        "lr": 0.1,
        "seed": whole(rng, 0, MAX_SEED),
    }
    weights = {
        "1.weight": torch.randn(3, 5, generator=rng),
        "1.bias": torch.randn(3, generator=rng),
    }
    state = {**nn.BatchNorm1d(5).state_dict(prefix="0."), **weights}
    each = [(state,)] * world_size
    arguments = (data, [steps], settings)
    values = student.run(
        statistics_on_rank, *arguments, world_size=world_size, each=each, forbid=NO_DDP
    )

    statistics = [nn.BatchNorm1d(5) for _ in range(world_size)]
    wanted = []  # of rank 0, before each step
    for parts in steps:
        wanted.append(statistics[0].state_dict()["running_mean"].clone())
        for layer, part in zip(statistics, parts, strict=True):
            layer(data["images"][part])
    of_rank = [
        {f"0.{name}": buffer for name, buffer in layer.named_buffers()} for layer in statistics
    ]
    for rank, value in enumerate(values):
        mistakes = (
            [(of_rank[rank], f"Rank {rank} keeps the statistics of its own samples.")]
            if rank
            else []
        )
        hint = hint_for(
            entry(value, "model"),
            mistakes,
            "Rank 0's statistics follow from its own parts; all others receive them.",
        )
        expect_tensors(entry(value, "model"), of_rank[0], "the buffer", rank, hint)
    for rank, value in enumerate(values):
        before = listed(entry(value, "before"), len(steps))
        given = [{"mean": mean} for mean in before]
        if not all(is_close(own, {"mean": mean}) for own, mean in zip(given, wanted, strict=True)):
            raise PartlyHeld(
                0.5,
                f"rank {rank} to begin each of {len(steps)} steps with the buffers of rank 0",
                "other running means in some step, although they are alike in the end",
                "Synchronise the buffers in every step: each forward pass changes them.",
            )


@points(0.5, cell="check_train")
def check_ranks_compute_at_the_same_time(student, rng):
    """Ranks compute their parts at the same time: a step takes about as long as its largest part
    alone.
    """
    world_size, num_steps, sample_s = 3, 3, 1e-3 * whole(rng, 2, 5)
    batch_size = world_size * whole(rng, 3, 5) + 1
    data = random_data(rng, num_steps * batch_size)
    epochs = random_epochs(rng, num_steps * batch_size, batch_size, world_size, num_epochs=1)
    settings = {
        "num_epochs": 1,
        "batch_size": batch_size,
        "lr": 0.1,
        "seed": whole(rng, 0, MAX_SEED),
    }
    arguments = (data, epochs, settings, sample_s)
    run = student.emulated(
        timed_training_on_rank, *arguments, world_size=world_size, cluster="pcie-box", forbid=NO_DDP
    )
    expect_own_parts(run.values, epochs)
    wanted_s = (
        sum(max(len(part) for part in parts) for epoch in epochs for parts in epoch) * sample_s
    )
    end_s = run.timeline.end_s
    if end_s > MOST_STEPS * wanted_s:
        raise CheckFailed(
            f"{num_steps} steps in about {wanted_s * 1e3:.0f} ms, the time of the largest part of"
            " each",
            f"{end_s * 1e3:.0f} ms, {end_s / wanted_s:.1f} times as long, on {world_size} ranks",
            "Let each rank compute its own part at once: no rank waits for another before the"
            " gradients are averaged.",
            partial(draw_work, run.timeline),
        )


def draw_work(timeline: Timeline) -> Drawn:
    """When each rank worked and waited."""
    from worldsize.draw import timeline as draw_timeline

    title = "When your ranks worked and waited, emulated"
    return InFewColours(draw_timeline(timeline, title, streams=["compute", "wait"]))


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


def expect_own_parts(values: list[Any], epochs: list[Steps]) -> None:
    """Raise CheckFailed unless each rank's model saw at least the samples of its own parts."""
    for rank, num_rows in enumerate(values):
        own = sum(len(parts[rank]) for epoch in epochs for parts in epoch)
        if not isinstance(num_rows, int) or num_rows < own:
            expected = f"rank {rank} to train on its part of every batch, {own} samples"
            raise CheckFailed(expected, f"{shown(num_rows)} samples")


@points(0.5, cell="check_train")
def check_training_gives_back_what_a_step_took(student, rng):
    """Memory does not grow with the number of steps, except for the losses and the samples."""
    world_size, few, many = 2, 3, 12
    batch_size = world_size * whole(rng, 20, 30)
    data = random_data(rng, many * batch_size)
    trainings = [
        random_epochs(rng, num * batch_size, batch_size, world_size, num_epochs=1)
        for num in (few, many)
    ]
    settings = {
        "num_epochs": 1,
        "batch_size": batch_size,
        "lr": 0.1,
        "seed": whole(rng, 0, MAX_SEED),
    }
    each = [(random_state(rng, width=whole(rng, 1000, 1500)),)] * world_size
    arguments = (data, trainings, settings)
    values = student.emulated(
        memory_of_training_on_rank, *arguments, world_size=world_size, each=each, forbid=NO_DDP
    ).values
    of_samples = 2 * sum(one.nbytes for one in data.values())
    held = [read_counts(value, rank) for rank, value in enumerate(values)]
    expect_own_parts([value[1] for value in held], trainings[0])
    expect_own_parts([value[3] for value in held], trainings[1])
    for rank, (few_bytes, _, many_bytes, _) in enumerate(held):
        if many_bytes > few_bytes + of_samples + BESIDES * many:
            raise CheckFailed(
                f"{many} steps to hold as much memory as {few} on rank {rank}: {few_bytes:,} bytes"
                " of tensors at once",
                f"{many_bytes:,} bytes",
                "Something of every step is kept. A loss holds its whole graph until it is"
                " detached: keep loss.item() or loss.detach(), keep no copies of weights or"
                " gradients, and call backward without retain_graph.",
                partial(draw_held_by_steps, few, few_bytes, many, many_bytes),
            )


def read_counts(value: Any, rank: int) -> list[int]:
    """The bytes and samples of two trainings, as a rank reported them."""
    if not isinstance(value, list) or [type(one) for one in value] != [int] * 4:
        raise CheckFailed(f"rank {rank} to train twice", f"{shown(value)}")
    return value


def draw_held_by_steps(few: int, few_bytes: int, many: int, many_bytes: int) -> Drawn:
    """The bytes that many steps hold at once, beside those that few hold."""
    from worldsize.draw.contrast import bars

    names = f"{few} steps", f"{many} steps"
    expected, actual = (
        dict(zip(names, sizes, strict=True))
        for sizes in ((few_bytes / 1e3, few_bytes / 1e3), (few_bytes / 1e3, many_bytes / 1e3))
    )
    return bars(expected, actual, "Most bytes of tensors at once", "kB")
