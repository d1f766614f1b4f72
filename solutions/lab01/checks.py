"""Hidden checks of lab 1: functions run on ranks, and the judge computes what to expect.

What travels is judged by the bodies of messages and collectives, memory by the kernel, time with
the work that a check hands out. `train` is judged with this file's versions of the other four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from autograder.checks import (
    PartlyHeld,
    draw_bars,
    draw_timeline,
    entries,
    entry,
    expect_body,
    expect_end,
    expect_grown,
    expect_same_again,
    expect_sum_travelled,
    expect_work,
    hinted,
    points,
    positive,
    received,
    return_freed_memory,
    shown,
    shuffled,
    take_from_solution,
    tensor_like,
    whole,
)
from worldsize import pricing
from worldsize.check import CheckFailed, Drawn, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.event import COMMUNICATION, operations
from worldsize.hardware import H100, Cluster, Link
from worldsize.timeline import Timeline

NO_DDP = {
    "torch.distributed.Reducer": (
        "torch's DistributedDataParallel and its Reducer are not allowed here: this is what you"
        " build"
    ),
    "torch.distributed.fsdp": (
        "torch's FSDP, which without sharding is the same, is not allowed here: this is what you"
        " build"
    ),
}
ALLOWED = {"broadcast", "all_reduce", "reduce", "send", "recv", "barrier"}
BESIDES = 256  # bytes that each rank may send for counts or a loss, each time
MOST_COPIES = 3  # of the gradients, themselves among them, while they are averaged
IN_FLIGHT = 1.75  # copies more, of what is being sent and received
MOST_ALL_REDUCES = 2.5  # whose time the average may take
MOST_STEPS = 1.5  # of the largest part's time, where computing takes far longer than talking
MOST_HELD = 8  # times the activations of a step, while many steps run
STEP_S = 1e-3  # of work handed out where only memory counts
MAX_SEED = 400_000  # times 10,000 and an epoch it is still a seed for NumPy
MB = 2**20
SUMMED = "the gradients were summed, not averaged."
TWICE_DIVIDED = "the mean was divided by the number of ranks a second time."
EXACT = {"rtol": 0.0, "atol": 0.0}
TOLERANCES = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
}
Tensors = dict[str, torch.Tensor]
Steps = list[list[torch.Tensor]]  # [step][rank]: sample indices


# What stands in for the student's functions while `train` is judged.

right_broadcast_model, right_synchronise_buffers = take_from_solution(
    Path(__file__).with_name("lab01.py"), "broadcast_model", "synchronise_buffers"
)


def average_in_one_message(model: nn.Module, num_local_samples: int) -> None:
    """Average by one all-reduce of all gradients and the count, weighted by the count."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    flat = torch.zeros(sum(one.numel() for one in trained) + 1)
    if num_local_samples:
        torch.cat([one.grad.flatten() for one in trained] + [torch.ones(1)], out=flat)
    flat *= num_local_samples
    dist.all_reduce(flat)
    flat[:-1] /= flat[-1].item()
    for one, mean in zip(trained, flat[:-1].split([one.numel() for one in trained]), strict=True):
        one.grad = mean.view_as(one)


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
        self.linear, self.sample_s = nn.Linear(5, 3), sample_s

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        import worldsize as ws
        from worldsize import emulate

        with ws.span("forward and backward"):
            emulate.spend(self.sample_s * len(images))
        return self.linear(images)


def batches_on_rank(student: Any, calls: list[list[int]]) -> list[Any]:
    """What each call returns, and what torch's global generator draws after it."""
    found = []
    for global_seed, *arguments in calls:
        torch.manual_seed(global_seed)  # ranks need not share torch's global random state
        found.append([student.rank_batches(*arguments), drawn_next()])
    return found


def drawn_next() -> int:
    return int(torch.randint(2**40, ()))


def broadcast_on_rank(student: Any, tensors: Tensors) -> dict[str, Tensors]:
    model = buffered_model(tensors)
    held: Tensors = dict(model.named_parameters())  # what an optimizer made before would hold
    student.broadcast_model(model)
    return {"held": held, "model": every_tensor(model)}


def synchronise_on_rank(student: Any, tensors: Tensors) -> dict[str, Tensors]:
    model = buffered_model(tensors)
    student.synchronise_buffers(model)
    return {"model": every_tensor(model)}


def average_on_rank(
    student: Any,
    like: list[torch.Tensor],
    frozen: list[int],
    num_local_samples: int,
    gradients: list[torch.Tensor | None],
) -> list[Any]:
    """The gradients of linear layers after the average; before it they are those given."""
    layers = [nn.Linear(*one.shape[::-1], bias=False, dtype=one.dtype) for one in like]
    for number, (layer, gradient) in enumerate(zip(layers, gradients, strict=True)):
        layer.weight.requires_grad_(number not in frozen)
        layer.weight.grad = gradient
    student.average_gradients(nn.Sequential(*layers), num_local_samples)
    return [layer.weight.grad for layer in layers]


def large_average_on_rank(student: Any, num_layers: int, width: int, num_samples: int) -> None:
    return_freed_memory()
    layers = [nn.Linear(width, width, bias=False, device="meta") for _ in range(num_layers)]
    model = nn.Sequential(*layers).to_empty(device="cpu")  # weights that are never written
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    student.average_gradients(model, num_samples)


def train_with_given_batches(
    student: Any,
    model: nn.Module,
    data: Tensors,
    epochs: list[Steps],
    settings: dict[str, Any],
    average: Callable[[nn.Module, int], None] = average_in_one_message,
) -> Any:
    """What `train` returns with these batches, and with the functions above for the other three."""

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
        if world_size == 1:  # for whichever rank computes whole batches
            return [torch.cat(parts) for parts in epochs[epoch]]
        if rank not in range(world_size) or world_size != len(epochs[epoch][0]):
            raise ValueError(
                "train called rank_batches with a rank or world_size that this run does not have"
            )
        return [parts[rank] for parts in epochs[epoch]]

    vars(student).update(
        rank_batches=rank_batches,
        broadcast_model=right_broadcast_model,
        average_gradients=average,
        synchronise_buffers=right_synchronise_buffers,
    )
    return student.train(model, data["images"], data["labels"], **settings)


def training_on_rank(
    student: Any, data: Tensors, epochs: list[Steps], settings: dict[str, Any], state: Tensors
) -> dict[str, Any]:
    """The trained model and the losses, where the check chooses the batches."""
    model = classifier(state)
    losses = train_with_given_batches(student, model, data, epochs, settings)
    return {"model": every_tensor(model), "losses": losses}


def timed_training_on_rank(
    student: Any, data: Tensors, epochs: list[Steps], settings: dict[str, Any], sample_s: float
) -> None:
    train_with_given_batches(student, TimedClassifier(sample_s), data, epochs, settings)


