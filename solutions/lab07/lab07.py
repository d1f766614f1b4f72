# %% [markdown]
# # Lab 7. ZeRO-1, 2 and 3 by hand
#
# With DDP every rank holds everything: all weights, all gradients and, the largest part, all of
# Adam's state. ZeRO cuts these into pieces, one for each rank. Stage 1 cuts the optimizer's state,
# stage 2 the gradients too, stage 3 the weights as well. In this lab you write the parts from which
# all three stages are built, and with them what torch calls FSDP.
#
# ```text
# step          stage 1                  stage 2                     stage 3
# forward       full weights             full weights                gather a block ► use ► free
# backward      full gradients           reduce-scatter each block   gather a block ► use ► free,
#                                                                    reduce-scatter each block
# after it      reduce-scatter           -                           -
# update        own piece                own piece                   own piece
# then          all-gather of weights    all-gather of weights       -
# ```
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `shard`, `unshard` | this rank's piece of some tensors, and the way back | 3 | 20 min | easy |
# | `gather`, `free` | all weights of a unit, and their memory back | 3 | 20 min | medium |
# | `reduce_gradients` | the mean gradient: each rank gets its piece | 4 | 30 min | medium |
# | `adam_step` | AdamW on one piece, in float32 | 3 | 25 min | medium |
# | `FullyShard` | stage 3: hooks that gather and free in forward and backward | 6 | 75 min | hard |
# | `Prefetching` | the next block's weights travel during compute | 3 | 30 min | medium |
# | `clip_gradients` | clips by the norm of all pieces | 2 | 15 min | easy |
# | `what_it_costs` | questions that you answer in words | 4 | 40 min | medium |
#
# Work in this order. Each part has a check below it and folded hints above it: the first hint says
# where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The checks
# run your code on emulated ranks. They compare **what each rank sends** with the gradients and
# weights that it must send, and **what each rank holds** with what Linux says of its processes. As
# long as a rank holds or sends what a replica would, everything else that such a function does
# right earns only half the points. Each function is graded with correct versions of the others, so
# that a mistake costs points only once. One check runs your own parts together: a step of stage 3
# as one of 1,024 ranks, on paper. It must send 3 P (N - 1)/N bytes in the order of the table above,
# hold a few blocks at a time and a 1,024th of everything else, and take hardly longer than its
# messages; and on two emulated ranks it must do the same.
#
# Of the operations of `torch.distributed`, all-gather, reduce-scatter and, for clipping, all-reduce
# are allowed, in all their forms, with or without `async_op`. `torch.distributed.fsdp` (and so
# `fully_shard`), `ZeroRedundancyOptimizer` and `torch.distributed.tensor` are refused, and so are
# their files; everything else in torch may be used. You may read how FSDP does it, but write your
# own: who grades this lab reads your cells. The same inputs must give the same bits in every run,
# so use no clock, no threads and no unseeded generator.

# %% setup
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import worldsize as ws
from worldsize import emulate
from worldsize.check import CheckFailed, expect_close

OPERATIONS = {"all_gather", "reduce_scatter", "all_reduce"}
EMULATED = {"cluster": "pcie-box", "compute": "none", "echo": False, "allow": OPERATIONS}
LATE_S = 1.0  # what a late rank waits, in virtual time


def show(picture):
    from IPython.display import display  # here and not above: the ranks need neither

    display(picture)


ws.run(
    dist.get_rank, world_size=2, **EMULATED
)  # the first run loads torch: the checks are then quick

# %% [markdown]
# The next cell is given. A **unit** is what is gathered and freed together: some parameters as one
# flat vector, of which each rank owns a piece. A **block** is a module with the units that it uses;
# a parameter that two blocks share is in a unit that both of them have. `Unit` and `make_blocks`
# call your `shard`, `unshard` and `free`.
#
# ```text
# parameters    [ weight .............. | bias ...... ]                 views of unit.full
# unit.full     [ piece of rank 0 | piece of rank 1 | piece of rank 2 0 0 ]   padded with zeros
# unit.piece    [ piece of rank 1 ]                                     all that rank 1 keeps
# ```


# %% units
class Unit:
    """Parameters that are gathered and freed together; this rank keeps a piece of them."""

    def __init__(self, parameters):
        self.parameters = list(parameters)  # of one dtype, and all trainable or all frozen
        self.shapes = [one.shape for one in self.parameters]
        self.requires_grad = self.parameters[0].requires_grad
        weights = [one.detach() for one in self.parameters]
        self.piece = shard(weights, dist.get_rank(), dist.get_world_size())
        self.full = torch.empty(len(self.piece) * dist.get_world_size(), dtype=self.piece.dtype)
        for parameter, view in zip(self.parameters, unshard(self.full, self.shapes), strict=True):
            parameter.data = view
        self.gradient = None  # this rank's piece of the mean gradient, float32
        self.master = self.exp_avg = self.exp_avg_sq = None  # Adam's state of this piece, float32
        self.num_steps = 0
        free(self)

    @property
    def is_gathered(self):
        """True while `full` has memory: weights are there, or on their way."""
        return self.full.untyped_storage().nbytes() > 0


class Block(NamedTuple):
    """A module and the units of its parameters."""

    module: nn.Module
    units: list[Unit]


def make_blocks(modules):
    """A block for each module, in which parameters of one kind and the same users are a unit."""
    users, groups = {}, {}
    for place, module in enumerate(modules):
        for one in module.parameters():
            users.setdefault(one, []).append(place)
    for parameter, places in users.items():
        kind = (tuple(places), parameter.dtype, parameter.requires_grad)
        groups.setdefault(kind, []).append(parameter)
    made = [(places, Unit(parameters)) for (places, *_), parameters in groups.items()]
    return [
        Block(module, [unit for places, unit in made if place in places])
        for place, module in enumerate(modules)
    ]


def units_of(blocks):
    """All units, each once."""
    return list(dict.fromkeys(unit for block in blocks for unit in block.units))


# %% [markdown]
# ## 1. A piece for each rank
#
# Seven numbers on three ranks: 3, 3 and 1. Collectives want pieces of one size, so the last ones
# are filled up with zeros. ZeRO cuts the flat vector and not each tensor: a model has many tensors
# that are smaller than the number of ranks.
#
# <details><summary>Hint 1: where to look</summary>
#
# `torch.cat` of the flattened tensors; the size of a piece is the total divided by the number of
# ranks, rounded up: `-(-total // world_size)`.
#
# </details>
# <details><summary>Hint 2: memory of its own</summary>
#
# A slice is a view: as long as it lives, so does the whole vector. Make a new tensor of zeros as
# long as the piece, and copy into it what the vector has there.
#
# </details>
# <details><summary>Hint 3: the way back</summary>
#
# `flat[:total].split(sizes)` gives views, and `view(shape)` of each a view again. `shape.numel()`
# is the number of elements of a `torch.Size`.
#
# </details>


