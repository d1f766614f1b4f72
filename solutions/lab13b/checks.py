"""Hidden checks of lab 13b: what Horovod does, over a `comm` on emulated ranks.

Points rest on what went over the wire: the body of every all-reduce is compared with what the judge
computes, and what another rank has drawn can only be known on a rank to which it was sent. In the
elastic jobs each step posts the state with which it begins.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import worldsize as ws
from autograder.checks import (
    call_each,
    entries,
    entry,
    expect_same_again,
    hinted,
    is_same,
    points,
    shown,
    shuffled,
    take_from_solution,
    tensor_like,
    whole,
)
from worldsize.check import CheckFailed, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.event import Event
from worldsize.launch import Run

RULES = {"cluster": "a100-100gbe", "allow": {"all_reduce", "broadcast"}, "keeps_exchanges": True}
IN_STEP = "All ranks must call the same operations in the same order, also with nothing to add."
ALL_MEET = "All that are alive must meet after each change, and then do the same steps."
NEAR = {"rtol": 1e-5, "atol": 1e-6}


# References that are put in the place of a student's other parts.

Comm, right_broadcast_state, right_agreed = take_from_solution(
    Path(__file__).with_name("lab13b.py"), "OverTorch", "broadcast_state", "agreed"
)


def buffers_of(tensors: dict[str, torch.Tensor], fusion_bytes: int) -> list[list[str]]:
    buffers: list[list[str]] = []
    for name in sorted(tensors):
        joined = [tensors[one] for one in [*buffers[-1], name]] if buffers else []
        is_alike = len({one.dtype for one in joined}) == 1
        if is_alike and sum(one.nbytes for one in joined) <= fusion_bytes:
            buffers[-1].append(name)
        else:
            buffers.append([name])
    return buffers


def reference_fused_sum(comm: Any, tensors: dict[str, torch.Tensor], fusion_bytes: int) -> None:
    for names in buffers_of(tensors, fusion_bytes):
        buffer = torch.cat([tensors[name].flatten() for name in names])
        comm.Allreduce(buffer)
        parts = buffer.split([tensors[name].numel() for name in names])
        for name, part in zip(names, parts, strict=True):
            tensors[name].copy_(part.view_as(tensors[name]))


# What has to be in the messages.


def is_sent(
    exchanges: Sequence[Exchange], rank: int, tensor: torch.Tensor, off: float = 0.0
) -> bool:
    """Whether a rank gave these elements to an operation: as bytes, or as numbers of any dtype.

    They may be off by a part of themselves, and a matrix may go row by row or column by column.
    """
    content = b"".join(one.bodies.get(rank, b"") for one in exchanges)
    for form in (tensor, tensor.t()) if tensor.dim() == 2 else (tensor,):
        flat = form.flatten()
        if flat.view(torch.uint8).numpy().tobytes() in content:
            return True
        wanted = flat.double()
        for one in exchanges:
            given = one.tensor(rank).double()
            if len(given) >= len(wanted):
                windows = given.unfold(0, len(wanted), 1)
                if bool(((windows - wanted).abs() <= off * wanted.abs()).all(dim=1).any()):
                    return True
    return False


# broadcast_state


class Sample(nn.Module):
    """A model with parameters and buffers of several dtypes, drawn by a seed."""

    def __init__(self, seed: int, sizes: Sequence[int]) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        dtypes = (torch.float32, torch.float64, torch.bfloat16)
        drawn = [torch.randn(size, 3, generator=rng) for size in sizes]
        pairs = zip(drawn, dtypes, strict=True)
        self.weights = nn.ParameterList([nn.Parameter(one.to(dtype)) for one, dtype in pairs])
        self.weights[1].requires_grad_(False)
        self.register_buffer("mean", torch.randn(5, generator=rng))
        self.register_buffer("count", torch.randint(1 << 40, (), generator=rng))


def broadcast_on_rank(
    student: Any, root: int, seed: int, kind: str, sizes: Any, settings: Any, num_steps: int
) -> Any:
    """What this rank had and has of model and optimizer, and what a step then does."""

    def parts(model: Any, optimizer: Any) -> Any:
        kept = [optimizer.state.get(one, {}) for one in model.weights]
        moments = [
            {key: value.clone() for key, value in one.items() if isinstance(value, torch.Tensor)}
            for one in kept
        ]
        tensors = {name: one.clone() for name, one in model.state_dict().items()}
        groups = [
            {key: one for key, one in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        return {"tensors": tensors, "moments": moments, "settings": groups}

    model = Sample(seed, sizes)
    before_ids = [id(one) for one in model.weights]
    trained = [one for one in model.weights if one.requires_grad]
    groups = [{"params": [one], **own} for one, own in zip(trained, settings, strict=True)]
    if kind == "SGD":
        optimizer: Any = torch.optim.SGD(groups)
    else:
        optimizer = torch.optim.Adam(groups, foreach=False)
    for _ in range(num_steps):
        for one in trained:
            one.grad = torch.ones_like(one) * (seed % 7 + 1)
        optimizer.step()
    before = parts(model, optimizer)
    student.broadcast_state(Comm(), model, optimizer, root)
    after = parts(model, optimizer)
    for one in trained:
        one.grad = torch.ones_like(one)
    optimizer.step()
    is_same_object = before_ids == [id(one) for one in model.weights]
    return {
        "before": before,
        "after": after,
        "step": parts(model, optimizer),
        "ids": is_same_object,
    }


def drawn_settings(rng: torch.Generator, kind: str) -> dict[str, Any]:
    """Settings of a group of an optimizer, which differ from rank to rank."""
    lr, decay, first, second = (whole(rng, 1, 99) / 128 for _ in range(4))
    own = {"momentum": first} if kind == "SGD" else {"betas": (first, second)}
    return {"lr": lr, "weight_decay": decay, **own}


def state_after_broadcast(
    student: Any, rng: torch.Generator, kind: str, root: int, num_steps: int = 2
) -> Run:
    """The run of a broadcast from a root whose optimizer has done so many steps."""
    sizes = [whole(rng, 4, 30) for _ in range(3)]
    each = []
    for rank in range(3):  # some of the others have a state of their own
        settings = [drawn_settings(rng, kind) for _ in range(2)]
        num = num_steps if rank == root else rank % 2
        each.append((root, whole(rng, 0, 1 << 40), kind, sizes, settings, num))
    with hinted(IN_STEP):
        return student.emulated(broadcast_on_rank, world_size=3, each=each, **RULES)


def expect_as_on_root(run: Run, root: int, *places: str) -> None:
    """Raise CheckFailed unless these parts are on all ranks what the root had before."""
    for rank, value in enumerate(run.values):
        if not is_same(entry(value, "after", *places), entry(run.values[root], "before", *places)):
            word = {"tensors": "weights and buffers", "moments": "optimizer state"}
            what = word.get(places[0], "settings of the optimizer's groups")
            hint = "The state_dict() of model and optimizer has all of it."
            found = f"other numbers, more, or none, on rank {rank}"
            raise CheckFailed(f"the root's {what} on all ranks", found, hint)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of more than one element in nested lists and dicts."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [tensor for part in parts for tensor in tensors_in(part)]
    return [value] if isinstance(value, torch.Tensor) and value.numel() > 1 else []


def expect_sent_by_root(run: Run, root: int) -> None:
    """Raise CheckFailed unless the root sent as much as its weights, and nobody else anything."""
    for one in run.exchanges:
        if one.op != "broadcast" or one.root != root:
            actual = f"{one.op} of rank {one.root if one.op == 'broadcast' else 'all'}"
            raise CheckFailed("broadcasts of the root alone", actual, "Use comm.Bcast with root.")
    held = entry(run.values[root], "before", "tensors")
    size = sum(one.nbytes for one in held.values()) if isinstance(held, dict) else 0
    sent = sum(len(one.body) for one in run.exchanges)
    if not size <= sent <= 20 * size + 50_000:
        raise CheckFailed(f"{size:,} bytes of state or some more", f"{sent:,} broadcast")


def expect_in_broadcasts(run: Run, root: int, part: str) -> None:
    """Raise CheckFailed unless this part of the root's state is in what it sent."""
    for tensor in tensors_in(entry(run.values[root], "before", part)):
        if not is_sent(run.exchanges, root, tensor):
            hint = "What ranks know of the root's state comes over the wire."
            raise CheckFailed("all elements of the root's state in broadcasts", "others", hint)