def large_training_on_rank(
    student: Any, data: Tensors, epochs: list[Steps], settings: dict[str, Any], width: int
) -> None:
    """A training in which no gradients travel: only its memory counts."""
    from worldsize import emulate

    return_freed_memory()
    model = nn.Sequential(nn.Linear(50, width, bias=False), nn.Tanh(), nn.Linear(width, 3))
    model.register_forward_pre_hook(lambda *_: emulate.spend(STEP_S))

    def only_meet(model: nn.Module, num_local_samples: int) -> None:
        dist.barrier()

    train_with_given_batches(student, model, data, epochs, settings, only_meet)


def own_training_on_rank(
    student: Any,
    data: Tensors,
    world_size: int,
    settings: dict[str, Any],
    rank: int,
    state: Tensors,
) -> dict[str, Any]:
    """The trained model and the batches, where all five functions are the student's."""
    torch.manual_seed(rank)  # ranks need not share torch's global random state
    model = classifier(state)
    student.train(model, data["images"], data["labels"], **settings)
    batches = [
        student.rank_batches(
            len(data["images"]), settings["batch_size"], epoch, settings["seed"], rank, world_size
        )
        for epoch in range(settings["num_epochs"])
    ]
    return {"model": every_tensor(model), "batches": batches}


# What the judge draws, computes and compares.


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


def settings_of(
    rng: torch.Generator, batch_size: int, lr: float = 0.1, num_epochs: int = 1
) -> dict[str, Any]:
    seed = whole(rng, 0, MAX_SEED)
    return {"num_epochs": num_epochs, "batch_size": batch_size, "lr": lr, "seed": seed}


def is_close(value: Any, wanted: Tensors) -> bool:
    """True when all the wanted tensors are in `value`, up to rounding."""
    pairs = [(tensor_like(entry(value, name), one), one) for name, one in wanted.items()]
    return all(
        given is not None and torch.allclose(given, one, rtol=1e-3, atol=1e-5)
        for given, one in pairs
    )


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
    fair = sorted(len(part) for part in torch.arange(num_samples).tensor_split(len(sizes)))
    by_size = sorted(range(len(sizes)), key=lambda rank: sizes[rank])
    expected = {f"rank {rank}": size for rank, size in sorted(zip(by_size, fair, strict=True))}
    actual = {f"rank {rank}": size for rank, size in enumerate(sizes)}
    return draw_bars(expected, actual, "Samples of one global batch on each rank", "samples")


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


def train_in_one_process(
    state: Tensors, data: Tensors, steps: Steps, lr: float, momentum: float = 0.0
) -> list[Tensors]:
    """The weights before the first step of SGD and after each; a step is a global batch."""
    weights, total = [state], {name: torch.zeros_like(one) for name, one in state.items()}
    for parts in steps:
        batch = torch.cat(parts)
        gradient = mean_gradient(weights[-1], data["images"][batch], data["labels"][batch])
        total = {name: momentum * one + gradient[name] for name, one in total.items()}
        weights.append({name: one - lr * total[name] for name, one in weights[-1].items()})
    return weights


def expect_trained(
    values: list[Any], states: list[Tensors], data: Tensors, epochs: list[Steps], lr: float
) -> None:
    """Raise CheckFailed unless every rank has the weights of one process."""
    num_ranks = len(values)
    steps = [parts for epoch in epochs for parts in epoch]
    turns = {
        of: [parts for number in range(len(epochs)) for parts in epochs[number % period]]
        for period, of in ((2, "0 and 1"), (3, "0, 1 and 2"))
    }
    wrong = [  # steps, learning rate, momentum without damping, hint
        (steps, lr * num_ranks, 0, f"The steps are {num_ranks} times too long: {SUMMED}"),
        (steps, lr / num_ranks, 0, f"The steps are {num_ranks} times too short: {TWICE_DIVIDED}"),
        (steps, lr, 1, "Gradients add up from step to step: call zero_grad before every backward."),
        (
            len(epochs) * epochs[0],
            lr,
            0,
            "These are the weights after every epoch in the order of epoch 0: pass the epoch to"
            " rank_batches.",
        ),
    ]
    wrong += [
        (
            in_turn,
            lr,
            0,
            f"These are the weights after the orders of epochs {of} in turn: pass every epoch"
            " from 0 to num_epochs - 1.",
        )
        for of, in_turn in turns.items()
    ]
    reached = train_in_one_process(states[0], data, steps, lr)
    mistakes = [(states[0], "The weights are still those of the start: no step was taken.")]
    mistakes += [
        (train_in_one_process(states[0], data, its, rate, momentum)[-1], hint)
        for its, rate, momentum, hint in wrong
    ]
    first = entry(values[0], "model")
    held = (
        {name: one for name, one in first.items() if isinstance(one, torch.Tensor)}
        if isinstance(first, dict)
        else {}
    )
    otherwise = "Check zero_grad, the average of the gradients and the step, in this order."
    if not all(is_close(entry(value, "model"), held) for value in values):
        otherwise = (
            "The ranks end with different weights: they must start alike, and step along the same"
            " gradient."
        )
    for rank, value in enumerate(values):
        hint = hint_for(entry(value, "model"), mistakes, otherwise)
        expect_tensors(entry(value, "model"), reached[-1], "the trained", rank, hint)


# rank_batches: the inputs and outputs are plain, so one process asks for the parts of every rank.


def ask(student: Any, calls: list[list[int]]) -> list[Any]:
    """What `rank_batches` returned for each call; with None for a draw that did not come back."""
    (values,) = student.run(batches_on_rank, calls, world_size=1)
    return [entries(value, 2) for value in entries(values, len(calls))]


def expect_epochs(student: Any, rng: torch.Generator, sizes: list[tuple[int, int, int]]) -> None:
    """Raise CheckFailed unless each (num_samples, batch_size, world_size) is shared out."""
    calls = []
    for num_samples, batch_size, world_size in sizes:
        epoch, seed = whole(rng, 1, 9), whole(rng, 1, MAX_SEED)  # 0 has checks of its own
        calls += [
            [whole(rng, 0, MAX_SEED), num_samples, batch_size, epoch, seed, rank, world_size]
            for rank in range(world_size)
        ]
    left = iter(ask(student, calls))
    for num_samples, batch_size, world_size in sizes:
        read_epoch([next(left)[0] for _ in range(world_size)], num_samples, batch_size)


@points(1, cell="check_rank_batches")
def check_parts_make_up_each_batch(student, rng):
    """At every step the parts of the ranks are disjoint, equal in size, and make up the global
    batch.
    """
    world_size = 3
    batch_size = world_size * whole(rng, 2, 5)
    # of few samples, parts of two different orders may be disjoint by chance
    num_samples = batch_size * whole(rng, 5, 8)
    expect_epochs(student, rng, [(num_samples, batch_size, world_size)])