# %% shard tags=["solution"]
def shard(tensors: list[torch.Tensor], rank: int, world_size: int) -> torch.Tensor:
    """This rank's piece of the tensors laid end to end, a 1-D tensor.

    - All ranks' pieces have the same length, the smallest with which they hold all elements. What
      the last ones have too many are zeros.
    - The piece has the tensors' dtype and memory of its own: no larger tensor lives on in it.
    - `tensors` are one or more of one dtype and of any shape, contiguous or not. They do not
      change.

    Example: (1, 2, 3) and ((4, 5), (6, 7)) on 3 ranks give (1, 2, 3), (4, 5, 6) and (7, 0, 0).
    """
    ### BEGIN SOLUTION
    flat = torch.cat([one.flatten() for one in tensors])
    piece = flat.new_zeros(-(-len(flat) // world_size))
    mine = flat[rank * len(piece) : (rank + 1) * len(piece)]
    piece[: len(mine)] = mine
    return piece
    ### END SOLUTION


def unshard(flat: torch.Tensor, shapes: list[torch.Size]) -> list[torch.Tensor]:
    """Tensors of these shapes, which are views of a flat vector: of all ranks' pieces end to end.

    - What is written into `flat` later shows in them. The zeros at the end are in none of them.

    Example: (1, 2, 3, 4, 5, 6, 7, 0, 0) as (3,) and (2, 2) gives (1, 2, 3) and ((4, 5), (6, 7)).
    """
    ### BEGIN SOLUTION
    sizes = [shape.numel() for shape in shapes]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    ### END SOLUTION


# %% check_shard points=3
def check_shard():
    tensors = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[4.0, 6.0], [5.0, 7.0]]).t()]
    pieces = [shard(tensors, rank, 3) for rank in range(3)]
    hint = "Lay all tensors end to end first: it is the whole that is cut and padded, not each."
    for rank, wanted in enumerate(([1, 2, 3], [4, 5, 6], [7, 0, 0])):
        expect_close(pieces[rank], torch.tensor(wanted).float(), f"the piece of rank {rank}", hint)
    for piece in (*pieces, shard([torch.ones(6)], 1, 2)):
        if piece.untyped_storage().nbytes() > 4 * len(piece):
            raise CheckFailed(
                f"a piece with memory of its own, {4 * len(piece)} bytes",
                f"a view of {piece.untyped_storage().nbytes()} bytes",
                "A slice keeps the whole vector alive: copy it, for example by `clone()`.",
            )
    few = [shard([torch.ones((), dtype=torch.bfloat16)], rank, 4) for rank in range(4)]
    hint = "A rank for which nothing is left has a piece of zeros, in the tensors' dtype."
    for rank, piece in enumerate(few):
        wanted = torch.full((1,), float(not rank), dtype=torch.bfloat16)
        expect_close(piece, wanted, f"the piece of rank {rank} of one number on 4 ranks", hint)

    flat, shapes = (
        torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 0, 0]),
        [torch.Size([3]), torch.Size([2, 2])],
    )
    for round_trip in range(2):
        back = unshard(flat, shapes)
        hint = "Leave out the padding at the end, and give each part its shape."
        for one, wanted in zip(back, ([1, 2, 3], [[4, 5], [6, 7]]), strict=True):
            expect_close(one, (1 + round_trip) * torch.tensor(wanted).float(), "a tensor", hint)
        flat *= 2
        hint = "Slices and `view` share the vector's memory; `clone`, `reshape` of a copy do not."
        expect_close(back[1], 2 * (1 + round_trip) * torch.tensor([[4.0, 5], [6, 7]]),
                     "a tensor after the flat vector was doubled", hint)  # fmt: skip
    print("shard, unshard: 7 numbers on 3 ranks are pieces of 3, and come back in their shapes.")


check_shard()

# %% [markdown]
# ## 2. Gather and free
#
# Stages 1 and 2 gather the new weights after each step. Stage 3 gathers the weights of a block
# whenever it needs them, and gives the memory back.
#
# Autograd keeps the weights that backward will need, as tensors of its own that share the memory of
# `unit.full`. Deleting your tensor would not free it. So the *storage*, which they all share, is
# resized: to 0 bytes, and back before backward comes.
#
# <details><summary>Hint 1: where to look</summary>
#
# `unit.full.untyped_storage().resize_(num_bytes)`. `tensor.nbytes` is what a tensor needs, whatever
# its storage has now.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Resize, then `dist.all_gather_into_tensor(unit.full, unit.piece, async_op=True)`, and return the
# handle.
#
# </details>


# %% gather_and_free tags=["solution"]
def gather(unit: Unit):
    """Start to gather the weights of all ranks into `unit.full`; return the handle to wait for.

    - `unit.full` stays the same tensor. Its storage gets its memory back, and once the handle's
      `wait()` has returned, the parameters are the weights of which the ranks hold the pieces.
    - There is one operation, an all-gather of the pieces in their dtype. It does not wait for it.
    - If the unit is gathered already, its weights are gathered anew: stages 1 and 2 do so after
      each step.
    """
    ### BEGIN SOLUTION
    unit.full.untyped_storage().resize_(unit.full.nbytes)
    return dist.all_gather_into_tensor(unit.full, unit.piece, async_op=True)
    ### END SOLUTION


def free(unit: Unit) -> None:
    """Give back the memory of the gathered weights.

    - The storage of `unit.full` has 0 bytes afterwards, so that the weights are gone also for
      tensors that autograd keeps. The tensor, the parameters and their shapes stay.
    - A unit that is free already stays so.
    """
    ### BEGIN SOLUTION
    unit.full.untyped_storage().resize_(0)
    ### END SOLUTION


# %% check_gather_and_free points=3
def gather_and_free(weights):
    """Weights by round, the bytes of the storage after `free`, and how long `gather` took."""
    unit = Unit([nn.Parameter(one.clone()) for one in weights])
    full, found = unit.full, []
    if dist.get_rank():
        emulate.spend(LATE_S)
    start_s = emulate.elapsed()
    handle = gather(unit)
    taken_s = emulate.elapsed() - start_s
    if not hasattr(handle, "wait"):
        return found, "no handle", taken_s, True, []
    handle.wait()
    saved = unit.parameters[0].detach()[:1]  # a view, such as autograd keeps
    found.append([one.detach().clone() for one in unit.parameters])
    for is_freed in (False, True):
        unit.piece *= 2
        if is_freed:
            free(unit)
            free(unit)
        gather(unit).wait()
        found.append([one.detach().clone() for one in unit.parameters])
    seen = saved.clone()
    free(unit)
    return found, unit.full.untyped_storage().nbytes(), taken_s, unit.full is full, seen


def check_gather_and_free():
    weights = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[4.0, 5.0], [6.0, 7.0]])]
    run = ws.run(gather_and_free, weights, world_size=2, **EMULATED)
    found, num_bytes, taken_s, is_full, seen = run.values[0]
    if num_bytes == "no handle":
        hint = "With async_op=True the all-gather returns a handle: return it."
        raise CheckFailed("a handle with wait()", "something else", hint)
    hint = "Gather anew each time: the pieces have changed since."
    for place, factor in enumerate((1, 2, 4)):
        for one, wanted in zip(found[place], weights, strict=True):
            expect_close(one, factor * wanted, f"a parameter after gather {place + 1}", hint)
    if num_bytes or not is_full:
        hint = "Resize the storage to 0: a new tensor leaves the memory to all who share it."
        raise CheckFailed("unit.full itself with 0 bytes after free", f"{num_bytes} bytes", hint)
    hint = "Memory that autograd's tensors see must be refilled: resize the storage of unit.full."
    expect_close(seen, 4 * weights[0][:1], "a view that was made before", hint)
    if taken_s > LATE_S / 2:
        raise CheckFailed("a gather that returns at once", "one that waits", "Use async_op=True.")
    if run.timeline.bytes_sent(0) > 3 * 16:
        actual = f"{run.timeline.bytes_sent(0):.0f}"
        raise CheckFailed("16 bytes from each rank in each gather", actual, "Send the piece alone.")
    print("gather, free: the weights come back into the same memory; freed, they take 0 bytes.")


