# %% [markdown]
# # Week 6. Precision and activations
#
# | | |
# |---|---|
# | Reading and doing | about 90 minutes: five short exercises, a bug to find, two explorers |
# | Running | about a minute on two CPU cores |
# | You need | weeks 1 to 5; from week 1, what fills memory |
# | You do not need | a GPU: what one would do is computed, emulated or run on paper, and says so |
# | Afterwards | lab 6, *a loss scaler and a checkpointed sequential* |
#
# Until now every model fitted on one GPU. This week begins the part of the course in which it does
# not. Before a model is sharded over GPUs, there are two ways to need less memory on each of them:
# **fewer bytes for each number**, and **fewer numbers kept**. Neither sends anything over the
# network. Each has a cost, and each can go wrong silently.
#
# **s** is the length of a sequence in tokens, **b** the number of sequences, **h** the width of the
# model, **a** its attention heads and **L** its layers, as in Korthikanti et al. 2022, whose
# formula we will check term by term.

# %% [markdown]
# ## 1. The question
#
# > Which numbers of a training step need only 16 bits, which need 32, and which need not be kept at
# > all?
#
# Afterwards you can say what a training step holds, byte by byte and before it runs; repair a
# float16 run that does not learn; and trade extra computing for memory at a cost that you have
# worked out.

# %% parameters tags=["parameters"]
cluster = "dgx-h100"  # the emulated cluster, and the one on which the 8B model runs on paper
seed = 0
# 1,000 ones, added one by one in bfloat16
predicted_sum = None
# the share of the gradients of the logits that float16 turns into 0, for 8,192 tokens of text
predicted_lost_percent = None
# activations of one sequence of 4,096 tokens in a GPT of Llama-2-7B's shape, all kept, 16 bits each
predicted_activations_gb = None
# how much longer a step of Llama 3 8B takes when every layer is recomputed
predicted_longer_percent = None

# %% setup
import math
import os
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)
from torch.utils.flop_counter import FlopCounterMode

import worldsize as ws
from worldsize import check, draw, hardware, ledger, memory, models, quiz, text, units
from worldsize.explore import explore

# %% start
torch.set_num_threads(1)  # as the ranks do: they share the cores
TOKENS = text.tokens()
predictions = ledger.Predictions("week06")
print(f"{os.cpu_count()} CPU cores, {len(TOKENS):,} bytes of text")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers. Only you see them, and a wrong guess teaches more than none.
# The logits are the model's output, one for each token and each entry of the vocabulary; the
# *activations* are what the forward pass keeps for the backward pass.

# %% predict
predictions.ask("1,000 ones added in bfloat16", predicted_sum, "", section=3)
predictions.ask("logits' gradients that float16 loses", predicted_lost_percent, "%", section=4)
predictions.ask("activations of 4k tokens, GPT of 7B", predicted_activations_gb, "GB", section=5)
predictions.ask("full recomputation, Llama 3 8B, adds", predicted_longer_percent, "%", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### Everything in 16 bits
#
# A 16-bit number takes half the memory and half the communication time of a 32-bit one, and an H100
# multiplies 16-bit matrices at 15 times the rate of plain float32 (table in section 4). So make
# everything 16 bits wide. Start with the simplest thing that training does: add.


# %% sums
def added_one_by_one(num, dtype):
    """The sum of `num` ones when each sum is rounded to `dtype`."""
    total, one = torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)
    for _ in range(num):
        total = total + one
    return total.item()


for dtype, num in ((torch.bfloat16, 1000), (torch.float16, 5000), (torch.float32, 5000)):
    print(f"{num:,} ones in {dtype}: {added_one_by_one(num, dtype):,.0f}")
print(f"torch.sum of 1,000 ones in bfloat16: {torch.ones(1000, dtype=torch.bfloat16).sum():,.0f}")
predictions.reveal("1,000 ones added in bfloat16", added_one_by_one(1000, torch.bfloat16))

# %% [markdown]
# A bfloat16 number has 8 significant bits. From 256 on, neighbouring numbers are 2 apart: 256 + 1
# lies half-way to 258, is rounded to 256, and the sum stops growing. In float16, with 11 bits, the
# same happens at 2,048. `torch.sum` gets it right because it adds in float32 and rounds once, at
# the end. Tensor cores do the same inside a matmul: **inputs of 16 bits, sums of 32**. Half of this
# week follows from this rule. (For 8-bit inputs it fails on Hopper GPUs; see section 4.)
#
# ### Weights that do not move
#
# An optimizer adds as well: a small update to a large weight, thousands of times. The course's
# transformer (`worldsize.models.Transformer`, Llama's shape), in its tiniest size, learns the bytes
# of a real text. The next cells define a harness, then run the same training with float32 and with
# bfloat16 weights.


# %% harness
def new_model(dtype=torch.float32, shape="tiny", **sizes):
    """The course's transformer with weights in `dtype`."""
    torch.set_default_dtype(dtype)
    try:
        shape = models.shape(shape) if isinstance(shape, str) else shape
        return models.Transformer(replace(shape, **sizes), seed=seed)
    finally:
        torch.set_default_dtype(torch.float32)


def batches(num, batch_size=8, length=64, seed=seed):
    """Batches of text: tokens, and the token that follows each."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num):
        yield text.batch(TOKENS, batch_size, length, generator)


def loss_of(model, tokens, targets):
    """The mean loss over all tokens; the softmax is taken in float32."""
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())


# %% train
def train(model, optimizer, num_steps=50):
    """The loss of each step, and the share of the weights that each step changed."""
    losses, changed = [], []
    for tokens, targets in batches(num_steps):
        before = [weight.detach().clone() for weight in model.parameters()]
        loss = loss_of(model, tokens, targets)
        loss.backward()
        optimizer.step()
        model.zero_grad()
        losses.append(loss.item())
        different = [(a != b).sum() for a, b in zip(before, model.parameters(), strict=True)]
        changed.append(sum(different).item() / sum(weight.numel() for weight in before))
    return losses, changed


# %% weights_in_bfloat16
RATE = 3e-4
trained, runs, moved = {}, {}, {}
for dtype in (torch.float32, torch.bfloat16):
    name = f"weights in {str(dtype).removeprefix('torch.')}"
    trained[name] = new_model(dtype)
    optimizer = torch.optim.AdamW(trained[name].parameters(), lr=RATE, weight_decay=0.0)
    runs[name], moved[name] = train(trained[name], optimizer)
    print(
        f"{name}: loss {runs[name][-1]:.2f} after 50 steps; the last step changed"
        f" {moved[name][-1]:.0%} of the weights"
    )
draw.curves(runs, title="The same training with two kinds of weights, measured here")

# %% [markdown]
# Nothing fails. The loss falls, but more slowly, and from one curve alone you would blame the
# learning rate. The second number shows the cause: in bfloat16 more than three of four weights are
# exactly what they were before the step. Adam's updates are seldom larger than the learning rate,
# 0.0003, and most are far smaller. Near a weight of 0.1, neighbouring bfloat16 numbers are 0.0005
# apart. An update of less than half of that is rounded away, and so is the next one.
#
# ### NaN after one step
#
# A float16 run does not even get that far:


# %% all_in_float16
model = new_model(torch.float16)
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
for step, (tokens, targets) in enumerate(batches(2), 1):
    loss = loss_of(model, tokens, targets)
    loss.backward()
    num_zero = sum((weight.grad == 0).sum().item() for weight in model.parameters())
    optimizer.step()
    optimizer.zero_grad()
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    num_broken = (~weights.isfinite()).sum().item()
    print(
        f"step {step}: loss {loss.item():.2f}, {num_zero:,} gradients are 0; afterwards"
        f" {num_broken:,} of {len(weights):,} weights are not finite"
    )
print(f"Adam's eps of 1e-8 in float16: {torch.tensor(1e-8, dtype=torch.float16).item()}")

# %% [markdown]
# Adam divides the mean gradient by $\sqrt{v} + \epsilon$, where v is the mean *square*. The square
# of a gradient of 0.001, times $1 - \beta_2 = 0.001$, Adam's weight for a new value, is $10^{-9}$,
# and float16 rounds it to 0. For such cases there is $\epsilon = 10^{-8}$, which float16 rounds to
# 0 as well. So most updates divide by 0 and become infinite. Where there is no gradient, as for the
# embedding of a byte that the batch does not contain, the update is 0 / 0, which is NaN. One step
# destroys the model.
#
# None of these three failures points at precision: a sum stops growing, weights stop changing,
# numbers become zero. The fix is not more bits everywhere: it is to know which numbers need them.
#
# ## 4. Build it well: choose a format for each number
#
# ### A format has a range and a spacing
#
# A floating-point number is a sign, an **exponent** that says between which powers of two it
# lies, and a **mantissa** that says where between them. The exponent's bits decide the *range*,
# the mantissa's bits the *spacing*.


# %% formats
class Format(NamedTuple):
    """A floating-point format, and torch's type for it where it has one."""

    num_bytes: int
    exponent_bits: int
    mantissa_bits: int
    dtype: torch.dtype | None
    rate: str  # the name of its rate in a GPU's data

    @property
    def largest(self):
        if self.dtype is torch.float8_e4m3fn:
            return 448.0  # it has no infinity, and counts one power of two further
        return (2 - 2.0**-self.mantissa_bits) * 2.0 ** (2 ** (self.exponent_bits - 1) - 1)

    @property
    def smallest_normal(self):
        return 2.0 ** (2 - 2 ** (self.exponent_bits - 1))

    @property
    def smallest(self):
        return self.smallest_normal * 2.0**-self.mantissa_bits


