# %% [markdown]
# # Lab 6. Precision and activations
#
# The memory of a training GPU holds numbers that could be half as long, and numbers that could be
# computed again. In this lab you write what makes both safe: a **loss scaler**, which keeps small
# gradients from vanishing in float16, and **checkpointing**, which drops activations and recomputes
# them. Before that comes a warm-up, the gradients of uneven micro-batches; after it, a small
# planner: which layers should be recomputed if memory is short?
#
# ```text
# loss x scale ──► backward in float16 ──► / scale in float32 ──► finite on all ranks? ──► step
#      ▲                                                                     │ no
#      └──────────────── scale / 2, skip this step ◄─────────────────────────┘
# ```
#
# | Function | What it does | Time | Difficulty | Points |
# |---|---|---|---|---|
# | `accumulate` | gradients of the mean over all tokens, by micro-batches | 20 min | easy | 3 |
# | `unscale` | float32 gradients, and whether they are finite | 15 min | easy | 2 |
# | `update` | the next scale | 15 min | easy | 3 |
# | `scaled_step` | a training step that all ranks take or skip together | 40 min | medium | 6 |
# | `checkpointed` | layers whose activations are recomputed in backward | 80 min | hard | 9 |
# | `choose_checkpoints` | the cheapest layers to recompute within a budget | 45 min | hard | 4 |
# | `what_the_numbers_say` | questions that you answer in words | 25 min | medium | 3 |
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. Each
# function is checked on its own: where one calls another function of this notebook, the checks
# substitute a correct one.
#
# The checks compare the bytes that each rank gives to its operations, and count on the record how
# often a segment's forward ran. Memory is counted by the operating system, from outside: arrays of
# NumPy, files in memory and other processes count as well. As long as `checkpointed` keeps the
# activations of the first forward, everything else that it does right earns half its points, even
# if a second forward runs; if it recomputes all segments at the same time, little more.
#
# The only operation of `torch.distributed` that is allowed is `all_reduce`. Torch's own
# `GradScaler` and `torch.utils.checkpoint` are refused, also when they are loaded from their files.
# All other operations of torch may be used. Reading torch's source is a good way to learn; pasting
# it is not. No check can see who wrote a cell, but your instructor reads it.

# %% setup
import math

import torch
import torch.distributed as dist
from torch import nn

import worldsize as ws
from worldsize.check import CheckFailed, expect_close

IGNORED = -100  # a target that is no token, such as padding
EMULATED = {"cluster": "dgx-h100", "compute": "none", "echo": False, "allow": {"all_reduce"}}


class ScalerState:
    """What a loss scaler knows: the scale, its limits, and the steps so far."""

    def __init__(
        self,
        scale: float = 2.0**16,
        growth_interval: int = 2000,
        min_scale: float = 1.0,
        max_scale: float = 2.0**24,
    ) -> None:
        self.scale, self.growth_interval = scale, growth_interval
        self.min_scale, self.max_scale = min_scale, max_scale
        self.num_good_steps = 0  # in a row, since the scale last changed
        self.num_skipped = 0  # in all


class Momentum:
    """SGD with momentum, on parameters that have a gradient."""

    def __init__(self, parameters, lr=0.1, momentum=0.9):
        self.parameters, self.lr, self.momentum = parameters, lr, momentum
        self.velocities = [torch.zeros_like(one) for one in parameters]

    def step(self):
        with torch.no_grad():
            for parameter, velocity in zip(self.parameters, self.velocities, strict=True):
                if parameter.grad is not None:
                    velocity.mul_(self.momentum).add_(parameter.grad)
                    parameter.sub_(self.lr * velocity)

    def zero_grad(self, set_to_none=True):
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad = None if set_to_none else torch.zeros_like(parameter.grad)


def show(picture):
    from IPython.display import display  # here and not above: the ranks need neither

    display(picture)


ws.run(dist.get_rank, world_size=1, **EMULATED)  # the first run loads torch: the checks are quick

# %% [markdown]
# ## 1. Warm-up: uneven micro-batches
#
# If a batch does not fit, it is cut into **micro-batches**, whose gradients add up in `grad` before
# the optimizer steps. The loss of a batch is the mean over its *tokens*. In October 2024, users
# found that several libraries computed something else: each micro-batch was divided by its own
# number of tokens, and then the means were averaged (huggingface/transformers PR 34191). That is
# right only if all micro-batches have equally many tokens. The same holds for the means of several
# ranks.
#
# ```text
# micro-batch    tokens    sum of losses    mean
# 1                   1                6       6
# 2                   3                6       2        mean of the means 4, mean of all tokens 3
# ```
#
# <details><summary>Hint 1: where to look</summary>
#
# You need the number of tokens of all micro-batches and of all ranks *before* the first backward.
# Count the targets that are not `IGNORED`.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# All-reduce a tensor of one element with this rank's count. Then, for each micro-batch with tokens,
# `(sum_of_losses(inputs, targets) / count).backward()`: `backward` adds to `grad`, and frees the
# activations of that micro-batch.
#
# </details>


# %% accumulate tags=["solution"]
def accumulate(sum_of_losses, micro_batches) -> int:
    """Add this rank's part of the gradient of the mean loss per token; return how many tokens.

    - `micro_batches` is a list of pairs (inputs, targets). Each element of `targets`, which may
      have any shape, is a token, unless it is IGNORED. `sum_of_losses(inputs, targets)` is the sum
      of the losses of a micro-batch's tokens, a tensor of one element.
    - The mean is that over all tokens of all micro-batches of all ranks. A rank adds to the
      gradients of its parameters the part of its own micro-batches: the *sum* over the ranks of
      what they add is the gradient of the mean. What was in `grad` before stays in it.
    - It makes one all-reduce, of one number: this rank's tokens. Every rank takes part, also one
      without any micro-batch.
    - It holds the activations of one micro-batch at a time: the backward pass of a micro-batch
      comes before the forward pass of the next one.
    - For a micro-batch without tokens, `sum_of_losses` is not called. If no rank has a token,
      nothing is added.
    - The result is the number of tokens on all ranks, an int.

    Example: the loss of a token is w x, and the only rank has two micro-batches, one with the token
    x = 6 and one with three tokens x = 2. The gradient of w is 12/4 = 3, and 4 is returned.
    """
    ### BEGIN SOLUTION
    own = [int((targets != IGNORED).sum()) for _, targets in micro_batches]
    count = torch.tensor([float(sum(own))], dtype=torch.float64)
    dist.all_reduce(count)
    num_tokens = int(count.item())
    for num, (inputs, targets) in zip(own, micro_batches, strict=True):
        if num:
            (sum_of_losses(inputs, targets) / num_tokens).backward()
    return num_tokens
    ### END SOLUTION