@points(1, cell="check_broadcast_state")
def check_broadcast_of_weights(student, rng):
    """All ranks have the root's parameters and buffers, of any dtype, frozen ones too, and only the
    root sends.
    """
    root = whole(rng, 0, 2)
    run = state_after_broadcast(student, rng, "SGD", root)
    expect_sent_by_root(run, root)
    expect_as_on_root(run, root, "tensors")
    expect_in_broadcasts(run, root, "tensors")


@points(1, cell="check_broadcast_state")
def check_broadcast_of_optimizer(student, rng):
    """All ranks have the root's momentum and the settings of all groups, such as the rate, also
    those whose optimizer has another state, or none, and where the root's has none.
    """
    for root, kind, num_steps in ((1, "SGD", 2), (0, "Adam", 2), (2, "SGD", 0)):
        run = state_after_broadcast(student, rng, kind, root, num_steps)
        expect_sent_by_root(run, root)
        expect_as_on_root(run, root, "moments")
        expect_in_broadcasts(run, root, "moments")
        expect_as_on_root(run, root, "settings")


@points(1, cell="check_broadcast_state")
def check_broadcast_in_place(student, rng):
    """The parameters are the objects that the optimizer changes, the root's as they were."""
    root = whole(rng, 1, 2)
    run = state_after_broadcast(student, rng, "Adam", root)
    expect_sent_by_root(run, root)
    expect_as_on_root(run, root, "tensors")
    expect_in_broadcasts(run, root, "tensors")
    for value in run.values:
        is_moved = not is_same(entry(value, "step", "tensors"), entry(value, "after", "tensors"))
        if entry(value, "ids") is not True or not is_moved:
            hint = "Copy into what is there."
            raise CheckFailed("the parameters that the optimizer changes", "other ones", hint)


# agreed


def agreed_on_rank(student: Any, rounds: Any, names: Any) -> Any:
    comm = Comm()
    return [list(student.agreed(comm, list(waiting), list(names))) for waiting in rounds]


PARTS = (0.8, 0.8, 0.0, 1.0, *[0.4] * 5)  # of the names that all ranks have, about, round by round


def play_agreed(student: Any, rng: torch.Generator, num_ranks: int) -> tuple[Run, list[list[str]]]:
    names = [f"layer {one}" for one in shuffled(rng, range(whole(rng, 9, 14)))]
    by_rank: list[list[list[str]]] = [[] for _ in range(num_ranks)]
    wanted = []
    for part in PARTS:
        common = [one for one in names if torch.rand((), generator=rng) < part]
        for rounds in by_rank:
            others = [one for one in names if torch.rand((), generator=rng) < part / 2]
            rounds.append(shuffled(rng, sorted({*common, *others})))
        sets = [set(rounds[-1]) for rounds in by_rank]
        wanted.append([one for one in names if all(one in each for each in sets)])
    by_rank[0][0] = []  # one rank has nothing yet
    wanted[0] = []
    with hinted(IN_STEP):
        each = [(rounds, names) for rounds in by_rank]
        run = student.emulated(agreed_on_rank, world_size=num_ranks, each=each, **RULES)
    sizes = [len(one.bodies[0]) for one in run.exchanges if one.op == "all_reduce"]
    num = len(PARTS)
    if len(run.exchanges) != num or len(sizes) != num or max(sizes) > len(names):
        expected = f"one all-reduce of at most {len(names)} bytes for each of {num} calls"
        raise CheckFailed(expected, f"{len(run.exchanges)} operations of {sizes} bytes")
    expect_names_sent(run.exchanges, by_rank, names)
    return run, wanted