check_gather_and_free()

# %% [markdown]
# ## 3. Each rank gets its piece of the mean
#
# An all-reduce gives every rank the whole mean gradient: 2(N - 1)/N times its bytes from each rank.
# But a rank updates only its piece. A **reduce-scatter** gives it just that, with half of the
# bytes. The other half is spent later on an all-gather of new weights.
#
# ```text
# rank 0     [ 1  2 | 3  4 ]         reduce-scatter, / 2         rank 0   [ 3  4 ]
# rank 1     [ 5  6 | 7  8 ]         ───────────────────►        rank 1   [ 5  6 ]
# ```
#
# The function only starts the operation, and returns a second function that takes in the result:
# backward goes on in between.
#
# <details><summary>Hint 1: where to look</summary>
#
# `dist.reduce_scatter_tensor(output, input, async_op=True)`: `input` has the length of `unit.full`,
# `output` that of `unit.piece`. It returns a handle with `wait()`.
#
# </details>
# <details><summary>Hint 2: gradients that are missing</summary>
#
# Begin with zeros as long as `unit.full`. `unshard(flat, unit.shapes)` gives a view for each
# parameter: copy its gradient into that, if it has one.
#
# </details>
# <details><summary>Hint 3: the function to return</summary>
#
# A function inside the function, which calls `handle.wait()`, divides by the number of ranks in
# float32, and adds.
#
# </details>


# %% reduce_gradients tags=["solution"]
def reduce_gradients(unit: Unit):
    """Start to average a unit's gradients; return a function that takes in this rank's piece.

    - There is one operation, a reduce-scatter in the parameters' dtype. A rank gives the gradients
      of `unit.parameters` as `shard` lays them out, with zeros at the end. A parameter whose
      `.grad` is None counts as zeros, also where no parameter has a gradient on this rank.
    - It does not wait. When it returns, `.grad` of every parameter is None.
    - The function that it returns takes no argument. It waits, and adds this rank's piece of the
      mean over the ranks, as float32, to `unit.gradient`; where that is None, it becomes the piece.
    - A rank may divide before or after the reduce-scatter, or by `ReduceOp.AVG`.
    - Of a frozen unit (`unit.requires_grad` is False) nothing is sent, and nothing changes.

    Example: with gradients (1, 2, 3, 4) on rank 0 and (5, 6, 7, 8) on rank 1, the piece of rank 1
    is (5, 6). After a second call with the same gradients, `unit.gradient` is (10, 12).
    """
    ### BEGIN SOLUTION
    if not unit.requires_grad:
        return lambda: None
    flat = torch.zeros_like(unit.piece).repeat(dist.get_world_size())
    for own, view in zip(unit.parameters, unshard(flat, unit.shapes), strict=True):
        if own.grad is not None:
            view.copy_(own.grad)
            own.grad = None
    total = torch.empty_like(unit.piece)
    handle = dist.reduce_scatter_tensor(total, flat, async_op=True)

    def take_in():
        handle.wait()
        mean = total.float() / dist.get_world_size()
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in
    ### END SOLUTION


# %% check_reduce_gradients points=4
def unit_with(shapes, gradients, dtype=torch.float32, requires_grad=True):
    made = [nn.Parameter(torch.zeros(one, dtype=dtype), requires_grad) for one in shapes]
    unit = Unit(made)
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = gradient
    return unit


def reduce_some(late_rank, dtype, is_trainable, *calls):
    """What `unit.gradient` is after each call, what is left, and when the last call returned."""
    unit, found = None, []
    if dist.get_rank() == late_rank:
        emulate.spend(LATE_S)
    for gradients in calls:
        shapes = [torch.Size([3]), torch.Size([2, 2])]
        again = unit_with(shapes, gradients, dtype, is_trainable)
        again.gradient = unit and unit.gradient
        unit = again
        take_in = reduce_gradients(unit)
        left = [one.grad is not None for one in unit.parameters]
        returned_s = emulate.elapsed()
        take_in()
        found.append(unit.gradient)
    return found, left, returned_s


def check_reduce_gradients():
    def gradients(*numbers):
        first, second = torch.tensor(numbers).split([3, 4])
        return [first, second.view(2, 2)]

    one, other = gradients(1.0, 2, 3, 4, 5, 6, 7), gradients(3.0, 4, 5, 6, 7, 8, 9)
    each = [(one, one), (other, other)]
    run = ws.run(reduce_some, None, torch.float32, True, world_size=2, each=each, **EMULATED)
    twice = "That is the sum over the ranks: divide by their number."
    for rank, wanted in enumerate(([2.0, 3, 4, 5], [6.0, 7, 8, 0])):
        (first, second), left, _ = run.values[rank]
        if first is None:
            raise CheckFailed("a piece in unit.gradient", "None", "Assign it where it is None.")
        wanted = torch.tensor(wanted)
        hint = twice if torch.allclose(first.float(), 2 * wanted) else "The mean, piece by piece."
        expect_close(first, wanted, f"unit.gradient on rank {rank}", hint)
        hint = "A second call adds to unit.gradient, as a second backward adds to .grad."
        expect_close(second, 2 * wanted, "unit.gradient after a second call", hint)
        if any(left):
            hint = "The whole gradients are what stage 2 must not keep: set .grad to None."
            raise CheckFailed("no .grad when reduce_gradients returns", "one that is left", hint)
    names = [event.name for event in run.timeline.of(0) if event.size_bytes and event.name]
    if "all_gather" in names or run.timeline.bytes_sent(0) > 2 * 4 * 4:
        raise CheckFailed(
            "16 bytes from each rank in each of two reduce-scatters",
            f"{run.timeline.bytes_sent(0):.0f} bytes in {', '.join(sorted(set(names)))}",
            "One reduce-scatter: no rank needs the others' pieces of the gradient.",
        )
    try:
        each = [([None, one[1]],), ([None, None],)]
        run = ws.run(reduce_some, None, torch.float32, True, world_size=2, each=each, **EMULATED)
    except (ws.RankFailed, ws.RunTimeout) as error:
        hint = "A rank without a gradient sends zeros: the others wait for it. Is .grad None?"
        raise CheckFailed("both ranks to finish", f"{error}", hint) from error
    for rank, wanted in enumerate(([0.0, 0, 0, 2], [2.5, 3, 3.5, 0])):
        hint = "Where a gradient is None its place holds zeros; the others keep their places."
        expect_close(run.values[rank][0][0], torch.tensor(wanted), "with missing gradients", hint)

    in_half = [one.bfloat16() for one in one]
    run = ws.run(reduce_some, 1, torch.bfloat16, True, in_half, world_size=2, **EMULATED)
    (found,), _, returned_s = run.values[0]
    hint = "The mean of bfloat16 gradients is kept as float32."
    expect_close(found, torch.tensor([1.0, 2, 3, 4]), "unit.gradient of bfloat16", hint)
    if run.timeline.bytes_sent(0) != 2 * 4:
        hint = "bfloat16 gradients travel as bfloat16."
        raise CheckFailed("8 bytes", f"{run.timeline.bytes_sent(0):.0f}", hint)
    if returned_s > LATE_S / 2:
        hint = "Use async_op=True, and call wait() only in the function that you return."
        raise CheckFailed("a call that returns at once", "one that waits for a late rank", hint)
    run = ws.run(reduce_some, None, torch.float32, False, [None, None], world_size=2, **EMULATED)
    if run.timeline.bytes_sent(0):
        hint = "Nothing is sent of a unit whose requires_grad is False."
        raise CheckFailed("no bytes of a frozen unit", f"{run.timeline.bytes_sent(0):.0f}", hint)
    print(
        "reduce_gradients: 16 bytes for 7 gradients of 4 bytes on 2 ranks; an all-reduce takes 28."
    )