# %% check_accumulate points=3
def gradient_of_w(tokens_by_micro_batch, accumulate=accumulate):
    """The gradient of w, what is returned, and in which order forward and backward passes ran."""
    w, passes = torch.tensor(1.0, requires_grad=True), []
    w.register_hook(lambda _: passes.append("backward"))

    def sum_of_losses(inputs, targets):
        passes.append("forward")
        return (w * inputs)[targets != IGNORED].sum()

    batches = [torch.tensor(tokens) for tokens in tokens_by_micro_batch]  # -100 stands for padding
    num = accumulate(sum_of_losses, [(one, one.long()) for one in batches])
    return 0.0 if w.grad is None else w.grad.item(), num, passes


def check_accumulate():
    run = ws.run(gradient_of_w, [[6.0], [2.0, 2.0, 2.0]], world_size=1, **EMULATED)
    gradient, num_tokens, passes = run.values[0]
    hints = {
        4.0: "That is the mean of the two means: divide each sum by the number of all tokens.",
        12.0: "That is the sum: divide by the number of tokens.",
        8.0: "Each micro-batch is divided by its own tokens, and the means are added.",
        6.0: "That is divided by the number of micro-batches: divide by that of tokens.",
    }
    hint = hints.get(gradient, "Divide each sum of losses by the number of all tokens.")
    expect_close(gradient, 3.0, "the gradient of the example", hint)
    if num_tokens != 4 or isinstance(num_tokens, torch.Tensor):
        raise CheckFailed("4, the tokens of the example, as an int", f"{num_tokens}")
    if passes != ["forward", "backward"] * 2:
        hint = "Call backward for each micro-batch: it frees what that one holds."
        raise CheckFailed("forward, backward, forward, backward", ", ".join(passes), hint)

    nothing = [-100.0, -100.0]
    each = [([[6.0, -100.0], nothing, [2.0, 2.0]],), ([nothing],), ([[5.0]],), ([],)]
    run = ws.run(gradient_of_w, each=each, world_size=4, **EMULATED)
    parts = [value[0] for value in run.values]
    wrong = {
        10 / 3 + 5.0: "Each rank divides by its own tokens: all-reduce their number first.",
        15 / 16: "That is divided by the number of ranks, too: the parts of all ranks are added.",
        (10 / 3 + 5.0) / 4: "That is the mean over the ranks of their means.",
        15 / 7: "A target that is IGNORED is no token.",
        15 / 10: "A target that is IGNORED is no token.",
    }
    hint = "Divide by the number of tokens of all ranks; a rank without tokens adds nothing."
    found = [why for like, why in wrong.items() if abs(sum(parts) - like) < 1e-4]
    expect_close(sum(parts), 15 / 4, "the sum of four ranks' gradients", (found or [hint])[0])
    called = [value[2].count("forward") for value in run.values]
    if called != [2, 0, 1, 0]:
        hint = "Leave out a micro-batch without tokens."
        raise CheckFailed("2, 0, 1 and 0 forward passes on four ranks", f"{called}", hint)
    sizes = [event.size_bytes for event in run.timeline.of(3) if event.kind == "communication"]
    if len(sizes) != 1 or sizes[0] > 8:
        hint = "One all-reduce of one number, also on a rank without micro-batches."
        raise CheckFailed("one all-reduce of at most 8 bytes", f"{sizes}", hint)
    run = ws.run(gradient_of_w, [nothing], world_size=1, **EMULATED)
    if run.values[0][0] != 0 or run.values[0][1] != 0:
        hint = "Mind the division by 0."
        raise CheckFailed("no gradient where there is no token", f"{run.values[0][:2]}", hint)
    print("accumulate: the mean of 4 tokens on four ranks, not the mean of their means.")


check_accumulate()

# %% [markdown]
# ## 2. Unscale
#
# float16 has no number between 0 and 6·10⁻⁸. Gradients far below that become 0. Multiplying the
# *loss* by a scale multiplies every gradient, so that more of them survive. Before the optimizer's
# step they must be divided by the scale again, but not in float16.
#
# The parameters that compute are **halves**, in float16 or bfloat16. For each there is a **master**
# in float32, which the optimizer changes: a small update would be lost in a half.
#
# <details><summary>Hint 1: where to look</summary>
#
# The order of two operations matters: the conversion to float32, and the division.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# `half.grad.float() / scale`. And `tensor.isfinite().all()` is a tensor: make a bool of it.
#
# </details>


# %% unscale tags=["solution"]
def unscale(halves, masters, scale: float) -> bool:
    """Set the masters' gradients to those of the halves divided by `scale`; say if all are finite.

    - `halves` and `masters` are lists of equally many parameters. A half is in float16 or
      bfloat16; its master has the same shape and is in float32.
    - `master.grad` becomes `half.grad` / `scale`, divided in float32. Where `half.grad` is None,
      `master.grad` becomes None, whatever it was before.
    - The result is a bool: True if every element of every half's gradient is finite, False if one
      is infinite or nan. Then the masters' gradients may hold anything.
    - The halves, their gradients and the values of the masters do not change.

    Example: with gradients (2, -4) and () of two halves and scale 8, the masters get (0.25, -0.5)
    and (), and the result is True.
    """
    ### BEGIN SOLUTION
    is_finite = True
    for half, master in zip(halves, masters, strict=True):
        if half.grad is None:
            master.grad = None
        else:
            master.grad = half.grad.float() / scale
            is_finite = is_finite and bool(half.grad.isfinite().all())
    return is_finite
    ### END SOLUTION