def expect_names_sent(
    exchanges: Sequence[Exchange], by_rank: Sequence[Sequence[Sequence[str]]], names: Sequence[str]
) -> None:
    """Raise CheckFailed unless each name has a bit of its own that says whether it waits."""
    said = [
        (set(rounds[number]), one.bodies[rank])
        for number, one in enumerate(exchanges)
        for rank, rounds in enumerate(by_rank)
    ]
    places = range(8 * min(len(body) for _, body in said))

    def bits_at(place: int, name: str, is_waiting: bool) -> set[int]:
        byte, bit = divmod(place, 8)
        return {body[byte] >> bit & 1 for waiting, body in said if (name in waiting) == is_waiting}

    def is_place(place: int, name: str) -> bool:
        waits, absent = (bits_at(place, name, is_waiting) for is_waiting in (True, False))
        return len(waits) == len(absent) == 1 and waits != absent

    missing = [name for name in names if not any(is_place(place, name) for place in places)]
    if missing:
        hint = "Each rank's own `waiting` has to be in what it gives to the all-reduce."
        expected = "other bytes from ranks with other names, a bit or more for each name"
        raise CheckFailed(expected, f"none for {len(missing)} of {len(names)} names", hint)


@points(1, cell="check_agreed")
def check_agreed_names(student, rng):
    """The names that all ranks have, from one all-reduce of a byte a name, in every round."""
    run, wanted = play_agreed(student, rng, whole(rng, 3, 5))
    for rank, value in enumerate(run.values):
        for number, names in enumerate(wanted):
            found = entry(value, number)
            if not isinstance(found, list) or not is_same(sorted(map(str, found)), sorted(names)):
                expected = f"the {len(names)} names of round {number} that all ranks have"
                raise CheckFailed(expected, f"{shown(found)} on rank {rank}")


@points(1, cell="check_agreed")
def check_agreed_order(student, rng):
    """They have the order of `names` on all ranks."""
    run, wanted = play_agreed(student, rng, 3)
    for rank, value in enumerate(run.values):
        if not is_same(entries(value, len(wanted)), wanted):
            hint = "Go through `names`, not through `waiting`, which is in any order."
            raise CheckFailed("the order of `names`", f"another on rank {rank}", hint)


# fused_sum


def fused_on_rank(student: Any, tensors: Any, order: Any, fusion_bytes: int) -> Any:
    own = {name: tensors[name] for name in order}
    own = {
        name: one.t().clone().t() if one.dim() == 2 else one.clone() for name, one in own.items()
    }
    objects = dict(own)
    student.fused_sum(Comm(), own, fusion_bytes)
    return [objects[name] for name in sorted(objects)]