# %% formats_table
FORMATS = {
    "float32": Format(4, 8, 23, torch.float32, "float32"),
    "TF32": Format(4, 8, 10, None, "tf32"),
    "float16": Format(2, 5, 10, torch.float16, "float16"),
    "bfloat16": Format(2, 8, 7, torch.bfloat16, "bfloat16"),
    "FP8 E5M2": Format(1, 5, 2, torch.float8_e5m2, "float8"),
    "FP8 E4M3": Format(1, 4, 3, torch.float8_e4m3fn, "float8"),
}
for one in FORMATS.values():
    limits = torch.finfo(one.dtype) if one.dtype else None
    assert not limits or (limits.max, limits.tiny) == (one.largest, one.smallest_normal)
rows = [
    {
        "format": name,
        "bytes": one.num_bytes,
        "exponent + mantissa": f"{one.exponent_bits} + {one.mantissa_bits} bits",
        "largest": f"{one.largest:.3g}",
        "smallest normal": f"2^{math.log2(one.smallest_normal):.0f}",
        "smallest": f"2^{math.log2(one.smallest):.0f}",
        "numbers from 1 to 2": 2**one.mantissa_bits,
        "H100, TFLOP/s": round(hardware.H100.peak_flops_per_s[one.rate] / 1e12),
    }
    for name, one in FORMATS.items()
]
draw.table(rows, title="Formats, computed from their bits; rates: H100 SXM data sheet, dense")

# %% [markdown]
# TF32 is not a way to store numbers. It is what tensor cores do with float32 inputs where they are
# allowed to: drop 13 bits of the mantissa, multiply, add in float32. float16 and bfloat16 spend the
# same 16 bits differently: float16 on spacing, bfloat16 on range. Below its smallest *normal*
# number a format continues for a while with fewer and fewer bits (*subnormal* numbers), down to 0.
# E4M3 gives up infinity and all but one pattern for NaN, which raises its largest number from 240
# to 448 (Micikevicius et al. 2022, *FP8 Formats for Deep Learning*, section 3.1).
#
# ### Your turn: the gap to the next number
#
# 5 minutes · easy
#
# Write the gap between the number x and the next larger one of a format, for a normal x.
# `torch.finfo(dtype).eps` is the gap at 1. Section 3 used two such gaps: 2 at 256, and 0.0005 at
# 0.1.
#
# <details><summary>Hint</summary>
#
# Between $2^k$ and $2^{k+1}$ all gaps are equal. At 1, k is 0. What is k for your x?
# </details>


# %% gap tags=["turn"]
def gap(x, dtype):
    """The gap between the normal number x > 0 and the next larger number of the format."""
    ### BEGIN SOLUTION
    exponent = math.floor(math.log2(x))
    return torch.finfo(dtype).eps * 2.0**exponent
    ### END SOLUTION


# %% check_gap
with check.turn("gap"):
    for x, dtype in ((1.0, torch.bfloat16), (256.0, torch.bfloat16), (0.1, torch.bfloat16)):
        next_larger = torch.nextafter(torch.tensor(x, dtype=dtype), torch.tensor(1e4, dtype=dtype))
        expected = next_larger.item() - torch.tensor(x, dtype=dtype).item()
        hint = "The gap at 1 is eps, and it doubles at every power of two, above 1 and below."
        check.expect_close(gap(x, dtype), expected, f"the gap at {x:g} in {dtype}", hint, atol=0)
    check.expect_close(gap(3000.0, torch.float16), 2.0, "the gap at 3,000 in float16", atol=0)
    print("Right. An update of less than half a gap is lost.")

# %% [markdown]
# ### What gradients need
#
# Here are the gradients of a real backward pass: the float32 model from section 3, 8,192 tokens of
# text (the context of Llama 3), at three places. The table gives their sizes, and the share that
# each format turns into 0.


# %% gradients
def gradients_by_place(model, tokens, targets):
    """The magnitudes, without zeros, of the gradients at three places of the backward pass."""
    last = model.layers[str(len(model.layers) - 1)]
    places = {"logits": model.head, "MLP gates": last.mlp.gate, "residuals": model.layers["0"]}
    found, handles = {}, []

    def watch(place, output):
        output.register_hook(lambda gradient: found.update({place: gradient.abs().flatten()}))

    for place, module in places.items():
        hook = partial(lambda place, module, inputs, output: watch(place, output), place)
        handles.append(module.register_forward_hook(hook))
    loss_of(model, tokens, targets).backward()
    model.zero_grad()
    for handle in handles:
        handle.remove()
    return {place: values[values > 0] for place, values in found.items()}


def lost_fraction(values, dtype, scale=1.0):
    """The share of the values that become 0 in the format when they are multiplied by `scale`."""
    return ((scale * values).to(dtype).float() == 0).float().mean().item()


# %% gradients_lost
GRADIENTS = gradients_by_place(trained["weights in float32"], *next(batches(1, 128, seed=1)))
rows = [
    {
        "gradient of": place,
        "median": f"2^{values.median().log2():.1f}",
        "largest": f"2^{values.max().log2():.1f}",
        **{
            f"0 in {name}_fraction": lost_fraction(values, one.dtype)
            for name, one in FORMATS.items()
            if one.num_bytes < 4
        },
    }
    for place, values in GRADIENTS.items()
]
lost_percent = 100 * lost_fraction(GRADIENTS["logits"], torch.float16)
predictions.reveal("logits' gradients that float16 loses", lost_percent)
draw.table(rows, title="Gradients of 8,192 tokens, measured here, and what formats turn into 0")


# %% formats_drawn
LOW, HIGH = -48.0, 24.0  # the powers of two that the picture shows


def draw_formats(axes, values):
    """Draw the range of each format as a bar, and return the share of the values that it loses."""
    lost, room = {}, {"alpha": 0, "fontsize": 9}  # the panel keeps its place while the slider moves
    axes.text(HIGH + 1, 0, "99.9% lost, 99.9% too large", **room)
    for row, (name, one) in enumerate(FORMATS.items()):
        ends = [math.log2(end) for end in (one.smallest, one.smallest_normal, one.largest)]
        start, normal, stop = (min(max(end, LOW), HIGH) for end in ends)
        axes.barh(row, stop - normal, left=normal, height=0.3, color="#0072B2")
        style = {"height": 0.3, "color": "white", "edgecolor": "#0072B2", "hatch": "////"}
        axes.barh(row, normal - start, left=start, **style)
        if start == LOW:
            white = {"color": "white", "fontsize": 7, "va": "center"}
            axes.text(LOW + 0.5, row, f"◄ from 2^{ends[0]:.0f}", **white)
            axes.text(HIGH - 0.5, row, f"to 2^{ends[2]:.0f} ►", ha="right", **white)
        over = (values > one.largest).float().mean().item()
        lost[name] = f"{lost_fraction(values, one.dtype or torch.float32):.1%} lost"
        lost[name] += f", {over:.1%} too large" if over >= 0.0005 else ""
        axes.text(HIGH + 1, row, lost[name], va="center", fontsize=9)
    return lost


# %% formats_explored
def formats_drawn(log2_scale=0, gradients="logits"):
    """The range of each format on one axis, under a histogram of gradients times 2**log2_scale."""
    values, picture = 2.0**log2_scale * GRADIENTS[gradients], draw.Picture(9, 4.4)
    axes = picture.subplots()
    counts, edges = torch.histogram(values.log2(), bins=72, range=(LOW, HIGH))
    heights = 5.5 - 5.6 * counts / counts.max()
    axes.fill_between(edges[:-1], heights, 5.5, step="post", color="#D55E00", alpha=0.4, zorder=3)
    lost = draw_formats(axes, values)
    labels = [f"{name}\n{2**one.mantissa_bits:,} a doubling" for name, one in FORMATS.items()]
    axes.set(yticks=range(6), yticklabels=labels, ylim=(5.5, -0.5), xlim=(LOW, HIGH))
    axes.set_xlabel("power of two (hatched: fewer and fewer bits; orange: how many gradients)")
    title = f"The {gradients}' gradients times 2^{log2_scale}, measured here, and six formats"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    picture.alt = f"{title}. " + "; ".join(f"{name}: {share}" for name, share in lost.items()) + "."
    return picture


explore(formats_drawn, log2_scale=(0, 24, 1), gradients=[*GRADIENTS])

# %% [markdown]
# Read the picture from left to right. bfloat16 has float32's range, and loses nothing: this is why
# it is the main format of this course. float16 turns the lower tail of the gradients into 0, and
# stores nearly all the rest as subnormals. The FP8 formats, without scaling, represent hardly any
# of them.
#
# The loss is a *mean*, so each gradient of an activation has a factor of 1 / (number of tokens):
# the orange hill moves one power of two to the left for each doubling of the micro-batch.
#
# Move the slider. Multiplied by $2^{16}$, the hill lies in the middle of float16. That is the whole
# idea of loss scaling.
#
# ### Master weights
#
# The second failure of section 3 was the lost update. Micikevicius et al. 2018, *Mixed Precision
# Training*, section 3.1, gave the fix that has been used ever since: the optimizer keeps a float32
# **master copy**. Forward and backward use a 16-bit copy, which is made again after each step.
#
# ```text
# master weights, 32 bits ──round──► working weights, 16 bits ──► forward, backward
#        ▲                                                               │
#        └──── update, in 32 bits ◄── gradient, widened to 32 bits ◄─────┘
# ```
#
# ### Your turn: one step with a master copy
#
# 5 minutes · easy
#
# Take one step of plain SGD. `working` and `gradient` are bfloat16, `master` is float32.
#
# <details><summary>Hint</summary>
#
# It takes three operations. Widen the gradient first: `rate * gradient` of a bfloat16 gradient is
# rounded to bfloat16 before it reaches the master. `working.copy_(master)` rounds.
# </details>


