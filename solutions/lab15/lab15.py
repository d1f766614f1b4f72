# %% [markdown]
# # Lab 15. Name the fault
#
# Every program in this lab runs to its end, and its loss falls. Some of them are wrong: replicas
# drift apart, a gradient is never reduced, every rank has the same batch. A loss curve does not
# show this. A few numbers of each tensor do. In this lab you write them, and rules that read them.
#
# ```text
# rank 0   batch   weights | backward -> local gradients | all-reduce -> gradients | new weights
# rank 1   batch   weights | backward -> local gradients | all-reduce -> gradients | new weights
#            |        |                     |                               |             |
#            +--------+---------------------+--- sketches, 16 numbers each -+-------------+
#                                           |
#                                name_fault(records) -> kind, rank, parameter
# ```
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `linear_sketch` | 16 numbers by which ranks compare tensors | 5 | 40 min | medium |
# | `first_difference` | where replicas first differ by more than rounding | 3 | 25 min | medium |
# | `name_fault` | open-ended: names the fault of a program from its records | 9 | 100 min | hard |
# | `first_deviation` | compares two programs by a measured tolerance | 3 | 25 min | medium |
# | `clip_shards` | repair: clips by the norm over all shards | 2 | 15 min | easy |
# | `contrastive_backward` | repair: a gradient through a collective | 3 | 35 min | hard |
#
# Work in this order. Each part has a check below it and folded hints above it: the first hint says
# where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The checks
# draw other tensors, programs, names, ranks and steps. `name_fault` gets records that ranks without
# your code have made, so only the numbers in them tell one program from the other. The repairs are
# judged by the gradients that they leave, compared with one rank that has the whole batch, and by
# the bytes that each rank sends. `worldsize.audit` and `ws.compare` do much of the same work, so
# they are out of reach while your functions are graded.

# %% setup
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional as F

import worldsize as ws
from worldsize.check import CheckFailed, expect_close

CLUSTER = "dgx-h100"


def show(picture):
    from IPython.display import display  # here and not above: the ranks do not need it

    display(picture)


ws.run(
    dist.get_rank, world_size=2, cluster=CLUSTER, echo=False
)  # the first run loads torch: the checks are then quick

# %% [markdown]
# ## 1. Compare tensors without sending them
#
# Are the weights of all ranks equal? Each rank could send all of them, as an all-gather does. A
# **linear sketch** needs 16 numbers for each tensor: its products with 16 vectors of random signs,
# the same vectors on every rank. Three properties make it useful:
#
# - Equal tensors have equal sketches; different ones have different sketches, but for a chance of
#   about one in 65,536 at worst.
# - It is linear. The sketch of a sum is the sum of the sketches: the sketch of the mean gradient is
#   the mean of the sketches of the local ones, although no rank has seen the others' gradients.
# - It keeps norms. The square of a tensor's product with random signs is on average the squared
#   norm of the tensor (Achlioptas 2003). So the root mean square of a sketch estimates the norm,
#   and that of the difference of two sketches estimates how far apart the tensors are.
#
# The next cell is given: `norm` and `relative` read sketches.


# %% given_norms
def norm(sketch):
    """Estimate the norm of a tensor from its sketch."""
    return (sum(one * one for one in sketch) / len(sketch)) ** 0.5


def relative(one, other):
    """Estimate the norm of the difference of two tensors, relative to the larger norm of them."""
    larger = max(norm(one), norm(other))
    difference = norm([mine - theirs for mine, theirs in zip(one, other, strict=True)])
    return difference / larger if larger else 0.0


# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# `torch.Generator().manual_seed(15)` gives the same random numbers on every rank, and leaves the
# program's own random state alone. `torch.randint(2, shape, generator=...)` draws zeros and ones.
#
# </details>
# <details><summary>Hint 2: memory and time</summary>
#
# Signs for 16 x 1,000,000 elements take 128 MB in float64. Work on 65,536 elements at a time.
# The generator goes on from block to block, so each block has its own signs.
#
# </details>
# <details><summary>Hint 3: precision</summary>
#
# A change of 1e-6 in one element disappears in a float32 sum over a million elements. Convert to
# float64 before you multiply.
#
# </details>