def drawn_tensors(rng: torch.Generator, dtypes: Sequence[torch.dtype]) -> list[dict[str, Any]]:
    """Tensors of integers by name, for each of three ranks, so that their sums are exact."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number in shuffled(rng, range(10, 18)):
        shapes[f"w{number}"] = (
            (whole(rng, 3, 9), whole(rng, 3, 9)) if number % 2 else (whole(rng, 5, 40),)
        )
    shapes |= {"w18": (), "w19": (whole(rng, 90, 120),), "w2": (6,)}
    of_names = {name: dtypes[place % len(dtypes)] for place, name in enumerate(shapes)}
    return [
        {
            name: torch.randint(-50, 50, shape, generator=rng).to(of_names[name])
            for name, shape in shapes.items()
        }
        for _ in range(3)
    ]


def play_fused(student: Any, rng: torch.Generator, tensors: Any, fusion_bytes: int) -> Run:
    each = [(one, shuffled(rng, list(one)), fusion_bytes) for one in tensors]
    with hinted(IN_STEP):
        return student.emulated(fused_on_rank, world_size=3, each=each, **RULES)


def expect_bodies(
    exchanges: Sequence[Exchange],
    wanted: Sequence[Sequence[torch.Tensor]],
    rounding: dict[str, float] | None = None,
) -> None:
    """Raise CheckFailed unless all-reduces carry these numbers of these ranks, buffer by buffer.

    `rounding` is how far numbers of a dtype may be off, as a part of them; without it they are not.
    """
    sums = [one for one in exchanges if one.op == "all_reduce"]
    sizes = [len(next(iter(one.bodies.values()))) for one in sums]
    due = [of_ranks[0].nbytes for of_ranks in wanted]
    if sizes != due or len(sums) != len(exchanges):
        hint = "In the order of names; a new buffer where the next tensor has another dtype or does"
        raise CheckFailed(f"all-reduces of {due} bytes", f"{sizes}", f"{hint} not fit.")
    for number, (one, of_ranks) in enumerate(zip(sums, wanted, strict=True)):
        for rank, given in enumerate(of_ranks):
            if one.dtype != str(given.dtype).removeprefix("torch."):
                raise CheckFailed(f"buffer {number} in {given.dtype}", f"torch.{one.dtype}")
            off = (one.tensor(rank) - given).abs()
            if not bool((off <= (rounding or {}).get(one.dtype, 0.0) * given.abs()).all()):
                hint = "The tensors' elements one after the other, in the order of the names."
                raise CheckFailed(f"rank {rank}'s numbers in buffer {number}", "others", hint)


def expect_fused(run: Run, tensors: Any, fusion_bytes: int) -> None:
    buffers = buffers_of(tensors[0], fusion_bytes)
    bodies = [
        [torch.cat([of_rank[name].flatten() for name in names]) for of_rank in tensors]
        for names in buffers
    ]
    expect_bodies(run.exchanges, bodies)


@points(2, cell="check_fused_sum")
def check_fused_buffers(student, rng):
    """Buffers are filled in the order of names as far as they hold, to the last byte, whatever
    order a rank's dict has, and carry the tensors' elements. Without tensors, nothing is sent.
    """
    drawn = drawn_tensors(rng, [torch.float32])
    full_bytes = sum(drawn[0][name].nbytes for name in sorted(drawn[0])[:2])
    for tensors, fusion_bytes in (
        *((drawn, size_bytes) for size_bytes in (full_bytes, 0, 1 << 20)),
        ([{}, {}, {}], full_bytes),
    ):
        expect_fused(play_fused(student, rng, tensors, fusion_bytes), tensors, fusion_bytes)


@points(1, cell="check_fused_sum")
def check_fused_dtypes(student, rng):
    """Each dtype travels as it is: a buffer holds one alone."""
    tensors = drawn_tensors(rng, [torch.float32, torch.float16, torch.float64])
    fusion_bytes = 2 * whole(rng, 125, 175) + 1  # odd: no tensors fill it to the last byte
    expect_fused(play_fused(student, rng, tensors, fusion_bytes), tensors, fusion_bytes)


@points(2, cell="check_fused_sum")
def check_fused_sums(student, rng):
    """Every tensor, also one that is not contiguous, holds the sum over all ranks afterwards."""
    tensors = drawn_tensors(rng, [torch.float32, torch.float64])
    run = play_fused(student, rng, tensors, whole(rng, 150, 300))
    for rank, value in enumerate(run.values):
        for place, name in enumerate(sorted(tensors[0])):
            wanted: Any = sum(of_rank[name] for of_rank in tensors)
            found = tensor_like(entry(value, place), wanted)
            if found is None or not torch.equal(found, wanted):
                hint = "Copy the parts of the summed buffer back into the tensors, with copy_."
                raise CheckFailed(f"the sum in place on rank {rank}", "another value", hint)
    for rank, of_rank in enumerate(tensors):
        if not all(is_sent(run.exchanges, rank, one) for one in of_rank.values()):
            hint = "What is summed comes over the wire."
            raise CheckFailed(f"rank {rank}'s tensors on the wire", "other numbers", hint)


# DistributedOptimizer


def optimizer_on_rank(
    student: Any, compression: str, fusion_bytes: int, steps: Any, first: Any
) -> Any:
    """Gradients and weights after each step; a step is a list of passes of given gradients."""
    student.agreed, student.fused_sum = right_agreed, reference_fused_sum
    weights = {name: nn.Parameter(one.clone()) for name, one in first.items()}
    inner = torch.optim.SGD(list(weights.values()), lr=0.5, momentum=0.5, weight_decay=0.125)
    options = {"compression": compression, "fusion_bytes": fusion_bytes}
    optimizer = student.DistributedOptimizer(inner, list(weights.items()), Comm(), **options)
    found = []
    for passes in steps:
        optimizer.zero_grad()
        for given in passes:
            loss = sum((weights[name] * one).sum().double() for name, one in given.items())
            if given:
                loss.backward()  # pyright: ignore
        optimizer.step()
        gradients = [None if one.grad is None else one.grad.clone() for one in weights.values()]
        found.append(
            {"gradients": gradients, "weights": [one.detach().clone() for one in weights.values()]}
        )
    return found


# of a product with 1/3 in place of a quotient
ROUNDING = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-6}


class Trained:
    """Two steps of three ranks: what was drawn, what came back, and what must have been sent."""

    def __init__(
        self, student: Any, rng: torch.Generator, compression: str, scale: float = 1.0
    ) -> None:
        self.compression, self.fusion_bytes = compression, whole(rng, 80, 200)
        self.dtypes = {"wide": torch.float64, "bias": torch.float32, "gate": torch.float32}
        self.dtypes |= {"idle": torch.float32, "here": torch.float32, "head": torch.float32}
        shapes = {name: (whole(rng, 3, 6), whole(rng, 3, 6)) for name in self.dtypes}
        self.first = {
            name: torch.randn(shapes[name], generator=rng).to(dtype)
            for name, dtype in self.dtypes.items()
        }

        def drawn(names: Sequence[str]) -> dict[str, torch.Tensor]:
            return {
                name: (scale * torch.randint(-64, 64, shapes[name], generator=rng)).to(
                    self.dtypes[name]
                )
                for name in names
            }

        used = ["wide", "bias", "gate", "head"]
        lone = whole(rng, 0, 2)  # the rank that uses "here"
        self.by_rank = [
            [
                [drawn([*used, "here"] if rank == lone else used), drawn(used[:2])],
                [drawn(used if rank else used[1:])],
            ]
            for rank in range(3)
        ]
        with hinted(IN_STEP):
            each = [(compression, self.fusion_bytes, steps, self.first) for steps in self.by_rank]
            self.run = student.emulated(optimizer_on_rank, world_size=3, each=each, **RULES)

    def own(self, rank: int, step: int) -> dict[str, torch.Tensor]:
        """The gradients of a rank in a step, with zeros where only others have one."""
        everywhere = {name for steps in self.by_rank for given in steps[step] for name in given}
        found = {}
        for name in self.first:
            if name in everywhere:
                zeros = torch.zeros_like(self.first[name])
                found[name] = sum((given.get(name, 0) for given in self.by_rank[rank][step]), zeros)
        return found

    def sent(self, rank: int, step: int, divisor: int = 3) -> dict[str, torch.Tensor]:
        """What a rank must give to the sums of a step, by name."""
        own = {name: one / divisor for name, one in self.own(rank, step).items()}
        if self.compression == "fp16":
            own = {name: one.to(torch.float16) for name, one in own.items()}
        return own

    def expect_wire(self) -> None:
        """Raise CheckFailed unless the wire carried the agreement and the gradients.

        They are divided before they are summed, or, where they are not compressed, afterwards.
        """
        try:
            self.expect_wire_of(3)
        except CheckFailed:
            if self.compression == "fp16":
                raise
            self.expect_wire_of(1)

    def expect_wire_of(self, divisor: int) -> None:
        left = list(self.run.exchanges)
        for step in range(2):
            by_rank = [self.sent(rank, step, divisor) for rank in range(3)]
            buffers = buffers_of(by_rank[0], self.fusion_bytes)
            num = 1 + len(buffers)
            bodies = [
                [torch.cat([of_rank[name].flatten() for name in names]) for of_rank in by_rank]
                for names in buffers
            ]
            agreement, sums, left = left[:1], left[1:num], left[num:]
            if not agreement or len(agreement[0].bodies.get(0, b"")) != len(self.first):
                hint = "`agreed` finds out which gradients are None on all ranks."
                raise CheckFailed("one call of `agreed` at the beginning of a step", "none", hint)
            expect_bodies(sums, bodies, ROUNDING)
        if left:
            raise CheckFailed("nothing more on the wire", f"{len(left)} operations")

    def expect_gradients_sent(self) -> None:
        """Raise CheckFailed unless each rank's gradients, divided or not, went into all-reduces."""
        sums = [one for one in self.run.exchanges if one.op == "all_reduce"]
        for rank, step in itertools.product(range(3), range(2)):
            for gradient in self.own(rank, step).values():
                forms = [gradient / divisor for divisor in (1, 3)]
                if gradient.any() and not any(is_sent(sums, rank, one, 2e-3) for one in forms):
                    hint = "What is averaged comes over the wire."
                    expected = f"rank {rank}'s gradients of step {step} in all-reduces"
                    raise CheckFailed(expected, "other numbers", hint)

    def wanted(self) -> list[dict[str, Any]]:
        """The gradients and weights after each step, by the judge."""
        weights = {name: nn.Parameter(one.clone()) for name, one in self.first.items()}
        inner = torch.optim.SGD(list(weights.values()), lr=0.5, momentum=0.5, weight_decay=0.125)
        found = []
        for step in range(2):
            by_rank = [self.sent(rank, step) for rank in range(3)]
            for name, one in weights.items():
                one.grad = None
                if name in by_rank[0]:
                    total = sum(of_rank[name].double() for of_rank in by_rank)
                    one.grad = total.to(self.first[name].dtype)  # pyright: ignore
            inner.step()
            found.append({name: (one.grad, one.detach().clone()) for name, one in weights.items()})
        return found

    def expect_result(self, names: Sequence[str]) -> None:
        """Raise CheckFailed unless these parameters' gradients and weights are right."""
        near: dict[str, Any] = {"rtol": 5e-3, "atol": 0.2} if self.compression == "fp16" else NEAR
        for step, due in enumerate(self.wanted()):
            for rank, value in enumerate(self.run.values):
                for place, name in enumerate(self.first):
                    if name not in names:
                        continue
                    for part, wanted in zip(("gradients", "weights"), due[name], strict=True):
                        given = entry(value, step, part, place)
                        what = f"step {step}, rank {rank}: {part} of a parameter"
                        if wanted is None:
                            if given is not None:
                                hint = "A gradient that is None on all ranks stays None."
                                raise CheckFailed(f"{what}: None", shown(given), hint)
                            continue
                        found = tensor_like(given, wanted)
                        if found is None:
                            raise CheckFailed(f"{what}: {wanted.dtype}", shown(given))
                        expect_close(
                            found, wanted, what, "The mean over ranks, then one step.", **near
                        )