# %% master_step tags=["turn"]
def master_step(working, master, gradient, rate):
    """Take a step of SGD on the master weights, in place, and round them into the working ones."""
    ### BEGIN SOLUTION
    master -= rate * gradient.float()
    working.copy_(master)
    ### END SOLUTION


# %% check_master_step
with check.turn("master_step"):
    master, working = torch.ones(4), torch.ones(4, dtype=torch.bfloat16)
    gradient = torch.full((4,), 0.3, dtype=torch.bfloat16)
    for _ in range(100):
        master_step(working, master, gradient, rate=1e-3)
    exact = 1 - 100 * 1e-3 * gradient.float()
    hint = "Is the update subtracted from the float32 copy, with a float32 gradient?"
    check.expect_close(master, exact, "the master weights after 100 steps", hint, rtol=1e-5)
    check.expect_close(working, exact.bfloat16(), "the working weights", "Round the master.")
    print(f"Right: {working[0]:.4f}. In bfloat16 alone all 100 updates are lost, and it is 1.")

# %% [markdown]
# Adam needs the same, and this is where week 1's 16 bytes for each parameter come from: 2 for the
# working weight, 2 for its gradient, and 4 + 4 + 4 for master, momentum and variance. The class
# below updates one tensor after the other, so that a float32 gradient exists for one tensor at a
# time.


# %% master_adam
class MasterAdam:
    """AdamW on float32 copies of 16-bit weights."""

    def __init__(self, weights):
        self.pairs = [(weight, nn.Parameter(weight.detach().float())) for weight in weights]
        self.optimizers = []
        for _, master in self.pairs:
            self.optimizers.append(torch.optim.AdamW([master], RATE, weight_decay=0.0, fused=True))

    @torch.no_grad()
    def step(self):
        """Update every master, round it into its weight, and free the gradients."""
        for (weight, master), optimizer in zip(self.pairs, self.optimizers, strict=True):
            master.grad = weight.grad.float()
            optimizer.step()
            weight.copy_(master)
            weight.grad = master.grad = None


# %% masters_measured
name = "bfloat16, float32 masters"
model = new_model(torch.bfloat16)
runs[name], moved[name] = train(model, MasterAdam(model.parameters()))
rows = [
    {"run": name, "last loss": losses[-1], "moved by the last step_fraction": moved[name][-1]}
    for name, losses in runs.items()
]
draw.table(rows, title="50 steps, measured here")

# %% [markdown]
# The loss equals that of float32 to two digits, with every matmul in bfloat16. The working weights
# still change only now and then: a master weight drifts until the nearest bfloat16 number is a
# different one. No update is lost on the way.
#
# ### Loss scaling
#
# The third remedy is for float16 alone. Multiply the *loss* by a scale S; by the chain rule every
# gradient is S times as large; divide by S before the update, in float32. How large may S be? As
# large as possible without the largest gradient exceeding 65,504. The largest gradient belongs to a
# *weight*, whose gradient is a sum over all tokens:

# %% scales
model = trained["weights in float32"]
loss_of(model, *next(batches(1, 128, seed=1))).backward()
biggest = max(weight.grad.abs().max() for weight in model.parameters())
model.zero_grad()
rows = [
    {
        "scale": f"2^{power}",
        "become 0_fraction": lost_fraction(GRADIENTS["logits"], torch.float16, 2.0**power),
        "largest of a weight": f"2^{(2.0**power * biggest).log2():.1f}",
        "overflows": bool(2.0**power * biggest > 65504),
    }
    for power in (0, 4, 8, 16, 24, 32)
]
draw.table(rows, title="Logits' gradients in float16, and the largest of a weight, by scale")

# %% [markdown]
# There is a range between "too small" and "too large", and it shifts as training goes on. So the
# scale is **dynamic**: start high; when a gradient overflows, *skip the step* and halve the scale;
# after some number of good steps, double it. In torch that is `torch.amp.GradScaler`: start at
# 65,536, halve on overflow, double after 2,000 good steps. Here is a real float16 run, which starts
# far too high and doubles after only 6 good steps, so that the scale changes often:


# %% dynamic
def train_float16(model, optimizer, scaler, num_steps):
    """The loss and the scale of each step, and which steps were skipped."""
    losses, scales, skipped = [], [], []
    for step, (tokens, targets) in enumerate(batches(num_steps, batch_size=4), 1):
        before = model.head.weight.detach().clone()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(model, tokens, targets)
        scales.append(scaler.get_scale())
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # divides the gradients by the scale; does nothing if one is inf
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
        skipped += [step] if torch.equal(before, model.head.weight) else []
    return losses, scales, skipped


# %% dynamic_measured
model = new_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28, growth_interval=6)
losses, scales, skipped = train_float16(model, optimizer, scaler, 24)
print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}; steps skipped: {skipped}")
draw.curves(
    {"scale": [math.log2(scale) for scale in scales]},
    y_label="log2 of the scale",
    title=f"The loss scale of a float16 run, measured here: {len(skipped)} of 24 steps skipped",
)

# %% [markdown]
# A scale that falls at the start is still being adjusted. Later the scaler doubles it until a
# gradient overflows: with torch's defaults, one skipped step in about 2,000 is normal. A scale that
# *keeps falling* is an alarm: see section 8.
#
# Does `GradScaler` do more than multiply and divide? The next cell compares three steps by hand
# with torch's, both in float16 with a scale of 65,536:

# %% oracle_scaler
by_hand, by_torch = new_model(), new_model()
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (by_hand, by_torch)]
for tokens, targets in batches(3, batch_size=2):
    with torch.autocast("cpu", dtype=torch.float16):
        (65536 * loss_of(by_hand, tokens, targets)).backward()
    for weight in by_hand.parameters():
        weight.grad /= 65536
    optimizers[0].step()
    by_hand.zero_grad()
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
for tokens, targets in batches(3, batch_size=2):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_of(by_torch, tokens, targets)
    scaler.scale(loss).backward()
    scaler.step(optimizers[1])
    scaler.update()
    by_torch.zero_grad()
pairs = zip(by_hand.parameters(), by_torch.parameters(), strict=True)
print(f"same weights, bit for bit: {all(torch.equal(a, b) for a, b in pairs)}")

# %% [markdown]
# The weights are the same bit for bit: torch multiplies by 1 / 65536 where we divide by 65536, and
# with a power of two both change only the exponent. What `GradScaler` adds is the search for
# overflow, the skipping and the schedule; lab 6 asks you to write these, on several ranks that must
# all skip together.
#
# ### Find the bug: the run that clips everything
#
# 10 minutes · medium
#
# A colleague adds gradient clipping to a float16 run. From then on the loss hardly changes. Run the
# check, read what it found, and repair the function.
#
# <details><summary>Hint</summary>
#
# In what units are the gradients when they are clipped? The documentation of `GradScaler` has a
# method whose name ends in an underscore.
# </details>


# %% clipped_step tags=["turn"]
def clipped_step(model, optimizer, scaler, loss, max_norm):
    """The norm of the gradients, after a scaled step in which they were clipped to `max_norm`."""
    ### BEGIN SOLUTION
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    ### INSTEAD
    # scaler.scale(loss).backward()
    # norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    # scaler.step(optimizer)
    ### END SOLUTION
    scaler.update()
    optimizer.zero_grad()
    return norm.item()


# %% check_clipped_step
with check.turn("clipped_step"):
    layer = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    loss = layer(torch.full((1, 4), 0.25)).sum()  # its gradient is 0.25 for each weight: norm 0.5
    norm = clipped_step(layer, optimizer, scaler, loss, max_norm=1.0)
    hint = f"A norm of 0.5 needs no clipping. The weights moved by {-layer.weight[0, 0]:.2g} each."
    check.expect_close(norm, 0.5, "the norm of the gradients before clipping", hint)
    check.expect_close(layer.weight[0, 0].item(), -0.025, "a weight after the step", hint)
    print("Right. Unscale, then clip, then step.")

# %% [markdown]
# ### Autocast chooses the format of each operation
#
# You do not have to cast by hand. Inside `torch.autocast` every operation is on one of three lists:
# matmuls and convolutions run in the 16-bit type, whatever their inputs; sums that need more bits
# (softmax, losses, norms) run in float32; everything else runs in the widest type of its inputs.
# The weights stay float32, which makes them their own masters. This is what our transformer does
# under autocast:


# %% autocast
class SeenTypes(TorchDispatchMode):
    """The type of what each operation gives, counted."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) else result
        if isinstance(first, torch.Tensor) and first.is_floating_point():
            self.counts[func.overloadpacket.__name__, str(first.dtype).removeprefix("torch.")] += 1
        return result


# %% autocast_measured
OPERATIONS = {
    "mm": "matrix product",
    "_scaled_dot_product_flash_attention_for_cpu": "attention",
    "silu": "SiLU, the MLP's activation",
    "rsqrt": "1 / root, in RMSNorm",
    "add": "sum, such as that of the residual stream",
    "_log_softmax": "log softmax, in the loss",
}
with torch.autocast("cpu", dtype=torch.bfloat16), SeenTypes() as seen:
    loss = loss_of(new_model(), *next(batches(1)))
rows = [
    {"operation": words, "runs in": ", ".join(sorted({b for a, b in seen.counts if a == name}))}
    for name, words in OPERATIONS.items()
]
draw.table(rows, title="One forward pass under autocast with bfloat16, measured here")

# %% [markdown]
# The embedding returns float32, and float32 plus bfloat16 is float32: under autocast the **residual
# stream stays in float32**. That costs memory, as the next section shows. Large runs therefore keep
# working weights in bfloat16, as `MasterAdam` does, or let FSDP cast them (week 7).
#
# ### Eight bits
#
# An H100 multiplies FP8 matrices at twice the rate of bfloat16. With 4 exponent bits no single
# scale fits a whole model, so there is **one for each tensor or each block of it**, chosen by the
# largest magnitude in it. Waiting for an overflow, as a loss scaler does, does not work here:

# %% eight_bits
large = torch.tensor([448.0, 465.0, 1000.0, math.inf])
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
    print(f"{dtype}: {large.tolist()} become {large.to(dtype).float().tolist()}")
for place, values in GRADIENTS.items():
    scale = 448 / values.max()
    lost = [lost_fraction(values, torch.float8_e4m3fn, one) for one in (1.0, scale)]
    print(f"{place} in E4M3: {lost[0]:.0%} become 0; scaled to a largest of 448, {lost[1]:.2%}")

# %% [markdown]
# torch's conversion to E4M3 **saturates**: infinity becomes 448. So the scale is chosen from the
# largest magnitude *before* the conversion. Micikevicius et al. 2022, section 3, use E4M3 for
# weights and activations and E5M2, with its wider range, for gradients. DeepSeek-V3 (2024, section
# 3.3.2) used E4M3 for everything, with a scale for each 1 x 128 tile of activations and each 128 x
# 128 block of weights: finer scales made the wider range unnecessary. It kept master weights and
# the sums of gradients in float32. Its authors also measured that an FP8 matmul on an H800 keeps
# only about **14 bits** of its sums, which for 4,096 products made an error of nearly 2%. So after
# every 128 products they moved the partial sums out of the tensor cores and added them in float32.
#
# ## 5. What a layer keeps
#
# 16 bytes for each parameter are in use before a single token comes in. The tokens add activations:
# backward needs the inputs of most operations, so forward keeps them. How many bytes is that?
#
# ### A GPT layer, counted and measured
#
# Korthikanti et al. 2022 (*Reducing Activation Recomputation in Large Transformer Models*, section
# 4.1) count one layer of a GPT, with 16-bit activations and 1 byte for each entry of a dropout
# mask:
#
# | part | keeps | bytes |
# |---|---|---|
# | two layer norms | their inputs | 4 sbh |
# | query, key, value | one shared input, and the three results | 2 sbh + 6 sbh |
# | softmax, dropout, times values | per pair of tokens and head 2, mask 1, 2 | 5 as²b |
# | output projection, dropout | input 2, mask 1 | 3 sbh |
# | MLP: up, GELU, down, dropout | inputs 2 + 8 + 8, mask 1 | 19 sbh |
#
# $$\text{bytes of a layer} = sbh \left(34 + 5 \frac{as}{h}\right)$$
#
# The first term grows with the length of the sequence, the second with its square. From
# $s = 6.8 h/a$ on, 870 tokens with heads of 128, the second is the larger one.
#
# The next cells define that layer and measure it: `memory.held()` gives the bytes of a rank's
# tensors by kind. We run one more layer and see what it adds.


# %% gpt_layer
class GptLayer(nn.Module):
    """A layer as Korthikanti et al. count it; `recomputes_core` is for section 6."""

    def __init__(self, width, num_heads, recomputes_core=False):
        super().__init__()
        self.num_heads, self.recomputes_core = num_heads, recomputes_core
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def core(self, query, key, value):
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return F.dropout(scores.softmax(-1), 0.1) @ value

    def forward(self, x):  # (b, s, h)
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if self.recomputes_core:
            y = checkpoint(self.core, *heads, use_reentrant=False)
        else:
            y = self.core(*heads)
        x = x + F.dropout(self.output(y.transpose(1, 2).flatten(2)), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.mlp_norm(x)))), 0.1)


# %% kept
def kept_bytes(layers, x):
    """The bytes of activations that a layer adds to what those before it keep."""
    x, held = layers[0](x), []
    for layer in layers[1:]:
        held.append(memory.held()["activations"])
        x = layer(x)
    return (memory.held()["activations"] - held[0]) / len(held)


def kept_by_gpt(cases):
    """The bytes of a GPT layer for each (s, b, h, a)."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16)
    found = []
    for s, b, h, a in cases:
        layers = [GptLayer(h, a) for _ in range(3)]
        found.append(kept_bytes(layers, torch.randn(b, s, h, requires_grad=True)))
    return found


# %% kept_measured
CASES = [(128, 2, 256, 4), (256, 2, 256, 8), (256, 4, 512, 8)]
alone = {"world_size": 1, "echo": False}
found_bytes = ws.run(kept_by_gpt, CASES, memory=True, **alone).values[0]
rows = [
    {
        "s, b, h, a": f"{s}, {b}, {h}, {a}",
        "34 + 5as/h": 34 + 5 * a * s / h,
        "measured / sbh": round(kept / (s * b * h), 2),
        "36 + 6as/h": 36 + 6 * a * s / h,
    }
    for (s, b, h, a), kept in zip(CASES, found_bytes, strict=True)
]
draw.table(rows, title="A GPT layer's activations in units of sbh bytes: computed, measured here")

# %% [markdown]
# The formula and the measurement disagree, by 9 to 14%, and both are right. On a CPU torch
# multiplies by a mask *in the type of the activations*, 2 bytes, where a GPU's kernel keeps 1.
# There are three masks: two of sbh entries and one of as²b. Count 2 bytes for each, and the 34
# becomes 36, the 5 becomes 6, and the formula agrees with the measurement to a thousandth. You can
# find such a cause only if a formula states its assumptions.
#
# ### Llama's layer
#
# Most models of today have no dropout, an MLP with a gate, and an attention that never writes its
# scores to memory (FlashAttention). So equation 1 is not their formula. Theirs, with **f** the
# hidden width of the MLP and as many key heads as query heads, is
#
# $$sbh \left(16 + 8 \frac{f}{h}\right)$$
#
# If attention stores its softmax, add $2as/h$ inside the brackets.
#
# ### Your turn: what SwiGLU keeps
#
# 10 minutes · medium
#
# `Mlp` computes `down(silu(gate(x)) * up(x))`. Count the bytes that it keeps for backward in
# bfloat16, its input x included. Each matmul needs its input again; `silu` needs its input; an
# elementwise product needs both factors.
#
# <details><summary>Hint</summary>
#
# One tensor has the model's width, and four have the hidden width: two are outputs of the matmuls,
# two are computed from them. A tensor that two operations need is kept once.
# </details>


# %% mlp_bytes tags=["turn"]
def mlp_bytes(num_tokens, width, hidden_width):
    """Bytes that a SwiGLU MLP keeps for the backward pass, each number in 2 bytes."""
    ### BEGIN SOLUTION
    num_hidden = 4  # gate(x), silu of it, up(x), and their product
    return 2 * num_tokens * (width + num_hidden * hidden_width)
    ### END SOLUTION


# %% check_mlp_bytes
def kept_by_mlp(width, hidden_width, num_tokens):
    """The measured bytes of the course's MLP."""
    torch.set_num_threads(1)
    mlp = new_model(torch.bfloat16, width=width, hidden_width=hidden_width).layers["0"].mlp
    y = mlp(torch.randn(1, num_tokens, width, dtype=torch.bfloat16, requires_grad=True))
    return memory.held()["activations"] - y.nbytes


with check.turn("mlp_bytes"):
    mlp_bytes(1, 1, 1)
    for sizes in ((64, 192, 100), (64, 256, 50)):
        measured = ws.run(kept_by_mlp, *sizes, memory=True, **alone).values[0]
        hint = "What do gate, up, silu, the product and down each need again? Count a tensor once."
        width, hidden, num = sizes
        check.expect_close(mlp_bytes(num, width, hidden), measured, "the bytes as measured", hint)
    print("Right, to the byte. For Llama-2-7B it is 23.5 of the layer's 37.5 sbh.")

# %% [markdown]
# Now measure the whole layer in three variants: with torch's fused attention, with an attention
# that writes its scores, and under autocast. The last column shows what that means for one sequence
# of 4,096 tokens in 32 layers of Llama-2-7B's shape.


# %% kept_by_llama
def eager_attention(query, key, value, **options):
    """Causal attention that writes its scores, as in the first papers."""
    length = query.shape[-2]
    mask = torch.full((length, length), -math.inf, dtype=query.dtype).triu(1)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + mask
    return scores.softmax(-1) @ value