@points(0.5, cell="check_rank_batches")
def check_uneven_sizes_lose_nothing(student, rng):
    """When sizes do not divide, no sample is lost, parts differ by at most one, and every rank has
    as many steps.
    """
    world_size = 4
    batch_size = 2 * world_size + 1
    num_samples = batch_size * whole(rng, 2, 4)
    # fewer are left over than there are ranks: someone's part is empty
    sizes = [(num_samples + rest, batch_size, world_size) for rest in range(1, world_size)]
    expect_epochs(student, rng, sizes)


@points(1, cell="check_rank_batches")
def check_every_epoch_has_a_new_order(student, rng):
    """Every epoch goes through the samples in a new random order, also with seed 0."""
    epochs, global_seed = [*range(12), 60, 840], whole(rng, 0, MAX_SEED)  # so that periods show
    calls = [
        [global_seed, 48, 12, epoch, seed, 0, world_size]
        for seed, world_size in ((whole(rng, 1, MAX_SEED), 3), (0, 1))
        for epoch in epochs
    ]
    orders = [read_order(value) for value, _ in ask(student, calls)]
    wanted, hint = "a new order in every epoch", "Seed the generator from seed and epoch."
    if comes_twice(orders[: len(epochs)]):
        raise CheckFailed(wanted, "the same order in two epochs", hint)
    expect_shuffled(orders[: len(epochs)])
    if comes_twice(orders[len(epochs) :]):
        hint = f"{hint} Multiplied, a seed of 0 hides the epoch."
        raise PartlyHeld(0.5, wanted, "the same order in two epochs with seed 0", hint)


def comes_twice(orders: list[list[list[int]]]) -> bool:
    """True where two of these orders are the same."""
    return any(order in orders[:epoch] for epoch, order in enumerate(orders))


def expect_shuffled(orders: list[list[list[int]]]) -> None:
    """Raise CheckFailed where few pairs of samples meet in a part: then one order was moved on.

    Of the 1128 pairs of 48 samples, about 290 meet in 14 epochs of four parts of four samples; of a
    single order, wherever its parts begin, at most 144.
    """
    parts = [part[:12] for order in orders for part in order[:4]]  # no more, whatever came back
    pairs = {pair for part in parts for pair in combinations(part, 2)}
    if len(pairs) < 200:
        raise CheckFailed(
            "samples that meet others in every epoch",
            "the same samples together, epoch after epoch",
            "Draw a new permutation for each epoch: an order that is only moved on, or whose"
            " batches are, is not shuffled.",
        )


@points(0.5, cell="check_rank_batches")
def check_order_depends_on_the_seed_alone(student, rng):
    """The order follows from seed and epoch: in epoch 0 as in epoch 1, another seed gives another
    order, and torch's global generator has no part in it and stays as it was.
    """
    seed, global_seed = whole(rng, 1, MAX_SEED - 2**16), whole(rng, 0, MAX_SEED)
    others = [(global_seed + 1, seed)]
    others += [(global_seed, seed + more) for more in (1, 1000, 2**16)]
    calls = [
        [state, 48, 12, epoch, its_seed, 0, 2]
        for epoch in (0, 1)
        for state, its_seed in ((global_seed, seed), *others)
    ]
    answers = ask(student, calls)
    orders = [read_order(value) for value, _ in answers]
    for epoch, of_epoch in enumerate((orders[:5], orders[5:])):
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
    for call, (_, drawn) in zip(calls, answers, strict=True):
        untouched = torch.Generator().manual_seed(call[0])
        if drawn != int(torch.randint(2**40, (), generator=untouched)):
            raise CheckFailed(
                "torch's global generator to be left as it is",
                "other random numbers from it after a call",
                "torch.manual_seed seeds it for everybody, so that dropout is the same on all"
                " ranks and in every epoch: draw from a torch.Generator of your own.",
            )


def read_order(value: Any) -> list[list[int]]:
    """The samples of rank 0 by step, sorted within a step, which the contract leaves open."""
    return [sorted(part.tolist()) for part in read_parts(value, rank=0)]


# broadcast_model and synchronise_buffers


class Sent(NamedTuple):
    """What every rank held before and after rank 0's tensors were sent, and what travelled."""

    values: list[Any]
    tensors: list[Tensors]
    exchanges: list[Exchange]


def sent_by_rank_0(
    student: Any, rng: torch.Generator, on_rank: Callable[..., Any], world_size: int
) -> Sent:
    tensors = [random_tensors(rng) for _ in range(world_size)]
    each = [(own,) for own in tensors]
    with hinted(
        "Every rank makes the same calls in the same order, with tensors of one dtype and shape."
    ):
        run = student.emulated(on_rank, world_size=world_size, each=each, keeps_exchanges=True)
    return Sent(run.values, tensors, run.exchanges)


def expect_rank_0s(sent: Sent, names: list[str], otherwise: str, where: str = "model") -> None:
    """Raise CheckFailed unless all ranks have these tensors of rank 0, by what travelled."""
    values, tensors = [entry(value, where) for value in sent.values], sent.tensors
    wanted = {name: tensors[0][name] for name in names}
    for rank, value in enumerate(values):
        own = {name: tensors[rank][name] for name in names}
        is_untouched = rank > 0 and is_close(value, own)
        hint = f"Rank {rank} still has its own values. {otherwise}" if is_untouched else otherwise
        picture = partial(draw_owners, values, tensors, names)
        for name, expected in wanted.items():
            expect_close(
                entry(value, name),
                expected,
                f"{words_for(name)} on rank {rank}",
                hint,
                picture=picture,
                **EXACT,
            )
    numbers = torch.cat([one.double().flatten() for one in wanted.values()])
    for rank in range(1, len(values)):
        came = [
            one
            for exchange in sent.exchanges
            if rank in exchange.ranks
            for one in received(exchange, rank)
        ]
        if not torch.isin(numbers, torch.cat([*came, torch.empty(0, dtype=torch.float64)])).all():
            raise CheckFailed(
                f"rank {rank} to receive the values of rank 0",
                "other numbers, or none, over the wire",
                "Send each tensor as it is, for example by dist.broadcast.",
            )


def words_for(name: str) -> str:
    """A tensor of `buffered_model`, in words that say what is special about it."""
    special = {
        "history": "a float64 buffer that state_dict leaves out (persistent=False)",
        "0.num_batches_tracked": "the integer buffer num_batches_tracked",
        "1.bias": "a frozen parameter (requires_grad=False)",
    }
    return special.get(name, f"the {'buffer' if is_buffer(name) else 'parameter'} {name}")


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


def names_of(sent: Sent, is_wanted: Callable[[str, torch.Tensor], bool]) -> list[str]:
    return [name for name, one in sent.tensors[0].items() if is_wanted(name, one)]