USED = ("wide", "bias", "gate", "head")


@points(2, cell="check_DistributedOptimizer")
def check_optimizer_averages(student, rng):
    """Gradients of several passes, of any dtype, are averaged over the ranks, and a step done."""
    game = Trained(student, rng, "none")
    game.expect_result(USED)
    first, *others = game.run.values
    expect_same_again([first] * len(others), others)
    game.expect_gradients_sent()


@points(1, cell="check_DistributedOptimizer")
def check_optimizer_sends_once(student, rng):
    """A step sends one agreement and the fused gradients, and nothing else."""
    Trained(student, rng, "none").expect_wire()


@points(1, cell="check_DistributedOptimizer")
def check_optimizer_knows_the_unused(student, rng):
    """A gradient that some ranks lack counts as zeros on them; one that all lack stays None, and
    its weight stands still.
    """
    game = Trained(student, rng, "none")
    game.expect_result(("here", "idle", "wide"))
    game.expect_gradients_sent()
    first = game.first["idle"]
    for value in game.run.values:
        found = tensor_like(entry(value, 1, "weights", list(game.first).index("idle")), first)
        if found is None or not torch.equal(found, first):
            raise CheckFailed("a weight that no rank has used as it was", "another value")


@points(1, cell="check_DistributedOptimizer")
def check_optimizer_compresses(student, rng):
    """With fp16, all gradients travel as float16, divided before they are converted, and come back
    in the parameter's dtype.
    """
    game = Trained(student, rng, "fp16")
    game.expect_wire()
    game.expect_result([*USED, "here", "idle"])


@points(1, cell="check_DistributedOptimizer")
def check_optimizer_does_not_overflow(student, rng):
    """A mean that fits into float16 arrives although the sum would not fit."""
    game = Trained(student, rng, "fp16", scale=640.0)  # up to 40,960 a pass: one fits, three do not
    for rank, value in enumerate(game.run.values):
        for place, name in enumerate(game.first):
            wanted = game.wanted()[1][name][0]
            if wanted is None or not wanted.isfinite().all():
                continue
            found = tensor_like(entry(value, 1, "gradients", place), wanted)
            if found is None or not found.isfinite().all():
                hint = "Divide by the number of ranks, then convert."
                raise CheckFailed(f"finite gradients on rank {rank}", "infinity or none", hint)
            expect_close(found, wanted, "the mean of large gradients", rtol=1e-2, atol=64.0)
    game.expect_gradients_sent()


# run_elastic


def elastic_on_rank(
    student: Any, plan: Any, num_steps: int, commit_every: int, start: float, first: int = 0
) -> Any:
    """Run an elastic job; each step posts (step, weight, momentum) of all that take part.

    Every state begins with `first` steps done.
    The plan is a list of (members, step after which they part, how they part): "lost", "added",
    "done", or "broken", where the step raises an error of its own.
    """
    import torch.distributed as dist

    class WentAway(BaseException):
        pass

    student.broadcast_state = right_broadcast_state
    rank = dist.get_rank()
    groups = [dist.new_group(list(members)) for members, _, _ in plan]
    stage, num_calls, broken = -1, 0, RuntimeError("shapes that do not match")

    def rendezvous() -> Any:
        nonlocal stage
        stage += 1
        while stage < len(plan) and rank not in plan[stage][0]:
            stage += 1
        if stage >= len(plan):
            raise RuntimeError("one more rendezvous than there were changes")
        return Comm(groups[stage])

    def train_step(comm: Any, state: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls > 60:
            raise RuntimeError("far more steps than were to be done")
        (weight,) = state.model.parameters()
        kept = state.optimizer.state.get(weight, {}).get("momentum_buffer")
        held = torch.zeros(1) if kept is None else kept.flatten()[:1]
        post = torch.stack([torch.tensor(float(state.step)), weight.detach()[0, 0], held[0]])
        comm.Allreduce(post.double())
        weight.grad = torch.full_like(weight, float(state.step % 5 + 1))
        state.optimizer.step()
        _, step, how = plan[stage]
        if state.step == step and how == "lost":
            with torch.no_grad():
                weight.add_(1000.0)
                for one in state.optimizer.state.values():
                    one["momentum_buffer"].add_(1000.0)
            is_gone = stage + 1 < len(plan) and rank not in plan[stage + 1][0]
            raise WentAway if is_gone else student.WorkerLost("a rank is lost")
        if state.step == step and how == "added":
            raise student.HostsUpdated
        if state.step == step and how == "broken":
            raise broken

    def fresh() -> Any:
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, start)
        state = student.State(model, torch.optim.SGD(model.parameters(), 0.25, momentum=0.5))
        state.step = first
        return state

    if rank not in plan[0][0]:
        state = fresh()
        student.run_elastic(state, train_step, rendezvous, num_steps, commit_every)
    else:
        state = fresh()
        try:
            student.run_elastic(state, train_step, rendezvous, num_steps, commit_every)
        except WentAway:
            if any(rank in members for members, _, _ in plan[stage + 1 :]):
                state = fresh()
                student.run_elastic(state, train_step, rendezvous, num_steps, commit_every)
        except RuntimeError as error:
            if error is not broken:
                raise
            return {"error": True}
    return {"step": state.step, "weight": next(state.model.parameters()).detach().clone()}