def kept_by_llama(shape, batch_size, length):
    """The bytes that a layer of Llama's kind keeps, by how it runs."""
    torch.set_num_threads(1)
    fused, found = F.scaled_dot_product_attention, {}
    for name in ("fused attention", "scores written", "fused, under autocast"):
        is_autocast = "autocast" in name
        dtype = torch.float32 if is_autocast else torch.bfloat16
        layers = [*new_model(dtype, shape).layers.values()]
        F.scaled_dot_product_attention = eager_attention if "scores" in name else fused
        x = torch.randn(batch_size, length, shape.width, dtype=dtype, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast, cache_enabled=False):
            found[name] = kept_bytes(layers, x)
            found[name] -= 2 * shape.num_layer_weights * is_autocast  # its copies of the weights
    F.scaled_dot_product_attention = fused
    return found


# %% three_sizes
s, b, like_7b = 256, 2, replace(models.shape("small"), num_kv_heads=8, hidden_width=344)
llama_bytes = ws.run(kept_by_llama, like_7b, b, s, memory=True, **alone).values[0]
unit, ratio = s * b * like_7b.width, like_7b.num_heads * s / like_7b.width
ours = 16 + 8 * like_7b.hidden_width / like_7b.width
formulas = {"fused attention": ours, "scores written": ours + 2 * ratio}
big = models.shape("llama-2-7b")
unit_7b = 4096 * big.width * big.num_layers
gpt_bytes = unit_7b * (34 + 5 * big.num_heads * 4096 / big.width)
of_7b = 16 + 8 * big.hidden_width / big.width
at_4k = {"fused attention": of_7b, "scores written": of_7b + 2 * big.num_heads}
rows = [
    {"layer": "GPT, eq. 1", "formula": 34 + 5 * ratio, "7B at 4k, GB": round(gpt_bytes / 1e9, 1)}
] + [
    {
        "layer": f"Llama, {name}",
        "formula": formulas.get(name),
        "measured": round(kept / unit, 2),
        "7B at 4k, GB": round(at_4k[name] * unit_7b / 1e9, 1) if name in at_4k else None,
    }
    for name, kept in llama_bytes.items()
]
predictions.reveal("activations of 4k tokens, GPT of 7B", gpt_bytes / 1e9)
states_bytes = 16 * big.num_parameters
print(f"weights, gradients and optimizer state of Llama-2-7B: {units.format_bytes(states_bytes)}")
draw.table(rows, title="A layer in units of sbh (small: measured here), and 7B at 4k (computed)")

# %% [markdown]
# **104 GB for one sequence**, about as much as all the states of the model. But that is a GPT of
# this shape. Llama-2-7B itself would keep 54.5 GB if it wrote its scores, and 20 GB with fused
# attention. FlashAttention is known for its speed; here it saves 34 GB, and it does so by
# recomputing: backward computes the scores again, block by block.
#
# The measured 38.0 is the formula's 37.5 plus three small float32 tensors: a log-sum-exp for each
# token and head, from which fused attention recomputes its scores; the sines and cosines of RoPE;
# and one statistic per token for each norm. At a width of 4,096 their share is smaller. Autocast's
# float32 residual stream costs a quarter more. (Its bfloat16 copies of the weights are not counted
# here.)
#
# ### Memory over a step
#
# Activations accumulate during forward; backward frees them and leaves gradients. The picture shows
# one step of the *small* transformer, with 4 layers, measured here, by kind of tensor:


# %% step
def forward(model, tokens, layers_a_segment=0, **options):
    """The logits; with `layers_a_segment`, of the layers only the segments' inputs are kept."""
    x, blocks = model.embedding(tokens), [*model.layers.values()]
    length = layers_a_segment or len(blocks)
    for start in range(0, len(blocks), length):
        segment = nn.Sequential(*blocks[start : start + length])
        if layers_a_segment:
            x = checkpoint(segment, x, use_reentrant=False, **options)
        else:
            x = segment(x)
    return model.head(model.norm(x))


# %% training_step
def training_step(shape, batch_size, length, layers_a_segment=0):
    """Train for one step with 16 bytes a parameter, after one that makes the optimizer's state."""
    torch.set_num_threads(1)
    model = new_model(torch.bfloat16, shape)
    optimizer = MasterAdam(model.parameters())
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    tokens = torch.randint(0, shape.vocab_size, (batch_size, length))
    with ws.span("forward", kind="forward"):
        logits = forward(model, tokens, layers_a_segment)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    del logits
    with ws.span("backward", kind="backward"):
        loss.backward()
    optimizer.step()


# %% step_drawn
small = models.shape("small")
step_run = ws.run(training_step, small, 4, 256, memory=True, **alone)
draw.memory_use({"small": step_run.memory[0]}, title="One training step by kind, measured here")

# %% [markdown]
# On the left the model is created, and a first update creates the optimizer's state. In the step
# itself, activations rise above the constant states: they grow layer by layer during forward, peak
# where forward ends and backward begins, and give way to gradients, which the update consumes.
#
# ## 6. Recompute activations instead of keeping them
#
# ### The idea
#
# Activations are kept because backward needs them. But they can be computed again. **Gradient
# checkpointing** (also: activation checkpointing, recomputation; Chen et al. 2016, *Training Deep
# Nets with Sublinear Memory Cost*) divides the layers into segments. Forward keeps the input of
# each segment and discards the rest; when backward reaches a segment, it runs that segment's
# forward again, from the input that was kept, and goes on.
#
# ```text
# forward    x ─[1]─[2]─x─[3]─[4]─x─[5]─[6]─ loss        x: kept
# backward                        x─[5]─[6]◄─┘           5 and 6 again, then back through them
#                       x─[3]─[4]◄┘                      3 and 4 again, ...
#            x─[1]─[2]◄─┘
# ```
#
# One call does it: `y = torch.utils.checkpoint.checkpoint(segment, x, use_reentrant=False)`. The
# next cell compares four variants on the same model with 16 layers: checkpointing nothing; each
# layer; segments of four; and **selective**, which keeps the results of the expensive operations
# (matmuls and attention) and recomputes only the cheap rest. Each runs with real data on an
# emulated H100.


# %% variants
def keep_products(context, operation, *args, **kwargs):
    """Keep what matrix products and attention give; anything else may be computed again."""
    name = operation.overloadpacket.__name__
    if name in ("mm", "_scaled_dot_product_flash_attention_for_cpu"):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def one_pass(shape, layers_a_segment, is_selective):
    """The gradients of a forward and backward pass, and how often a layer ran."""
    torch.set_num_threads(1)
    model, num_runs = new_model(torch.bfloat16, shape), []
    for block in model.layers.values():
        block.register_forward_pre_hook(lambda *_: num_runs.append(1))
    tokens = torch.arange(2 * 256).view(2, 256) % shape.vocab_size
    contexts = partial(create_selective_checkpoint_contexts, keep_products)
    options = {"context_fn": contexts} if is_selective else {}
    logits = forward(model, tokens, layers_a_segment, **options)
    F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()]), len(num_runs)


# %% variants_measured
VARIANTS = {"none": 0, "segments of 4": 4, "each layer": 1, "selective": 1}
deep = replace(small, num_layers=16)
passes = {
    name: ws.run(one_pass, deep, num, name == "selective", cluster=cluster, memory=True, **alone)
    for name, num in VARIANTS.items()
}
first = passes["none"]
rows = [
    {
        "recompute": name,
        "peak_activations_bytes": max(run.memory[0].sizes["activations"]),
        "layers run": run.values[0][1],
        "emulated_s": run.timeline.end_s,
        "longer_fraction": run.timeline.end_s / first.timeline.end_s - 1,
        "same gradients": torch.equal(run.values[0][0], first.values[0][0]),
    }
    for name, run in passes.items()
]
draw.table(rows, title=f"16 layers: memory measured here, time emulated on {cluster}")

# %% [markdown]
# The gradients are the same bit for bit, because the same operations run on the same inputs.
# Checkpoint each layer, and the activations shrink to a ninth. Selective recomputation saves more
# than a third of the activations for 3% of the time. Segments of four rerun as many layers as
# segments of one, and hold more at the peak: why they lose here, and where they win, is shown
# below.
#
# torch has a trap here: `checkpoint_sequential(layers, 4, x)` makes four segments and does not
# checkpoint the last of them, whose activations are then all kept. The loop in `forward`
# checkpoints every segment.

# %% variants_drawn
chosen = {name: passes[name].memory[0] for name in ("none", "segments of 4", "each layer")}
draw.memory_use(chosen, title="A forward and backward pass of 16 layers, measured here")

# %% [markdown]
# ### What a second forward costs
#
# The usual estimate is "a third more": forward is 1, backward 2, one more forward makes 4 instead
# of 3. Measure it for four kinds of block. What is *computed* again is counted here; how long that
# *takes* is priced on paper, at real sizes: forward and backward of two blocks on one GPU, once
# with `checkpoint` around each block and once without.