# %% check_unscale points=2
def with_gradients(gradients, dtype=torch.float16):
    """Halves with these gradients, and masters with the gradient of an earlier step."""
    halves, masters = [], []
    for gradient in gradients:
        like = torch.zeros(2) if gradient is None else torch.tensor(gradient)
        halves.append(nn.Parameter(torch.ones_like(like, dtype=dtype)))
        masters.append(nn.Parameter(torch.ones_like(like)))
        halves[-1].grad = None if gradient is None else torch.tensor(gradient, dtype=dtype)
        masters[-1].grad = torch.full_like(like, 7.0)
    return halves, masters


def check_unscale():
    halves, masters = with_gradients([[2.0, -4.0], []])
    is_finite = unscale(halves, masters, 8.0)
    wanted, hint = torch.tensor([0.25, -0.5]), "Divide the half's gradient by the scale."
    expect_close(masters[0].grad, wanted, "the master's gradient in the example", hint)
    if is_finite is not True:
        hint = "bool(...) makes a bool of a tensor with one element."
        raise CheckFailed("True, for finite gradients", f"{is_finite!r}", hint)
    before = torch.tensor([2.0, -4.0], dtype=torch.float16)
    expect_close(halves[0].grad, before, "the half's own gradient", "Leave it as it is.")

    small, scale = [3e-5, -9e-6], 2.0**16
    halves, masters = with_gradients([small, None])
    unscale(halves, masters, scale)
    wanted = torch.tensor(small).half().float() / scale
    hint = "Divided in float16 they are 0: convert to float32 first, then divide."
    expect_close(1e9 * masters[0].grad, 1e9 * wanted, "a billion times small gradients", hint)
    if masters[1].grad is not None:
        hint = "The master still has the gradient of an earlier step."
        raise CheckFailed("None where the half has no gradient", "a tensor", hint)
    for bad in (float("inf"), float("-inf"), float("nan")):
        for place in range(2):
            gradients = [[1.0, 2.0], [3.0, 4.0]]
            gradients[place][1] = bad
            if unscale(*with_gradients(gradients), 8.0) is not False:
                hint = "Look at every element of every gradient: isfinite() knows inf and nan."
                raise CheckFailed(f"False with {bad} in gradient {place + 1} of 2", "True", hint)
    print(f"unscale: {wanted[0]:.1e} survives in float32; divided in float16 it would be 0.")


check_unscale()

# %% [markdown]
# ## 3. The next scale
#
# A scale that is too small lets gradients vanish; one that is too large lets them overflow to
# infinity. Nobody knows the right one, and it changes while the model learns. So it is searched
# for: half of it after an overflow, twice as much after many good steps in a row.
#
# ```text
# growth_interval 3      step      good  good  good  overflow  good  good
# (min 1, max 2^24)      scale 8    8     8     16      8        8     8
#                        in a row   1     2     0       0        1     2
# ```
#
# <details><summary>Hint 1: where to look</summary>
#
# Draw the table above for six good steps, and for an overflow right after another one. When is
# `num_good_steps` set to 0?
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Count the good step first, and then compare with `state.growth_interval`. `max` and `min` keep the
# scale within its limits.
#
# </details>


# %% update tags=["solution"]
def update(state: ScalerState, is_finite: bool) -> None:
    """Change the scale after a step, in place.

    - After a step with an overflow (`is_finite` is False) the scale is halved, but not below
      `state.min_scale`. `num_skipped` grows by 1, and `num_good_steps` becomes 0.
    - After a good step `num_good_steps` grows by 1. When it has reached `state.growth_interval`,
      the scale is doubled, but not above `state.max_scale`, and `num_good_steps` becomes 0.
    - Within its limits, the scale is the same after each step as that of `torch.amp.GradScaler`
      with the same first scale and growth interval.

    Example: with scale 8 and growth_interval 3, the scales after good, good, good, overflow and
    good steps are 8, 8, 16, 8 and 8.
    """
    ### BEGIN SOLUTION
    if not is_finite:
        state.scale = max(state.scale / 2, state.min_scale)
        state.num_skipped += 1
        state.num_good_steps = 0
        return
    state.num_good_steps += 1
    if state.num_good_steps == state.growth_interval:
        state.scale = min(state.scale * 2, state.max_scale)
        state.num_good_steps = 0
    ### END SOLUTION


# %% check_update points=3
def scales_after(state, steps):
    """The scale after each step; in `steps`, a + is a good one and a - one with an overflow."""
    scales = []
    for step in steps:
        update(state, step == "+")
        scales.append(state.scale)
    return scales


def check_update():
    from worldsize import draw

    state = ScalerState(8.0, 3)
    given, wanted = scales_after(state, "+++-+"), [8.0, 8.0, 16.0, 8.0, 8.0]
    hint = "Twice after growth_interval good steps in a row, half after an overflow."
    if given[:3] == [8.0, 8.0, 8.0]:
        hint = "It is time to double when the third good step is counted, not after it."
    if given != wanted:
        raise CheckFailed(f"scales {wanted} in the example", f"{given}", hint)
    if (state.num_skipped, state.num_good_steps) != (1, 1):
        actual = f"{state.num_skipped} and {state.num_good_steps}"
        raise CheckFailed("num_skipped 1 and num_good_steps 1 after the example", actual)
    # what torch.amp.GradScaler gives, beginning with 64
    after_overflows = [64.0, 64.0, 32.0, 32.0, 32.0, 16.0, 16.0, 16.0, 32.0]
    after_good_steps = [64.0, 64.0, 128.0, 128.0, 128.0, 256.0, 256.0]
    mixed = [32.0, 16.0, 16.0, 8.0, 8.0, 8.0, 16.0, 8.0, 8.0, 8.0, 16.0, 16.0, 16.0, 32.0]
    for steps, wanted, hint in (
        ("++-++-+++", after_overflows, "An overflow ends the row of good steps: begin again at 0."),
        ("+++++++", after_good_steps, "After doubling, counting begins again at 0."),
        ("--+-+++-++++++", mixed, "Compare step by step with the table above."),
    ):
        given = scales_after(ScalerState(64.0, 3), steps)
        if given != wanted:
            raise CheckFailed(f"scales {wanted} after {steps} (interval 3)", f"{given}", hint)
    given = scales_after(ScalerState(2.0, 1, 1.0, 4.0), "--++++")
    if given != [1.0, 1.0, 2.0, 4.0, 4.0, 4.0]:
        hint = "Not below min_scale, and not above max_scale."
        raise CheckFailed("1, 1, 2, 4, 4, 4 between 1 and 4", f"{given}", hint)
    steps = ("+" * 25 + "-") * 3 + "-" * 3 + "+" * 60
    scales = scales_after(ScalerState(2.0**10, 10), steps)
    lines = {"growth interval 10": [math.log2(scale) for scale in scales]}
    show(draw.curves(lines, y_label="log2 of the scale", title="The scale by step, computed"))
    print("update: the scales of torch.amp.GradScaler, step by step.")