check_reduce_gradients()

# %% [markdown]
# ## 4. Adam on one piece
#
# Weights in bfloat16 have 8 bits of mantissa: an update below a 256th of a weight is lost. So the
# optimizer keeps **master weights** in float32, and Adam's two moments. These 12 bytes for each
# parameter are the largest part of the state, and a rank needs them only for its piece. It never
# talks to the others here.
#
# ```text
# m = β₁ m + (1 - β₁) g            m' = m / (1 - β₁ᵗ)
# v = β₂ v + (1 - β₂) g²           v' = v / (1 - β₂ᵗ)
# master = master (1 - lr · decay) - lr · m' / (√v' + ε)
# piece  = master, rounded to the piece's dtype
# ```
#
# <details><summary>Hint 1: where to look</summary>
#
# `unit.piece.float()` of a float32 piece is the same tensor: `.clone()` it. t is `unit.num_steps`,
# counted up first.
#
# </details>
# <details><summary>Hint 2: without new tensors</summary>
#
# `m.lerp_(g, 1 - beta)` and `v.mul_(beta).addcmul_(g, g, value=1 - beta)` work in place, as does
# `unit.piece.copy_(unit.master)`.
#
# </details>


# %% adam_step tags=["solution"]
def adam_step(
    unit: Unit,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> None:
    """Update this rank's piece of a unit by AdamW, in float32, from `unit.gradient`.

    - In the first step `unit.master` is the piece as float32, in memory of its own, and
      `unit.exp_avg` and `unit.exp_avg_sq` are zeros like it. All later steps go on from these
      three, which have the length of the piece, and from `unit.num_steps`, which counts the unit's
      steps. A state that was restored from a checkpoint is taken as it is.
    - Weight decay is decoupled: the master weights shrink by learning_rate * weight_decay times
      themselves, and the gradient stays as it is. Both moments are corrected for their bias.
      Together, the result is that of `torch.optim.AdamW` on the piece in float32.
    - `unit.piece` changes in place, to the master weights in its dtype. `unit.gradient` is None
      afterwards.
    - Where `unit.gradient` is None (a frozen unit, or one that was not used), nothing changes.

    Example: a piece (1, -1) with gradient (10, -0.1) and learning rate 0.01 becomes (0.99, -0.99):
    in its first step, Adam moves every weight by the learning rate.
    """
    ### BEGIN SOLUTION
    if unit.gradient is None:
        return
    if unit.master is None:
        unit.master = unit.piece.float().clone()
        unit.exp_avg = torch.zeros_like(unit.master)
        unit.exp_avg_sq = torch.zeros_like(unit.master)
    unit.num_steps += 1
    gradient, unit.gradient = unit.gradient, None
    unit.exp_avg.lerp_(gradient, 1 - betas[0])
    unit.exp_avg_sq.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    unit.master.mul_(1 - learning_rate * weight_decay)
    root = (unit.exp_avg_sq / (1 - betas[1] ** unit.num_steps)).sqrt_().add_(eps)
    unit.master.addcdiv_(
        unit.exp_avg, root, value=-learning_rate / (1 - betas[0] ** unit.num_steps)
    )
    unit.piece.copy_(unit.master)
    ### END SOLUTION


# %% check_adam_step points=3
def steps_of_adam(weights, dtype, gradients, options):
    unit = Unit([nn.Parameter(weights.to(dtype))])
    piece, found = unit.piece, []
    for gradient in gradients:
        unit.gradient = None if gradient is None else gradient.clone()
        adam_step(unit, 0.01, **options)
        found.append(piece.clone())
    return found, unit.master, unit.gradient, unit.piece is piece


def check_adam_step():
    def steps(weights, gradients, dtype=torch.float32, **options):
        run = ws.run(steps_of_adam, weights, dtype, gradients, options, world_size=1, **EMULATED)
        return run.values[0]

    weights, gradient = torch.tensor([1.0, -1.0]), torch.tensor([10.0, -0.1])
    (found,), master, left, is_piece = steps(weights, [gradient])
    hint = "Adam's first step is the learning rate, whatever the gradient: are m and v corrected?"
    if torch.equal(found, weights):
        hint = "unit.piece has not changed: copy the master weights into it, in place."
    expect_close(found, torch.tensor([0.99, -0.99]), "the piece of the example", hint)
    if left is not None or not is_piece:
        hint = "Set unit.gradient to None at the end, and write into unit.piece by copy_."
        raise CheckFailed("no gradient, and the same tensor unit.piece", "another state", hint)
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(9, generator=generator)
    gradients = [torch.randn(9, generator=generator) for _ in range(6)]
    for options in ({}, {"weight_decay": 0.5}, {"betas": (0.7, 0.9), "eps": 0.1}):
        theirs = nn.Parameter(weights.clone())
        optimizer, wanted = (
            torch.optim.AdamW([theirs], **{"lr": 0.01, "weight_decay": 0.0} | options),
            [],
        )
        for gradient in gradients:
            theirs.grad = gradient
            optimizer.step()
            wanted.append(theirs.detach().clone())
        found, *_ = steps(weights, gradients, **options)
        for step in range(6):
            hint = "Compare with the formula, line by line. Does num_steps count from 1?"
            if "weight_decay" in options:
                hint = "Decay shrinks the master weights: it is not added to the gradient."
            expect_close(found[step], wanted[step], f"the piece after step {step + 1}", hint)
    found, *_ = steps(weights, [gradients[0], None, gradients[1]])
    theirs, *_ = steps(weights, gradients[:2])
    hint = "Without a gradient nothing changes: neither moments nor the count of steps."
    expect_close(found[2], theirs[1], "the piece after a step without gradient", hint)
    large = torch.full((2,), 100.0)
    found, master, *_ = steps(large, [torch.ones(2)] * 40, torch.bfloat16)
    hint = "bfloat16 loses steps of 0.01 at 100: update the float32 master, then round it."
    if found[-1].dtype != torch.bfloat16:
        raise CheckFailed("a piece of bfloat16", f"{found[-1].dtype}", "Its dtype stays.")
    expect_close(
        found[-1].float(), torch.full((2,), 99.5), "100 after 40 steps of 0.01", hint, atol=0.3
    )
    print(f"adam_step: 40 steps of 0.01 moved 100.0 to {found[-1][0]:.1f} in bfloat16,"
          f" because the master weight is {master[0]:.2f}.")  # fmt: skip


check_adam_step()

# %% [markdown]
# ## 5. Stage 3
#
# Hooks make it work for any model. Its blocks are used one after the other in forward, and in
# reverse order in backward. At each use the block's units are gathered; after it they are freed.
# When backward has passed a block, its gradients are reduced.
#
# ```text
# forward     gather 0 ▒▒▒ free 0   gather 1 ▒▒▒ free 1   gather 2 ▒▒▒ free 2
# backward    gather 2 ▒▒▒▒▒▒ reduce 2, free 2   gather 1 ▒▒▒▒▒▒ reduce 1, free 1   ...
# ```
#
# The next two cells are given. `OnDemand` gathers when asked, and waits; later you write something
# better with the same two methods. `call_after_backward` is the hook that torch lacks. It returns
# the inputs of a block unchanged, and calls `function()` in backward, when everything behind these
# inputs is done. Where no input needs a gradient, as with a first block, it is never called:
# `finish` does what is left. A `Layer` is what the checks train.


# %% on_demand
class OnDemand:
    """Gathers the units of a block when it is used, and waits for them."""

    def __init__(self, blocks):
        self.blocks = blocks

    def use(self, place, is_backward):
        """Have the weights of the block at this place there."""
        for unit in self.blocks[place].units:
            if not unit.is_gathered:
                gather(unit).wait()

    def drop(self, place):
        """Free the weights of the block at this place."""
        for unit in self.blocks[place].units:
            free(unit)


class Passing(torch.autograd.Function):
    """An identity that calls a function in backward."""

    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.function = function
        return tensors

    @staticmethod
    def backward(ctx, *gradients):
        ctx.function()
        return None, *gradients


def call_after_backward(inputs, function):
    """The same inputs; backward calls the function once it has the gradients of all of them."""
    places = [place for place, one in enumerate(inputs) if one.requires_grad]
    inputs = list(inputs)
    if places:
        passed = Passing.apply(function, *[inputs[place] for place in places])
        for place, one in zip(places, passed, strict=True):
            inputs[place] = one
    return tuple(inputs)


# %% layers
class Busy(torch.autograd.Function):
    """An identity that keeps the rank busy in forward, and twice as long in backward."""

    @staticmethod
    def forward(ctx, tensor, time_s):
        ctx.time_s = time_s
        with ws.span("forward", kind="forward"):
            emulate.spend(time_s)
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        with ws.span("backward", kind="backward"):
            emulate.spend(2 * ctx.time_s)
        return gradient, None


class Layer(nn.Module):
    def __init__(self, width, time_s=0.0):
        super().__init__()
        self.linear, self.time_s = nn.Linear(width, width), time_s

    def forward(self, inputs):
        return torch.tanh(Busy.apply(self.linear(inputs), self.time_s))


def loss_of(layers, inputs, order):
    for place in order:
        inputs = layers[place](inputs)
    return inputs.square().mean()


# %% [markdown]
# Three cases that naive hooks get wrong:
#
# - **A block that is used twice.** The gradient of its weights is complete only after backward has
#   passed both uses; until then `.grad` is None. DeepSpeed's ZeRO-2 lost one of the two in
#   versions of 2025 and 2026, without an error (DeepSpeed issue 8224).
# - **A tied parameter** is in a unit of two blocks. Its gradient is complete after the second.
# - **A frozen unit** is gathered in forward and in backward, but has no gradient to reduce.
#
# So reduce a unit when one of its parameters *has* a gradient, and look again in `finish`.
#
# In the class, four methods are proposed. The first two become hooks; `functools.partial` gives a
# hook the place of its block.
#
# <details><summary>Hint 1: where to look</summary>
#
# Two hooks on each block's module: `register_forward_pre_hook(function)` calls
# `function(module, inputs)`, and what that returns replaces the inputs;
# `register_forward_hook(function)` calls `function(module, inputs, output)`.
#
# </details>
# <details><summary>Hint 2: before backward</summary>
#
# `output.register_hook(function)` calls `function(gradient)` when the gradient of the output is
# there, before backward enters the block. Only where `output.requires_grad`.
#
# </details>
# <details><summary>Hint 3: after backward</summary>
#
# Return `call_after_backward(inputs, ...)` from the pre-hook. What it calls takes in the reduction
# that is still under way, if there is one, starts that of the block's units, and drops the block.
#
# </details>


# %% FullyShard tags=["solution"]
class FullyShard:
    """Stage 3: in the modules of these blocks, weights are gathered on use and freed after it.

    `blocks` come from `make_blocks`; `gathers` has the methods of `OnDemand`. Each module takes
    tensors as positional arguments and returns one tensor. All ranks use the same modules in the
    same order, each any number of times in a step, or not at all.

    - In forward, every use of a module begins with `gathers.use(place, is_backward=False)` and ends
      with `gathers.drop(place)`, where `place` is that of its block. So also under
      `torch.no_grad()`.
    - In backward, `gathers.use(place, is_backward=True)` comes before the weights of that use are
      needed. Once the gradients of its inputs are there, of all that need one, the block's units
      that have gradients are reduced, and `gathers.drop(place)` is called.
    - Some blocks may be frozen as a whole, the first ones, too: an output may need no gradient.
    - A unit has gradients if a `.grad` of its parameters is not None. It is reduced by
      `reduce_gradients`, called by this name, as soon as backward has passed the block. What that
      returns is called later, just before the next reduction starts or in `finish`: so gradients
      travel while backward works on the next block, and only one reduction is under way.
    - A unit that was not used in a step, and a frozen one, is not reduced.
    - It runs on any number of ranks, and also on paper (`ws.paper`), as one of 1,024: there tensors
      have no numbers, so what it does depends on shapes and on what is None.

    Only the constructor and `finish` are called from outside; the other methods are a proposal.
    """

    def __init__(self, blocks: list[Block], gathers: OnDemand) -> None:
        self.blocks, self.gathers = blocks, gathers
        ### BEGIN SOLUTION
        self.take_in = None
        for place, block in enumerate(blocks):
            block.module.register_forward_pre_hook(partial(self.before_forward, place))
            block.module.register_forward_hook(partial(self.after_forward, place))
        ### END SOLUTION

    def before_forward(self, place, module, inputs):
        """A pre-hook of the module at this place; what it returns replaces the inputs."""
        ### BEGIN SOLUTION
        self.gathers.use(place, is_backward=False)
        return call_after_backward(inputs, partial(self.after_backward, place))
        ### END SOLUTION

    def after_forward(self, place, module, inputs, output):
        """A hook of the module at this place."""
        ### BEGIN SOLUTION
        self.gathers.drop(place)
        if output.requires_grad:
            output.register_hook(lambda _: self.gathers.use(place, is_backward=True))
        ### END SOLUTION

    def after_backward(self, place):
        """Do what is due when backward has passed the block at this place."""
        ### BEGIN SOLUTION
        for unit in self.blocks[place].units:
            if any(one.grad is not None for one in unit.parameters):
                if self.take_in:
                    self.take_in()
                self.take_in = reduce_gradients(unit)
        self.gathers.drop(place)
        ### END SOLUTION

    def finish(self) -> None:
        """End the step; the training loop calls it after each `backward()`.

        - Units that still have gradients are reduced, and `unit.gradient` of every unit that was
          used and is trainable holds this rank's piece of the mean gradient. Over several calls of
          `backward()` and `finish()` it adds up.
        - Every block is dropped: no weights stay gathered.
        """
        ### BEGIN SOLUTION
        for place in range(len(self.blocks)):
            self.after_backward(place)
        if self.take_in:
            self.take_in()
        self.take_in = None
        ### END SOLUTION


# %% check_FullyShard points=6
def make_layers(width=6, num=4, time_s=0.0):
    torch.manual_seed(3)
    layers = [Layer(width, time_s) for _ in range(num)]
    layers[3].linear.weight = layers[0].linear.weight  # tied
    layers[1].linear.bias.requires_grad_(False)  # frozen
    return layers


def batch(rank, step):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def gradients_of_blocks(orders):
    """The pieces of all gradients after two steps, and how many units were left gathered."""
    layers = make_layers()
    names = {one: f"{place}.{name}" for place, layer in reversed([*enumerate(layers)])
             for name, one in layer.named_parameters()}  # fmt: skip
    blocks = make_blocks(layers)
    sharded = FullyShard(blocks, OnDemand(blocks))
    for step, order in enumerate(orders):
        loss_of(layers, batch(dist.get_rank(), step), order).backward()
        sharded.finish()
    return [
        ([names[one] for one in unit.parameters], unit.gradient, unit.is_gathered)
        for unit in units_of(blocks)
    ]


def in_one_process(orders, world_size):
    """The same gradients as one process has them, by name."""
    layers = make_layers()
    for step, order in enumerate(orders):
        for rank in range(world_size):
            (loss_of(layers, batch(rank, step), order) / world_size).backward()
    return {f"{place}.{name}": one.grad for place, layer in reversed([*enumerate(layers)])
            for name, one in layer.named_parameters()}  # fmt: skip


def expect_gradients(orders, hint):
    try:
        run = ws.run(gradients_of_blocks, orders, world_size=2, timeout_s=30, **EMULATED)
    except ws.RankFailed as error:
        if "not allocated" not in str(error) and "storage of size 0" not in str(error):
            raise
        why = "Weights were used while they were freed. Is the block gathered before each use, in"
        raise CheckFailed("weights at each use", "freed ones", f"{why} backward too?") from error
    wanted = in_one_process(orders, 2)
    for (names, piece, is_gathered), (_, other, _) in zip(*run.values, strict=True):
        what = f"the gradients of {', '.join(names)}"
        if is_gathered:
            raise CheckFailed("no weights gathered after finish", f"those of {names[0]}",
                              "Call gathers.drop for every block in finish.")  # fmt: skip
        if all(wanted[name] is None for name in names):
            if piece is not None:
                raise CheckFailed(f"None for {what}", "numbers", "Reduce only what has gradients.")
            continue
        if piece is None:
            raise CheckFailed(what, "None", hint)
        flat = torch.cat([piece, other])
        for name in names:
            one, flat = flat[: wanted[name].numel()], flat[wanted[name].numel() :]
            expect_close(one, wanted[name].flatten(), f"the mean gradient of {name}", hint)
    return run


def step_of_blocks(width, num_layers):
    layers = [Layer(width, 20e-6) for _ in range(num_layers)]
    blocks = make_blocks(layers)
    sharded = FullyShard(blocks, OnDemand(blocks))
    loss_of(layers, torch.ones(1, width), range(num_layers)).backward()
    sharded.finish()


def check_FullyShard():
    from worldsize import draw

    hint = "In forward use, drop; in backward use, reduce, drop; finish reduces what is left."
    expect_gradients([[0, 1, 2], [0, 1, 2]], hint)
    hint = "The tied weight is in blocks 0 and 3: its gradient is complete after block 0."
    expect_gradients([[0, 1, 2, 3]], hint)
    hint = (
        "A module used twice has no .grad after the first of two passes: reduce it after the"
        " second, or in finish; nothing that comes later may be lost."
    )
    expect_gradients([[0, 1, 2, 1], [2, 0, 2, 1]], hint)
    width, num_layers = 400, 6
    size = 4 * width * (width + 1)
    run = ws.run(step_of_blocks, width, num_layers, world_size=2, memory=True, **EMULATED)
    show(draw.timeline(run.timeline, title="A step of stage 3 on demand, emulated on PCIe"))
    sent = run.timeline.bytes_sent(0) / (num_layers * size / 2)
    if sent > 3.01:
        hint = "One gather for each use in forward and in backward, one reduce-scatter."
        raise CheckFailed("3.00 P (N - 1)/N bytes", f"{sent:.2f}", hint)
    most = run.memory[0].most_bytes / size
    if most > num_layers / 2 + num_layers / 2 + 4:  # pieces, their gradients, and a block at work
        hint = "Drop a block after each use, in forward and in backward, and reduce it at once."
        raise CheckFailed(
            "at most the pieces, their gradients, and four times a block",
            f"{most:.1f} times a block, of {num_layers} blocks",
            hint,
        )
    print(f"FullyShard: {sent:.2f} P (N - 1)/N bytes sent by a rank; at most {most:.1f} times the"
          f" weights of a block held, of {num_layers} blocks.")  # fmt: skip


check_FullyShard()

# %% [markdown]
# ## 6. The next block's weights
#
# In the picture above every gather is waited for. It need not be: the order of the blocks is known,
# so the next block's weights can travel while this one computes. Gathering ahead in backward alone
# made training of GPT-175B about 18% faster (FSDP, section 5.2).
#
# ```text
# on demand      gather 0 ▒▒▒▒▒ gather 1 ▒▒▒▒▒ gather 2 ▒▒▒▒▒
# prefetching    gather 0 ▒▒▒▒▒ ▒▒▒▒▒ ▒▒▒▒▒
#                         gather 1  gather 2
# ```
#
# Two blocks are then held at a time, never more.
#
# <details><summary>Hint 1: where to look</summary>
#
# Keep a dict of handles: unit -> handle. `use` starts what is missing of its own block, starts the
# next block, and then waits for its own.
#
# </details>
# <details><summary>Hint 2: drop</summary>
#
# A unit whose gather is still under way must not lose its memory: wait for its handle first.
#
# </details>


# %% Prefetching tags=["solution"]
class Prefetching:
    """Gathers as `OnDemand` does, and the next block's units while this block computes."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks, self.handles = blocks, {}  # of units whose gather may be under way

    def use(self, place: int, is_backward: bool) -> None:
        """Have the weights of the block at this place there, and the next block's on their way.

        - When it returns, the gather of the next block has started: of block place + 1 in forward,
          of block place - 1 in backward, if there is one. Those of other blocks have not.
        - It waits for this block's units alone. What is there or on its way is not gathered again;
          what is missing is gathered, whichever block was used before.
        """
        ### BEGIN SOLUTION
        for one in (place, place - 1 if is_backward else place + 1):
            for unit in self.blocks[one].units if 0 <= one < len(self.blocks) else ():
                if not unit.is_gathered:
                    self.handles[unit] = gather(unit)
        for unit in self.blocks[place].units:
            if unit in self.handles:
                self.handles.pop(unit).wait()
        ### END SOLUTION

    def drop(self, place: int) -> None:
        """Free the units of the block at this place, also where nobody has used them.

        - If the gather of one is still under way, it waits for that before it frees the memory.
        """
        ### BEGIN SOLUTION
        for unit in self.blocks[place].units:
            if unit in self.handles:
                self.handles.pop(unit).wait()
            free(unit)
        ### END SOLUTION


# %% check_Prefetching points=3
def play(make, width, uses):
    """Some uses, each with 40 µs of work: how many units are gathered, the sums, and the bytes."""
    torch.manual_seed(5)
    blocks = make_blocks([nn.Linear(width, width) for _ in range(4)])
    gathers, found = make(blocks), []
    for place, is_backward in uses:
        gathers.use(place, is_backward)
        places = [place for place, block in enumerate(blocks) if block.units[0].is_gathered]
        found.append((places, blocks[place].module.weight.sum().item()))
        with ws.span("work", kind="backward" if is_backward else "forward"):
            emulate.spend(40e-6)
        gathers.drop(place)
    for place in range(4):
        gathers.drop(place)
    return found, [block.units[0].is_gathered for block in blocks]


def check_Prefetching():
    from worldsize import draw

    width, steps = (
        400,
        [*((place, False) for place in range(4)), *((3 - place, True) for place in range(4))],
    )
    plain = ws.run(play, OnDemand, width, steps, world_size=2, **EMULATED)
    run = ws.run(play, Prefetching, width, steps, world_size=2, **EMULATED)
    show(draw.timeline(run.timeline, title="Gathers ahead of use, emulated on PCIe"))
    found, left = run.values[0]
    for (places, total), (_, wanted), (place, is_backward) in zip(
        found, plain.values[0][0], steps, strict=True
    ):
        ahead = place - 1 if is_backward else place + 1
        expected = sorted({place, ahead} & set(range(4)))
        if places != expected:
            hint = (
                "Before `use` returns, start block place + 1 in forward and place - 1 in backward,"
                " and no other."
            )
            raise CheckFailed(
                f"blocks {expected} gathered at the use of {place}", f"{places}", hint
            )
        hint = "Wait for the handle of this block's own units before you return."
        expect_close(total, wanted, f"the sum of the weights of block {place}", hint)
    if any(left):
        raise CheckFailed("no weights after drop", "some", "Drop frees what nobody used, too.")
    if run.timeline.bytes_sent(0) > plain.timeline.bytes_sent(0):
        hint = "What is there or on its way must not be gathered again: look at unit.is_gathered."
        raise CheckFailed("no more bytes than on demand", "more", hint)
    saved = 1 - run.timeline.end_s / plain.timeline.end_s
    if saved < 0.3:
        hint = "Use async_op and wait for the next block only when it is used."
        raise CheckFailed("a run at least 30% shorter than on demand", f"{saved:.0%}", hint)
    order = [(0, False), (2, False), (2, True), (0, True)]
    theirs = ws.run(play, OnDemand, width, order, world_size=2, **EMULATED).values[0][0]
    found, left = ws.run(play, Prefetching, width, order, world_size=2, **EMULATED).values[0]
    hint = "Blocks may be used in another order: gather what is missing."
    for (_, total), (_, wanted) in zip(found, theirs, strict=True):
        expect_close(total, wanted, "the sum of the weights when block 1 is left out", hint)
    if any(left):
        raise CheckFailed("no weights after drop", "some", "Drop frees what nobody used, too.")
    print(f"Prefetching: two blocks at a time, and {saved:.0%} less time than on demand.")


check_Prefetching()

# %% [markdown]
# ## 7. Clip over all pieces
#
# `torch.nn.utils.clip_grad_norm_` takes the norm of what this rank has. On shards that is the norm
# of a piece: every rank would clip by another factor, and training would depend on the number of
# GPUs. (It happened: torch issue 170862.)
#
# <details><summary>Hint 1: where to look</summary>
#
# Norms do not add up, their squares do: sum the squares of all pieces here, then over the ranks.
#
# </details>
# <details><summary>Hint 2: the factor</summary>
#
# One number for all: the smaller of 1 and max_norm / norm, and nothing is divided by 0.
#
# </details>


# %% clip_gradients tags=["solution"]
def clip_gradients(units: list[Unit], max_norm: float) -> float:
    """Scale all pieces of the gradient, in place, so that its norm is at most `max_norm`.

    - The norm is that of the whole mean gradient: of all units and all ranks' pieces. If it is
      larger than `max_norm`, every `unit.gradient` is multiplied by max_norm / norm, the same
      number on all ranks; otherwise nothing changes. Nothing is added to the norm: small gradients
      are clipped like others.
    - It returns the norm before that, the same on all ranks, also where it is 0.
    - One all-reduce of one float32 number, however many units there are.
    - A unit whose gradient is None is left out. All ranks call it, also those without a gradient.

    Example: pieces (3, 0) on rank 0 and (0, 4) on rank 1 have norm 5. With `max_norm` 1 they become
    (0.6, 0) and (0, 0.8).
    """
    ### BEGIN SOLUTION
    gradients = [unit.gradient for unit in units if unit.gradient is not None]
    total = sum((one.square().sum() for one in gradients), torch.zeros(())).reshape(1)
    dist.all_reduce(total)
    norm = total.sqrt().item()
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm
    ### END SOLUTION


# %% check_clip_gradients points=2
def clip_some(max_norm, pieces):
    units = [Unit([nn.Parameter(torch.zeros(4))]) for _ in pieces]
    for unit, piece in zip(units, pieces, strict=True):
        unit.gradient = None if piece is None else torch.tensor(piece)
    return clip_gradients(units, max_norm), [unit.gradient for unit in units]


def check_clip_gradients():
    def clipped(max_norm, *each):
        each = [(pieces,) for pieces in each]
        return ws.run(clip_some, max_norm, each=each, world_size=2, **EMULATED)

    run = clipped(1.0, [[3.0, 0.0]], [[0.0, 4.0]])
    for (norm, (found,)), wanted in zip(run.values, ([0.6, 0.0], [0.0, 0.8]), strict=True):
        hint = {3.0: "That is the norm of a piece.", 4.0: "That is the norm of a piece.",
                7.0: "Norms do not add up. Their squares do.", 25.0: "That is the square of it."
                }.get(round(norm, 3), "The root of the sum of all squares.")  # fmt: skip
        expect_close(norm, 5.0, "the norm of the example", hint)
        expect_close(found, torch.tensor(wanted), "a piece", "Multiply all by max_norm / norm.")
    if run.timeline.bytes_sent(0) > 8:
        hint = "Add up the squares of all units first, as float32."
        raise CheckFailed("one float32 number", f"{run.timeline.bytes_sent(0):.0f} bytes", hint)
    run = clipped(10.0, [[3.0, 0.0], None], [[0.0, 4.0], None])
    hint = "A norm below max_norm changes nothing, and None is left out."
    expect_close(run.values[0][1][0], torch.tensor([3.0, 0.0]), "a piece", hint)
    run = clipped(1.0, [[3.0, 0.0], [0.0, 1.0]], [[0.0, 4.0], [1.0, 3.0]])
    hint = "All units together have one norm."
    expect_close(run.values[0][0], 6.0, "the norm of two units", hint)
    run = clipped(1.0, [[0.0, 0.0], None], [[0.0, 0.0], None])
    hint = "A norm of 0 divides nothing."
    expect_close(run.values[0][0], 0.0, "the norm of zeros", hint)
    expect_close(run.values[0][1][0], torch.zeros(2), "zeros, clipped", hint)
    print("clip_gradients: one number over the wire, and the same norm on all ranks.")


check_clip_gradients()

# %% [markdown]
# ## 8. In words
#
# A model has 8 billion parameters, weights and gradients in bfloat16, and AdamW as above: 16 bytes
# for each parameter in all. The GPUs have 80 GB, of which activations and everything else take 30
# GB. A step computes for 1.5 s and sends over links of 25 GB/s.
#
# Answer in at most 250 words, with numbers:
#
# 1. How many GB of state does each GPU hold in stages 0, 1, 2 and 3 on 8 GPUs, and on 64? What is
#    the lowest stage that fits on 8?
# 2. How many GB does a rank send in a step of stage 2 and of stage 3 on 8 GPUs, and how long does
#    that take? Can it hide behind the compute of 1.5 s?
# 3. The batch is now made of 4 micro-batches, each with a forward and a backward of its own, and
#    each rank keeps only its piece of the gradient in between. How many GB does a rank send in a
#    step, in stage 2 and in stage 3? What do you do if you have memory to spare?
# 4. A colleague clips each rank's piece by its own norm. What becomes of the direction of the step,
#    and what if the job moves from 8 to 64 GPUs?

# %% what_it_costs [markdown] points=4 tags=["solution"]
# **Answer.** P = 8 billion; weights 2 P = 16 GB, gradients 16 GB, Adam 12 P = 96 GB.
#
# 1. Stage 0: 128 GB. On 8 GPUs stage 1: 32 + 96/8 = 44 GB, stage 2: 16 + 112/8 = 30 GB, stage 3:
#    128/8 = 16 GB. On 64: 33.5, 17.75 and 2 GB. There are 50 GB for state: stage 1 fits on 8.
# 2. Stage 2: a reduce-scatter and an all-gather of 16 GB each, 2 · 16 · 7/8 = 28 GB, 1.12 s. Stage
#    3: two all-gathers and a reduce-scatter, 42 GB, 1.68 s. The first can hide behind 1.5 s, though
#    its all-gather comes after the update and must overlap with the next forward; the second
#    cannot: the link alone takes 1.68 s.
# 3. Stage 2: one all-gather and 4 reduce-scatters, 5 · 14 = 70 GB. Stage 3: 4 · 3 · 14 = 168 GB.
#    With memory to spare keep the weights gathered between micro-batches (that is stage 2), or keep
#    whole gradients until the last micro-batch (stage 1): 28 GB. Or larger micro-batches.
# 4. Each piece is scaled by a factor of its own: the parts of the gradient no longer have the right
#    relation, so the direction changes, not only the length. With more GPUs the pieces and their
#    norms are smaller: fewer are clipped, and the same settings train differently.
#
# **Rubric**, one point each:
#
# - The state of all four stages on 8 GPUs and on 64 within 5%, and stage 1. Half with one slip.
# - 28 and 42 GB, 1.1 and 1.7 s, and that stage 3 cannot hide.
# - 70 and 168 GB, and a remedy that trades memory for bytes.
# - The direction changes, and it depends on the number of GPUs, because norms of pieces shrink.

# %% [markdown]
# ## What you have built
#
# The next cell trains one small model with all stages on four emulated ranks, and compares the
# bytes that a rank sends in a step with P (N - 1)/N, the state that it holds between steps, and the
# losses. Stage 2 is `FullyShard` with weights that are never dropped; stage 0 is DDP's replica.


# %% all_stages
class Kept(OnDemand):
    """Weights stay gathered: stages 1 and 2."""

    def drop(self, place):
        pass


def train(stage, num_steps, width=256, num_layers=8):
    torch.manual_seed(1)
    layers = [Layer(width).bfloat16() for _ in range(num_layers)]
    blocks = make_blocks(layers)
    gathers = Prefetching(blocks) if stage == 3 else Kept(blocks)
    sharded = FullyShard(blocks, gathers) if stage > 1 else None
    for place in range(num_layers if stage < 3 else 0):
        gathers.use(place, False)
    losses = []
    for step in range(num_steps):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        inputs = torch.randn(4, width, generator=generator).bfloat16()
        loss = (loss_of(layers, inputs, range(num_layers)).float() - 0.2).abs()
        loss.backward()
        if sharded:
            sharded.finish()
        for unit in units_of(blocks):
            if not sharded:
                reduce_gradients(unit)()
            adam_step(unit, 1e-2)
            if stage < 3:
                gather(unit).wait()
        losses.append(loss.item())
    return losses


def train_replica(num_steps, width=256, num_layers=8):
    torch.manual_seed(1)
    layers = [Layer(width).bfloat16() for _ in range(num_layers)]
    weights = [one for layer in layers for one in layer.parameters()]
    masters = [nn.Parameter(one.detach().float()) for one in weights]
    optimizer, losses = torch.optim.AdamW(masters, lr=1e-2, weight_decay=0.0), []
    for step in range(num_steps):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        inputs = torch.randn(4, width, generator=generator).bfloat16()
        loss = (loss_of(layers, inputs, range(num_layers)).float() - 0.2).abs()
        loss.backward()
        for one, master in zip(weights, masters, strict=True):
            dist.all_reduce(one.grad)
            master.grad, one.grad = one.grad.float() / dist.get_world_size(), None
        optimizer.step()
        for one, master in zip(weights, masters, strict=True):
            one.data.copy_(master)
        losses.append(loss.item())
    return losses


def compare_stages(num_steps=3, num_ranks=4):
    from worldsize import draw

    num_parameters, rows = 8 * 256 * 257, []
    unit_bytes = 2 * num_parameters * (num_ranks - 1) / num_ranks
    options = EMULATED | {"allow": None, "memory": True, "world_size": num_ranks}
    for stage in range(4):
        job = (train, stage, num_steps) if stage else (train_replica, num_steps)
        run = ws.run(*job, **options)
        first_gather = unit_bytes if stage in (1, 2) else 0.0  # before the first step
        sent = (run.timeline.bytes_sent(0) - first_gather) / num_steps / unit_bytes
        rows.append({
            "stage": stage,
            "sent in a step, P (N - 1)/N": f"{sent:.3f}",
            "most held, bytes a parameter": f"{run.memory[0].most_bytes / num_parameters:.2f}",
            "loss of the last step": f"{run.values[0][-1]:.4f}",
        })  # fmt: skip
    return draw.table(rows, title=f"One step on {num_ranks} emulated ranks, in bytes of bfloat16")


show(compare_stages())