# %% linear_sketch tags=["solution"]
def linear_sketch(tensor: torch.Tensor) -> list[float]:
    """Sketch a tensor: 16 numbers, which depend on its elements in row-major order.

    - The sketches of two tensors of one shape add up to the sketch of their sum, within 1e-9 of its
      norm in float64. So shards that are placed in zeros of the whole shape add up to the whole.
    - It is the same in every process, whatever the random state there is, and does not change that
      state. The tensor is not changed either.
    - `norm` of the difference of two sketches is the norm of the tensors' difference to within a
      factor of 3. This holds for random differences, for a change in a single element of a million,
      and for two elements that are exchanged. 1e-6 in one element must show beside a million of
      size 1.
    - The tensor has any shape, strides, floating-point dtype and device, may require a gradient,
      and may be empty, which gives zeros.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(15)
    found = torch.zeros(16, dtype=torch.float64)
    for block in tensor.detach().reshape(-1).cpu().double().split(1 << 16):
        signs = torch.randint(2, (16, len(block)), generator=generator, dtype=torch.int8)
        found += (2 * signs - 1).double() @ block
    return found.tolist()
    ### END SOLUTION


# %% check_linear_sketch points=5
def check_linear_sketch():
    generator = torch.Generator().manual_seed(1)
    one, other = torch.randn(2, 1000, 7, generator=generator, dtype=torch.float64)
    first = linear_sketch(one)
    if not isinstance(first, list) or len(first) != 16:
        raise CheckFailed("a list of 16 numbers", f"a {type(first).__name__}: {first!s:.60}")
    torch.manual_seed(3)
    if linear_sketch(one.clone()) != first:
        hint = "Draw the signs from a generator of your own, with a fixed seed."
        raise CheckFailed("equal sketches of equal tensors", "different ones", hint)
    if not torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(3))):
        hint = "A sketch that seeds torch's generator changes the training it watches."
        raise CheckFailed("torch's random state as it was", "a different one", hint)
    total = torch.tensor(first) + torch.tensor(linear_sketch(other))
    hint = "Products with fixed vectors add up; norms, hashes and rounded sums do not."
    wanted = torch.tensor(linear_sketch(one + other))
    expect_close(total, wanted, "the sum of two sketches", hint, 1e-6, 1e-6)
    for near, what in (
        (one + other, "a random change"),
        (one.flatten().roll(1).view_as(one), "all elements moved by one"),
        (swapped(one), "two elements exchanged"),
        (one + 1e-6 * last_of(one), "1e-6 in the last element"),
    ):
        true = (near - one).norm().item()
        given = norm([a - b for a, b in zip(linear_sketch(near), first, strict=True)])
        if not true / 3 <= given <= 3 * true:
            hint = "Each element needs its own 16 signs, and each sign is 1 or -1."
            raise CheckFailed(f"about {true:.3g}, the norm of {what}", f"{given:.3g}", hint)
    if linear_sketch(torch.empty(0)) != [0.0] * 16:
        raise CheckFailed("16 zeros for an empty tensor", "something else")
    turned = torch.tensor(linear_sketch(one.T.contiguous().T))
    hint = "The sketch depends on the elements in order, not on how they lie in memory."
    expect_close(turned, torch.tensor(first), "the sketch with other strides", hint, 1e-9, 1e-9)
    far_apart = torch.zeros(200_000)
    far_apart[5], far_apart[5 + (1 << 17)] = 0.5, -0.5
    given = norm(linear_sketch(far_apart))
    if not 0.5**0.5 / 3 <= given <= 3 * 0.5**0.5:
        hint = "Signs that begin anew in each block let elements of two blocks cancel."
        raise CheckFailed("about 0.707, the norm of 0.5 and -0.5", f"{given:.3g}", hint)
    print("linear_sketch: linear, the same everywhere, and as far apart as the tensors are.")


def swapped(tensor):
    """The tensor with two of its elements exchanged."""
    flat = tensor.clone().flatten()
    flat[[10, 500]] = flat[[500, 10]]
    return flat.view_as(tensor)


def last_of(tensor):
    """Zeros, and 1 as the last element."""
    zeros = torch.zeros_like(tensor).flatten()
    zeros[-1] = 1
    return zeros.view_as(tensor)


check_linear_sketch()

# %% [markdown]
# ## 2. Where do replicas first differ?
#
# The next cell is given. A `Record` is all that is known of one rank of a run: sketches and names,
# no code. Its steps are in order. `before` of a step is `after` of the step before it.


# %% given_records
class Step(NamedTuple):
    """What a rank noted in one training step; each sketch has 16 numbers."""

    batch: list[float]  # sketch of all samples that the rank took
    before: dict[str, list[float]]  # weights before the step, by parameter, in the model's order
    local: dict[str, list[float]]  # gradients after the last backward pass, before any reduction
    final: dict[str, list[float]]  # gradients that the optimizer got
    after: dict[str, list[float]]  # weights after the step
    settings: dict[str, float]  # of the optimizer in this step: lr, weight_decay
    calls: list[str]  # the parameters whose gradients went into an all-reduce, in order


class Record(NamedTuple):
    """What one rank noted."""

    rank: int
    shards: dict[str, int]  # by parameter: which shard the rank holds; a name not in it is whole
    steps: list[Step]


ROUNDING = 1e-5  # relative differences up to here are rounding; those of a fault are larger

# %% [markdown]
# Ranks that hold the same shard of a parameter, or all of it, are **replicas** of each other, and
# their weights must stay equal. Two things look like a difference and are not: ranks that add up
# the same gradients in different orders differ in the last bits, and different shards of a
# parameter are different tensors.
#
# <details><summary>Hint 1: where to look</summary>
#
# For each step and parameter, group the ranks by `shards.get(name)`. In each group compare every
# sketch with the first one, by `relative`.
#
# </details>
# <details><summary>Hint 2: the end</summary>
#
# What the last step breaks shows only in its `after`. Append it to the list of all `before`.
#
# </details>


# %% first_difference tags=["solution"]
def first_difference(records: list[Record]) -> tuple[int, str] | None:
    """The first step and parameter in which replicas have different weights; None if they never do.

    - Replicas are ranks that hold the same shard of the parameter, or all of it. Their weights
      differ if `relative` of one and the first of them is above ROUNDING. Different shards are not
      compared.
    - The step is the number, from 0, of the first step before which they differ, and the number of
      steps if they differ only after the last one.
    - Of several parameters in one step it is the first in the order of the records.
    """
    ### BEGIN SOLUTION
    num_steps = len(records[0].steps)
    for number in range(num_steps + 1):
        weights = [
            record.steps[number].before if number < num_steps else record.steps[-1].after
            for record in records
        ]
        for name in weights[0]:
            replicas = {}
            for record, its in zip(records, weights, strict=True):
                replicas.setdefault(record.shards.get(name), []).append(its[name])
            if any(relative(its[0], one) > ROUNDING for its in replicas.values() for one in its):
                return number, name
    return None
    ### END SOLUTION


# %% check_first_difference points=3
def made_up_records(changes=(), shards=None, world_size=4, num_steps=3):
    """Records whose weights are equal on all ranks, with changes: rank, moment, name, factor."""
    shards = shards or {}
    records = []
    for rank in range(world_size):
        moments = []
        for moment in range(num_steps + 1):
            weights = {}
            for place, name in enumerate(("first.weight", "first.bias", "last.weight")):
                which = shards.get(name, [0] * world_size)[rank]
                size = (1000.0, 1.0, 1e-3)[place]
                weights[name] = [size * (moment + which + 1 + one) for one in range(16)]
                for its_rank, its_moment, its_name, factor in changes:
                    if (its_rank, its_name) == (rank, name) and moment >= its_moment:
                        weights[name] = [factor * one for one in weights[name]]
            moments.append(weights)
        steps = [
            Step([0.0] * 16, before, {}, {}, after, {"lr": 0.1, "weight_decay": 0.0}, [])
            for before, after in pairwise(moments)
        ]
        its_shards = {name: places[rank] for name, places in shards.items()}
        records.append(Record(rank, its_shards, steps))
    return records


def check_first_difference():
    two_shards = {"last.weight": [0, 1, 0, 1]}
    for records, wanted, hint in (
        (made_up_records(), None, "All ranks are equal."),
        (made_up_records([(1, 0, "first.weight", 1 + 1e-7)]), None, "1e-7 is rounding."),
        (made_up_records([(2, 1, "last.weight", 1.01)]), (1, "last.weight"), "1% of a small one."),
        (made_up_records([(3, 3, "first.bias", 1.01)]), (3, "first.bias"), "After the last step."),
        (made_up_records(shards=two_shards), None, "Ranks 0 and 1 hold different shards."),
        (
            made_up_records([(3, 2, "last.weight", 0.9)], two_shards),
            (2, "last.weight"),
            "Ranks 1 and 3 hold the same shard.",
        ),
        (
            made_up_records([(1, 2, "last.weight", 1.1), (2, 2, "first.bias", 1.1)]),
            (2, "first.bias"),
            "Of two in one step the first in the order of the records.",
        ),
    ):
        given = first_difference(records)
        if given != wanted:
            raise CheckFailed(f"{wanted}", f"{given}", hint)
    print("first_difference: the first step and parameter, and None for shards and rounding.")


check_first_difference()

# %% [markdown]
# ## 3. Name the fault
#
# The next cell is given: a training program on emulated ranks with ten faults that it can have. A
# `Program`'s defaults are healthy. Read `train_on_rank` and `reduce_gradients`: each fault is a
# line that looks harmless. `record` runs a program and returns its records.
#
# The notebook's parameters have 16 elements at most, so that `held` can be their sketch: it keeps
# all of them. The records of the hidden checks have larger tensors and real sketches.


# %% given_programs
class Program(NamedTuple):
    """A data-parallel training program; the defaults are healthy."""

    layers: tuple[str, ...] = ("embed", "up", "down", "head")
    width: int = 4
    seed: int = 15
    world_size: int = 4
    num_steps: int = 4
    num_passes: int = 1  # backward passes of a step, whose gradients are accumulated
    num_rows: int = 4  # of each rank in each step
    weight_decay: float = 0.0
    rates: tuple[float, ...] = (0.1, 0.1, 0.1, 0.1)  # the learning rate of each step
    frozen: str | None = None  # a layer that is not trained
    unused: str | None = None  # a layer whose output is multiplied by zero
    equal_step: int | None = None  # a step in which all ranks happen to have the same batch
    max_norm: float | None = None  # to which the gradient is clipped
    adds_own_first: bool = False  # gathers gradients; each rank adds up in an order of its own
    in_pieces: bool = False  # the parameter's gradient is reduced in two halves
    fault: str | None = None
    rank: int = 0  # where the fault is, as far as it is on one rank
    step: int = 0  # from which the fault is there
    parameter: str = "up.weight"  # which it concerns


class Layers(torch.nn.Module):
    """Residual layers of one width."""

    def __init__(self, program):
        super().__init__()
        torch.manual_seed(program.seed)
        width = program.width
        self.unused = program.unused
        for name in program.layers:
            self.add_module(name, torch.nn.Linear(width, width))
        if program.frozen:
            self.get_submodule(program.frozen).requires_grad_(False)

    def forward(self, x):
        for name, layer in self.named_children():
            x = x + (0.0 if name == self.unused else 1.0) * torch.tanh(layer(x))
        return x


def batch_of(program, rank, step):
    """The samples of a rank in a step."""
    if program.fault == "same_batch" and (program.parameter == "" or rank == program.rank):
        rank = 0 if program.parameter == "" else (rank + 1) % program.world_size
    if step == program.equal_step:
        rank = 0
    seed = 1_000_000 * program.seed + 1000 * step + rank
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(program.num_rows, program.width, generator=generator)


def reduce_gradients(program, trained, group, rank, step):
    """Average the gradients over the ranks; return the names in the order of the calls."""
    fault = program.fault if step >= program.step else None
    if fault == "no_sync":  # the step's last backward pass is inside no_sync, too
        return []
    order = list(trained)[::-1]
    if fault == "mispaired" and rank == program.rank:  # parameters come from a set, say
        other = next(
            name
            for name in order
            if name != program.parameter and trained[name].shape == trained[program.parameter].shape
        )
        one, other = order.index(program.parameter), order.index(other)
        order[one], order[other] = order[other], order[one]
    calls = []
    for name in order:
        if fault == "not_reduced" and name == program.parameter:
            continue
        grad, pieces = trained[name].grad, [trained[name].grad]
        if name == program.parameter and fault == "reduced_twice":
            pieces = [grad, grad]
        if name == program.parameter and program.in_pieces:
            pieces = grad.chunk(2)
        if program.adds_own_first:
            parts = [torch.empty_like(grad) for _ in range(program.world_size)]
            dist.all_gather(parts, grad, group=group)
            grad.copy_(sum(parts[rank:] + parts[:rank]))
            pieces = []
        for piece in pieces:
            dist.all_reduce(piece, group=group)
            calls.append(name)
        if fault != "not_averaged":
            grad /= program.world_size
    return calls


def train_on_rank(program, group, sketch):
    """Train, and note every step; `sketch` makes the sketches."""
    rank = dist.get_rank(group)
    model = Layers(program)
    layer = program.parameter.rpartition(".")[0]
    if program.fault == "start_differs":  # made after the others were broadcast
        torch.manual_seed(program.seed + 1 + rank)
        model.get_submodule(layer).reset_parameters()
    held = [one for one in model.parameters() if one.requires_grad]  # by the optimizer
    if program.fault == "other_tensors":  # a layer is replaced after the optimizer was made
        old = model.get_submodule(layer)
        new = torch.nn.Linear(program.width, program.width)
        new.load_state_dict(old.state_dict())
        setattr(model, layer, new)
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}

    def sketches(tensors):
        return {name: sketch(one.detach()) for name, one in tensors.items()}

    steps, after = [], sketches(dict(model.named_parameters()))
    for step in range(program.num_steps):
        is_wrong = step >= program.step
        settings = {"lr": program.rates[step], "weight_decay": program.weight_decay}
        if program.fault == "setting_differs" and is_wrong and rank == program.rank:
            settings["lr"] *= 0.5  # by a schedule that is fed the local loss
        batch = batch_of(program, rank, step)
        before = after
        model.zero_grad()
        for rows in batch.chunk(program.num_passes):
            loss = (model(rows) - rows.roll(1, dims=1)).square().mean() / program.num_passes
            loss.backward()
        local = sketches({name: one.grad for name, one in trained.items()})
        calls = reduce_gradients(program, trained, group, rank, step)
        if program.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(trained.values()), program.max_norm)
        final = sketches({name: one.grad for name, one in trained.items()})
        is_skipped = program.fault == "skipped_step" and rank == program.rank
        if not (is_skipped and step == program.step):  # a local test for infinite values, say
            with torch.no_grad():
                for one in held:
                    one.mul_(1 - settings["lr"] * settings["weight_decay"])
                    if one.grad is not None:
                        one -= settings["lr"] * one.grad
        after = sketches(dict(model.named_parameters()))
        steps.append([sketch(batch), before, local, final, after, settings, calls])
    return [rank, {}, steps]


def programs_on_rank(programs, sketch):
    """The record of each program on this rank, as lists; None where the rank is not part of it."""
    torch.set_num_threads(1)
    sizes = sorted({program.world_size for program in programs})
    groups = {size: dist.new_group(list(range(size))) for size in sizes}
    return [
        train_on_rank(program, groups[program.world_size], sketch)
        if dist.get_rank() < program.world_size
        else None
        for program in programs
    ]


def records_of(values, place):
    """The records of one program from what all ranks returned."""
    of_ranks = [value[place] for value in values if value[place] is not None]
    return [Record(rank, shards, [Step(*one) for one in steps]) for rank, shards, steps in of_ranks]


def held(tensor):
    """A sketch that keeps all of a small tensor: its norm is exact."""
    flat = tensor.flatten().double()
    return [4 * one for one in flat.tolist()] + [0.0] * (16 - flat.numel())


def record(programs):
    """The records of each program, run on emulated ranks."""
    num_ranks = max(program.world_size for program in programs)
    run = ws.run(
        programs_on_rank, programs, held, world_size=num_ranks, cluster=CLUSTER, echo=False
    )
    return [records_of(run.values, place) for place in range(len(programs))]


# %% [markdown]
# These are the faults, each with what is wrong and what `name_fault` says besides its kind:
#
# | Kind | What is wrong | Says |
# |---|---|---|
# | `same_batch` | at least two ranks have the same batch, in every step | |
# | `start_differs` | replicas start from different weights | parameter |
# | `setting_differs` | one rank's optimizer has a different setting, from some step on | rank |
# | `mispaired` | one rank's calls are in a different order, which mixes two parameters | rank |
# | `not_reduced` | no reduction covers a parameter's gradient | parameter |
# | `no_sync` | from some step on no gradient is reduced at all | |
# | `not_averaged` | gradients are summed over the ranks and not divided by their number | |
# | `reduced_twice` | a parameter's gradient is reduced twice, and divided once | parameter |
# | `other_tensors` | the optimizer holds other tensors than the model | parameter |
# | `skipped_step` | one rank skips the optimizer's step once | rank |
#
# And this is healthy, whatever it looks like: frozen layers; gradients that are all zero; several
# backward passes in a step; one step in which all ranks happen to have the same batch; a learning
# rate that changes from step to step, and may be 0 in some; gradients that are clipped, or
# reduced in two halves; ranks that gather all gradients and add them up in orders of their own.
#
# A fault has consequences, and these look like other faults: a setting that differs makes weights
# differ; if all ranks have one batch, the gradient before and after the reduction is the same. So
# look for causes in the order in which they act: data and start, settings, calls, gradients, step.
#
# <details><summary>Hint 1: where to look</summary>
#
# Begin with the faults that are equality tests: `same_batch`, `start_differs` (`before` of step 0),
# `setting_differs`. The odd rank is the one that differs from all others. The column "replicas
# differ" of the table that the check shows says where `first_difference` helps.
#
# </details>
# <details><summary>Hint 2: what the sketches of gradients must be</summary>
#
# Sketches are linear, so `mean` of all ranks' `local` is what the reduction must give. If `final`
# is c times that mean, then c is 1 in a healthy program, and below 1 for **all** parameters alike
# where it clips. What does c say of sums that were not divided? What of a parameter that was
# reduced twice?
#
# </details>
# <details><summary>Hint 3: steps that change nothing</summary>
#
# Weights that do not change are wrong if the gradient is not zero and the learning rate is not
# zero. A parameter that is not in `final` is frozen. One parameter on all ranks in all steps is
# `other_tensors`; all parameters on one rank in one step is `skipped_step`.
#
# </details>


# %% given_fault
class Fault(NamedTuple):
    """What is wrong with a program; `kind` is None if nothing is."""

    kind: str | None
    rank: int | None = None
    parameter: str | None = None


FAULTY = {
    "same_batch": Program(fault="same_batch", parameter=""),
    "start_differs": Program(fault="start_differs"),
    "setting_differs": Program(fault="setting_differs", rank=2, step=1),
    "mispaired": Program(fault="mispaired", rank=1),
    "not_reduced": Program(fault="not_reduced", parameter="down.bias"),
    "no_sync": Program(fault="no_sync", num_passes=2, step=1),
    "not_averaged": Program(fault="not_averaged", world_size=3),
    "reduced_twice": Program(fault="reduced_twice"),
    "other_tensors": Program(fault="other_tensors"),
    "skipped_step": Program(fault="skipped_step", rank=3, step=2),
}
HEALTHY = {
    "as it should be": Program(),
    "frozen layer": Program(frozen="up"),
    "zero gradients": Program(unused="down"),
    "accumulation": Program(num_passes=2),
    "one equal batch": Program(equal_step=2),
    "schedule": Program(rates=(0.0, 0.1, 0.2, 0.1)),
    "clipped": Program(max_norm=0.1),
    "own order": Program(adds_own_first=True, world_size=3),
    "two halves": Program(in_pieces=True),
}


def due_of(program):
    """The fault that a program has, with what is said of it."""
    layer = program.parameter.rpartition(".")[0]
    first = f"{layer}.weight"
    return {
        None: Fault(None),
        "start_differs": Fault("start_differs", None, first),
        "other_tensors": Fault("other_tensors", None, first),
        "not_reduced": Fault("not_reduced", None, program.parameter),
        "reduced_twice": Fault("reduced_twice", None, program.parameter),
        "setting_differs": Fault("setting_differs", program.rank),
        "mispaired": Fault("mispaired", program.rank),
        "skipped_step": Fault("skipped_step", program.rank),
    }.get(program.fault, Fault(program.fault))


# %% name_fault tags=["solution"]
def name_fault(records: list[Record]) -> Fault:
    """Name the fault of a program from the records of its ranks; Fault(None) if it is healthy.

    - The kind is one of the table above. `rank` and `parameter` are given where the table says so;
      otherwise they are None. Where several parameters are concerned, like a layer's weight and
      bias, it is the first of them in the order of the records.
    - There are at least three ranks, all parameters are whole on each rank, and a program has one
      fault at most. Relative differences up to ROUNDING are rounding.
    - The records are not changed.

    Seven points for the faults: none for three of ten or fewer, all for ten, in proportion between
    them; the right kind with a wrong rank or parameter counts half. Two points for the healthy
    programs, in proportion, where at least half of the faults are named.
    """
    ### BEGIN SOLUTION
    num_ranks, num_steps = len(records), len(records[0].steps)
    moments = [[record.steps[number] for record in records] for number in range(num_steps)]
    names = list(moments[0][0].before)

    for one in range(num_ranks):
        for other in range(one):
            if all(step[one].batch == step[other].batch for step in moments):
                return Fault("same_batch")
    for name in names:
        if differ([step.before[name] for step in moments[0]]):
            return Fault("start_differs", None, name)
    for kind, field in (("setting_differs", "settings"), ("mispaired", "calls")):
        for step in moments:
            seen = [getattr(one, field) for one in step]
            odd = [rank for rank in range(num_ranks) if seen.count(seen[rank]) == 1]
            if odd:
                return Fault(kind, odd[0])
    for step in moments:
        apart = [name for name in step[0].final if differ([one.final[name] for one in step])]
        if len(apart) > 1:
            return Fault("no_sync")
        if apart:
            return Fault("not_reduced", None, apart[0])
        factors = factors_of(step)
        if factors and min(factors.values()) > 1.5:
            return Fault("not_averaged")
        for name, factor in factors.items():
            if factor > 1.5 * min(factors.values()):
                return Fault("reduced_twice", None, name)
    for step in moments:
        still = [rank for rank, one in enumerate(step) if not changed(one)]
        if len(still) == 1:
            return Fault("skipped_step", still[0])
    for name in moments[0][0].final:
        able = [
            one for step in moments for one in step if one.settings["lr"] and norm(one.final[name])
        ]
        if able and all(one.before[name] == one.after[name] for one in able):
            return Fault("other_tensors", None, name)
    return Fault(None)


def differ(sketches):
    """Whether one of these differs from the first by more than rounding."""
    return any(relative(sketches[0], one) > ROUNDING for one in sketches)


def factors_of(step):
    """By parameter: how many times the mean of the local gradients the final one is."""
    found = {}
    for name, final in step[0].final.items():
        mean = [
            sum(its) / len(step) for its in zip(*(one.local[name] for one in step), strict=True)
        ]
        if norm(mean):
            found[name] = norm(final) / norm(mean)
    return found


def changed(step):
    """The parameters whose weights a step has changed."""
    return [name for name in step.before if step.before[name] != step.after[name]]
    ### END SOLUTION


# %% check_name_fault points=9
def check_name_fault():
    from worldsize import draw

    programs = FAULTY | HEALTHY
    rows, wrong = [], None
    for (what, program), records in zip(
        programs.items(), record(list(programs.values())), strict=True
    ):
        due, given = due_of(program), name_fault(records)
        rows.append({
            "program": what,
            "replicas differ": str(first_difference(records)),
            "named": said_of(given),
            "right": given == due,
        })  # fmt: skip
        if given != due and wrong is None:
            wrong = what, due, given
    show(draw.table(rows, title="Programs, and what your rules say of them"))
    if wrong:
        what, due, given = wrong
        hint = "Which numbers of its records differ from those of the healthy program?"
        raise CheckFailed(f"{said_of(due)} for the program '{what}'", said_of(given), hint)
    print(f"name_fault: {len(FAULTY)} faults named, {len(HEALTHY)} healthy programs cleared.")


def said_of(fault):
    """A fault in words."""
    parts = [str(fault.kind)] + [str(one) for one in fault[1:] if one is not None]
    return " of ".join(parts)


check_name_fault()

# %% [markdown]
# ## 4. Against a program that you trust
#
# All replicas may be equal and all wrong. Then a second program helps: the same model and global
# batch on one rank. Reductions in a different order differ in the last bits, and training enlarges
# this, a little in one model and much in another. So what counts as rounding is **measured**: run
# the trusted program again from weights that were changed in the last bit, and see how far it
# comes to lie from the first run.
#
# <details><summary>Hint 1: where to look</summary>
#
# For each step compute `relative(one, perturbed)` of all tensors, and take the largest: that is
# what rounding has become by then. A tensor that has not felt it yet, such as one whose gradient
# was small, may show 0.
#
# </details>
# <details><summary>Hint 2: not a number</summary>
#
# `nan > limit` is False. Write the test the other way round: `not (difference <= limit)`.
#
# </details>


# %% first_deviation tags=["solution"]
def first_deviation(
    one: list[dict], other: list[dict], perturbed: list[dict], margin: float = 10.0
) -> tuple[int, str] | None:
    """The first step and tensor in which two runs differ by more than rounding; None if in none.

    - A run is a list of steps, each a dictionary of sketches by name of the tensor.
    - `perturbed` is the run of `one` from weights that were changed in the last bit. In each step
      the tolerance is `margin` times the largest `relative` difference of a tensor of `one` from
      `perturbed`, and at least `4e-6`. A tensor differs if it is further off, by `relative`.
    - Steps are numbered from 0; of several tensors it is the first in the order of `one`.
    - A tensor that has a number that is not finite in `one` or in `perturbed` is left out. One that
      has such a number in `other` alone counts as different.
    - Runs may have different tensors and numbers of steps: only what all three have counts, for
      the tolerance as well.
    """

    ### BEGIN SOLUTION
    def is_finite(sketch):
        return all(number - number == 0 for number in sketch)

    for number, (mine, theirs, rounded) in enumerate(zip(one, other, perturbed, strict=False)):
        common = [
            name
            for name in mine
            if name in theirs
            and name in rounded
            and is_finite(mine[name])
            and is_finite(rounded[name])
        ]
        noise = max((relative(mine[name], rounded[name]) for name in common), default=0.0)
        for name in common:
            if not is_finite(theirs[name]):
                return number, name
            if relative(mine[name], theirs[name]) > max(margin * noise, 4e-6):
                return number, name
    return None
    ### END SOLUTION


# %% check_first_deviation points=3
def check_first_deviation():
    def run_of(first=(), second=(), num_steps=3):
        """Two tensors whose steps are multiplied by these factors."""
        factors = [dict(enumerate(first)), dict(enumerate(second))]
        return [
            {
                name: [factors[place].get(step, 1.0) * (step + one + 1.0) for one in range(16)]
                for place, name in enumerate(("a.weight", "b.weight"))
            }
            for step in range(num_steps)
        ]

    plain = run_of()
    noisy = run_of((1, 1 + 1e-6, 1 + 1e-4), (1 + 1e-7, 1 + 1e-7, 1))
    nan = float("nan")
    for other, perturbed, wanted, hint in (
        (plain, noisy, None, "Equal runs do not differ."),
        (run_of((1, 1, 1.0005)), noisy, None, "5e-4 is less than ten times 1e-4, in this step."),
        (run_of((1, 1, 1), (1, 1, 1.0005)), noisy, None, "The largest of all tensors counts."),
        (run_of((1, 1.0005)), noisy, (1, "a.weight"), "In step 1 rounding is only 1e-6."),
        (run_of((1, 1, 1.002)), noisy, (2, "a.weight"), "2e-3 is more than ten times 1e-4."),
        (run_of((1 + 1e-6,)), plain, None, "1e-6 is rounding, whatever the perturbed run says."),
        (run_of((1, 1), (1, nan)), noisy, (1, "b.weight"), "The test nan > limit is False."),
        (run_of((1, 1), (1, nan), num_steps=1), noisy, None, "Only steps that both have."),
        ([{"a.weight": one["a.weight"]} for one in plain], noisy, None, "Names of both."),
    ):
        given = first_deviation(plain, other, perturbed)
        if given != wanted:
            raise CheckFailed(f"{wanted}", f"{given}", hint)
    if first_deviation(plain, run_of((1, 1.0005)), noisy, margin=1000.0) is not None:
        raise CheckFailed("None with a margin of 1000", "a difference", "Use `margin`.")
    print("first_deviation: what is more than the perturbed run shows, step by step.")


check_first_deviation()

# %% [markdown]
# ## 5. Repair: clip by the norm over all shards
#
# With ZeRO or FSDP each rank holds a shard of every gradient. This function clips them, and is
# wrong: each rank takes the norm of its own shards, so shards of one gradient are scaled by
# different factors, and the loss still falls:
#
# ```python
# def clip_locally(shards, replicated, max_norm):
#     torch.nn.utils.clip_grad_norm_([*shards, *replicated], max_norm)
# ```
#
# <details><summary>Hint</summary>
#
# Squares of norms add up, norms do not. All-reduce the sum of the squares of this rank's shards;
# the squares of replicated gradients are the same on every rank, so add them once, afterwards.
#
# </details>


# %% clip_shards tags=["solution"]
def clip_shards(shards: list, replicated: list, max_norm: float) -> float:
    """Clip gradients in place to a norm over all ranks of at most `max_norm`; return the old norm.

    - The old norm is that before clipping. It counts the gradients of `shards`, parameters of
      which each rank holds its own part, over all ranks, and those of `replicated`, which are the
      same on every rank, once.
    - All gradients are multiplied by `max_norm` / norm if the norm is larger than `max_norm`.
      Otherwise no bit of them changes.
    - Parameters without a gradient are left out. A rank may hold no shard at all.
    - Each rank sends one number: one all-reduce of at most 8 bytes.
    """

    ### BEGIN SOLUTION
    def square(parameters):
        grads = [one.grad.double() for one in parameters if one.grad is not None]
        return sum((one.square().sum() for one in grads), torch.zeros((), dtype=torch.float64))

    total = square(shards)
    dist.all_reduce(total)
    found = (total + square(replicated)).sqrt().item()
    if found > max_norm:
        for one in [*shards, *replicated]:
            if one.grad is not None:
                one.grad *= max_norm / found
    return found
    ### END SOLUTION


# %% check_clip_shards points=2
def with_gradient(values):
    """A parameter with this gradient, or with none."""
    parameter = torch.nn.Parameter(torch.zeros(len(values or [0])))
    parameter.grad = None if values is None else torch.tensor(values)
    return parameter


def clipping_on_rank(max_norm):
    """The norm and the clipped gradients; rank 2 has no shard, only the replicated parameter."""
    rank = dist.get_rank()
    shards = [with_gradient([3.0, 0.0] if rank == 0 else [0.0, 4.0]), with_gradient(None)]
    shards, replicated = shards if rank < 2 else [], [with_gradient([12.0])]
    found = clip_shards(shards, replicated, max_norm)
    return found, [one.grad.tolist() for one in (*shards[:1], replicated[0])]


def check_clip_shards():
    run = ws.run(clipping_on_rank, 1.3, world_size=3, cluster=CLUSTER, echo=False)
    for rank, (found, grads) in enumerate(run.values):
        hint = "3, 4 and 12: the squares are 9 + 16 over the ranks, and 144 once."
        expect_close(float(found), 13.0, f"the norm on rank {rank}", hint)
        wanted = [*([[0.3, 0.0]], [[0.0, 0.4]], [])[rank], [1.2]]
        hint = "Both shards and the replicated gradient, by the same factor on every rank."
        for given, its in zip(grads, wanted, strict=True):
            expect_close(torch.tensor(given), torch.tensor(its), f"gradients of rank {rank}", hint)
        sent = [one for one in run.timeline.of(rank) if one.kind == "communication"]
        if len(sent) != 1 or sent[0].size_bytes > 8:
            hint = "Add up all squares of the rank first."
            raise CheckFailed("one all-reduce of at most 8 bytes", f"{len(sent)} calls", hint)
    run = ws.run(clipping_on_rank, 20.0, world_size=3, cluster=CLUSTER, echo=False)
    if run.values[0][1] != [[3.0, 0.0], [12.0]]:
        raise CheckFailed("no change below max_norm", f"{run.values[0][1]}")
    print("clip_shards: one norm for all ranks, by one number from each.")


check_clip_shards()

# %% [markdown]
# ## 6. Repair: a gradient through a collective
#
# A contrastive loss, as CLIP's, compares each sample with the partners of **all** samples, also
# those on other ranks. `pair_loss` is given. The function below it gathers the partners' embeddings
# and is wrong: autograd does not see what `dist.all_gather` does. To autograd the gathered
# embeddings are constants, and the gradient lacks all that a rank's embeddings do to the losses on
# other ranks. The loss that it prints is right, and falls.


# %% given_contrastive
def pair_loss(left, right, first):
    """The mean loss of rows of `left`; the partner of row i is row `first` + i of `right`."""
    logits = F.normalize(left, dim=1) @ F.normalize(right, dim=1).T / 0.2
    return F.cross_entropy(logits, torch.arange(first, first + len(left)))


def contrastive_backward_in_part(model, inputs, partners):
    """The gradient, without what the collective hides."""
    left, right = model(inputs), model(partners)
    gathered = [torch.empty_like(right) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, right.detach())
    gathered[dist.get_rank()] = right
    pair_loss(left, torch.cat(gathered), dist.get_rank() * len(left)).backward()
    for one in model.parameters():
        dist.all_reduce(one.grad)
        one.grad.div_(dist.get_world_size())


# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# Write a `torch.autograd.Function`. Its forward gathers. Its backward gets, on each rank, the
# gradient of that rank's loss with respect to **all** embeddings; the gradient of a rank's own
# embeddings is the sum of what all ranks have for them.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# In backward, all-reduce a clone of the gradient and return the rank's own rows of it; a
# reduce-scatter does both at once. Each parameter's gradient is then the mean over the ranks of
# what backward leaves there.
#
# </details>
# <details><summary>Hint 3: without a class</summary>
#
# Gather both embeddings, put your own rows in, and compute the loss of **all** rows on every rank.
# Each rank's gradient is then the part that goes through its own embeddings, and the parts are
# summed, not averaged.
#
# </details>


# %% contrastive_backward tags=["solution"]
def contrastive_backward(model, inputs: torch.Tensor, partners: torch.Tensor) -> None:
    """Leave in each parameter the gradient of the mean `pair_loss` over the rows of all ranks.

    - On every rank `.grad` is what one rank with the rows of all ranks, in the order of the ranks,
      would have: within 1e-4. Each rank has the same number of rows, and the model is the same on
      every rank, without gradients before the call.
    - A rank runs the model on its own rows only. Its messages hold, at most, its parameters'
      gradients once, its own embeddings once, and all ranks' embeddings once: embeddings are
      smaller than inputs.
    """
    ### BEGIN SOLUTION
    left, right = model(inputs), Gathered.apply(model(partners))
    pair_loss(left, right, dist.get_rank() * len(left)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


class Gathered(torch.autograd.Function):
    """The rows of all ranks."""

    @staticmethod
    def forward(ctx, rows):
        ctx.num_rows = len(rows)
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, of_all):
        total = of_all.clone()
        dist.all_reduce(total)
        return total.split(ctx.num_rows)[dist.get_rank()]

    ### END SOLUTION


# %% check_contrastive_backward points=3
def pairs(num_rows, width):
    """Inputs and partners of all ranks."""
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(num_rows, width, generator=generator)
    return inputs, inputs + 0.3 * torch.randn(num_rows, width, generator=generator)


def encoder(width):
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(width, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def contrast_on_rank(function, width, num_rows):
    """The gradients that a function leaves."""
    torch.set_num_threads(1)
    rank, model = dist.get_rank(), encoder(width)
    its = slice(rank * num_rows, (rank + 1) * num_rows)
    function(model, *(rows[its] for rows in pairs(dist.get_world_size() * num_rows, width)))
    return torch.cat([one.grad.flatten() for one in model.parameters()])


def check_contrastive_backward():
    num_ranks, width, num_rows = 3, 32, 10
    model = encoder(width)
    inputs, partners = pairs(num_ranks * num_rows, width)
    pair_loss(model(inputs), model(partners), 0).backward()
    wanted = torch.cat([one.grad.flatten() for one in model.parameters()])
    options = {"world_size": num_ranks, "cluster": CLUSTER, "echo": False}
    part = ws.run(contrast_on_rank, contrastive_backward_in_part, width, num_rows, **options)
    run = ws.run(contrast_on_rank, contrastive_backward, width, num_rows, **options)
    off = ((part.values[0] - wanted).norm() / wanted.norm()).item()
    print(f"contrastive_backward_in_part: the gradient is {off:.0%} off.")
    for rank, given in enumerate(run.values):
        hint = "What reaches a rank's embeddings from the losses of other ranks? Sum or mean?"
        expect_close(given, wanted, f"the gradient on rank {rank}", hint, 1e-4, 1e-6)
        calls = [one for one in run.timeline.of(rank) if one.kind == "communication"]
        most = 4 * (len(wanted) + num_rows * 3 * (1 + num_ranks)) + 64
        sent = sum(one.size_bytes / (num_ranks if one.name == "all_gather" else 1) for one in calls)
        if sent > most:
            hint = "Send embeddings, not inputs, and each gradient once."
            raise CheckFailed(f"at most {most} bytes from rank {rank}", f"{sent:.0f}", hint)
    print("contrastive_backward: the gradient of one rank that has all rows.")


check_contrastive_backward()