check_update()

# %% [markdown]
# ## 4. A step that all ranks take or skip together
#
# Each rank holds a part of the model, as with FSDP in week 7. An infinite gradient shows only on
# the rank that holds it. If that rank skips its step and the others do not, the parts no longer
# belong together, and the scales differ from then on. So the ranks have to agree, with as few bytes
# as possible.
#
# <details><summary>Hint 1: where to look</summary>
#
# Which reduction makes "finite on all ranks" out of one number from each rank? There are several.
# A rank that knows already that it will skip must take part too: the others wait for it.
#
# </details>
# <details><summary>Hint 2: the order</summary>
#
# Scaled backward, `unscale`, all-reduce, then either the optimizer's step and new halves, or
# nothing; in both cases clear the gradients and call `update`.
#
# </details>
# <details><summary>Hint 3: new halves</summary>
#
# Under `torch.no_grad()`, `half.copy_(master)` rounds to the half's dtype and keeps the parameter
# object, which the model uses.
#
# </details>


# %% scaled_step tags=["solution"]
def scaled_step(state: ScalerState, loss: torch.Tensor, halves, masters, optimizer) -> bool:
    """Do one training step with a scaled loss, unless a rank has an overflow; say if it was done.

    - Each rank has parameters, a `loss` and an `optimizer` of its own; `state` is the same on all
      ranks. `loss` is a float32 tensor of one element, made of the halves. The optimizer, which has
      the masters, is any object with `step()` and `zero_grad()`.
    - The gradients of the halves are those of the loss times `state.scale`; the masters get them
      unscaled, by `unscale`.
    - The step is done only if the gradients of all ranks are finite. The ranks agree by one
      all-reduce of one number, at most 8 bytes from each rank, in every step. A rank with an
      overflow sends another number than a rank without one.
    - If it is done, `optimizer.step()` is called once, and then every half holds its master's
      values in its own dtype, also one without a gradient. The halves stay the same parameter
      objects.
    - If it is skipped, halves, masters and the optimizer stay as they are: `optimizer.step()` is
      not called, on any rank.
    - In both cases, the gradients of halves and masters are None afterwards, `update` was called
      once with the decision of all ranks, and the result is True for a step that was done and
      False for one that was skipped, on all ranks.
    - It calls `unscale` and `update` by these names.
    """
    ### BEGIN SOLUTION
    (loss * state.scale).backward()
    has_overflow = torch.tensor([0.0 if unscale(halves, masters, state.scale) else 1.0])
    dist.all_reduce(has_overflow)
    is_finite = has_overflow.item() == 0
    if is_finite:
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)
    for parameter in (*halves, *masters):
        parameter.grad = None
    update(state, is_finite)
    return is_finite
    ### END SOLUTION


# %% check_scaled_step points=6
def train_scaled(gradients_by_step):
    """Whether each step was done, and scale, values and momentum after it; the steps skipped."""
    half = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    master, state = nn.Parameter(torch.zeros(2)), ScalerState(2.0**16, 3)
    optimizer, found, kept = Momentum([master]), [], half
    for gradients in gradients_by_step:
        loss = (half.float() * torch.tensor(gradients)).sum()
        is_done = scaled_step(state, loss, [half], [master], optimizer)
        is_clear = half.grad is None and master.grad is None and half is kept
        values = (half.detach().clone(), master.detach().clone(), optimizer.velocities[0].clone())
        found.append((is_done, state.scale, is_clear, *values))
    return found, state.num_skipped


def plain_steps(gradients_by_step, done):
    """The masters after each step in plain float32, with these steps done."""
    master, found = torch.zeros(2), []
    optimizer = Momentum([nn.Parameter(master)])
    for gradients, is_done in zip(gradients_by_step, done, strict=True):
        if is_done:
            optimizer.parameters[0].grad = torch.tensor(gradients)
            optimizer.step()
        found.append(optimizer.parameters[0].detach().clone())
    return found