def expected_posts(
    plan: Any, num_steps: int, commit_every: int, start: float, first: int
) -> list[Any]:
    """What must be posted, as (members, step, weight, momentum), and the end of each run."""
    posts: list[Any] = []
    state = (first, start, 0.0)
    for members, last, how in plan:
        kept = state
        while state[0] < num_steps:
            step, weight, momentum = state
            posts.append((tuple(members), step, weight, momentum))
            momentum = 0.5 * momentum + float(step % 5 + 1)
            after = (step + 1, weight - 0.25 * momentum, momentum)
            if step == last and how == "lost":
                state = kept
                break
            state = after
            if step == last and how == "added":
                break
            if state[0] % commit_every == 0:
                kept = state
    return [posts, state]


def is_post(one: Exchange) -> bool:
    """Whether this is the all-reduce of a step, not one of `run_elastic` itself."""
    return one.op == "all_reduce" and one.dtype == "float64" and len(one.bodies[one.ranks[0]]) == 24


def play_elastic(
    student: Any, rng: torch.Generator, plan: Any, num_steps: int, every: int, first: int = 0
) -> Run:
    """The run of a job whose states begin with `first` steps done.

    Raises:
        CheckFailed: a step did not begin with the right state, everywhere.
    """
    start = [float(whole(rng, 3, 40)) for _ in range(4)]  # not 0, which many messages hold
    root = plan[0][0][0]
    posts, (num_done, weight, _) = expected_posts(plan, num_steps, every, start[root], first)
    each = [(one, first) for one in start]  # another rank's can only come over the wire
    with hinted(ALL_MEET):
        run = student.emulated(
            elastic_on_rank, plan, num_steps, every, world_size=4, each=each, **RULES
        )
    found = [one for one in run.exchanges if is_post(one)]
    did = [(one.ranks, int(one.tensor(one.ranks[0])[0])) for one in found]
    due = [(members, step) for members, step, _, _ in posts]
    if did != due:
        number = next(
            (n for n, (a, b) in enumerate(zip(did, due, strict=False)) if a != b),
            min(len(did), len(due)),
        )

        def said(of: Any) -> str:
            return (
                f"step {of[number][1]} on ranks {of[number][0]}" if number < len(of) else "no more"
            )

        hint = "WorkerLost goes back to the last commit; HostsUpdated goes on with the next step."
        hint = hint if number else "The first step to do is `state.step`, as rank 0 has it."
        raise CheckFailed(f"as step {number + 1} of the job: {said(due)}", said(did), hint)
    for one, (members, step, *state) in zip(found, posts, strict=True):
        for rank in members:
            wanted = torch.tensor([float(step), *state], dtype=torch.float64)
            hint = "Copy what you commit, and go back to all of it; newcomers get all of it."
            what = f"step, weight and momentum with which rank {rank} begins step {step}"
            expect_close(one.tensor(rank), wanted, what, hint, rtol=1e-4, atol=1e-4)
    expect_state_sent(run.exchanges, found)
    for rank in plan[-1][0]:
        value = run.values[rank]
        if entry(value, "step") != num_done:
            raise CheckFailed(f"state.step {num_done} at the end", shown(entry(value, "step")))
        given = tensor_like(entry(value, "weight"), torch.zeros(1, 1))
        if given is None or not abs(given.item() - weight) <= 1e-3:  # nan is near nothing
            raise CheckFailed("the last step in the weight", "another weight")
    return run


def expect_state_sent(exchanges: Sequence[Exchange], steps: Sequence[Exchange]) -> None:
    """Raise CheckFailed unless ranks that meet begin with what the first of them broadcast."""
    meetings = [steps[0], *(b for a, b in itertools.pairwise(steps) if a.ranks != b.ranks)]
    for step in meetings:
        root = step.ranks[0]
        broadcasts = [
            one
            for one in exchanges
            if one.op == "broadcast" and one.ranks == step.ranks and one.root == root
        ]
        for value in step.tensor(root)[1:].float():  # weight and momentum
            if not is_sent(broadcasts, root, value):
                expected = f"the weight and momentum of rank {root} in its broadcasts"
                hint = "Call broadcast_state after each rendezvous."
                raise CheckFailed(expected, "others", hint)


def expect_quiet_commits(exchanges: Sequence[Exchange]) -> None:
    """Raise CheckFailed where ranks that stay together send anything between two of their steps."""
    begun: set[tuple[int, ...]] = set()
    for one in exchanges:
        if is_post(one):
            begun = {tuple(one.ranks)}
        elif tuple(one.ranks) in begun:
            hint = "What a commit keeps stays in the rank's own memory."
            raise CheckFailed("messages after a rendezvous alone", "one between two steps", hint)


def expect_errors_pass(student: Any, step: int) -> None:
    """Raise CheckFailed unless an error in a step that means no loss comes out of `run_elastic`."""
    plan = [((0, 1, 2, 3), step, "broken"), ((0, 1, 2, 3), -1, "done")]
    hint = "Only WorkerLost and HostsUpdated are about the ranks; let all others pass through."
    with hinted(hint):
        run = student.emulated(
            elastic_on_rank, plan, 6, 2, world_size=4, each=[(0.0,)] * 4, **RULES
        )
    for rank, value in enumerate(run.values):
        if entry(value, "error") is not True:
            raise CheckFailed("the RuntimeError of a step", f"none on rank {rank}", hint)


@points(1, cell="check_run_elastic")
def check_elastic_without_losses(student, rng):
    """A job that nothing disturbs does all steps that its state lacks, from rank 0's; an error of
    the program in a step passes through, also a RuntimeError.
    """
    plan = [((0, 1, 2, 3), -1, "done")]
    play_elastic(student, rng, plan, whole(rng, 5, 8), 2, first=whole(rng, 1, 3))
    expect_errors_pass(student, whole(rng, 1, 3))