@points(1, cell="check_broadcast_model")
def check_parameters_become_those_of_rank_0(student, rng):
    """Every parameter, even a frozen one, becomes that of rank 0 on every rank."""
    sent = sent_by_rank_0(student, rng, broadcast_on_rank, 4)
    names = names_of(sent, lambda name, _: not is_buffer(name))
    hint = "All parameters take the values of rank 0: no average, and none left out."
    expect_rank_0s(sent, names, hint)


@points(0.5, cell="check_broadcast_model")
def check_buffers_become_those_of_rank_0(student, rng):
    """Every buffer becomes that of rank 0 on every rank: floats, integers, and what state_dict
    leaves out.
    """
    sent = sent_by_rank_0(student, rng, broadcast_on_rank, 3)
    hint = "All of model.buffers() take exactly the values of rank 0, each in its own dtype."
    expect_rank_0s(sent, names_of(sent, lambda name, _: is_buffer(name)), hint)


@points(0.5, cell="check_broadcast_model")
def check_broadcast_is_in_place(student, rng):
    """An optimizer created before the broadcast still holds the parameters of the model."""
    sent = sent_by_rank_0(student, rng, broadcast_on_rank, 2)
    hint = (
        "The Parameter objects of before must receive the values; do not put new ones in their"
        " place."
    )
    expect_rank_0s(sent, names_of(sent, lambda name, _: not is_buffer(name)), hint, where="held")


@points(1, cell="check_synchronise_buffers")
def check_float_buffers_become_those_of_rank_0(student, rng):
    """Running statistics and other float buffers become those of rank 0."""
    sent = sent_by_rank_0(student, rng, synchronise_on_rank, 4)
    names = names_of(sent, lambda name, one: is_buffer(name) and one.is_floating_point())
    hint = "All buffers take the values of rank 0: no average, and none left out."
    expect_rank_0s(sent, names, hint)


@points(1, cell="check_synchronise_buffers")
def check_integer_buffers_and_parameters_are_respected(student, rng):
    """Integer buffers become those of rank 0 without rounding, and parameters are left alone."""
    sent = sent_by_rank_0(student, rng, synchronise_on_rank, 3)
    names = names_of(sent, lambda name, one: is_buffer(name) and not one.is_floating_point())
    expect_rank_0s(sent, names, "Integers keep their dtype and never pass through a float.")
    for rank, value in enumerate(sent.values):
        parameters = {name: one for name, one in sent.tensors[rank].items() if not is_buffer(name)}
        hint = "`synchronise_buffers` changes buffers only; the gradients keep parameters the same."
        expect_tensors(entry(value, "model"), parameters, "the parameter", rank, hint, EXACT)


# average_gradients