def check_scaled_step():
    from worldsize import draw

    small = [2.0**-30, -(2.0**-10)]  # the first is 0 in float16 without a scale
    large = [2.0, 0.0]  # times 65,536 infinite in float16
    each = [([small, large, small, small, small, small],), ([small] * 4 + [large, small],)]
    run = ws.run(train_scaled, each=each, world_size=2, **EMULATED)
    done = [True, False, True, True, False, True]
    scales = [65536.0, 32768.0, 32768.0, 32768.0, 16384.0, 16384.0]
    for rank, (steps, num_skipped) in enumerate(run.values):
        decided = [one[0] for one in steps]
        if decided != done:
            hint = "Rank 0 has an overflow in step 2, rank 1 in step 5: both ranks skip both steps."
            if all(decided):
                hint = "2 x 65,536 is infinite in float16: is the loss scaled before backward?"
            elif decided in ([True, False] + [True] * 4, [True] * 4 + [False, True]):
                hint = "Each rank decided for itself: all-reduce one number, and skip on all ranks."
            raise CheckFailed(f"steps done on rank {rank}: {done}", f"{decided}", hint)
        if [one[1] for one in steps] != scales or num_skipped != 2:
            hint = "Call update once in each step, with the decision of all ranks."
            raise CheckFailed(f"scales {scales}, 2 steps skipped", f"{steps[-1][1]}", hint)
        for number, (one, wanted) in enumerate(
            zip(steps, plain_steps(each[rank][0], done), strict=True)
        ):
            hint = "Unscaled gradients for the optimizer; a skipped step changes nothing."
            if not done[number] and not torch.equal(one[5], steps[number - 1][5]):
                hint = "The optimizer's momentum changed in a skipped step: do not call step()."
            what = f"the master on rank {rank} after step {number + 1}"
            expect_close(1e9 * one[4], 1e9 * wanted, f"1e9 x {what}", hint)
            hint = "After a step, copy every master into its half: half.copy_(master)."
            what = f"the half on rank {rank} after step {number + 1}"
            expect_close(one[3], wanted.half(), what, hint, 0.0, 0.0)
            if not one[2]:
                hint = (
                    "Set grad to None in both lists, also after a skipped step; keep the objects."
                )
                raise CheckFailed("no gradients after a step, the same half", "others", hint)
    sizes = [event.size_bytes for event in run.timeline.of(0) if event.kind == "communication"]
    if len(sizes) != 6 or max(sizes) > 8:
        hint = "One number from each rank, in every step."
        raise CheckFailed("six all-reduces of at most 8 bytes, one a step", f"{sizes}", hint)
    show(
        draw.timeline(
            run.timeline, title="Six steps of two ranks: one small all-reduce each, emulated"
        )
    )
    print("scaled_step: both ranks did steps 1, 3, 4 and 6, and skipped 2 and 5.")


check_scaled_step()

# %% [markdown]
# ## 5. Checkpointing
#
# A forward pass keeps the results of its operations, the **activations**, because the backward pass
# needs them. With **checkpointing**, a segment of the model keeps only its input. In the backward
# pass its forward runs a second time, and its activations live until the segment's own backward is
# done (Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*).
#
# ```text
# forward     x ──► segment 0 ──► x1 ──► segment 1 ──► x2 ──► segment 2 ──► loss
# kept        x                   x1                   x2
#
# backward    segment 2 again from x2, its backward; segment 1 again from x1, ...; segment 0 last
# ```
#
# The second forward must do what the first one did, to the bit. Three things can differ: the random
# numbers of dropout, the types under `torch.autocast`, and whether gradients are recorded at all.
#
# Go step by step, and run the check after each: first a chain of float32 layers without dropout
# whose input requires a gradient; then an input that requires none; then dropout; then autocast.
#
# <details><summary>Hint 1: where to look</summary>
#
# A `torch.autograd.Function` for one segment. In `forward`, gradients are not recorded, so that
# nothing inside the segment is kept: `ctx.save_for_backward(input)` keeps the input. `backward`
# runs the segment under `torch.enable_grad()` on `input.detach()`.
#
# </details>
# <details><summary>Hint 2: an input without a gradient</summary>
#
# The result of a `Function` requires a gradient only if a tensor among the arguments of `apply`
# does. So pass the segment's parameters to `apply` as well, each as an argument of its own. Then
# `backward` returns a gradient for each: `torch.autograd.grad(output, tensors, gradient)` computes
# them, for the tensors with `ctx.needs_input_grad`.
#
# </details>
# <details><summary>Hint 3: random numbers</summary>
#
# `torch.get_rng_state()` before the first forward is what the second one has to start from. But
# `backward` must also leave the generator as it found it.
#
# </details>
# <details><summary>Hint 4: autocast</summary>
#
# `backward` usually runs outside of `with torch.autocast(...)`. Keep
# `torch.is_autocast_enabled("cpu")` and `torch.get_autocast_dtype("cpu")`, and open a context with
# them for the second forward: `torch.autocast("cpu", dtype, enabled=..., cache_enabled=False)`.
#
# </details>