@points(2, cell="check_run_elastic")
def check_elastic_with_losses(student, rng):
    """After each loss the survivors go on from the last commit, twice after the same one; a commit
    sends nothing.
    """
    every = whole(rng, 3, 4)
    lost = every + 1 + whole(rng, 0, 1)
    plan = [((0, 1, 2, 3), lost, "lost"), ((0, 1, 3), lost, "lost"), ((1, 3), -1, "done")]
    run = play_elastic(student, rng, plan, 2 * every + 2, every)
    expect_quiet_commits(run.exchanges)


@points(1, cell="check_run_elastic")
def check_elastic_with_newcomers(student, rng):
    """Newcomers get weights, momentum and the step; no step is done again."""
    every = whole(rng, 3, 4)
    plan = [((0, 1), every, "added"), ((0, 1, 2), every + 2, "added"), ((0, 1, 2, 3), -1, "done")]
    play_elastic(student, rng, plan, every + 5, every)


@points(1, cell="check_run_elastic")
def check_elastic_with_all(student, rng):
    """What was broadcast is a commit, also before the first step, and a change in the last step
    ends the job.
    """
    every = 4
    first = whole(rng, 4, 5)
    plan = [
        ((0, 1, 2, 3), whole(rng, 0, 2), "lost"),
        ((0, 1, 2), first, "added"),
        ((0, 1, 2, 3), first + 1, "lost"),
        ((0, 2, 3), 9, "added"),
    ]
    play_elastic(student, rng, plan, 10, every)


# read_timeline


def timeline_on_rank(student: Any, contents: Any) -> Any:
    found = []
    for content in contents:
        of_file = []
        for e in student.read_timeline(content).events:
            words = [str(e.stream), str(e.kind), str(e.name)]
            of_file.append([*words, float(e.start_s), float(e.end_s), int(e.rank)])
        found.append(of_file)
    return found


def drawn_file(rng: torch.Generator, is_killed: bool) -> tuple[str, list[Any]]:
    """A timeline file in Horovod's form, and its innermost activities.

    A file that is whole has operations of other names, and one with nothing inside. That of a
    killed job ends within an operation.
    """
    began_us = whole(rng, 10**6, 10**7)
    records: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": 0,
            "args": {"start_time_since_epoch_in_micros": began_us},
        },
        {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
    ]
    timed: list[tuple[int, int, dict[str, Any]]] = []
    wanted = []
    first_us = 1 << 60
    ops = ["ALLREDUCE", "BROADCAST", "ALLGATHER"]
    ops = shuffled(rng, ops) if is_killed else [*shuffled(rng, ops), "ALLTOALL", "REDUCESCATTER"]
    pids = shuffled(rng, range(1, len(ops) + whole(rng, 1, 2)))
    for op, pid in zip(itertools.cycle(ops), pids, strict=False):
        name = f"grad.{whole(rng, 10, 99)}.{pid}"
        records.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}})
        records.append(
            {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}}
        )
        now_us = began_us + whole(rng, 0, 900)
        by = ("GLOO", "NCCL", "MPI")[whole(rng, 0, 2)]
        first_us = min(first_us, now_us)

        def add(at_us: int, ph: str, name: str = "", pid: int = pid, **more: Any) -> None:
            record = {"ph": ph} | ({"name": name} if name else {})
            timed.append((at_us, len(timed), record | {"ts": at_us, "pid": pid} | more))

        kinds = (
            ("QUEUE", "wait"),
            ("MEMCPY_IN_FUSION_BUFFER", "other"),
            (f"{by}_{op}", "other" if op in ("ALLTOALL", "REDUCESCATTER") else "communication"),
        )
        kinds += (("WAIT_FOR_DATA", "wait"), ("MEMCPY_OUT_FUSION_BUFFER", "other"))
        is_empty = pid == pids[0] and not is_killed
        start_us = now_us
        add(now_us, "B", f"NEGOTIATE_{op}")
        for rank in range(2):
            now_us += whole(rng, 5, 50)
            add(now_us, "X", str(rank), dur=0)
        now_us += whole(rng, 1, 9)
        add(now_us, "E")
        wanted.append([name, "wait", f"NEGOTIATE_{op}", start_us, now_us])
        add(now_us, "B", op)
        if is_empty:
            wanted.append([name, "communication", op, now_us, now_us + 7])
            now_us += 7
        for activity, kind in () if is_empty else kinds:
            start_us = now_us
            add(now_us, "B", activity)
            now_us += whole(rng, 10, 500)
            add(now_us, "E")
            wanted.append([name, kind, activity, start_us, now_us])
            now_us += whole(rng, 0, 3)
        add(now_us, "E", args={"dtype": "float32", "shape": "[3]"})
    timed.sort(key=lambda one: one[:2])
    if is_killed:
        timed.pop()  # the end of an operation around all others of its tensor
    records += [one for _, _, one in timed]
    if is_killed:
        records.append({"ph": "B", "name": "QUEUE", "ts": timed[-1][0] + 5, "pid": 1})
    lines = ",\n".join(json.dumps(one) for one in records)
    content = "[\n" + lines + (",\n" if is_killed else "]\n")
    events = [[*one[:3], *((time_us - first_us) / 1e6 for time_us in one[3:])] for one in wanted]
    return content, sorted(events)


def expect_timeline(student: Any, rng: torch.Generator, is_killed: bool) -> None:
    files = [drawn_file(rng, is_killed) for _ in range(2)]
    run = student.emulated(timeline_on_rank, [content for content, _ in files], world_size=1)
    for (_, wanted), value in zip(files, entries(run.values[0], 2), strict=True):
        found = sorted(value, key=repr) if isinstance(value, list) else []
        due = sorted(wanted, key=repr)
        if len(found) != len(due):
            hint = "Innermost pairs alone, and none that never ended."
            raise CheckFailed(f"{len(due)} events", f"{len(found)}", hint)
        for given, one in zip(found, due, strict=True):  # no stream has an activity twice
            times_s = [entry(given, place) for place in (3, 4)]
            if entry(given, 5) != 0:
                hint = "A pid stands for a tensor: `stream` has its name."
                raise CheckFailed("events of rank 0", f"one of rank {shown(entry(given, 5))}", hint)
            if [entry(given, place) for place in range(3)] != one[:3]:
                raise CheckFailed("stream, kind and name of the file's activities", "others")
            is_timed = all(type(time_s) is float for time_s in times_s)
            if not is_timed or not all(
                abs(a - b) < 1e-8 for a, b in zip(times_s, one[3:], strict=True)
            ):
                hint = "Microseconds since the earliest ts of a B, in seconds."
                raise CheckFailed("the activities' times", "others", hint)