class Averaged(NamedTuple):
    """A run of `average_gradients`, and what went in."""

    run: Any
    counts: list[int]
    local: list[list[torch.Tensor]]  # each rank's gradients, without those of frozen parameters
    trained: list[int]  # the places of those that are not frozen

    def flat(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([one.double().flatten() for one in gradients])

    @property
    def matrix(self) -> torch.Tensor:
        """Each rank's gradients in a row, zeros where it has no samples."""
        rows = [
            self.flat(own) * bool(count) for own, count in zip(self.local, self.counts, strict=True)
        ]
        return torch.stack(rows)

    def result(self, rank: int) -> torch.Tensor | None:
        """The gradients that a rank returned, flat; None where one is not like its parameter."""
        found = [
            tensor_like(entry(self.run.values, rank, place), own)
            for place, own in zip(self.trained, self.local[rank], strict=True)
        ]
        return None if any(one is None for one in found) else self.flat(found)


def average(
    student: Any,
    rng: torch.Generator,
    counts: list[int],
    *,
    dtype: torch.dtype = torch.float32,
    frozen: Sequence[int] = (),
    empties: Sequence[str] = (),
    **options: Any,
) -> Averaged:
    """The average of drawn gradients; `empties` says what those of ranks without samples are."""
    shapes = [(whole(rng, 7, 13), whole(rng, 7, 13)) for _ in range(3)]
    gradients = [[positive(rng, *shape, dtype=dtype) for shape in shapes] for _ in counts]
    left, each = list(empties), []
    for count, own in zip(counts, gradients, strict=True):
        is_nan = not count and left.pop() == "nan"
        stands_in = [torch.full_like(one, float("nan")) if is_nan else None for one in own]
        given = own if count else stands_in
        each.append((count, [None if place in frozen else one for place, one in enumerate(given)]))
    with hinted(
        "Every rank has to make the same calls, in the same order. A rank without samples, whose"
        " gradients may be None, puts in zeros."
    ):
        run = student.emulated(
            average_on_rank,
            gradients[0],
            list(frozen),
            world_size=len(counts),
            each=each,
            keeps_exchanges=True,
            allow=ALLOWED,
            **options,
        )
    trained = [place for place in range(len(shapes)) if place not in frozen]
    return Averaged(run, counts, [[own[place] for place in trained] for own in gradients], trained)


def mistakes_of(counts: list[int]) -> list[tuple[list[float], str]]:
    """The weights of the ranks' gradients in known mistakes, and what to say of each."""
    num_ranks, num_samples, num_busy = len(counts), sum(counts), sum(map(bool, counts))
    is_even = len(set(counts)) == 1
    total = "the sum of the gradients of the ranks, not their mean weighted by samples."
    too_large = f"These are {num_ranks} times too large: a sum, not a mean."
    unweighted = "That is the unweighted mean over the ranks"
    return [
        ([1.0] * num_ranks, too_large if is_even else f"That is {total}"),
        (
            [1 / num_ranks] * num_ranks,
            f"{unweighted}: a rank with more samples must count for more.",
        ),
        (
            [bool(count) / num_busy for count in counts],
            f"{unweighted} that have samples: one with more must count for more.",
        ),
        (
            [float(count) for count in counts],
            "That is the sum over all samples: divide by the number of samples of all ranks.",
        ),
        (
            [count / num_samples / num_ranks for count in counts],
            f"These are {num_ranks} times too small: {TWICE_DIVIDED}",
        ),
    ]


def mistakes_on(rank: int, counts: list[int]) -> list[tuple[list[float], str]]:
    """The same for mistakes that give each rank another result."""
    own, num_own = [float(other == rank) for other in range(len(counts))], counts[rank]
    if not num_own:
        return []
    mistakes = [
        (own, f"Rank {rank} still has the gradient of its own samples: nothing was exchanged."),
        (
            [num_own / sum(counts) * one for one in own],
            f"Rank {rank} has its own term of the sum and nothing of the others: if all_reduce is"
            " asynchronous, wait for its handle.",
        ),
    ]
    if len(set(counts)) > 1:
        hint = f"That is the sum over all samples, divided by those of rank {rank} alone."
        mistakes.append(([count / num_own for count in counts], hint))
    return mistakes


def expect_mean(found: Averaged) -> None:
    """Raise CheckFailed unless every rank has the mean over all samples, made of what travelled."""
    matrix, counts = found.matrix, found.counts
    weights = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    for rank in range(len(counts)):
        result, hint = found.result(rank), hint_for_kind(found, rank)
        for wrong, words in [*mistakes_of(counts), *mistakes_on(rank, counts)]:
            if result is not None and torch.allclose(
                result, torch.tensor(wrong, dtype=torch.float64) @ matrix, rtol=1e-3
            ):
                hint = words
        if result is not None and torch.allclose(result, weights @ matrix, rtol=1e-5):
            hint = "That is right to seven digits: float64 gradients went through float32."
        picture = partial(draw_weights, result, matrix, counts, rank)
        means = (weights @ matrix).split([one.numel() for one in found.local[0]])
        for place, mean, like in zip(found.trained, means, found.local[0], strict=True):
            value, wanted = (
                entry(found.run.values, rank, place),
                mean.view(like.shape).to(like.dtype),
            )
            what = f"the gradient of parameter {place} on rank {rank}"
            expect_close(value, wanted, what, hint, picture=picture, **TOLERANCES[like.dtype])
    expect_travelled(found, weights)


def expect_travelled(found: Averaged, weights: torch.Tensor) -> None:
    """Raise CheckFailed unless what travelled suffices for the sum by these weights."""
    counts, exchanges = (
        torch.tensor(found.counts, dtype=torch.float64)[:, None],
        found.run.exchanges,
    )
    expect_sum_travelled(exchanges, weights[:, None] * found.matrix, counts, "the average")


def hint_for_kind(found: Averaged, rank: int) -> str:
    """A hint by the kind of gradient, when its values fit no known mistake."""
    values = [entry(found.run.values, rank, place) for place in found.trained]
    if any(value is None for value in values):
        return "A rank without a gradient receives the result like every other rank."
    if any(isinstance(value, torch.Tensor) and value.isinf().any() for value in values):
        return "Something was divided by 0: divide by the number of samples of all ranks."
    if any(isinstance(value, torch.Tensor) and value.isnan().any() for value in values):
        return (
            "The nan of a rank without samples spreads to all: 0 * nan is nan, so it must be"
            " replaced, not weighted."
        )
    return (
        "Weigh each rank's gradient by its samples, add up, and divide by the samples of all ranks."
    )


def weights_in(result: torch.Tensor | None, matrix: torch.Tensor) -> torch.Tensor | None:
    """How much of each rank's gradient is in a result; None where it is made of something else."""
    if result is None or not result.isfinite().all():
        return None
    weights = torch.linalg.lstsq(matrix.T, result[:, None]).solution.flatten()
    return weights if torch.allclose(weights @ matrix, result, rtol=1e-3) else None


def shares_in(weights: torch.Tensor) -> torch.Tensor:
    """The weights as shares of their sum: a wrong divisor is no matter of what travels."""
    return weights / weights.sum() if weights.sum() else weights


def draw_weights(
    result: torch.Tensor | None, matrix: torch.Tensor, counts: list[int], rank: int
) -> Drawn:
    """How much of each rank's own gradient is in the result of one rank."""
    busy = [other for other, count in enumerate(counts) if count]
    expected = {f"rank {other}'s gradient": counts[other] / sum(counts) for other in busy}
    weights = weights_in(result, matrix[busy])
    found = [float("nan")] * len(busy) if weights is None else weights.tolist()
    actual = dict(zip(expected, found, strict=True))
    return draw_bars(
        expected, actual, f"What the result on rank {rank} is made of", "weight in the sum"
    )


@points(1, cell="check_average_gradients")
def check_equal_parts_give_the_mean(student, rng):
    """Ranks with equally many samples all end with the mean of their gradients, not the sum."""
    expect_mean(average(student, rng, [(2, 4, 5)[whole(rng, 0, 2)]] * 3))  # never as many as ranks


@points(2, cell="check_average_gradients")
def check_uneven_parts_are_weighted(student, rng):
    """Ranks with more samples count for more, so that the result is the gradient over the global
    batch.
    """
    # one that bfloat16 cannot hold, nor their sum, which is neither 3 nor its square
    counts = shuffled(rng, [1, 3, 2 * whole(rng, 140, 240) + 1])
    found = average(student, rng, counts)
    expect_mean(found)
    expect_counts_travelled(found)


def expect_counts_travelled(found: Averaged) -> None:
    """Raise CheckFailed unless some rank can learn by the wire how many samples there are."""
    counts, num_ranks = found.counts, len(found.counts)
    for rank in range(num_ranks):
        came = [
            one
            for exchange in found.run.exchanges
            if rank in exchange.ranks
            for one in received(exchange, rank)
        ]
        numbers = set(torch.cat(came).tolist()) if came else set()
        others = counts[:rank] + counts[rank + 1 :]
        sums = {sum(counts), sum(others)}
        if sums & numbers or set(others) <= numbers:
            return
    raise CheckFailed(
        "the ranks' numbers of samples to travel, as numbers or as their sum",
        "neither on the wire",
        "A rank knows only its own number: send the counts as well, for example by an all-reduce.",
    )


@points(1.5, cell="check_average_gradients")
def check_result_is_made_of_what_travels(student, rng):
    """Whatever the result is, every rank can put it together from the sums that it received, and a
    second run with the same inputs gives the same bits.
    """
    counts = shuffled(rng, [1, 2, whole(rng, 4, 5)])
    state = rng.get_state()
    found = average(student, rng, counts)
    by_rank = [weights_in(found.result(rank), found.matrix) for rank in range(len(counts))]
    for rank, weights in enumerate(by_rank):
        if weights is None:
            raise CheckFailed(
                f"a result on rank {rank} that is made of the gradients of the ranks",
                "other numbers",
                "Put the sum of the weighted gradients into `grad` of every parameter.",
            )
        if weights.abs().min() < 1e-3 * weights.abs().max():
            raise CheckFailed(
                f"a part of every rank's gradient in the result on rank {rank}",
                "none of rank " + str(int(weights.abs().argmin())),
                "What a rank received has to go into its gradients.",
            )
    expect_travelled(found, shares_in(by_rank[0]))
    rng.set_state(state)
    expect_same_again(found.run.values, average(student, rng, counts).run.values)


@points(1, cell="check_average_gradients")
def check_rank_without_samples_takes_part(student, rng):
    """A rank without samples counts as zero, whether its gradient is None or nan, and receives the
    result.
    """
    counts = [0, whole(rng, 1, 2), 0, whole(rng, 4, 5)]  # never as many as there are ranks
    expect_mean(average(student, rng, counts, empties=["none", "nan"]))


@points(0.5, cell="check_average_gradients")
def check_frozen_parameters_stay_without_gradient(student, rng):
    """Frozen parameters keep no gradient, while the others, here in float64, get the average to all
    digits.
    """
    frozen = [0, 2]
    counts = [whole(rng, 2, 3)] * 4  # equal parts are a quarter each, which float32 holds exactly
    found = average(student, rng, counts, frozen=frozen, dtype=torch.float64)
    for rank, value in enumerate(found.run.values):
        if any(entry(value, place) is not None for place in frozen):
            raise CheckFailed(
                "frozen parameters to keep no gradient",
                f"one on rank {rank}",
                "Leave out parameters whose requires_grad is False.",
            )
    expect_mean(found)


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
    if least <= sent <= most:
        return
    is_more = sent > most
    bound = f"most {most:,}" if is_more else f"least {least:,}"
    raise CheckFailed(
        f"at {bound} bytes from {num_ranks} ranks: {what}",
        f"{sent:,.0f}",
        "Each gradient goes through one all-reduce; samples, and what is the same on every rank,"
        " need not be sent."
        if is_more
        else "Every rank has to learn of the gradients of all others, in their own dtype.",
        partial(
            draw_bars,
            {"all ranks": least / 1e3},
            {"all ranks": sent / 1e3},
            "Bytes sent by all ranks together",
            "kB",
        ),
    )


@points(1, cell="check_average_gradients")
def check_gradients_travel_as_in_one_all_reduce(student, rng):
    """All ranks together send what an all-reduce of the gradients must send, and little else."""
    num_ranks = 3  # of two ranks, each may send all to the other, and no byte is too many
    count = whole(rng, 2, 9)
    by_dtype = {
        dtype: average(student, rng, [count] * num_ranks, dtype=dtype)
        for dtype in (torch.bfloat16, torch.float32)
    }
    for dtype, found in by_dtype.items():
        least = 2 * (num_ranks - 1) * sum(one.nbytes for one in found.local[0])
        what = f"2(N - 1) times the gradients, here of {dtype}"
        expect_bytes(found.run.timeline, num_ranks, least, least + BESIDES * num_ranks, what)
    found = by_dtype[torch.float32]
    weights = weights_in(found.result(0), found.matrix)
    if weights is not None:
        expect_travelled(found, shares_in(weights))
    expect_same_weights(by_dtype[torch.bfloat16], found)


def expect_same_weights(half: Averaged, found: Averaged) -> None:
    """Raise CheckFailed unless gradients in bfloat16 are made as those in float32, right or not."""
    for rank in range(len(found.counts)):
        weights, result = weights_in(found.result(rank), found.matrix), half.result(rank)
        if weights is None:
            continue
        if result is None or not torch.allclose(result, weights @ half.matrix, rtol=3e-2):
            raise CheckFailed(
                f"bfloat16 gradients on rank {rank} that are made as those in float32",
                "other numbers, or another dtype",
                "The average is due in the dtype of each parameter, whichever that is.",
            )


@points(0.5, cell="check_average_gradients")
def check_averaging_takes_the_time_of_an_all_reduce(student, rng):
    """With large gradients the average takes at most 2.5 times as long as one all-reduce of all of
    them.
    """
    num_ranks = 4
    # a link so slow that small gradients take long
    link = Link("drawn", 2e-6, 1e5 * whole(rng, 2, 4), "drawn for one check, 2026", kind="nvlink")
    cluster = Cluster(name="drawn", gpu=H100, gpus_per_node=num_ranks, intra=link)
    counts = shuffled(rng, [1, 2, 3, 5])
    found = average(student, rng, counts, cluster=cluster)
    size_bytes = sum(one.nbytes for one in found.local[0])
    least_s = 2 * (num_ranks - 1) / num_ranks * size_bytes / link.bandwidth_bytes_per_s
    one_s = pricing.price("all_reduce", size_bytes, range(num_ranks), cluster).time_s
    expect_end(
        found.run,
        0.9 * least_s,
        MOST_ALL_REDUCES * one_s,
        f"an average of {size_bytes:,} bytes on {num_ranks} ranks",
        "The same bytes take longer when all go through one rank: its link is full, and those of"
        " the others are idle. In an all-reduce every rank's link carries an equal part.",
    )
    weights = weights_in(found.result(0), found.matrix)
    if weights is not None:
        expect_travelled(found, shares_in(weights))


@points(0.5, cell="check_average_gradients")
def check_averaging_holds_few_copies(student, rng):
    """However many ranks there are, the gradients and everything computed from them take at most
    three times their bytes.
    """
    num_ranks, num_layers, width = 2, 4, 900
    each = [(whole(rng, 1, 5),) for _ in range(num_ranks)]
    with hinted("Every rank has to make the same calls, in the same order."):
        run = student.emulated(
            large_average_on_rank, num_layers, width, world_size=num_ranks, each=each, memory=True
        )
    size_bytes = 4 * num_layers * width**2
    least = 2 * (num_ranks - 1) * size_bytes
    most = num_ranks * least + BESIDES * num_ranks
    expect_bytes(run.timeline, num_ranks, least, most, "2(N - 1) times the gradients")
    expect_grown(
        run,
        (MOST_COPIES + IN_FLIGHT) * size_bytes,
        f"the average of {size_bytes // MB} MiB of gradients, {MOST_COPIES} times their bytes and"
        " what is on its way",
        "A tensor stays in memory as long as a name or a list holds it. Work in place (mul_, div_,"
        " copy_), one parameter at a time or on one flat tensor, and never keep what came from"
        " each rank.",
    )


# train


def trained(
    student: Any,
    data: Tensors,
    epochs: list[Steps],
    settings: dict[str, Any],
    states: list[Tensors],
    **options: Any,
) -> Any:
    """The run of a training in which the check chooses the batches."""
    each = [(state,) for state in states]
    with hinted(
        "Every rank calls average_gradients and synchronise_buffers once in every step, also with"
        " an empty part."
    ):
        return student.emulated(
            training_on_rank,
            data,
            epochs,
            settings,
            world_size=len(states),
            each=each,
            cluster="pcie-box",
            forbid=NO_DDP,
            keeps_exchanges=True,
            **options,
        )


def averages_in(run: Any, num_numbers: int) -> list[Exchange]:
    """The all-reduces of `average_in_one_message` for so many numbers, in their order."""
    return [
        one
        for one in run.exchanges
        if one.op == "all_reduce"
        and one.dtype == "float32"
        and one.tensor(one.ranks[0]).numel() == num_numbers + 1
    ]


def expect_own_gradients(run: Any, state: Tensors, data: Tensors, steps: Steps, lr: float) -> None:
    """Raise CheckFailed unless in every step each rank averaged the gradient of its own part."""
    averages = averages_in(run, sum(one.numel() for one in state.values()))
    if len(averages) != len(steps):
        raise CheckFailed(
            f"one average of the gradients in each of {len(steps)} steps",
            f"{len(averages)} of them on the wire",
            "Call average_gradients(model, len(part)) between backward and the step, on every rank"
            " and in every step.",
        )
    weights = train_in_one_process(state, data, steps, lr)
    for before, parts, exchange in zip(weights, steps, averages, strict=False):
        for rank, part in enumerate(parts):
            gradient = mean_gradient(before, data["images"][part], data["labels"][part])
            own = torch.cat([*(one.flatten() for one in gradient.values()), torch.ones(1)]) * len(
                part
            )
            sent = tensor_like(exchange.tensor(rank), own)
            if sent is None or not torch.allclose(sent, own.nan_to_num(), rtol=1e-3, atol=1e-4):
                raise CheckFailed(
                    f"rank {rank} to average the gradient of its own part of each batch",
                    "another gradient, or another number of samples, on the wire",
                    "The ranks are there to share the work: compute the part that rank_batches"
                    " gives this rank, and pass its length to average_gradients.",
                )


@points(2.5, cell="check_train")
def check_ranks_reach_the_weights_of_one_process(student, rng):
    """Ranks with different initial weights that send the gradients of their own parts reach the
    weights of one process, bit by bit the same in a second run.
    """
    world_size, num_epochs, lr = 3, 5, 0.3
    # of few samples, two epochs may have the same batches by chance
    batch_size = world_size * whole(rng, 3, 4)
    data = random_data(rng, 2 * batch_size)
    epochs = random_epochs(rng, 2 * batch_size, batch_size, world_size, num_epochs)
    settings = settings_of(rng, batch_size, lr, num_epochs)
    states = [random_state(rng) for _ in range(world_size)]
    run = trained(student, data, epochs, settings, states)
    expect_trained(run.values, states, data, epochs, lr)
    expect_own_gradients(run, states[0], data, [parts for epoch in epochs for parts in epoch], lr)
    expect_same_again(run.values, trained(student, data, epochs, settings, states).values)


@points(0.5, cell="check_train")
def check_all_five_work_together_on_uneven_batches(student, rng):
    """All five functions together reach the weights of one process, even with uneven batches and
    empty parts.
    """
    world_size, num_epochs, lr = (
        4,
        2,
        0.2,
    )  # a step on a sample alone is long: a larger lr makes much of rounding
    batch_size = 2 * world_size + 1
    num_samples = 3 * batch_size + 2  # the last batch leaves two ranks without samples
    data = random_data(rng, num_samples)
    settings = settings_of(rng, batch_size, lr, num_epochs)
    states = [random_state(rng) for _ in range(world_size)]
    with hinted(
        "Look at a step in which a part is empty: its rank makes every call that the others make."
    ):
        values = student.run(
            own_training_on_rank,
            data,
            world_size,
            settings,
            world_size=world_size,
            each=list(enumerate(states)),
            forbid=NO_DDP,
        )
    epochs = [
        read_epoch([entry(value, "batches", epoch) for value in values], num_samples, batch_size)
        for epoch in range(num_epochs)
    ]
    expect_trained(values, states, data, epochs, lr)


@points(1, cell="check_train")
def check_training_sends_gradients_and_little_else(student, rng):
    """Training sends the model once and the gradients in every step, by the operations that are
    allowed.
    """
    world_size, num_steps = 3, 2
    batch_size = 40 * world_size  # one sample of five numbers is small, a batch is not
    data = random_data(rng, num_steps * batch_size)
    epochs = random_epochs(rng, num_steps * batch_size, batch_size, world_size, num_epochs=1)
    width = whole(rng, 400, 900)  # a model whose bytes are many more than those of a count
    states = [random_state(rng, width=width) for _ in range(world_size)]
    run = trained(student, data, epochs, settings_of(rng, batch_size), states, allow=ALLOWED)
    size_bytes = sum(tensor.nbytes for tensor in states[0].values())
    # of the gradients; the start is judged elsewhere
    least = 2 * num_steps * (world_size - 1) * size_bytes
    most = least + (world_size - 1) * size_bytes + 2 * num_steps * world_size * BESIDES
    what = "the model once, then 2(N - 1) times the gradients a step"
    expect_bytes(run.timeline, world_size, least, most, what)


@points(1, cell="check_train")
def check_losses_are_those_of_the_global_batch(student, rng):
    """Every rank returns the same list: the mean loss over the whole global batch at each step,
    put together from what the ranks sent.
    """
    world_size = 3
    batch_size = world_size + 2
    num_samples = 8 * batch_size + 2  # so many steps that no rounding of the losses goes unnoticed
    data, state = random_data(rng, num_samples), random_state(rng)
    (steps,) = random_epochs(rng, num_samples, batch_size, world_size, num_epochs=1)
    # with lr 0 the weights stay, so that a mistake in the gradients does not count again
    run = trained(
        student, data, [steps], settings_of(rng, batch_size, lr=0.0), [state] * world_size
    )
    logits = classifier(state)(data["images"]).detach()
    each_loss = F.cross_entropy(logits, data["labels"], reduction="none")
    counts = torch.tensor([[len(part) for part in parts] for parts in steps])  # (steps, ranks)
    sums = torch.stack([torch.stack([each_loss[part].sum() for part in parts]) for parts in steps])
    wanted = sums.sum(dim=1) / counts.sum(dim=1)
    for rank, value in enumerate(run.values):
        losses = read_losses(entry(value, "losses"), len(steps), rank)
        hint = hint_for_losses(losses, sums, counts, rank)
        picture = partial(draw_losses, wanted, losses, rank)
        what = f"the losses on rank {rank}"
        expect_close(losses, wanted, what, hint, rtol=1e-5, atol=1e-6, picture=picture)
    hint = "Compute the loss of this rank's part alone, and add up over the ranks."
    shares = sums.T / counts.sum(dim=1)
    expect_sum_travelled(run.exchanges, shares, counts.T, "the losses", hint)
    # the first loss, of weights that are known whatever the steps are
    run = trained(student, data, [steps[:1]], settings_of(rng, batch_size, lr=0.5), [state] * 3)
    for rank, value in enumerate(run.values):
        hint = "A step's loss is that before the update, and does not depend on the learning rate."
        what = f"the loss of the first step on rank {rank}, with lr 0.5,"
        expect_close(read_losses(entry(value, "losses"), 1, rank), wanted[:1], what, hint)


def hint_for_losses(
    losses: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor, rank: int
) -> str:
    """A hint by the mistake that gives these losses; the others have a row for each step."""
    means, right = sums / counts, sums.sum(dim=1) / counts.sum(dim=1)  # nan where a part is empty
    mistakes = [
        (means.nanmean(dim=1), "ranks with more samples must count for more."),
        (means.nansum(dim=1), "that is the sum of the ranks' mean losses."),
        (sums.sum(dim=1), "that is the sum over the batch, not its mean."),
        (means[:, rank], "this is the loss of the rank's own part."),
    ]
    hint = "sum the losses of the samples over all ranks, and divide by the samples of all ranks."
    if losses.isnan().any():
        hint = "the mean over an empty part is nan, and it spreads: an empty part adds 0."
    for wrong, reason in mistakes:
        known = ~wrong.isnan()
        if torch.allclose(losses[known], wrong[known], rtol=1e-3, atol=1e-5):
            hint = reason
    if torch.allclose(losses, right, rtol=1e-3, atol=1e-3):
        hint = "return it as it is, not rounded."
    return f"A step's loss belongs to the global batch: {hint}"


def draw_losses(wanted: torch.Tensor, losses: torch.Tensor, rank: int) -> Drawn:
    """The losses that should be and those that came, by step."""
    expected, actual = (
        {f"step {step}": loss for step, loss in enumerate(one.tolist(), start=1)}
        for one in (wanted, losses)
    )
    return draw_bars(expected, actual, f"The loss at each step, on rank {rank}", "loss")


@points(1, cell="check_train")
def check_training_keeps_the_buffers_alike(student, rng):
    """While a model with BatchNorm trains, rank 0 sends its running statistics in every step, and
    every rank holds them afterwards.
    """
    world_size = 3
    batch_size = world_size * whole(rng, 3, 4)
    data = random_data(rng, 3 * batch_size)
    (steps,) = random_epochs(rng, 3 * batch_size, batch_size, world_size, num_epochs=1)
    weights = {
        "1.weight": torch.randn(3, 5, generator=rng),
        "1.bias": torch.randn(3, generator=rng),
    }
    state = {**nn.BatchNorm1d(5).state_dict(prefix="0."), **weights}
    run = trained(student, data, [steps], settings_of(rng, batch_size), [state] * world_size)

    statistics, of_rank_0 = [nn.BatchNorm1d(5) for _ in range(world_size)], []
    for parts in steps:
        for layer, part in zip(statistics, parts, strict=True):
            layer(data["images"][part])
        of_rank_0.append(statistics[0].running_mean.clone())
    of_rank = [{f"0.{name}": one for name, one in layer.named_buffers()} for layer in statistics]
    for rank, value in enumerate(run.values):
        own = (of_rank[rank], f"Rank {rank} keeps the statistics of its own samples.")
        otherwise = "Rank 0's statistics follow from its own parts; all others receive them."
        hint = hint_for(entry(value, "model"), [own] if rank else [], otherwise)
        expect_tensors(entry(value, "model"), of_rank[0], "the buffer", rank, hint)
    expect_sent_in_every_step(run, of_rank_0, sum(one.numel() for one in weights.values()) + 10)


def expect_sent_in_every_step(run: Any, statistics: list[torch.Tensor], num_gradients: int) -> None:
    """Raise PartlyHeld unless rank 0 sent its statistics after each step, in time for the next."""
    ends = [run.exchanges.index(one) for one in averages_in(run, num_gradients)][1:]
    for mean, end in zip(statistics, ends, strict=False):
        sent = [one.tensor() for one in run.exchanges[:end] if one.op == "broadcast"]
        if not any(
            tensor_like(one, mean) is not None and torch.allclose(one, mean, rtol=1e-4)
            for one in sent
        ):
            raise PartlyHeld(
                0.5,
                "every step to begin with the buffers of rank 0",
                "a step before which rank 0 did not send them, although they are alike in the end",
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
    run = student.emulated(
        timed_training_on_rank,
        data,
        epochs,
        settings_of(rng, batch_size),
        sample_s,
        world_size=world_size,
        cluster="pcie-box",
        forbid=NO_DDP,
        keeps_exchanges=True,
    )
    sizes = torch.tensor([[len(part) for part in parts] for epoch in epochs for parts in epoch])
    expect_work(run, {rank: int(sizes[:, rank].sum()) * sample_s for rank in range(world_size)})
    expect_worked_before(run, averages_in(run, 18), sizes * sample_s)
    largest_s = int(sizes.max(dim=1).values.sum()) * sample_s
    end_s = run.timeline.end_s
    if end_s > MOST_STEPS * largest_s:
        raise CheckFailed(
            f"{num_steps} steps in about {largest_s * 1e3:.0f} ms, the time of the largest part of"
            " each",
            f"{end_s * 1e3:.0f} ms, {end_s / largest_s:.1f} times as long, on {world_size} ranks",
            "Let each rank compute its own part at once: no rank waits for another before the"
            " gradients are averaged.",
            partial(
                draw_timeline,
                run.timeline,
                "When your ranks worked and waited, emulated",
                ["compute", "wait"],
            ),
        )


def expect_worked_before(run: Any, averages: list[Exchange], work_s: torch.Tensor) -> None:
    """Raise CheckFailed unless each rank had done a step's work, by row, before it averaged."""
    if len(averages) != len(work_s):
        raise CheckFailed(
            f"one average of the gradients in each of {len(work_s)} steps", f"{len(averages)}"
        )
    for exchange, done_s in zip(averages, work_s.cumsum(dim=0).tolist(), strict=True):
        for rank, least_s in enumerate(done_s):
            if exchange.posted_s[rank] < least_s * (1 - 1e-6):
                raise CheckFailed(
                    f"rank {rank} to send a step's gradient once it has computed it",
                    "a gradient that left before the work for it was done",
                    "Average the gradients after backward, and leave the emulator's clock alone.",
                )


@points(0.5, cell="check_train")
def check_training_gives_back_what_a_step_took(student, rng):
    """Memory does not grow with the number of steps, except for the losses and the samples."""
    world_size, num_steps, width, part_size = 1, 10, 10_000, 50
    batch_size = world_size * part_size  # a step's gradients take 2 MB, and so do its activations
    images = torch.randn(num_steps * batch_size, 50, generator=rng)
    data = {"images": images, "labels": torch.randint(3, (len(images),), generator=rng)}
    epochs = random_epochs(rng, len(images), batch_size, world_size, num_epochs=1)
    settings = settings_of(rng, batch_size)
    run = student.emulated(
        large_training_on_rank,
        data,
        epochs,
        settings,
        width,
        world_size=world_size,
        forbid=NO_DDP,
        memory=True,
    )
    expect_work(run, dict.fromkeys(range(world_size), num_steps * STEP_S))
    expect_grown(
        run,
        MOST_HELD * 4 * width * part_size,
        f"{num_steps} steps, of which each needs a few MiB",
        "Something of every step is kept. A loss holds its whole graph until it is detached: keep"
        " loss.item() or loss.detach(), keep no copies of weights or gradients, and call backward"
        " without retain_graph.",
    )