# %% checkpointed tags=["solution"]
def checkpointed(segments, tensor: torch.Tensor) -> torch.Tensor:
    """The output of the segments, one after the other, whose activations are recomputed.

    - `segments` is a list of modules that each take and return one tensor; a module may be in it
      twice. No module changes its input, or has buffers that change. `tensor` may be of
      any dtype, also integers, and may require a gradient or not.
    - The output is that of a plain loop over the segments, and so are the gradients that
      `loss.backward()` gives the input and all parameters: to the bit, in float32, float64 and
      bfloat16, and also if the call (but not backward) is under `torch.autocast("cpu", dtype)`
      with any dtype. A parameter that its segment does not use has no gradient.
    - Random numbers are drawn as in the plain loop: a segment's second forward has the masks of the
      first. Torch's generator is left as the plain loop would leave it, by the call and also by
      backward, before which the caller may draw other numbers.
    - Between forward and backward, a segment keeps its input and none of its activations. In
      backward, its forward runs a second time, once, after the backward of the segment behind it
      and before its own: the activations of two segments never exist at the same time.
    - Nothing is recomputed that no gradient needs: nothing under `torch.no_grad()`, and no segment
      before the first one that has a parameter or an input that requires a gradient. From there on
      frozen segments are recomputed like others. The output requires a gradient where that of the
      plain loop does.
    - It may be called several times before backward. Backward is called once for each call.

    Example: of three segments that are linear layers with dropout, each forward runs once in the
    call, in the order 0, 1, 2, and once in backward, in the order 2, 1, 0.
    """
    ### BEGIN SOLUTION

    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, segment, tensor, *parameters):
            ctx.segment, ctx.random_state = segment, torch.get_rng_state()
            ctx.autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
            ctx.save_for_backward(tensor)
            return segment(tensor)

        @staticmethod
        def backward(ctx, of_output):
            (tensor,) = ctx.saved_tensors
            tensor = tensor.detach().requires_grad_(ctx.needs_input_grad[1])
            dtype, is_enabled = ctx.autocast
            found_state = torch.get_rng_state()
            torch.set_rng_state(ctx.random_state)
            with (
                torch.enable_grad(),
                torch.autocast("cpu", dtype, enabled=is_enabled, cache_enabled=False),
            ):
                output = ctx.segment(tensor)
            torch.set_rng_state(found_state)
            inputs = [tensor, *ctx.segment.parameters()]
            needed = ctx.needs_input_grad[1:]
            wanted = [one for one, is_needed in zip(inputs, needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(output, wanted, of_output, allow_unused=True))
            return None, *(next(found) if is_needed else None for is_needed in needed)

    for segment in segments:
        tensor = Recomputed.apply(segment, tensor, *segment.parameters())
    return tensor
    ### END SOLUTION


# %% check_checkpointed points=9
class Logged(nn.Module):
    """A module that notes in a list when its forward runs."""

    def __init__(self, name, body, passes):
        super().__init__()
        self.name, self.body, self.passes = name, body, passes

    def forward(self, tensor):
        self.passes.append(self.name)
        return self.body(tensor)


def plain_loop(segments, tensor):
    for segment in segments:
        tensor = segment(tensor)
    return tensor


def three_segments(passes, dropout=0.0, dtype=torch.float32):
    torch.manual_seed(7)
    bodies = [
        nn.Sequential(nn.Linear(6, 6, dtype=dtype), nn.Tanh(), nn.Dropout(dropout))
        for _ in range(3)
    ]
    return [Logged(f"{place}", body, passes) for place, body in enumerate(bodies)]


def trained(function, segments, given, autocast=False):
    """The output, all gradients, and numbers that torch's generator gives afterwards."""
    for parameter in nn.ModuleList(segments).parameters():
        parameter.grad = None
    given = given.detach().requires_grad_(given.requires_grad)
    torch.manual_seed(11)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = function(segments, given)
    between = torch.rand(3)
    if not output.requires_grad:
        hint = "Pass the parameters to apply: a Function's result requires a gradient if they do."
        raise CheckFailed("an output that requires a gradient", "one that requires none", hint)
    segments[0].passes.append("|")
    output.float().square().sum().backward()
    parameters = nn.ModuleList(segments).parameters()
    gradients = [given.grad, *(one.grad for one in parameters)]
    return output.detach(), gradients, between, torch.rand(3)


def expect_as_plain(what, make, tensor, hint, autocast=False):
    """The order of passes; raise CheckFailed unless all is as in the plain loop."""
    passes = []
    right = trained(plain_loop, make([]), tensor, autocast)
    given = trained(checkpointed, make(passes), tensor, autocast)
    expect_close(given[0], right[0], f"the output {what}", hint, 0.0, 0.0)
    for one, wanted in zip(given[1], right[1], strict=True):
        if wanted is not None:
            expect_close(one, wanted, f"a gradient {what}", hint, 0.0, 0.0)
    expect_close(given[2], right[2], f"what torch.rand gives after the call, {what}", hint)
    hint = "Put the generator back as backward found it: torch.set_rng_state."
    expect_close(given[3], right[3], f"what torch.rand gives after backward, {what}", hint)
    return passes


def peak_on_rank(function):
    """Train six segments of large activations; the record of the run holds the peak."""
    torch.manual_seed(7)
    bodies = [nn.Sequential(*(nn.Tanh() for _ in range(8))) for _ in range(6)]
    tensor = torch.rand(2**16, requires_grad=True)
    (checkpointed if function == "checkpointed" else plain_loop)(bodies, tensor).sum().backward()


def check_checkpointed():
    from worldsize import draw

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    tensor = torch.randn(4, 6, generator=generator)
    with_gradient = tensor.clone().requires_grad_()
    hint = "Backward runs the segment again under torch.enable_grad(), on input.detach()."
    passes = expect_as_plain("of three segments", three_segments, with_gradient, hint)
    if passes != ["0", "1", "2", "|", "2", "1", "0"]:
        hint = "Each segment is recomputed once, in its own backward."
        if passes == ["0", "1", "2", "|"]:
            hint = "Nothing is recomputed: all activations were kept."
        raise CheckFailed("forward passes 0 1 2 | 2 1 0", " ".join(passes), hint)
    hint = "Parameters need gradients also where the input needs none."
    expect_as_plain("of an input that requires no gradient", three_segments, tensor, hint)

    def with_embedding(passes):
        torch.manual_seed(8)
        return [Logged("words", nn.Embedding(9, 6), passes), *three_segments(passes)]

    words, hint = torch.tensor([1, 8, 1]), "Only floating-point tensors can require a gradient."
    expect_as_plain("of token numbers", with_embedding, words, hint)

    def with_dropout(passes):
        return three_segments(passes, dropout=0.5)

    hint = "The second forward must draw the same masks: start it from the kept generator state."
    expect_as_plain("with dropout", with_dropout, with_gradient, hint)
    for dtype in (torch.float64, torch.bfloat16):
        hint = f"Keep the types: everything is {dtype} here."

        def of_type(passes, dtype=dtype):
            return three_segments(passes, dtype=dtype)

        of_dtype = tensor.to(dtype).requires_grad_()
        expect_as_plain(f"in {dtype}", of_type, of_dtype, hint)
    hint = "The second forward needs the autocast of the first; backward runs outside of it."
    try:
        expect_as_plain("under autocast", three_segments, with_gradient, hint, autocast=True)
    except RuntimeError as error:
        raise CheckFailed("the types of the first forward", f"{error}", hint) from error

    def twice(passes):
        first, second, _ = three_segments(passes)
        return [first, second, first]

    expect_as_plain(
        "of a module used twice", twice, with_gradient, "Both uses add to its gradient."
    )

    passes = []
    with torch.no_grad():
        output = checkpointed(three_segments(passes), tensor)
    segments = three_segments(passes)
    segments[0].requires_grad_(False)
    checkpointed(segments, tensor).sum().backward()
    if output.requires_grad or passes != ["0", "1", "2", "0", "1", "2", "2", "1"]:
        hint = "Without a gradient to compute, nothing is recomputed: here segment 0 is frozen."
        raise CheckFailed("passes 0 1 2, and 0 1 2 2 1", " ".join(passes), hint)

    plain, ours = (
        ws.run(peak_on_rank, one, world_size=1, memory=True, **EMULATED).memory[0]
        for one in ("plain", "checkpointed")
    )
    show(draw.memory_use({"plain": plain, "checkpointed": ours}, "Six segments, recorded here"))
    if ours.most_bytes > plain.most_bytes / 2:
        hint = "Keep the inputs of the segments only, and recompute one segment at a time."
        expected = f"at most half of the plain loop's {plain.most_bytes / 2**20:.1f} MiB"
        raise CheckFailed(expected, f"{ours.most_bytes / 2**20:.1f} MiB", hint)
    print(
        f"checkpointed: the same gradients to the bit, {ours.most_bytes / 2**20:.1f} MiB instead of"
        f" {plain.most_bytes / 2**20:.1f}."
    )


check_checkpointed()

# %% [markdown]
# ## 6. Which layers?
#
# Where backward takes twice as long as forward, recomputing everything makes a step a third longer.
# Often it is enough to recompute some layers. Which choice is the cheapest that fits into memory?
#
# The last layer is a special case. Backward begins with it, while all that the others keep is
# still there: to recompute it, its activations must fit in beside that, so nothing is gained.
#
# ```text
# activations 40 40 40, inputs 4 4 4, budget 90: one of them has to be recomputed
#
# recompute     kept by 0, 1, 2     at layer 2            at layer 1        at layer 0     peak
# 0              4  40  40          84                    44                4 + 40         84
# 1             40   4  40          84                    44 + 40           40             84
# 2             40  40   4          84 + 40               80                40             124
# ```
#
# <details><summary>Hint 1: where to look</summary>
#
# Decide layer by layer, from the first to the last. Of a choice for the layers so far, only two
# numbers matter for the rest: what they keep, and what they cost. Why can the peak at layer i be
# checked as soon as layer i is decided?
#
# </details>
# <details><summary>Hint 2: too many choices</summary>
#
# Of two choices with the same first layers, drop the one that keeps no less and costs no less. A
# dictionary from the bytes kept to the cheapest choice does most of that.
#
# </details>


# %% choose_checkpoints tags=["solution"]
def choose_checkpoints(activation_bytes, input_bytes, recompute_s, budget_bytes: int) -> list[int]:
    """The layers to recompute so that memory stays within the budget, at the least cost in time.

    - The first three arguments are lists with a number for each of n layers, in the order of the
      forward pass. A layer that is recomputed keeps `input_bytes[i]` from its forward to the end of
      its backward, and costs `recompute_s[i]` seconds more; any other layer keeps
      `activation_bytes[i]`, and costs nothing more. Sizes are ints, at least 0.
    - Backward goes from the last layer to the first. At layer i, memory holds what layers 0 to i
      keep, and `activation_bytes[i]` besides if layer i is recomputed. The peak is the most that is
      held at any layer; it may not be above `budget_bytes`.
    - The result has the numbers of the layers to recompute, counted from 0, in ascending order.
      Their cost is the least that is possible; if several choices cost that, any of them.
    - Raises ValueError if no choice fits.
    - n is at most 32. If it is more than 12, there are at most four different layers. It takes
      at most 3 seconds of CPU time.

    Example: (40, 40, 40), (4, 4, 4), (3, 2, 1) and 90 give [1]. To recompute the last layer would
    cost least, but takes 124. With a budget of 120 the result is [], and with 47 no choice fits.
    """
    ### BEGIN SOLUTION
    choices = {0: (0.0, [])}  # bytes kept so far -> the least cost, and its layers
    for layer, (activation, kept, cost_s) in enumerate(
        zip(activation_bytes, input_bytes, recompute_s, strict=True)
    ):
        longer = {}
        for held, (so_far_s, layers) in choices.items():
            options = [(held + activation, held + activation, so_far_s, layers)]
            options.append(
                (held + kept, held + kept + activation, so_far_s + cost_s, [*layers, layer])
            )
            for after, peak, total_s, chosen in options:
                if peak <= budget_bytes and (after not in longer or total_s < longer[after][0]):
                    longer[after] = (total_s, chosen)
        choices = longer
    if not choices:
        raise ValueError("no choice of layers fits into the budget")
    return min(choices.values())[1]
    ### END SOLUTION


# %% check_choose_checkpoints points=4
def peak_of(layers, activation_bytes, input_bytes):
    """The most that is held at any layer, if these are recomputed."""
    held, peak = 0, 0
    for layer, (activation, kept) in enumerate(zip(activation_bytes, input_bytes, strict=True)):
        held += kept if layer in layers else activation
        peak = max(peak, held + activation if layer in layers else held)
    return peak


def cheapest_of_all(activation_bytes, input_bytes, recompute_s, budget_bytes):
    """The cost of the cheapest choice that fits, found by trying all; None if none fits."""
    places = range(len(recompute_s))
    choices = [[one for one in places if number >> one & 1] for number in range(2 ** len(places))]
    costs = [
        sum(recompute_s[one] for one in layers)
        for layers in choices
        if peak_of(layers, activation_bytes, input_bytes) <= budget_bytes
    ]
    return min(costs, default=None)


def check_choose_checkpoints():
    import time

    from worldsize import draw

    example = [40, 40, 40], [4, 4, 4], [3, 2, 1]
    for budget, wanted in ((90, [1]), (120, [])):
        given, hint = choose_checkpoints(*example, budget), "That is not the least cost."
        if given == [2]:
            hint = "At layer 2 memory holds 84, and the 40 that are recomputed: 124."
        elif given == [0]:
            hint = "That fits and costs 3; to recompute layer 1 instead costs 2."
        elif given == [0, 1, 2]:
            hint = "That fits, but recomputing less is enough."
        if given != wanted:
            raise CheckFailed(f"{wanted} for the example with {budget}", f"{given}", hint)
    try:
        given = choose_checkpoints(*example, 47)
    except ValueError:
        given = None
    if given is not None:
        hint = "Even if all three are recomputed, the last one takes 3 x 4 + 40 = 52."
        raise CheckFailed("ValueError for the example with 47", f"{given}", hint)
    cases = [
        ([60, 50, 50, 100], [0, 0, 0, 0], [61, 50, 50, 999], 160),
        ([60, 50, 50, 100], [0, 0, 0, 0], [59, 50, 50, 999], 205),
        ([30, 80, 20, 60, 10], [5, 9, 3, 1, 8], [3, 7, 2, 5, 4], 120),
        ([10, 90, 10], [1, 1, 1], [1, 9, 1], 101),
    ]
    for case in cases:
        given, least = choose_checkpoints(*case), cheapest_of_all(*case)
        peak = peak_of(given, *case[:2])
        if peak > case[3]:
            hint = "At layer i: what layers 0 to i keep, and its own activations if recomputed."
            raise CheckFailed(f"a peak of at most {case[3]} for {case[:3]}", f"{peak}", hint)
        cost = sum(case[2][one] for one in given)
        if cost != least:
            hint = (
                "The layer that saves most, or most for a second, need not be in the best choice."
            )
            raise CheckFailed(f"a cost of {least} for {case}", f"{cost}, with {given}", hint)
    many = [40, 30, 20, 10] * 8, [2, 2, 1, 1] * 8, [4.0, 2.5, 2.0, 1.5] * 8
    for num in range(16, 33, 4):  # step by step: trying all choices soon takes for ever
        activations, inputs, costs_s = (one[:num] for one in many)
        start_s = time.process_time()
        choose_checkpoints(activations, inputs, costs_s, 12 * num)
        if time.process_time() - start_s > 3:
            hint = "Keep only the cheapest choice for each number of bytes held."
            raise CheckFailed(f"at most 3 seconds for {num} layers", "more", hint)
    choices = [choose_checkpoints(*many, budget) for budget in range(100, 801, 100)]
    costs = [sum(many[2][layer] for layer in layers) for layers in choices]
    lines = {"32 layers of four kinds": costs}
    labels = {"y_label": "seconds of recomputing", "x_label": "budget, in units of 100 bytes"}
    show(draw.curves(lines, title="What a smaller budget costs, computed", **labels))
    print("choose_checkpoints: as cheap as the best of all choices, and quick for 32 layers.")


check_choose_checkpoints()

# %% [markdown]
# ## 7. In words
#
# Answer in at most 250 words, with numbers:
#
# 1. A run in float16 has a loss scale of 65,536. What are the largest and the smallest positive
#    gradient that survive in a half? In the next days the scale falls to 1, and the loss stalls,
#    without a single nan. What has happened to small gradients? Why would the same run in bfloat16
#    need no scaler?
# 2. A model has 64 equal layers. Each keeps 1 GB of activations, or 0.05 GB if it is recomputed.
#    Its forward takes 10 ms, its backward 20 ms. There are 24 GB. At least how many layers must be
#    recomputed, which ones, and how much longer is a step? What do you need and pay if all are?
# 3. You use `accumulate` with torch's DDP, which averages gradients over N ranks. Which factor is
#    missing, and where does it go?

# %% what_the_numbers_say [markdown] points=3 tags=["solution"]
# **Answer.**
#
# 1. The largest number of float16 is 65,504, so the largest gradient is 65,504/65,536 = 0.9995. The
#    smallest positive one is 2^-24, so the smallest gradient is 2^-24/2^16 = 2^-40 = 9.1e-13. With
#    a scale of 1 everything below 2^-25, or 3e-8, becomes 0: those weights no longer move, and no
#    step is skipped, because 0 is finite. bfloat16 has the exponents of float32, down to 1e-38.
# 2. With k layers kept, k + 0.05 (64 - k) <= 24 gives k <= 21.9: 21 are kept, 43 recomputed. They
#    keep 21 + 2.15 = 23.15 GB. Recompute the first 43: at layer 42 only 2.15 + 1 GB are held. If
#    the last layers were recomputed, 23.15 + 1 = 24.15 GB would be needed at the last one. A step
#    takes 64 x 30 ms = 1.92 s, and 0.43 s more, 22%. With all recomputed: 64 x 0.05 + 1 = 4.2 GB,
#    and 0.64 s more, 33%.
# 3. N. What `accumulate` adds must be summed over the ranks, and DDP gives 1/N of that sum:
#    multiply each loss (or the gradients after DDP) by N.
#
# **Rubric**, one point each:
#
# - Both limits, about 1 and about 1e-12; small gradients become 0 without an overflow; bfloat16 has
#   the range of float32. Half a point with one of the three missing.
# - 43 (or 42 to 44 with a clear count), the first ones or "not the last", 22%; all: 4.2 GB and 33%.
#   Half a point with one slip.
# - The factor N, on the loss or on the gradients, with the reason.

# %% [markdown]
# ## What you have built
#
# The next cell trains small networks on images of digits in float16, with scaled steps and
# recomputed layers. Each of the two ranks trains a network of its own; what they share is the
# decision about each step. The first scale is far too large: it has to be found.


# %% trained_in_float16
def train_in_halves(num_steps=60):
    from worldsize import images

    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    pixels, labels = images.load_digits()
    pixels = pixels.flatten(1)
    sizes = [pixels.shape[1], 64, 10]
    segments = [
        nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Dropout(0.1)),
        nn.Linear(sizes[1], sizes[2]),
    ]
    model = nn.Sequential(*segments).half()
    halves = list(model.parameters())
    masters = [nn.Parameter(one.detach().float()) for one in halves]
    state, optimizer = ScalerState(2.0**24, growth_interval=20), Momentum(masters, lr=0.05)
    for step in range(num_steps):
        places = (torch.arange(64) + 64 * step) % len(labels)
        output = checkpointed(segments, pixels[places].half())
        loss = nn.functional.cross_entropy(output.float(), labels[places])
        scaled_step(state, loss, halves, masters, optimizer)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model.train(False)(pixels.half()).float(), labels)
    return loss.item(), state.scale, state.num_skipped


run = ws.run(train_in_halves, world_size=2, **EMULATED)
for rank, (loss, scale, num_skipped) in enumerate(run.values):
    print(f"rank {rank}: loss {loss:.3f}, scale {scale:,.0f}, {num_skipped} steps skipped")