# %% blocks
def blocks_of(kind, width, num_heads=4):
    """Two blocks of a kind."""
    if kind.startswith("GPT layer"):
        return [GptLayer(width, num_heads, kind.endswith("its core")) for _ in range(2)]
    if kind == "Llama layer":
        wider = {"num_heads": num_heads, "num_kv_heads": num_heads // 4}
        sizes = replace(models.shape("llama-3-8b"), width=width, hidden_width=7 * width // 2)
        return [*models.Transformer(replace(sizes, num_layers=2, **wider)).layers.values()]
    end = [nn.Dropout(0.1)] if kind == "MLP with dropout" else []
    layers = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    return [nn.Sequential(*layers, *end), nn.Sequential(*layers, *end)]


# %% pass_through
def pass_through(kind, width, num_heads, batch_size, length, is_checkpointed, stops_early=True):
    """Run blocks of a kind forward and backward."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16)
    blocks = blocks_of(kind, width, num_heads)
    x = torch.randn(batch_size, length, width, requires_grad=True)
    with set_checkpoint_early_stop(stops_early):
        with ws.span("forward", kind="forward"):
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False) if is_checkpointed else block(x)
        with ws.span("backward", kind="backward"):
            x.backward(torch.ones_like(x))
    torch.set_default_dtype(torch.float32)


# %% recompute_cost
def counted_flops(*args):
    """The floating-point operations of `pass_through`, counted here."""
    with FlopCounterMode(display=False) as counted:
        pass_through(*args)
    return counted.get_total_flops()


# %% recompute_cost_measured
rows, again = [], {}
BLOCKS = {
    "MLP": (4096, 32, 1, 8192),
    "MLP with dropout": (4096, 32, 1, 8192),
    "Llama layer": (4096, 32, 1, 8192),
    "GPT layer": (6144, 64, 4, 2048),
}
for kind, sizes in BLOCKS.items():
    flops = [counted_flops(kind, 64, 4, 1, 128, is_again) for is_again in (False, True)]
    on = {"world_size": 1, "cluster": "dgx-a100" if "GPT" in kind else "dgx-h100", "echo": False}
    plain, redone = (ws.paper(pass_through, kind, *sizes, one, **on) for one in (False, True))
    added_s = redone.step_s - plain.step_s
    again[kind], gpt_plain = added_s / plain.step_s, plain
    rows.append(
        {
            "block": kind,
            "of a forward, operations_fraction": 3 * (flops[1] / flops[0] - 1),
            "of a forward, time_fraction": added_s / plain.timeline.time_s(0, "forward"),
            "step longer by_fraction": again[kind],
        }
    )
note = "operations: counted here, small; time: on paper, H100, and A100 for the GPT layer"
draw.table(rows, title="What full recomputation repeats", note=note)

# %% [markdown]
# "A third" is an upper bound for FLOPs, not a constant. `checkpoint` **stops early**: as soon as
# everything that backward needs has been recomputed, it leaves the forward. The output of a block's
# last matmul is never needed, because it is the *next* block's input, and that was kept. So an MLP
# of two matmuls repeats one; a Llama layer all but the `down` matmul, about three quarters. Put a
# dropout at the end, and backward needs its mask: now everything is repeated, and a third is right.
#
# In time a GPT layer pays more than a third, 38%: forward is more than a third of its step, because
# softmax, dropout and norms take time although they have hardly any FLOPs. Korthikanti et al.
# *measured* 39% for this layer of their model of 22 billion parameters (section 6.2, table 4:
# 7.7 ms forward and 11.9 backward). They give a different reason: eight GPUs share their layer, and
# its backward hides all-reduces behind the gradients of weights. Ours is one GPU alone.
#
# ### Your turn: what a recompute repeats
#
# 5 minutes · easy
#
# Count the FLOPs that backward repeats when the course's `Mlp`, `down(silu(gate(x)) * up(x))`, is
# checkpointed. A matmul of a (T, W) with a (W, F) matrix takes 2 T W F FLOPs; leave out everything
# else.
#
# <details><summary>Hint</summary>
#
# There are three matmuls. Whose output does backward not need?
# </details>


# %% repeated_flops tags=["turn"]
def repeated_flops(num_tokens, width, hidden_width):
    """The operations of matrix products that are done again for a checkpointed SwiGLU MLP."""
    ### BEGIN SOLUTION
    num_products = 2  # gate and up; the output of down is not needed
    return num_products * 2 * num_tokens * width * hidden_width
    ### END SOLUTION


# %% check_repeated_flops
with check.turn("repeated_flops"):
    for width, hidden, num in ((64, 192, 10), (64, 256, 50)):
        mlp = new_model(width=width, hidden_width=hidden).layers["0"].mlp
        counts = []
        for is_checkpointed in (False, True):
            x = torch.randn(num, width, requires_grad=True)
            with FlopCounterMode(display=False) as counted:
                y = checkpoint(mlp, x, use_reentrant=False) if is_checkpointed else mlp(x)
                y.sum().backward()
            counts.append(counted.get_total_flops())
        hint = "gate and up are needed for what backward multiplies; is the output of down?"
        expected = float(counts[1] - counts[0])
        check.expect_close(repeated_flops(num, width, hidden), expected, "the operations", hint)
    print("Right: two thirds of a forward, so a step of 3 grows by 2/9.")

# %% [markdown]
# ### Selective recomputation costs a third of what the paper says
#
# The method of Korthikanti et al. is more selective: keep everything but the *core* of attention,
# the part with $5as^2b$ bytes and few FLOPs. In section 5 they give its cost: 2.7% more FLOPs for
# GPT-3, and 1.6% for MT-NLG. Their appendix A says what is computed again: $QK^T$ and the matmul
# with V, $2Bs^2h$ each. A layer's forward and backward take $72Bsh^2 (1 + s/6h)$. Divide:
#
# $$\frac{4Bs^2h}{72Bsh^2 (1 + s/6h)} \approx \frac{s}{18h}$$
#
# where the paper's equations 8 and 9 have $s/6h$.


# %% selective
def core_fraction(length, width):
    """The operations of attention's core over those of a layer's forward and backward pass."""
    return 4 * length * width / (72 * width**2 + 12 * length * width)


rows = [
    {"layer of": name, "printed": printed, "computed_fraction": core_fraction(2048, width)}
    for name, width, printed in (("GPT-3", 12288, "2.7%"), ("MT-NLG", 20480, "1.6%"))
]
tiny = (64, 4, 1, 128)
plain = counted_flops("GPT layer", *tiny, False)
for stops_early in (False, True):
    with_core = ("GPT layer, again its core", *tiny, False, stops_early)
    rows.append(
        {
            "layer of": f"s 128, h 64{', stopping early' if stops_early else ''}",
            "computed_fraction": core_fraction(128, 64) / (2 if stops_early else 1),
            "counted here_fraction": counted_flops(*with_core) / plain - 1,
        }
    )
draw.table(rows, title="Selective recomputation: operations added to a step")

# %% [markdown]
# The paper's figures for the extra work are three times too large, and the HFU in its table 5
# includes them: their method is better than they said. In *time* they measured 7%, because softmax
# and dropout, which have hardly any FLOPs, are repeated too. Today's `checkpoint` even skips the
# last matmul, the one with V, and so repeats half of those FLOPs.
#
# ### How long should a segment be?
#
# With segments of k layers the peak holds the inputs of n/k segments and all activations of one
# segment. If a layer keeps A bytes and its input is x bytes, then
#
# $$\frac{n}{k} x + kA \quad\text{is smallest at}\quad k = \sqrt{n x / A}$$
#
# Where a layer keeps little more than its input, A = x, that is Chen et al.'s $\sqrt{n}$: 32
# segments for 1,000 layers. In a transformer A is about 20 times x, and the same formula gives
# $k = \sqrt{32 / 20} \approx 1$ for 32 layers: **checkpoint each layer**. Our table above shows the
# same: segments of four hold more and repeat no less. (Narayanan et al. 2021, section 3.5,
# recommend one or two layers too.)


# %% plan_memory
def plan_memory(layers_a_segment=1, tokens=8192, num_gpus=1):
    """What Llama 3 8B holds on one GPU of `num_gpus` that share its states, by the formulas."""
    shape, k = models.shape("llama-3-8b"), layers_a_segment
    layer_bytes = shape.layer_activation_bytes(1, tokens)
    states = {"states, 16 B a parameter": 16 * shape.num_parameters / num_gpus}
    inputs_bytes = 2 * tokens * shape.width * math.ceil(shape.num_layers / k)
    parts = {
        "keep all": {**states, "kept activations": shape.num_layers * layer_bytes},
        f"segments of {k}": {
            **states,
            "kept activations": inputs_bytes,
            "one segment, recomputed": k * layer_bytes,
        },
    }
    share = f"1/{num_gpus} of the" if num_gpus > 1 else "all"
    title = f"Llama 3 8B, {tokens:,} tokens, {share} states (computed, without logits)"
    picture = draw.memory(parts, 80e9, title, "an H100's memory")
    down = 2 * shape.width * shape.hidden_width / (k * shape.layer_flops(tokens))
    return picture, f"Recomputing adds {(1 - down) / 3:.1%} to the layers' operations."


# %% plan_memory_explored
explore(
    plan_memory,
    layers_a_segment=(1, 32, "x2"),
    tokens=(1024, 131072, "x2"),
    num_gpus=(1, 64, "x2"),
)

# %% [markdown]
# ### The whole model, on paper
#
# Now run Llama 3 8B itself: the same `training_step` as above, unmodified, with one sequence of
# 8,192 tokens and all 32 layers on one H100, recorded on fake tensors.

# %% on_paper
llama = models.shape("llama-3-8b")
paper_options = {"world_size": 1, "cluster": cluster, "tokens_per_step": 8192, "echo": False}
on_paper = {
    name: ws.paper(training_step, llama, 1, 8192, num, **paper_options)
    for name, num in (("all kept", 0), ("each layer again", 1))
}
rows = [
    {
        "Llama 3 8B": name,
        "peak_bytes": run.memory[0].most_bytes,
        "most activations_bytes": max(run.memory[0].sizes["activations"]),
        "fits 80 GB": run.fits,
        "step_s": run.step_s,
        "mfu_fraction": run.mfu_fraction,
        "hfu_fraction": run.hfu_fraction,
    }
    for name, run in on_paper.items()
]
kept_run, again_run = on_paper.values()
longer = again_run.step_s / kept_run.step_s - 1
predictions.reveal("full recomputation, Llama 3 8B, adds", 100 * longer)
draw.table(rows, title=f"One step of 8,192 tokens on one GPU of {cluster}, on paper")

# %% on_paper_drawn
draw.memory_use(
    {name: run.memory[0] for name, run in on_paper.items()},
    title="Llama 3 8B, one step by kind, on paper",
)

# %% [markdown]
# Recomputation removes the peak of activations, but not the states below it. Weights, gradients and
# optimizer state are 128 GB whatever happens to activations, and no H100 has so much: this is where
# week 7 begins.
#
# Two more columns of the table matter. **MFU** counts only the FLOPs that the model needs, so it
# falls by as much as the step grows. **HFU** counts the FLOPs that the hardware did and stays the
# same: in a run that reports a high HFU, a quarter of the work may be recomputation. And the step
# grows by less than a layer in the table of blocks, because LM head, loss and update are not
# repeated.
#
# The small peak that remains is the *LM head*: 8,192 tokens times 128,256 entries in float32 are
# 4.2 GB, and the loss needs three such tensors at once. Checkpointing layers does not reduce it.
#
# ### The exam question, answered
#
# *How does gradient checkpointing reduce memory usage in large model training?*
#
# > Backward needs the activations of forward, so training keeps all of them: $sbh(34 + 5as/h)$
# > bytes in each layer of a GPT. With checkpointing, forward keeps only the input of each segment
# > of layers, 2sbh bytes, and drops the rest. When backward reaches a segment, it runs the
# > segment's forward again from that input, uses the activations and frees them. At the peak there
# > are the inputs of all segments and *one* segment's activations: of n layers in segments of k,
# > $(n/k)x + kA$, of the order of $\sqrt n$ at best. It reduces activations only; weights,
# > gradients and optimizer state stay. The cost is up to one more forward, a third more FLOPs.
# > Selective checkpointing repeats only what is large and cheap, such as attention's softmax. The
# > gradients are the same, provided that dropout draws the same numbers again, so the state of the
# > random generator is part of what is kept.
#
# ### Gradient accumulation
#
# The third way to hold fewer activations is not to run the whole batch at once. Run micro-batches
# one after the other, let their gradients add up in `.grad`, and update once. No operation is
# repeated, and the batch can be as large as you like. The next cell runs the same eight sequences
# through the small transformer, at once and in four parts:


# %% accumulated
def accumulated(num_parts):
    """The gradient of one batch in equal parts, and the most activations that one of them holds."""
    torch.set_num_threads(1)
    model, most = new_model(shape="small"), 0
    tokens, targets = next(batches(1, batch_size=8, length=128))
    for part, wanted in zip(tokens.chunk(num_parts), targets.chunk(num_parts), strict=True):
        loss = loss_of(model, part, wanted) / num_parts
        most = max(most, memory.held()["activations"])
        loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()]), most


whole, parts = ws.run(lambda: [accumulated(1), accumulated(4)], memory=True, **alone).values[0]
difference = (whole[0] - parts[0]).norm() / whole[0].norm()
sizes = [units.format_bytes(one[1]) for one in (whole, parts)]
print(f"activations: {sizes[0]} at once, {sizes[1]} in four parts")
print(f"relative difference of the gradients: {difference:.0e}")
for num in (64, 256, 1024):
    share = added_one_by_one(num, torch.bfloat16) / num
    print(f"{num:,} equal gradients added in bfloat16: {share:.0%} of the sum")

# %% [markdown]
# The last line is the first failure of this week again: `.grad` of a bfloat16 weight is bfloat16,
# so a sum of many micro-batches' gradients in it stops growing. Accumulate in float32.
#
# The loop above divides by the number of parts. That is right because all parts have equally many
# tokens. Real micro-batches do not.
#
# ### Your turn: accumulate unequal micro-batches
#
# 10 minutes · medium
#
# Each micro-batch is (tokens, targets); a target of -100 is padding and does not count. Leave the
# gradient of the *mean over all tokens that count* in `.grad`. `F.cross_entropy` ignores -100 by
# itself, and has `reduction="sum"`.
#
# <details><summary>Hint</summary>
#
# First count the tokens of the whole batch in one pass over the targets; then sum each
# micro-batch's losses, divide by that number, and run backward.
# </details>


# %% accumulate tags=["turn"]
def accumulate(model, micro_batches):
    """Add the gradient of the mean loss over all tokens that count to the weights' gradients."""
    ### BEGIN SOLUTION
    num_tokens = sum((targets != -100).sum() for _, targets in micro_batches)
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), reduction="sum") / num_tokens
        loss.backward()
    ### END SOLUTION