@points(1, cell="check_read_timeline")
def check_timeline_of_a_file(student, rng):
    """Innermost activities, with their tensor, kind and time."""
    expect_timeline(student, rng, False)


@points(1, cell="check_read_timeline")
def check_timeline_of_a_killed_job(student, rng):
    """A list without an end, whose last activity has none."""
    expect_timeline(student, rng, True)


# choose_nccl_settings


INTERFACES = ("eth0", "eth1", "ens3", "ens5", "bond0", "ib0", "enp4s0f0")
UNUSUAL = ("eth0.100", "br-1", "bond0.7", "br-ens3")  # of a VLAN, of a bridge


def drawn_log(rng: torch.Generator, faults: Sequence[str]) -> tuple[str, dict[str, str | None]]:
    """A log of two nodes in NCCL's form with these faults, and what is to be changed."""
    wanted: dict[str, str | None] = {}
    said = ["NCCL_DEBUG set by environment to INFO", "cudaDriverVersion 12080"]
    said += [
        "NCCL_IB_HCA set by environment to mlx5",
        f"NCCL_NTHREADS set by environment to {whole(rng, 1, 8) * 64}.",
    ]
    for name in ("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE"):
        if name in faults:
            value = 1 if len(faults) < 3 else whole(rng, 2, 9)
            said.append(f"{name} set by environment to {value}.")
            wanted[name] = None
        elif whole(rng, 0, 1):
            said.append(f"{name} set by environment to 0.")
    values = {"NCCL_ALGO": ("Tree", "Ring"), "NCCL_PROTO": ("^LL", "^LL128")}  # ^: all others
    for name, words in values.items():
        if name in faults:
            said.append(f"{name} set by environment to {words[whole(rng, 0, 1)]}")
            wanted[name] = None
    good = [*shuffled(rng, INTERFACES)[: whole(rng, 1, 2)], shuffled(rng, UNUSUAL)[0]]
    bad = shuffled(rng, ["lo", "docker0"])[: whole(rng, 1, 2)]
    first, *others = shuffled(rng, good)
    of_ranks = [[first], [first], others]
    if "NCCL_SOCKET_IFNAME" in faults:
        wanted["NCCL_SOCKET_IFNAME"] = ",".join(sorted(good))
        of_ranks[2] = shuffled(rng, [*others, *bad])
    for found in [bad] if "no other interface" in faults else of_ranks:
        parts = [f"[{n}]{one}:10.{whole(rng, 0, 200)}.0.{n + 1}<0>" for n, one in enumerate(found)]
        said.append(f"NET/Socket : Using {' '.join(parts)}")
    said += ["Using network IB", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read"]
    said.append("GPU Direct RDMA Enabled for GPU 2 / HCA 9 (distance 4 <= 5), read 1 mode Default")
    levels = {"PHB": [8], "SYS": shuffled(rng, [8, 9]), "near": [6], "far": [10]}
    for level, distances in levels.items():
        if level in faults:
            said += [
                f"GPU Direct RDMA Disabled for GPU {whole(rng, 0, 7)} / HCA 0 (distance {one} > 5)"
                for one in distances
            ]
            if level in ("PHB", "SYS"):
                wanted["NCCL_NET_GDR_LEVEL"] = level
    places = [(whole(rng, 1, 2), whole(rng, 100, 9999), whole(rng, 0, 7)) for _ in said]
    lines = [
        f"node{node}:{process}:{process + 60} [{device}] NCCL INFO {one}"
        for (node, process, device), one in zip(places, shuffled(rng, said), strict=True)
    ]
    return "\n".join(lines), wanted


def expect_settings(
    student: Any, rng: torch.Generator, cases: Sequence[Sequence[str]], hint: str
) -> None:
    logs = [drawn_log(rng, faults) for faults in cases]
    run = student.emulated(
        call_each, "choose_nccl_settings", [(log,) for log, _ in logs], world_size=1
    )
    for (_, wanted), found, faults in zip(
        logs, entries(run.values[0], len(logs)), cases, strict=True
    ):
        if not is_same(found, wanted):
            names = ", ".join(faults) or "nothing wrong"
            missing = [one for one in wanted if not isinstance(found, dict) or one not in found]
            more = len(set(found) - set(wanted)) if isinstance(found, dict) else 0
            actual = f"{len(missing)} of them missing, {more} too many, or another value"
            raise CheckFailed(f"the changes for a log with {names}", actual, hint)


@points(1, cell="check_choose_nccl_settings")
def check_settings_to_remove(student, rng):
    """What was set and does harm is removed, whatever its value; a 0, and all else that is set,
    stays.
    """
    names = ("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_ALGO", "NCCL_PROTO")
    hint = "Any number but 0 disables; of NCCL_ALGO and NCCL_PROTO any value counts."
    expect_settings(student, rng, [(), *((one,) for one in names), names[:2], names], hint)


@points(1, cell="check_choose_nccl_settings")
def check_settings_of_interfaces(student, rng):
    """Interfaces that lead nowhere are left out, where there are others in the lines of any rank,
    whose names may have dots and dashes.
    """
    name = "NCCL_SOCKET_IFNAME"
    cases = [(name,), ("no other interface",), (name, "NCCL_ALGO"), ()]
    hint = "The interfaces of all lines, each once; names may have dots and dashes."
    expect_settings(student, rng, cases, hint)


@points(1, cell="check_choose_nccl_settings")
def check_settings_of_distances(student, rng):
    """The level of the largest distance that is in the way."""
    cases = [("PHB",), ("SYS",), ("near",), ("far",), ("near", "SYS"), ("PHB", "NCCL_IB_DISABLE")]
    hint = "8 and 9 have a level, of which the larger counts; other distances need nothing."
    expect_settings(student, rng, cases, hint)