# %% check_accumulate
def uneven(lengths, num_tokens=64):
    """One sequence of text for each of these lengths, padded."""
    tokens, targets = next(batches(1, batch_size=len(lengths), length=num_tokens))
    is_padding = torch.arange(num_tokens) >= torch.tensor(lengths).unsqueeze(1)
    return tokens, targets.masked_fill(is_padding, -100)


def gradient_of(model):
    """All gradients in one vector; the weights keep none."""
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    model.zero_grad()
    return gradient


with check.turn("accumulate"):
    model = new_model()
    tokens, targets = uneven([4, 60, 12, 40])
    accumulate(model, [*zip(tokens.split(1), targets.split(1), strict=True)])
    found = gradient_of(model)
    loss_of(model, tokens, targets).backward()
    hint = "Divide by the number of targets that are not -100, in all micro-batches together."
    check.expect_close(found, gradient_of(model), "the accumulated gradient", hint, atol=1e-6)
    print("Right: the gradient of the whole batch, one micro-batch at a time.")

# %% [markdown]
# ## 7. Formula, measurement, emulation, paper
#
# Two tables compare what this week has computed, measured, emulated and run on paper.

# %% side_by_side
layer_bytes = llama.layer_activation_bytes(1, 8192)
kept, dropped = (max(run.memory[0].sizes["activations"]) for run in on_paper.values())
paper_bytes = (kept - dropped) / llama.num_layers + 2 * 8192 * llama.width
down = 2 * llama.width * llama.hidden_width / llama.layer_flops(8192)
one = ("GPT layer, again its core", 6144, 64, 4, 2048, False)
core = ws.paper(pass_through, *one, world_size=1, cluster="dgx-a100", echo=False)
core_longer = core.step_s / gpt_plain.step_s - 1
emulated = passes["each layer"].timeline.end_s / passes["none"].timeline.end_s - 1


def compared(quantity, formula, found, how, published=None):
    """A row of shares of a step: what was found against the published share, or the formula."""
    return {
        "a step grows by": quantity,
        "formula_fraction": formula,
        "found_fraction": found,
        "how": how,
        "published_fraction": published,
        "difference, points": f"{100 * (found - (published or formula)):+.1f}",
    }


# %% side_by_side_memory
small_gpt, small_llama = found_bytes[2] / (256 * 4 * 512), llama_bytes["fused attention"] / unit
rows = [
    {
        "a layer keeps": quantity,
        "formula": round(formula, 2),
        "found": round(found, 2),
        "how": how,
        "off by": f"{found / formula - 1:+.1%}",
    }
    for quantity, formula, found, how in (
        ("GPT, masks of 2 bytes, in sbh", 36 + 6 * 4.0, small_gpt, "measured here"),
        ("Llama, in sbh", 37.5, small_llama, "measured here"),
        ("Llama 3 8B, 8,192 tokens, in GB", layer_bytes / 1e9, paper_bytes / 1e9, "on paper"),
    )
]
draw.table(rows, title="Memory: formula, measurement, paper")

# %% side_by_side_time
third, most, least = 1 / 3, (1 - down) / 3, core_fraction(2048, 6144)
rows = [
    compared("16 small layers, each again", most, emulated, "emulated, H100"),
    compared("Llama 3 8B, a layer again", most, again["Llama layer"], "on paper, H100"),
    compared("Llama 3 8B, the whole step", most, longer, "on paper, H100"),
    compared("GPT 22B, a layer again", third, again["GPT layer"], "on paper, A100", 0.39),
    compared("GPT 22B, its core again", least, core_longer, "on paper, A100", 0.07),
]
note = "formula: operations; published: Korthikanti et al. 2022, table 4"
draw.table(rows, title="Time: formula, emulation, paper, published", note=note)

# %% [markdown]
# Memory can be counted: every row agrees with its formula to about a percent, and the cause of that
# percent is known (the float32 tensors of section 5). Time cannot be computed from FLOPs alone. The
# FLOP formula is right within five percentage points for whole layers. For the core of attention it
# is far off, 1.8% against 7% measured, because nearly all of the core's time goes into reading and
# writing memory. Our price for the core, 12.5%, is too high: on paper each operation is a separate
# kernel, and real ones are fused.
#
# ## 8. When it breaks
#
# ### Accumulation averaged the means of unequal micro-batches
#
# On 4 October 2024 a user reported (huggingface/trl, issue 2175) that two models, trained with a
# batch of 32 and with a batch of 1 accumulated 32 times, ended at clearly different losses, the
# higher one with accumulation. The two should be the same training. The first answer was that some
# difference is to be expected, from accumulating in 16 bits under FSDP. It was a good guess (see
# section 6), but wrong.
#
# On 15 October the makers of Unsloth found it (*Bugs in LLM training: gradient accumulation fix*;
# transformers pull request 34191). Each micro-batch divided its loss by *its own* number of tokens,
# and the means were averaged. That is the batch's mean only if all micro-batches have equally many
# tokens: tests, with sequences cut to one length, had always passed. The next cell takes 10 tokens
# at a loss of 2 and 1,000 at a loss of 1:


# %% mean_of_means
print(f"mean of means {(2.0 + 1.0) / 2:.4f}, mean {(10 * 2.0 + 1000 * 1.0) / 1010:.4f}")
for lengths in ([60, 60, 60, 60], [4, 60, 12, 40], [1, 2, 60, 60]):
    model = new_model()
    tokens, targets = uneven(lengths)
    for part, wanted in zip(tokens.split(1), targets.split(1), strict=True):
        (loss_of(model, part, wanted) / len(lengths)).backward()
    of_means = gradient_of(model)
    loss_of(model, tokens, targets).backward()
    right = gradient_of(model)
    print(
        f"sequences of {lengths}: norm {of_means.norm():.3f}, right {right.norm():.3f}; relative"
        f" difference {(of_means - right).norm() / right.norm():.1%}"
    )

# %% [markdown]
# The fix changed the interface: the loss function must be given the number of tokens of the *whole*
# batch before the first micro-batch runs (pull request 34198). And the fix had to be fixed: in
# December the gradient norm (transformers issue 35203) and the reported loss (pull request 35438)
# were still wrong in some paths. Unsloth's post says that the fault had been reported in 2021. Data
# parallelism has the same mean of means: DDP averages the *ranks'* means, whatever their token
# counts.
#
# **How this week's tools find it**: run one batch, as uneven as you can make it, once in one piece
# and once in parts, and compare the *gradients*, in float32, not the losses of two runs. That takes
# a second, and a difference of three quarters is not rounding: in float32 it refutes the first
# explanation at once.
#
# ### A parameter count that was never printed
#
# In 2021 BigScience set out to train 104 billion parameters in float16. Around iteration 7,000 the
# loss rose from 6.4 to 14 within ten steps, and later became NaN; with another seed it diverged at
# 6,900. A colleague read in the curve of the loss scale that the run had been heading there since
# about 4,700. They went back further, with another $\beta_2$ of Adam, and it diverged again. Then
# they found that `FFN_HIDDEN_SIZE` was still the 20,480 of a smaller model, not 65,536: all five
# runs had trained **58 billion parameters**. Printing their number before the first step and
# comparing it with the formula would have shown that.
#
# The corrected model diverged too. Lower learning rates and longer warm-ups only postponed it; a
# smaller initialisation, 0.006 in place of 0.02, was what they called a breakthrough, still in
# float16. For 176 billion they used bfloat16 with float32 accumulation, and saw no instability in
# the first 24 billion tokens; they write that it is hard to say which of several changes did it
# (bigscience-workshop/bigscience, `tr8-104B-wide/chronicles.md`, experiments 1 to 11, and
# `tr11-176B-ml/chronicles.md`).
#
# So plot the loss scale as above. A scale that falls at the start is still being adjusted. One that
# falls late and does not recover shows that gradients grow; a bfloat16 run has the same problem but
# no such alarm, so watch its gradient norm.

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | **1/512** of a weight | bfloat16 loses any smaller update: keep masters | section 3 |
# | **2⁻²⁴ to 65,504** | float16's range: scale the loss; bfloat16 needs no scale | section 4 |
# | **16 B** a parameter | 80 GB hold 5 billion parameters' states, no activations | section 4 |
# | **sbh(34 + 5as/h)** | a GPT layer; from s = 6.8 h/a on, mostly scores | section 5 |
# | **sbh(16 + 8f/h)** | a Llama layer, fused attention; 37.5 sbh at 7B | section 5 |
# | **23 to 38%** | added to a step when all layers run again; MFU falls, HFU stays | section 6 |

# %% [markdown]
# ## 9. Problems
#
# **1.** 64 micro-batches, each with a gradient of exactly 1 for some weight, are added in
# bfloat16 in `.grad`. Is the sum right? And 512?
#
# <details><summary>Answer</summary>
#
# bfloat16 represents all integers up to 256, so 64 is right. From 256 on the gap is 2, and
# `256 + 1` rounds to 256: 512 micro-batches give 256, half of the sum. Real gradients are not
# integers, and lose digits earlier: once the sum is 256 times a term, the term is lost.
# </details>
#
# **2.** A weight is 0.02, and Adam's learning rate is $3 \cdot 10^{-5}$. Does the weight change in
# bfloat16?
#
# <details><summary>Answer</summary>
#
# $2^{-6} = 0.0156 \le 0.02 < 2^{-5}$, so the gap is $2^{-6} \cdot 2^{-7} = 2^{-13} = 0.000122$,
# half of it 0.000061. Adam's updates are seldom larger than the rate, 0.00003, so nearly all of
# them are lost.
# </details>
#
# **3.** GPT-3 has h = 12,288, a = 96, s = 2,048. Which part of a layer's activations is
# attention's core, and what is left of the layer when it is recomputed?
#
# <details><summary>Answer</summary>
#
# $5as/h = 5 \cdot 96 \cdot 2048 / 12288 = 80$. Of 34 + 80 = 114 the core is 80, 70%; 34 are left
# (Korthikanti et al., section 5, say 70% too). Recomputing the core costs $s/18h$ = 0.9% of the
# FLOPs.
# </details>
#
# **4.** Llama 3 8B is trained with sequences of 8,192 tokens on GPUs of 80 GB; the states are
# sharded over 8 (week 7), 16 GB each. Without recomputation, do the activations of one sequence
# fit? Of two?
#
# <details><summary>Answer</summary>
#
# There are a quarter as many key heads as query heads (GQA): keys and values take 0.5 + 0.5 instead
# of 2 + 2, so the 16 becomes 13, and $13 + 8 \cdot 3.5 = 41$ bytes. $41 \cdot 8192 \cdot 4096$ =
# 1.38 GB a layer, 44 GB for 32, and 12.6 GB for the LM head's three float32 tensors. 16 + 44 + 13 =
# 73 GB: one fits. Two need 129 GB, and do not fit. With every layer recomputed two need 16 + 4.3 +
# 2.8 + 25 = 48 GB at most; the LM head has become the largest part.
# </details>
#
# **5.** A run reports an HFU of 52%. It recomputes every layer of a GPT. What is its MFU, and how
# much faster would a step be with enough memory to keep everything?
#
# <details><summary>Answer</summary>
#
# The hardware does 4 where the model needs 3: MFU = 52% · 3/4 = 39%. At the same FLOP/s the step
# takes 3/4 of the time. (An example is Narayanan et al. 2021, table 1: 52% of peak, with
# recomputation included.)
# </details>
#
# **6.** *Design.* A model has 24 layers; a layer keeps 1.5 GB and its input is 0.075 GB; 20 GB are
# free for activations, and a step without recomputation takes 1 s, a third of it forward. You may
# choose for each layer whether to recompute it. How many, and how long is the step?
#
# <details><summary>Answer</summary>
#
# Recompute r layers: those keep 0.075 r, the others 1.5 (24 - r), and while one is recomputed all
# its activations are in memory: 0.075 r + 1.5 (24 - r) + 1.5 ≤ 20 gives r ≥ 12.3, so 13: 0.975 +
# 16.5 + 1.5 = 19.0 GB. The step repeats at most 13/24 of a forward: 1 + 13/24 · 1/3 = 1.18 s, and
# about 1.14 s if each recomputation stops after three quarters of its layer. Recomputing all layers
# would take 1.33 s to free memory that is not needed. Which layers to recompute is a question for
# lab 6.
# </details>
#
# ### Self-check
#
# First, compare your predictions with the results.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions follow. Every answer, right or wrong, has its own explanation.

# %% self_check
quiz.ask("week06", seed=seed)

# %% [markdown]
# ## To take with you
#
# - Multiply in 16 bits, add in 32. Sums, updates and losses are additions.
# - bfloat16 has the wider range, float16 has more digits. A float16 run needs a loss scale; both
#   need master weights.
# - A formula for activations is only as good as its list of assumptions: dropout, masks, scores,
#   precision.
# - Checkpointing removes activations, and only these. It makes a step a quarter to a third longer,
#   or a little more where softmax and dropout are kernels of their own. In a transformer,
#   checkpoint each layer, or selectively recompute what is large and cheap.
# - Accumulated gradients are the batch's gradient if you divide by the batch's tokens.
#
# **Now the lab**: [lab 6, a loss scaler and a checkpointed sequential](../labs/lab06/lab06.ipynb).
# Then **week 7**, *ZeRO and FSDP*: how to shard the 16 bytes that remain.
