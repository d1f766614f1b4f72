# %% [markdown]
# # Week 7. ZeRO and FSDP
#
# | | |
# |---|---|
# | Reading | about 100 minutes, with seven short exercises in place |
# | Running | about a minute on two CPU cores; GPUs are used if there are enough |
# | You need | [week 3](week03_ddp_from_first_principles.ipynb), and week 6 for mixed precision |
# | You do not need | DeepSpeed, or torch's `fully_shard` |
# | Afterwards | lab 7, *ZeRO-1, 2 and 3 by hand* |
#
# With DDP every rank holds the whole model, its gradients and its optimizer state. Rank 5 holds
# nothing that rank 0 does not hold too. **ZeRO** (Rajbhandari et al. 2020) gives each rank one part
# of these, and fetches the other parts when they are needed. torch's version is **FSDP**, *fully
# sharded data parallel*.
#
# **N** is the number of ranks, **P** the number of parameters, **B** the number of tokens that a
# rank takes through the model in one step.

# %% [markdown]
# ## 1. The question
#
# > Training takes 16 bytes for each parameter. Which of them does a rank need at which moment, and
# > what does it cost to fetch those that it does not hold?
#
# Afterwards you can say what a GPU holds at each stage of ZeRO, what it sends, how many tokens it
# needs to hide the communication, and which stage a given model and cluster call for.

# %% parameters tags=["parameters"]
world_size = 2  # ranks in the experiments on this machine: 2 or 4
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
cluster = "dgx-a100"  # the emulated cluster of sections 3 and 4; later tables name their own
seed = 0
# weights, gradients and optimizer state of 10 billion parameters on each of 8 GPUs, all sharded
predicted_state_gb = None
# what a rank sends in a step with everything sharded, over what it sends with DDP
predicted_wire_ratio = None
# what full sharding adds to forward and backward: Llama's layers, 4,096 tokens on each of 8 H100
predicted_fsdp_percent = None
# the most that Llama 3 8B, sharded over 8 GPUs, holds on each for one sequence of 8,192 tokens
predicted_peak_gb = None

# %% setup
import dataclasses
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import worldsize as ws
from worldsize import check, draw, emulate, hardware, ledger, memory, pricing, quiz, units
from worldsize.check import CheckFailed
from worldsize.models import Transformer, shape

Path("build/week07").mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # as the ranks do: they share the cores
predictions = ledger.Predictions("week07")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers. All four assume mixed precision with Adam: weights and
# gradients in bfloat16, and for the optimizer three float32 values for each parameter.

# %% predict
predictions.ask("state of 10B parameters, sharded over 8", predicted_state_gb, "GB", section=4)
predictions.ask("bytes sent, all sharded over DDP", predicted_wire_ratio, "times", section=4)
predictions.ask(
    "FSDP adds at 4,096 tokens, 8 H100", predicted_fsdp_percent, "%", section=6, choices=(1, 10, 50)
)
predictions.ask("peak of Llama 3 8B on 8 GPUs", predicted_peak_gb, "GB", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### Training holds sixteen bytes for each parameter
#
# Mixed precision (week 6) keeps for each parameter (ZeRO, section 3.1):
#
# ```text
# bf16 weight  ██                 2   read by forward and backward
# bf16 gradient ██                2   written by backward, read by the optimizer
# fp32 master  ████               4 ┐
# fp32 Adam m  ████               4 ├ read and written by the optimizer alone
# fp32 Adam v  ████               4 ┘
# ```
#
# Twelve of the sixteen bytes are used only by the optimizer, once in a step. A model of 1.5 billion
# parameters has 3 GB of weights and needs 24 GB to be trained.
#
# ### Your turn: count the bytes
#
# 5 minutes · easy
#
# Count what torch holds of a model after a step: its parameters, their gradients, and the tensors
# that its optimizer keeps. The check compares your bytes with sums like the one above, for three
# optimizers, for two formats, and for a model of which half is frozen.
#
# <details><summary>Hint</summary>
#
# `tensor.nbytes` is the size of a tensor. `optimizer.state.values()` has a dictionary for each
# parameter that was updated, and the values of these are tensors. The `.grad` of a frozen parameter
# is None.
#
# </details>


# %% training_bytes tags=["turn"]
def training_bytes(model, optimizer):
    """The bytes of a model's parameters, of their gradients, and of its optimizer's state."""
    ### BEGIN SOLUTION
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    states = [one for state in optimizer.state.values() for one in state.values()]
    return sum(one.nbytes for one in [*model.parameters(), *gradients, *states])
    ### END SOLUTION


# %% check_training_bytes
def after_a_step(make_optimizer, dtype=torch.float32, num_frozen=0):
    """Two layers, of which the first ones may be frozen, after a step, and their optimizer."""
    two = nn.Sequential(*(nn.Linear(128, 128, bias=False, dtype=dtype) for _ in range(2)))
    two[:num_frozen].requires_grad_(False)
    optimizer = make_optimizer([one for one in two.parameters() if one.requires_grad])
    two(torch.ones(1, 128, dtype=dtype)).sum().backward()
    optimizer.step()
    return two, optimizer


with check.turn("training_bytes"):
    for name, wanted, make_optimizer, *options in (
        ("SGD", 4 + 4, torch.optim.SGD),
        ("Adam", 4 + 4 + 8, torch.optim.Adam),
        ("AMSGrad", 4 + 4 + 12, lambda weights: torch.optim.Adam(weights, amsgrad=True)),
        ("Adam, all in bfloat16", 2 + 2 + 4, torch.optim.Adam, torch.bfloat16),
        ("Adam, half of it frozen", (4 + 16) / 2, torch.optim.Adam, torch.float32, 1),
    ):
        size_bytes = training_bytes(*after_a_step(make_optimizer, *options)) / (2 * 128**2)
        hint = "Parameters, the gradients that there are, and every tensor in optimizer.state."
        check.expect_close(size_bytes, wanted, f"the bytes a parameter: {name}", hint, rtol=1e-3)
    print("Right: a parameter takes 8 bytes with SGD, 16 with Adam, 20 with AMSGrad, in float32.")

# %% [markdown]
# Adam takes sixteen bytes in float32 too, 4 + 4 + 8: **mixed precision does not make the states
# smaller**. It makes matmuls faster, and halves the activations and what travels.
#
# ### A model written as plain functions
#
# For this lesson a model is a stack of square matrices, with a tanh after each. Forward and
# backward are written out, so that you see what each of them reads. Note the last line: the
# gradient that is passed to the layer below needs the **weight**, and not only the layer's input.


# %% model
WIDTH, NUM_LAYERS, NUM_ROWS = 256, 8, 8
NUM_PARAMETERS = NUM_LAYERS * WIDTH * WIDTH


def starting_weights():
    """The weights of all layers in float32, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_LAYERS, WIDTH, WIDTH, generator=generator) / math.sqrt(WIDTH)


def rows_of(step, dtype, rank=None):
    """The rows that a rank, by default this one, takes through the model in this step."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(NUM_ROWS, WIDTH, generator=generator).to(dtype)


# %% layers
def forward(rows, weight):
    """A layer's outputs."""
    return torch.tanh(rows @ weight.T)


def backward(gradient, rows, outputs, weight):
    """The gradients of a layer's weight and of its input, from that of its outputs."""
    gradient = gradient * (1 - outputs.square())
    return gradient.T @ rows, gradient @ weight


# %% [markdown]
# The class `Master` holds the optimizer's twelve bytes, and updates them with torch's functional
# Adam. It works on the whole model or on a part of it, because **Adam updates each element
# independently**, so that its state can be split anywhere. (Optimizers that update a whole matrix
# at a time, such as Muon and Shampoo, are sharded by matrices.)


# %% master
from torch.optim.adam import adam


def counted(as_kind, tensor):
    """The tensor, counted as memory of this kind."""
    memory.count_as(as_kind, [tensor])
    return tensor


class Master:
    """Float32 weights and Adam's two moments, for as much of the model as is given."""

    def __init__(self, weights):
        self.weights = counted("optimizer state", weights.float().clone())
        self.moments = [counted("optimizer state", torch.zeros_like(self.weights)) for _ in "mv"]
        self.num_steps = torch.zeros(())

    def update(self, summed_gradients):
        """The weights after a step, from gradients that are summed over all ranks."""
        mean = summed_gradients.float() / dist.get_world_size()
        constants = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
        state = [[self.weights], [mean], *([moment] for moment in self.moments), []]
        adam(*state, [self.num_steps], foreach=False, amsgrad=False, maximize=False, **constants)
        return self.weights


# %% [markdown]
# ### DDP: every rank holds everything
#
# This is data parallelism as in week 3, with one all-reduce. Each step function returns the bytes
# that the rank holds after backward and before the update, when weights, gradients and optimizer
# state all exist.


# %% ddp_step
def ddp_step(weights, master, step):
    """Train one step with everything on every rank; the bytes held before the update, by kind."""
    gradients = counted("gradients", torch.empty_like(weights))
    outputs = [rows_of(step, weights.dtype)]
    for weight in weights:
        outputs.append(forward(outputs[-1], weight))
    gradient = outputs[-1] / NUM_ROWS
    for layer in reversed(range(NUM_LAYERS)):
        weight, between = weights[layer], outputs[layer : layer + 2]
        gradients[layer], gradient = backward(gradient, *between, weight)
    dist.all_reduce(gradients)
    held = memory.held()
    weights.copy_(master.update(gradients))
    return held


# %% part_of
def part_of(weights):
    """This rank's part of every layer, a row for each: one N-th of its numbers, in order."""
    return weights.view(NUM_LAYERS, dist.get_world_size(), -1)[:, dist.get_rank()]


# %% train
def train(stage, step_of, num_steps, dtype=torch.bfloat16):
    """What a rank held in the last step at a stage of ZeRO, and its float32 weights after it."""
    torch.set_num_threads(1)
    whole = starting_weights()
    mine = part_of(whole) if stage >= 1 else whole
    weights = counted("weights", (mine if stage == 3 else whole).to(dtype, copy=True))
    master = Master(mine)
    del whole, mine
    for step in range(num_steps):
        held = step_of(weights, master, step)
    return held, master.weights


# %% [markdown]
# The next cells define helpers that run a stage on four emulated ranks, count what it sends, and
# show what changed from one version to the next.

# %% stages
STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
KINDS = ("weights", "gradients", "optimizer state")
NUM_STEPS, NUM_RANKS = 3, 4
EMULATED = {"world_size": NUM_RANKS, "cluster": cluster, "echo": False}
runs = {}


# %% run_stage
def run_stage(stage, step_of):
    """A run of three steps at a stage of ZeRO."""
    return ws.run(train, stage, step_of, NUM_STEPS, memory=True, **EMULATED)


def whole_weights(run):
    """The model's float32 weights after a run, put together from the parts of all ranks."""
    parts = [weights for _, weights in run.values]
    is_whole = parts[0].ndim == 3  # with DDP
    return parts[0] if is_whole else torch.cat(parts, dim=1).view(NUM_LAYERS, WIDTH, WIDTH)


# %% show_bytes
def sent_bytes(run):
    """The bytes that rank 0 sent in a step, for each parameter."""
    return run.timeline.bytes_sent(0) / NUM_STEPS / NUM_PARAMETERS


def show_bytes(name):
    """Print what rank 0 held and sent in a run, in bytes for each parameter."""
    held = [runs[name].values[0][0][kind] / NUM_PARAMETERS for kind in KINDS]
    parts, sent = " + ".join(f"{size:.4g}" for size in held), sent_bytes(runs[name])
    print(f"{name} holds {parts} = {sum(held):.4g} bytes a parameter, sends {sent:g} a step")


# %% show_change
import difflib
import inspect


def show_change(old, new):
    """Print the lines of `old` that are gone in `new`, and those that are new."""
    sources = [inspect.getsource(one).splitlines()[2:] for one in (old, new)]
    changes = difflib.unified_diff(*sources, lineterm="", n=0)
    print("\n".join(line for line in changes if not line.startswith(("---", "+++", "@@"))))


# %% ddp_run
runs["DDP"] = run_stage(0, ddp_step)
show_bytes("DDP")

# %% [markdown]
# DDP holds sixteen bytes, as counted. It sends one all-reduce of 2P bytes, which in a ring takes
# $2 \cdot \frac{N-1}{N} \cdot 2P = 3P$ bytes from each of the four ranks.
#
# ## 4. Build it well
#
# ### An all-reduce is two operations
#
# A ring all-reduce (week 2) is a **reduce-scatter**, after which each rank has the complete sum of
# one part, and an **all-gather**, which sends every part to all ranks. In each, a rank sends
# $(N-1)/N$ of the tensor. Between the two halves, each rank holds 1/N of the summed gradient. ZeRO
# stops there and lets the optimizer work on that part.
#
# ```text
# DDP      backward ─► reduce-scatter, all-gather of gradients ─► Adam on all of it, N times over
# ZeRO-1   backward ─► reduce-scatter of gradients ─► Adam on 1/N ─► all-gather of weights
# ```
#
# ### Stage 1 shards the optimizer state
#
# Each rank has master weights and Adam's moments for its own part only.
#
# ### Your turn: a step of ZeRO-1
#
# 10 minutes · medium
#
# Up to the end of backward the step is DDP's: `gradients` holds what this rank's own rows gave.
# Write the rest. This rank needs the sums over all ranks for its part of each layer,
# `master.update` makes that part's new float32 weights of them, and in the end `weights` has all
# parts of all layers on every rank. The check compares the weights after three steps with DDP's,
# and the bytes that rank 0 sends.
#
# <details><summary>Hint</summary>
#
# `torch.empty_like(part_of(weights))` has a row for each layer, as `master.update` wants it. A
# layer at a time, `dist.reduce_scatter_tensor(output, input)` sums, and
# `dist.all_gather_into_tensor(output, input)` gathers; both want the whole layer flat, as in
# `gradients[layer].view(-1)`. What travels is bfloat16 both times.
#
# </details>


# %% zero1_step tags=["turn"]
def zero1_step(weights, master, step):
    """Train one step with the optimizer state sharded; the bytes held before the update."""
    gradients = counted("gradients", torch.empty_like(weights))
    outputs = [rows_of(step, weights.dtype)]
    for weight in weights:
        outputs.append(forward(outputs[-1], weight))
    gradient = outputs[-1] / NUM_ROWS
    for layer in reversed(range(NUM_LAYERS)):
        weight, between = weights[layer], outputs[layer : layer + 2]
        gradients[layer], gradient = backward(gradient, *between, weight)
    held = memory.held()
    ### BEGIN SOLUTION
    sums = torch.empty_like(part_of(weights))
    for layer in range(NUM_LAYERS):
        dist.reduce_scatter_tensor(sums[layer], gradients[layer].view(-1))
    updated = master.update(sums).to(weights.dtype)
    for layer in range(NUM_LAYERS):
        dist.all_gather_into_tensor(weights[layer].view(-1), updated[layer])
    ### END SOLUTION
    return held


# %% check_zero1_step
FEWER = "Two things travel: gradients to the rank that sums them, then new weights to all ranks."
MORE = "Reduce-scatter: a rank needs only the sums of its own part. Send everything as bfloat16."
OFF = "Sum your part of every layer, without dividing it, and gather what `update` returns."

with check.turn("zero1_step"):
    run = run_stage(1, zero1_step)
    sent, wanted = sent_bytes(run), sent_bytes(runs["DDP"])
    if abs(sent - wanted) > 0.01:
        hint = MORE if sent > wanted else FEWER
        raise CheckFailed(f"{wanted:g} bytes a parameter sent in a step", f"{sent:.4g}", hint)
    off = (whole_weights(run) - whole_weights(runs["DDP"])).abs().max().item()
    if off != 0:
        raise CheckFailed("DDP's weights, bit for bit", f"weights up to {off:.0e} off", OFF)
    runs["ZeRO-1"] = run
    print("Right: DDP's weights, and as many bytes sent as with DDP.")
    show_bytes("ZeRO-1")

# %% [markdown]
# Nine of the optimizer's twelve bytes are gone, and **the ranks send as many bytes as before**. The
# second half of the all-reduce has only moved behind the update, and sends weights instead of
# gradients. With DDP, all N ranks computed the same update; now each computes its part.
#
# ### Stage 2 shards the gradients
#
# After the reduce-scatter a rank needs only the sum of its part, and no longer its own gradients.
# So reduce-scatter each layer's gradient as soon as backward has computed it, and keep only the
# part. Below the step are the lines in which it differs from DDP's.


# %% zero2_step
def zero2_step(weights, master, step):
    """Train one step with optimizer state and gradients sharded; the bytes held before it."""
    sums = counted("gradients", torch.empty_like(part_of(weights)))
    outputs = [rows_of(step, weights.dtype)]
    for weight in weights:
        outputs.append(forward(outputs[-1], weight))
    gradient = outputs[-1] / NUM_ROWS
    for layer in reversed(range(NUM_LAYERS)):
        weight, between = weights[layer], outputs[layer : layer + 2]
        of_weight, gradient = backward(gradient, *between, weight)
        dist.reduce_scatter_tensor(sums[layer], of_weight.view(-1))
    held = memory.held()
    updated = master.update(sums).to(weights.dtype)
    for layer in range(NUM_LAYERS):
        dist.all_gather_into_tensor(weights[layer].view(-1), updated[layer])
    return held


# %% zero2_run
show_change(ddp_step, zero2_step)
runs["ZeRO-2"] = run_stage(2, zero2_step)
show_bytes("ZeRO-2")

# %% [markdown]
# ### Stage 3 shards the weights
#
# Only the weights are still replicated. A layer's weight is used twice in a step, once in forward
# and once in backward. In between it is not used. So keep only a part of it, **gather it before
# each use, and free it afterwards**. The all-gather behind the update disappears: the next forward
# gathers anyway.


# %% fetched
def fetched(part):
    """The whole weight of a layer, from the parts of all ranks."""
    weight = part.new_empty(WIDTH, WIDTH)
    dist.all_gather_into_tensor(weight.view(-1), part)
    return weight


# %% zero3_step
def zero3_step(weights, master, step):
    """Train one step with everything sharded; the bytes held before the update."""
    sums = counted("gradients", torch.empty_like(weights))
    outputs = [rows_of(step, weights.dtype)]
    for part in weights:
        outputs.append(forward(outputs[-1], fetched(part)))
    gradient = outputs[-1] / NUM_ROWS
    for layer in reversed(range(NUM_LAYERS)):
        weight, between = fetched(weights[layer]), outputs[layer : layer + 2]
        of_weight, gradient = backward(gradient, *between, weight)
        dist.reduce_scatter_tensor(sums[layer], of_weight.view(-1))
    held = memory.held()
    weights.copy_(master.update(sums))
    return held


# %% zero3_run
show_change(zero2_step, zero3_step)
runs["ZeRO-3"] = run_stage(3, zero3_step)
show_bytes("ZeRO-3")

# %% [markdown]
# A rank holds four bytes for each parameter instead of sixteen: a quarter of everything on each of
# four ranks. For the first time communication grows: two all-gathers and one reduce-scatter are
# three passes instead of two.
#
# ### Stages 1 and 2 send as much as DDP, stage 3 sends 1.5 times as much
#
# The ZeRO paper (section 7) says "2P, 2P, 2P and 3P", counted in elements and with the factor
# $(N-1)/N$ left out. On four ranks that factor is 3/4. The table divides by it. DDP and the three
# stages must also give **the same weights**, bit by bit: they add the same values in the same
# order, and differ only in where they keep them. (ZeRO-1 has a row as soon as your step is right.)


# %% side_by_side
table, wanted = [], whole_weights(runs["DDP"])
for name, run in sorted(runs.items()):
    held, sent = run.values[0][0], run.timeline.bytes_sent(0) / NUM_STEPS
    passes = sent / (2 * NUM_PARAMETERS) * NUM_RANKS / (NUM_RANKS - 1)
    states = {f"{kind}, MB": round(held[kind] / 1e6, 2) for kind in KINDS}
    same = torch.equal(whole_weights(run), wanted)
    a_parameter = sum(held[kind] for kind in KINDS) / NUM_PARAMETERS
    row = {"stage": name, **states, "bytes a parameter": a_parameter}
    row["sent, MB"] = round(sent / 1e6, 2)
    table.append({**row, "passes of P (N-1)/N": round(passes, 3), "same weights": same})
    assert same
found_passes = {row["stage"]: row["passes of P (N-1)/N"] for row in table}
predictions.reveal("bytes sent, all sharded over DDP", found_passes["ZeRO-3"] / found_passes["DDP"])
draw.table(table, title=f"Four ranks on an emulated {cluster}, {NUM_PARAMETERS:,} parameters")

# %% [markdown]
# ### What fills the memory, and when
#
# The picture shows the same runs over time: the horizontal axis counts the rank's operations, and
# three steps follow each other. Most of DDP's height is optimizer state.

# %% over_time
levels = {}
for name in ("DDP", "ZeRO-3"):
    use = runs[name].memory[0]
    held_by_kind = {kind: sizes for kind, sizes in use.sizes.items() if any(sizes)}
    levels[name] = {
        kind: list(zip(use.operations, sizes, strict=True)) for kind, sizes in held_by_kind.items()
    }
draw.memory_over_time(levels, title="What rank 0 holds, emulated", axis="operations")

# %% [markdown]
# Two other things stand out:
#
# - The peak of *temporaries* at the end of each step comes from the update: all gradients at once
#   in float32, and Adam's intermediate results. ZeRO's authors count 6 GB for such a buffer with
#   1.5 billion parameters, and therefore use buffers of constant size (sections 3.2 and 6.2).
# - ZeRO-3's highest point is at the very start. There our program creates the whole model, takes
#   its part, and frees the rest. A model that does not fit must be created in parts: torch builds
#   it on the "meta" device, without data, and fills each rank's shard afterwards.

# %% [markdown]
# ### Your turn: the bytes of every stage
#
# 5 minutes · easy
#
# Write the table's column *bytes a parameter* as a function of the stage (0 is DDP), the number of
# ranks and the number of parameters. Adam's 12 bytes are sharded from stage 1 on, the gradients
# from stage 2 on, the weights in stage 3.
#
# <details><summary>Hint</summary>
#
# Begin with 2 + 2 + 12 and divide those of the three that the stage shards by the number of ranks.
#
# </details>


# %% state_bytes tags=["turn"]
def state_bytes(num_parameters, num_ranks, stage):
    """The bytes of weights, gradients and optimizer state that a rank holds at a stage of ZeRO."""
    ### BEGIN SOLUTION
    optimizer_bytes = 12 / num_ranks if stage >= 1 else 12
    gradient_bytes = 2 / num_ranks if stage >= 2 else 2
    weight_bytes = 2 / num_ranks if stage >= 3 else 2
    return (optimizer_bytes + gradient_bytes + weight_bytes) * num_parameters
    ### END SOLUTION


# %% check_state_bytes
with check.turn("state_bytes"):
    for tried, measured in enumerate((16, 7, 5.5, 4)):  # as measured on four ranks, above
        check.expect_close(
            float(state_bytes(1_000_000, 4, tried)),
            measured * 1e6,
            f"the bytes of 1,000,000 parameters at stage {tried} on 4 ranks",
            hint="The table above counts them, kind by kind.",
        )
    check.expect_close(float(state_bytes(1e9, 64, 3)), 0.25e9, "the bytes of 1e9 at stage 3 on 64")
    print("Right: the same bytes as the emulated ranks held at each of the four stages.")

# %% [markdown]
# ### The formula gives the published numbers
#
# The next cell applies the same formula to the three examples that are quoted most. The last one is
# from the ZeRO paper (figure 1 and table 1: 120, 31.4, 16.6 and 1.9 GB).


# %% milestones
BYTES = {"weights": 2, "gradients": 2, "optimizer state": 12}


def held_bytes(num_parameters, num_ranks, stage):
    """The bytes of each kind at a stage of ZeRO; kinds are sharded from the last one on."""
    first_sharded = 3 - stage
    return {
        kind: size * num_parameters / (num_ranks if place >= first_sharded else 1)
        for place, (kind, size) in enumerate(BYTES.items())
    }


def milestone(num_parameters, num_ranks):
    """A row of the table: the bytes on a GPU at each stage."""
    row = {"parameters": units.format_count(num_parameters), "GPUs": num_ranks}
    for stage, name in enumerate(STAGES):
        row[f"{name}_bytes"] = sum(held_bytes(num_parameters, num_ranks, stage).values())
    return row


published = [milestone(*one) for one in ((100e6, 2), (10e9, 8), (7.5e9, 64))]
predictions.reveal("state of 10B parameters, sharded over 8", published[1]["ZeRO-3_bytes"] / 1e9)
draw.table(published, title="Weights, gradients and optimizer state of a GPU, computed")

# %% [markdown]
# **States only.** "10 billion parameters fit into 20 GB" is true of weights, gradients and
# optimizer state alone. Activations and gathered layers come on top: section 6 adds them.
#
# The ZeRO paper contradicts itself on one of these sums: section 6.1 puts the checkpointed
# activations of a 100-billion-parameter model (125 layers, width 8,192, batch 32, 1,024 tokens, two
# bytes) at "about 33 GB"; section 3.2 says "around 60 GB" for the same case.

# %% zero_paper_slip
print(f"2 bytes x 32 x 1,024 x 8,192 x 125 = {2 * 32 * 1024 * 8192 * 125 / 1e9:.1f} GB")

# %% [markdown]
# So section 3.2 is right, and 33 GB counts elements, or half of the batch.
#
# ### Find the bug: the weights that stay in memory
#
# 10 minutes · medium
#
# This forward pass is from a colleague's ZeRO-3. Its outputs are right. But the rank runs out of
# memory with large models, as if nothing were sharded. Run the check: it shows what the rank held,
# and the line that allocated most of it. Then change the function so that no rank holds more than
# two whole layers at a time.
#
# <details><summary>Hint</summary>
#
# A tensor's memory is freed when nothing refers to it any longer. What still refers to the weight
# of layer 0 when layer 7 is gathered?
#
# </details>


# %% lean_forward tags=["turn"]
def lean_forward(parts, rows):
    """The input and the outputs of all layers; at most two whole weights exist at a time."""
    ### BEGIN SOLUTION
    outputs = [rows]
    for part in parts:
        outputs.append(forward(outputs[-1], fetched(part)))  # backward gathers the weight again
    return outputs
    ### INSTEAD
    # saved = [(rows, None)]
    # for part in parts:
    #     weight = fetched(part)
    #     saved.append((forward(saved[-1][0], weight), weight))  # backward will need both
    # return [outputs for outputs, _ in saved]
    ### END SOLUTION


# %% check_lean_forward
def forward_alone():
    """The outputs of the last layer, from parts of which no rank ever had the whole."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    parts = torch.randn(NUM_LAYERS, WIDTH * WIDTH // NUM_RANKS, generator=generator)
    parts = counted("weights", (parts / math.sqrt(WIDTH)).to(torch.bfloat16))
    rows = rows_of(0, torch.bfloat16)
    last = lean_forward(parts, rows)[-1]
    for part in parts:
        rows = forward(rows, fetched(part))
    hint = "Apply all layers in turn, and return the list of the input and all outputs."
    check.expect_close(last, rows, "the outputs of the last layer", hint)
    return last


with check.turn("lean_forward"):
    recorded = ws.run(forward_alone, memory=True, **EMULATED).memory[0]
    most = max(recorded.sizes["communication"]) / (2 * WIDTH * WIDTH)
    if most > 2.5:
        raise CheckFailed(
            "at most 2 whole layers gathered at a time",
            f"{most:.0f} layers. {recorded.explain()}",
            "`saved` refers to every weight until the function returns.",
            picture=lambda: draw.memory_use({"rank 0": recorded}, "Your forward pass, emulated"),
        )
    print(f"Right: at most {most:.0f} gathered at a time, and each is freed once it was used.")

# %% [markdown]
# You will meet this bug even if you do not write it: **autograd** saves what backward needs, and
# backward needs the weight. A ZeRO-3 on top of autograd therefore cannot just drop its own
# reference. FSDP2 frees the *storage* of the gathered tensor, `untyped_storage().resize_(0)`, while
# autograd still refers to the tensor, and fills it again before backward reads it. Lab 7 does that
# too.
#
# ### Prefetch hides the gathers behind compute
#
# A gather before each use makes each layer wait for the link. But the order of the layers is known:
# while layer k computes, layer k + 1 can be gathered. **Prefetch** costs one more layer of memory.
#
# ```text
# without   gather 0 │ compute 0 │ gather 1 │ compute 1 │ gather 2 │ compute 2
# with      gather 0 │ compute 0 │ compute 1 │ compute 2
#                    │ gather 1  │ gather 2  │
# ```
#
# FSDP2 issues its gathers on a separate stream, ahead of the layer that computes, and in backward
# it requests the next layer before it starts on the current one. It runs unmodified on the emulated
# cluster, here with the small transformer of this course. To see what prefetch is worth, we disable
# it: in forward a rank waits for its compute before it requests the next layer, and in backward
# each layer prefetches only itself. (In the picture, *stream 1* has the copies into the send
# buffers; hatched areas are time in which a rank is idle.)


# %% transformers
from torch.distributed.fsdp import fully_shard


def transformer(sizes, dtype=torch.float32):
    """The course's transformer with weights of this format."""
    torch.set_default_dtype(dtype)
    model = Transformer(sizes)
    torch.set_default_dtype(torch.float32)
    return model


def sharded(model, **options):
    """The model with FSDP2 round each of its layers and round the rest."""
    for part in [*model.layers.values(), model]:
        fully_shard(part, **options)
    return model


def without_prefetch(model):
    """Let each layer's gather begin only when it is needed."""
    for layer in model.layers.values():
        layer.register_forward_pre_hook(lambda *_: torch.cpu.synchronize(), prepend=True)
        layer.set_modules_to_backward_prefetch([layer])


# %% two_steps
def two_steps(how, num_tokens=256):
    """Seconds of the second of two steps, forward and backward, of the small transformer."""
    model = transformer(shape("small"), torch.bfloat16)
    sharded(model, reshard_after_forward=how != "kept after forward")
    if how == "gathered on use":
        without_prefetch(model)
    tokens = torch.zeros(1, num_tokens, dtype=torch.long)
    for _ in range(2):
        start_s = emulate.elapsed()
        with ws.span("forward", kind="forward"):
            loss = model(tokens).float().logsumexp(-1).mean()
        with ws.span("backward", kind="backward"):
            loss.backward()
        model.zero_grad()
        step_s = emulate.elapsed() - start_s
    return step_s


# %% prefetched
WAYS = ("gathered on use", "prefetched", "kept after forward")
ways = {how: ws.run(two_steps, how, memory=True, **EMULATED | {"world_size": 2}) for how in WAYS}
for how in WAYS[:2]:
    print(f"{how:<16} {units.format_time_s(ways[how].values[0]):>8} for the second step")
draw.timelines(
    {how: ways[how].timeline for how in WAYS[:2]},
    title=f"FSDP2, small transformer, two steps, emulated on {cluster}",
)

# %% [markdown]
# For GPT-175B, prefetch in backward made training about 18% faster at every cluster size that the
# authors tried (FSDP, section 5.2).
#
# ### Your turn: the time of a prefetched forward pass
#
# 10 minutes · medium
#
# A forward pass has L equal layers. Each takes c seconds to compute and g seconds to gather; one
# layer is gathered ahead. Write the time of the whole pass. Compare with the picture above: what
# happens first, what happens L - 1 times, what happens last?
#
# <details><summary>Hint</summary>
#
# Nothing overlaps the first gather or the last compute. In between, compute k and gather k + 1 run
# at the same time, and the longer of the two decides.
#
# </details>


# %% prefetched_s tags=["turn"]
def prefetched_s(num_layers, compute_s, gather_s):
    """Seconds of a forward pass in which one layer is gathered ahead."""
    ### BEGIN SOLUTION
    return gather_s + (num_layers - 1) * max(compute_s, gather_s) + compute_s
    ### END SOLUTION


# %% check_prefetched_s
def played_s(num_layers, compute_s, gather_s):
    """The same, layer by layer: the next gather starts with this layer's compute."""
    gathered_s, now_s = gather_s, 0.0
    for _ in range(num_layers):
        start_s = max(now_s, gathered_s)
        gathered_s, now_s = start_s + gather_s, start_s + compute_s
    return now_s


with check.turn("prefetched_s"):
    for case in ((4, 3.0, 2.0), (4, 2.0, 3.0), (1, 5.0, 1.0), (32, 1.0, 1.0)):
        check.expect_close(
            float(prefetched_s(*case)),
            played_s(*case),
            "the time with {} layers, {} s of compute and {} s of gathering".format(*case),
            hint="Play it on paper for two layers.",
        )
    print("Right, also where gathering takes longer than computing: then the link decides.")

# %% [markdown]
# ### Keeping the weights after forward saves a gather and costs memory
#
# `reshard_after_forward=False` keeps each layer whole from forward to backward. That saves the
# second gather: two passes instead of three. But it costs the memory of the weights: 2P bytes at
# the peak. Llama 3 was trained this way (Llama Team 2024, section 3.3.2).

# %% reshard
model_bytes, table = 2 * shape("small").num_parameters, []
for how in WAYS[1:]:
    run = ways[how]
    sent_bytes = run.timeline.bytes_sent(0) / 2  # of two steps
    passes = sent_bytes / model_bytes * 2  # times N / (N - 1), with N = 2
    row = {"weights are": how, "sent_bytes": sent_bytes, "passes of P (N-1)/N": round(passes, 2)}
    table.append({**row, "step_s": run.values[0], "peak_bytes": run.memory[0].most_bytes})
draw.table(table, title=f"FSDP2, small transformer in bfloat16, 2 ranks, emulated on {cluster}")

# %% [markdown]
# A third fewer bytes are sent, and 1.4 MB more are held at the peak. The step is hardly shorter,
# because prefetch had hidden the second gather already.
#
# The sizes of the all-gathers matter as well. FSDP's authors split 2³⁰ float32 elements into calls
# of different sizes and saw the time rise quickly below 33 million elements a call (FSDP, section
# 3.2.1 and figure 2b). The next cell computes these times with the emulator's cost model, for 16
# A100s in two nodes:

# %% call_sizes
two_nodes, table = hardware.cluster("a100-hdr-x2"), []
for millions in (1, 3.3, 10, 33, 100, 1073.7):
    call = pricing.price("all_gather", 4e6 * millions, range(16), two_nodes)
    all_s = 2**30 / (1e6 * millions) * call.time_s
    table.append({"elements a call": f"{millions:g} million", "all calls_s": all_s})
for row in table:
    row["more than one call"] = f"{row['all calls_s'] / table[-1]['all calls_s'] - 1:.0%}"
draw.table(table, title="All-gather of 2³⁰ float32 numbers, 16 A100, computed")

# %% [markdown]
# That is why the unit of sharding is a transformer block and not a matrix: a block of Llama 3 8B
# has 218 million parameters.
#
# ### Offload moves the optimizer state to the host
#
# The optimizer's twelve bytes can leave the GPU altogether. The host has enough memory, but is
# connected only by PCIe. There are three ways to run Adam on one rank's part, here four million
# parameters:
#
# - **on the GPU**: the state stays there, and the GPU updates;
# - **fetched**: the state is kept on the host, comes to the GPU for the update, and goes back: 24
#   bytes a parameter;
# - **on the host** (ZeRO-Offload): the gradient goes to the host, the CPU updates, the weight comes
#   back: 4 bytes a parameter, and an update at the speed of the host's memory.


# %% offload
NUM_PART = 4_000_000
HOST = hardware.cluster(cluster).host
UPDATE_BYTES = 2 + 2 * 12 + 2  # gradient in; weights, m and v in and out; weight out


def update_s(where):
    """Virtual seconds of the update of this rank's part, and the state that its GPU held before."""
    gradient = torch.zeros(NUM_PART, dtype=torch.bfloat16)
    state = counted("optimizer state", torch.zeros(3, NUM_PART))
    if where != "on the GPU":
        on_host, state = emulate.to_host(state), None
    held_bytes, start_s = memory.held()["optimizer state"], emulate.elapsed()
    if where == "on the host":
        emulate.to_host(gradient)
        share_bytes_per_s = HOST.memory_bandwidth_bytes_per_s / dist.get_world_size()
        emulate.spend(NUM_PART * UPDATE_BYTES / share_bytes_per_s)
        emulate.to_device(gradient)
        return emulate.elapsed() - start_s, held_bytes
    state = emulate.to_device(on_host) if where == "fetched" else state
    for one in state:
        one.add_(gradient)  # reads and writes the state once, as Adam does
    if where == "fetched":
        emulate.to_host(state)
    return emulate.elapsed() - start_s, held_bytes


# %% offloaded
uplink_bytes_per_s, table = HOST.link.bandwidth_bytes_per_s / HOST.gpus_per_uplink, []
for where, num_bytes in (("on the GPU", 0), ("fetched", 24), ("on the host", 4)):
    time_s, on_gpu_bytes = ws.run(update_s, where, memory=True, **EMULATED).values[0]
    row = {"update": where, "state on the GPU_bytes": on_gpu_bytes}
    row |= {"over PCIe_bytes": num_bytes * NUM_PART}
    row["PCIe, formula_s"] = num_bytes * NUM_PART / uplink_bytes_per_s
    table.append({**row, "update, emulated_s": time_s})
draw.table(
    table,
    title=f"Adam on {NUM_PART / 1e6:g} million parameters a rank, {NUM_RANKS} ranks of {cluster}",
    note=f"Formula: {HOST.gpus_per_uplink} GPUs share an uplink to the host.",
)

# %% [markdown]
# Fetching the state costs far more than the update; moving the update to the host sends a sixth of
# those bytes. Whether either cost is visible depends on how long the rest of the step is. The
# matmuls take $6PB/R$ seconds on a GPU that reaches R FLOP/s. To move the state of P/N parameters
# out and in, 24 bytes each, in that time, all links together must carry $24P / (6PB/R) = 4R/B$
# bytes a second. If the weights come in twice, for forward and for backward, and the gradients go
# out once, that is 6P bytes for each GPU: $R/B$ bytes a second.

# %% needed_bandwidth
from worldsize import operators

V100, table = hardware.cluster("dgx-1v").gpu, []
needed = operators.flops_per_s("matmul", "float16", V100) / 2048  # R/B
for moved, computed, slide in (
    ("weights and gradients, a GPU", needed, 60e9),
    ("optimizer state, all links together", 4 * needed, 1500e9),
):
    row = {"moved": moved, "R/B, 4R/B_bytes_per_s": computed, "ZeRO-Infinity_bytes_per_s": slide}
    table.append({**row, "ratio": round(slide / computed, 1)})
draw.table(table, title="To move in the time of the products: 2,048 tokens, V100, computed")

# %% [markdown]
# ZeRO-Infinity's slides (SC21, pages 7 to 10) require 60 GB/s and 1,500 GB/s at 2K tokens a GPU,
# whereas one PCIe 3 link gives 12. For weights and gradients that is 1.3 times our break-even. For
# the optimizer state it is eight times ours, because nothing overlaps the update there. Both are
# proportional to 1/B: with twice the tokens, half the bandwidth is enough.
#
# ## 5. Compare with the production oracle
#
# ### Your ZeRO-3 and torch's give the same weights
#
# FSDP2, the second version of torch's FSDP, is one function: `fully_shard(module)`. Each parameter
# becomes a **DTensor**, of which each rank holds some rows; hooks gather and free the whole
# parameter. The next cells train the same matrices on real ranks for three steps in float32:


# %% same_weights
def by_fsdp(num_steps):
    """This rank's rows of all weights after steps with FSDP2."""
    torch.set_num_threads(1)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)])
    with torch.no_grad():
        for layer, weight in zip(model, starting_weights(), strict=True):
            layer.weight.copy_(weight)
    for layer in model.to(device):
        fully_shard(layer)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    for step in range(num_steps):
        outputs = rows_of(step, torch.float32).to(device)
        for layer in model:
            outputs = torch.tanh(layer(outputs))
        (outputs.square().sum() / 2 / NUM_ROWS).backward()
        adam.step()
        adam.zero_grad()
    return torch.stack([layer.weight.to_local().detach().flatten().cpu() for layer in model])


# %% same_weights_here
REAL = {"world_size": world_size, "backend": "gloo", "echo": False}
ours = ws.run(train, 3, zero3_step, 3, torch.float32, memory=True, **REAL)
theirs = ws.run(by_fsdp, 3, world_size=world_size, backend=backend, echo=False)
pairs = zip(ours.values, theirs.values, strict=True)
differences = torch.cat([(mine[1] - torchs).abs().flatten() for mine, torchs in pairs])
print(f"difference of a weight from FSDP2's after 3 steps: {differences.mean():.1e} on average")
print(f"the largest: {differences.max():.1e}")
assert differences.mean() < 1e-6

# %% [markdown]
# The two partitions agree too, row by row: FSDP2 also gives each rank 1/N of every matrix. The
# largest difference is a rounding error that Adam has made larger: Adam divides each gradient by
# its own size, so where a gradient is nearly 0, its rounding error becomes a visible part of a
# step.
#
# ### DDP, FSDP2 and HSDP train the same model
#
# The next cells train the tiny transformer with Adam in four ways: with DDP, with FSDP2 that frees
# the weights after forward or keeps them, and with **HSDP** (sharded within a node, replicated
# across nodes). All start from the same weights and see the same tokens. The four ranks are two
# GPUs in each of two emulated nodes.


# %% transformer_steps
from torch.distributed.device_mesh import init_device_mesh


def transformer_steps(how, num_steps=2):
    """All weights of the tiny transformer after steps of Adam, by this way of data parallelism."""
    model = transformer(shape("tiny"))
    if how == "DDP":
        model = DistributedDataParallel(model)
    elif how == "HSDP":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        sharded(model, mesh=mesh, reshard_after_forward=True)
    else:
        sharded(model, reshard_after_forward=how != "FSDP2, kept")
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    dist.barrier()
    for _ in range(num_steps):
        tokens = torch.randint(0, 256, (2, 32), generator=generator)
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        adam.step()
        adam.zero_grad()
    dist.barrier()
    weights = [one if how == "DDP" else one.full_tensor() for one in model.parameters()]
    return torch.cat([one.detach().flatten() for one in weights])


# %% sent_in_training
def sent_in_training(run, num_steps=2):
    """What rank 0 sent between the barriers, over the model's bytes: in its node, and beyond."""
    calls = [event for event in run.timeline.of(0) if event.kind == "communication"]
    first, last = (place for place, call in enumerate(calls) if call.name == "barrier")
    sent = {"within the node": 0.0, "across nodes": 0.0}
    for call in calls[first:last]:
        crosses = len({peer // 2 for peer in call.peers}) > 1
        sent["across nodes" if crosses else "within the node"] += call.sent_bytes
    model_bytes = 4 * shape("tiny").num_parameters
    return {where: round(size / model_bytes / num_steps, 2) for where, size in sent.items()}


# %% four_ways
two_by_two = {"name": "2 nodes of 2 A100", "gpus_per_node": 2, "num_nodes": 2, "nics_per_node": 2}
NODES = dataclasses.replace(hardware.cluster("a100-hdr"), **two_by_two)
found, table = {}, []
for how in ("DDP", "FSDP2", "FSDP2, kept", "HSDP"):
    found[how] = ws.run(transformer_steps, how, world_size=4, cluster=NODES, echo=False)
    difference = (found[how].values[0] - found["DDP"].values[0]).abs().mean().item()
    sent = sent_in_training(found[how])
    table.append({"by": how, "mean difference from DDP": f"{difference:.0e}", **sent})
    assert difference < 1e-6
draw.table(
    table,
    title="Two steps of the tiny transformer, float32, on 2 emulated nodes of 2 A100",
    note="The last two columns: what rank 0 sent in a step, over the bytes of the model, in groups"
    " inside its node and in groups that span both nodes.",
)

# %% [markdown]
# All four train the same model. DDP and FSDP2 with kept weights send 2 (N - 1)/N = 1.5 times the
# model's bytes, FSDP2 with freed weights 2.25 times, all in groups that span both nodes. HSDP keeps
# its three passes within the node and sends across nodes only what an all-reduce of each rank's
# *shard* takes.
#
# ### The FSDP paper overstates what HSDP sends across nodes
#
# The FSDP paper (section 3.2.2) recommends sharding over F ranks and setting F = W/G on W ranks
# with G in each node, so that gathers stay within a node. They stay there if the shards fill a
# node: **F = G**. The paper also puts the bytes across nodes at $2M (W-1)/(GW)$ for a model of M
# bytes. But a ring of W/G nodes all-reduces M/G bytes, for which each rank sends $2 (M/G) (W-G)/W$.

# %% hsdp_across_nodes
table = []
for W, G in ((4, 2), (16, 8), (512, 8)):
    theirs_per_model, ring_per_model = 2 * (W - 1) / (G * W), 2 / G * (W - G) / W
    row = {"ranks W": W, "in a node G": G, "paper": round(theirs_per_model, 3)}
    table.append({**row, "ring of nodes": round(ring_per_model, 3)})
table[0]["emulated"] = sent_in_training(found["HSDP"])["across nodes"]
draw.table(table, title="Bytes that each rank sends across nodes with HSDP, over the model's")

# %% [markdown]
# ### DeepSpeed's stages and their counterparts in FSDP2
#
# ZeRO's authors built it into DeepSpeed. The model is wrapped in an *engine*, which has its own
# `backward` and `step`, and the stage is a number in its configuration. The idea is the same as in
# `fully_shard` (torchtitan, docs/fsdp.md, has most of this table):
#
# | | DeepSpeed | FSDP2 |
# |---|---|---|
# | optimizer state sharded | `"stage": 1` | |
# | and the gradients | `"stage": 2` | `reshard_after_forward=False` sends as much |
# | and the weights | `"stage": 3` | `reshard_after_forward=True` |
# | sharded in a node, replicated across | MiCS | a mesh of two dimensions |
# | gathered in backward within a node | hpZ, of ZeRO++ | `reshard_after_forward=8` |
# | offload | `"offload_optimizer"` | `offload_policy=CPUOffloadPolicy()` |
#
# The ZeRO paper describes stage 3 with broadcasts from the owner of each part (section 5.3), the
# FSDP paper with all-gathers (section 6): all-gathers send as many bytes, but spread evenly over
# the ranks.


# %% by_deepspeed
def by_deepspeed(stage):
    """All weights after three steps with ZeRO; stage 0 is torch's DDP."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 64, bias=False) for _ in range(4)]
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())])
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    rows = torch.randn(8, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
    if stage == 0:
        ddp = DistributedDataParallel(model)
        for _ in range(3):
            adam.zero_grad()
            ddp(rows).square().mean().backward()
            adam.step()
        return torch.cat([layer.weight.detach() for layer in layers])
    import deepspeed  # an extra, which few have

    engine = deepspeed.initialize(model=model, optimizer=adam, config=deepspeed_config(stage))[0]
    for _ in range(3):
        engine.backward(engine(rows).square().mean())
        engine.step()
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
        return torch.cat([layer.weight.detach().clone() for layer in layers])


# %% deepspeed_config
import importlib

from worldsize.course import optional


def deepspeed_config(stage):
    """DeepSpeed's configuration for this stage, with torch's Adam, and nothing to compile."""
    # an all-reduce for a single machine would be compiled first, for a minute or more
    importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    zero = {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    return {"train_micro_batch_size_per_gpu": 8, **zero}


def differences():
    """The largest difference of each stage's weights from DDP's."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    options = {"world_size": 2, "backend": "gloo", "echo": False, "timeout_s": 300}
    ddp, *stages = [ws.run(by_deepspeed, number, **options).values[0] for number in range(4)]
    return [(weights - ddp).abs().max().item() for weights in stages]


for number, difference in enumerate(optional.result("week07", "DeepSpeed", differences), 1):
    print(f"DeepSpeed, stage {number}: largest difference from DDP's weights {difference:.0e}")

# %% [markdown]
# ## 6. Formula, measurement, emulation, paper
#
# ### R/β tokens on each GPU hide full sharding
#
# With prefetch, the link and the GPU work at the same time, and a step takes as long as the slower
# of the two. The matmuls take $2PB/R$ seconds in forward: two FLOPs for each parameter and token,
# on a GPU that reaches R FLOP/s. Meanwhile 2P bytes of bfloat16 weights arrive, over links of β
# bytes a second: $2P/\beta$ seconds. Backward has twice the matmul FLOPs, and twice the bytes: the
# weights again, and the gradients. In both passes
#
# $$\frac{\text{compute}}{\text{communication}} = \frac{2PB/R}{2P/\beta} = \frac{B}{R/\beta}$$
#
# P cancels, as in week 3. **R/β tokens on each GPU** hide full sharding, whatever the model. R/β is
# the number of FLOPs that the GPU does while a byte arrives.

# %% [markdown]
# ### Your turn: the number of tokens, for any number of bytes
#
# 5 minutes · medium
#
# The threshold R/β assumes six bytes sent for each parameter and step. DDP sends four in bfloat16.
# FSDP2 with `reduce_dtype=torch.float32` sends 2 + 2 + 4. (Llama 3 also summed in float32, but kept
# its weights after forward: 2 + 4.) Write the number of tokens as a function of the bytes sent.
#
# <details><summary>Hint</summary>
#
# A step takes 6 FLOPs for each parameter and token. Set the seconds of compute equal to those of
# communication.
#
# </details>


# %% tokens_to_hide tags=["turn"]
def tokens_to_hide(wire_bytes, flops_per_s, bytes_per_s):
    """The tokens on each GPU whose compute takes as long as `wire_bytes` a parameter travel."""
    ### BEGIN SOLUTION
    return wire_bytes / bytes_per_s * flops_per_s / 6
    ### END SOLUTION


# %% check_tokens_to_hide
with check.turn("tokens_to_hide"):
    for wire_bytes, which, share in ((6, "FSDP", 1), (4, "DDP", 2 / 3), (8, "fp32 sums", 4 / 3)):
        check.expect_close(
            float(tokens_to_hide(wire_bytes, 800e12, 400e9)),
            share * 2000,
            f"the tokens for {wire_bytes} bytes ({which}) at 800 TFLOP/s and 400 GB/s",
            hint="6 P B / R seconds of compute; what are the seconds on the wire?",
        )
    print("Right: 2/3 R/β for DDP, as in week 3; R/β for FSDP; 4/3 R/β with sums in float32.")

# %% [markdown]
# The next cell uses the R that large matmuls reach (`worldsize.operators`), and the β that an
# all-gather of one Llama block reaches among all the GPUs of each cluster:

# %% thresholds
LLAMA = shape("llama-3-8b")


def rates(name, num_ranks):
    """R, and the bytes a second that an all-gather of a block brings to each rank."""
    where = hardware.cluster(name)
    size_bytes = 2 * LLAMA.num_layer_parameters
    time_s = pricing.price("all_gather", size_bytes, range(num_ranks), where).time_s
    flops_per_s = operators.flops_per_s("matmul", "bfloat16", where.gpu)
    return flops_per_s, size_bytes * (num_ranks - 1) / num_ranks / time_s


table = []
for name, num_gpus in (
    *(("pcie-box", 8), ("dgx-a100", 8), ("dgx-h100", 8)),
    *(("a100-hdr-x8", 64), ("h100-ndr-x8", 64), ("h100-ndr-x128", 1024)),
):
    R, beta = rates(name, num_gpus)
    row = {"cluster": name, "GPUs": num_gpus, "R_flops_per_s": R}
    row |= {"β_bytes_per_s": beta, "R/β, tokens a GPU": round(R / beta)}
    table.append(row)
draw.table(table, title="Tokens that hide full sharding in bfloat16, computed")

# %% [markdown]
# On TPU v5p the same inequality gives 2,550 tokens a chip over one axis of the TPU network, and 850
# over three (*How to scale your model*, Austin et al. 2025, chapter on training). Faster GPUs need
# **more** tokens: from A100 to H100 the FLOP/s have tripled, and the link's bandwidth has not.
#
# ### When does FSDP cost 5 to 15%?
#
# It is often said that FSDP costs 5 to 15%. Take four of Llama 3 8B's layers, forward and backward,
# on paper: torch's DDP and FSDP2, unmodified, on 8 GPUs.


# %% passes
FOUR_LAYERS = dataclasses.replace(LLAMA, num_layers=4, vocab_size=1024)  # a head that hardly counts


def passes(how, num_tokens):
    """Take four of Llama's layers forward and backward, three times."""
    model = transformer(FOUR_LAYERS, torch.bfloat16)
    if how == "DDP":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        sharded(model)
    tokens = torch.zeros(1, num_tokens, dtype=torch.long)
    for step in range(3):
        with ws.span(f"step {step}", kind="forward"):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        model.zero_grad()


def second_step_s(run):
    """Seconds from the start of the second step to that of the third."""
    names = [event.name for event in run.timeline.of(0)]
    starts_s = [run.timeline.of(0)[names.index(f"step {step}")].start_s for step in (1, 2)]
    return starts_s[1] - starts_s[0]


# %% five_to_fifteen
PLACES, table, adds = ("dgx-a100", "dgx-h100", "pcie-box"), [], {}
for num_tokens in (1024, 4096, 16384):
    ddp, fsdp = (
        ws.paper(passes, how, num_tokens, world_size=8, cluster=PLACES[0], echo=False)
        for how in ("DDP", "FSDP2")
    )
    for place in PLACES:
        R, beta = rates(place, 8)
        ddp_s, fsdp_s = second_step_s(ddp.on(place)), second_step_s(fsdp.on(place))
        adds[place, num_tokens] = 100 * (fsdp_s / ddp_s - 1)
        row = {"8 GPUs of": place, "tokens": num_tokens}
        row["tokens over R/β"] = round(num_tokens / (R / beta), 2)
        exposed_s = fsdp.on(place).timeline.exposed_communication_s(0) / 3  # of three steps
        row |= {"DDP_s": ddp_s, "FSDP2_s": fsdp_s, "added_s": fsdp_s - ddp_s}
        row["exposed, FSDP2_s"] = exposed_s
        table.append({**row, "FSDP2 adds": f"{adds[place, num_tokens]:.1f}%"})
table.sort(key=lambda row: PLACES.index(row["8 GPUs of"]))
predictions.reveal("FSDP adds at 4,096 tokens, 8 H100", adds["dgx-h100", 4096])
draw.table(table, title="Forward and backward of four of Llama 3 8B's layers, on paper")

# %% [markdown]
# The answer depends on the link:
#
# - **Over NVLink** full sharding adds the same few milliseconds to these four layers, 8 to 9 on
#   A100s and 5 on H100s, whatever the number of tokens. About half of them are exposed
#   communication: nothing overlaps the first gather and the last reduction. The rest are copies
#   into and out of the flat communication buffers. With 4,096 tokens that is 7% on A100s and 11% on
#   H100s; with 16,384 it is one or two percent; with 1,024, fewer than R/β, it is 28 and 44%.
# - **Over PCIe** communication decides, because there are fewer tokens than R/β. Far below R/β FSDP
#   adds 43%, close to the 50% that three passes instead of two can add at most. Just below R/β it
#   adds 9.5%.
#
# So "5 to 15%" holds for a few thousand tokens on each GPU, or for a link that is slightly too
# slow. A longer step does not help if it is longer because it has more *layers*, because each layer
# has its own copies: eight layers with 4,096 tokens take 88 ms on H100s with DDP, and FSDP2 adds
# 7.3 ms, 8%. (To see this, replace 4 with 8 in `FOUR_LAYERS`.)
#
# Published measurements agree. FSDP is as fast as DDP for models of 611 million and 2.28 billion
# parameters, and DDP runs out of memory with larger ones (FSDP, section 5.2). A T5 of 11 billion
# parameters loses 7% of its TFLOP/s per GPU from 8 to 512 GPUs (section 5.4). And where the batch
# of all GPUs together stays fixed, more GPUs mean fewer tokens on each. SC21 (Narayanan et al.
# 2021, table 2) trained 175 billion parameters with a batch of 1,536 sequences of 2,048 tokens,
# with ZeRO-3 and with its own mix of tensor, pipeline and data parallelism (weeks 8 to 10):

# %% fewer_tokens
table = []
for num_gpus, zero_tflops, mixed_tflops in ((384, 144, 153), (768, 88, 149), (1536, 44, 141)):
    where = hardware.cluster(f"a100-hdr-x{num_gpus // 8}")
    R, beta = rates(where.name, num_gpus)
    num_tokens = 1536 * 2048 // num_gpus
    row = {"GPUs": num_gpus, "tokens a GPU": num_tokens}
    row["tokens over R/β"] = round(num_tokens * beta / R, 1)
    row |= {"ZeRO-3, TFLOP/s": zero_tflops, "mixed, TFLOP/s": mixed_tflops}
    table.append({**row, "ZeRO-3 over mixed": f"{zero_tflops / mixed_tflops:.0%}"})
draw.table(table, title="175 billion parameters, published; the third column is computed")

# %% [markdown]
# The throughput falls as the formula says, but by more: SC21's ZeRO-3 of 2021 fell earlier and
# further than R/β predicts. R/β is what the link allows, and a program may do worse.
#
# ### Llama 3 8B, fully sharded: activations set the peak
#
# Now the whole model, with FSDP2 in mixed precision: shards in float32, gathered in bfloat16, sums
# in float32. Its sixteen bytes are 4 (weight) + 4 (gradient) + 8 (Adam's moments). The program runs
# on paper with two and with four layers. All layers are alike, so time and peak grow by the same
# amount with each one: the table extrapolates them to 32 layers. (The whole model on 8 GPUs, run
# the same way, gave 853 ms, 64.8 GB and the same MFU. To repeat that run, replace 4 with 32; it
# takes half a minute.)


# %% llama
from torch.distributed.fsdp import MixedPrecisionPolicy


def train_llama(num_layers, num_steps=2):
    """Train Llama 3 8B with so many layers, one sequence a step."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    sizes = dataclasses.replace(LLAMA, num_layers=num_layers)
    model = sharded(transformer(sizes), mp_policy=policy)
    adam = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.zeros(1, LLAMA.context_length, dtype=torch.long)
    for _ in range(num_steps):
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        adam.step()
        adam.zero_grad()


def at_32(value_of_run, runs_by_layers):
    """What 32 layers take, continued from the two runs."""
    (few, first), (more, second) = ((num, value_of_run(run)) for num, run in runs_by_layers.items())
    return first + (second - first) / (more - few) * (32 - few)


# %% llama_on_paper
table = []
for num_gpus, place in ((8, "dgx-h100"), (64, "h100-ndr-x8"), (1024, "h100-ndr-x128")):
    run_of = {
        num: ws.paper(train_llama, num, world_size=num_gpus, cluster=place, echo=False)
        for num in (2, 4)
    }
    step_s = at_32(lambda run: run.step_s, run_of)
    flops = at_32(lambda run: run.mfu_fraction * run.step_s, run_of)
    row = {"GPUs": num_gpus, "states_bytes": 16 * LLAMA.num_parameters / num_gpus}
    row["activations_bytes"] = at_32(lambda run: run.memory[0].peak["activations"], run_of)
    row["peak_bytes"] = at_32(lambda run: run.memory[0].most_bytes, run_of)
    low, high = (end / run_of[4].step_s for end in run_of[4].step_range_s)
    row |= {"step_s": step_s, "published steps": f"{low:.2f} to {high:.2f} times"}
    row["tokens/s a GPU"] = round(LLAMA.context_length / step_s)
    table.append({**row, "MFU": f"{flops / step_s:.1%}"})
predictions.reveal("peak of Llama 3 8B on 8 GPUs", table[0]["peak_bytes"] / 1e9)
draw.table(table, title="Llama 3 8B, FSDP2, one sequence of 8,192 tokens a GPU, on paper")

# %% [markdown]
# **More GPUs barely lower the peak.** From 8 to 1,024 GPUs the states shrink from 16 GB to an
# eighth of a GB, but the peak shrinks by less than a fifth: the activations of one sequence,
# including 2 GB of logits, are the same on any number of GPUs. (This program takes the loss in
# bfloat16, to keep it short. In float32, as in week 6, the LM head needs three tensors of 4.2 GB.)
# Sharding shrinks model states. For activations you need recomputation (week 6) and, for long
# sequences, splitting the sequence (week 8). The MFU hardly changes on paper, which knows no late
# ranks and no slow hosts: published programs of this kind took as many times as long as the column
# *published steps* shows. With sums in float32 the threshold is 4/3 R/β: 3,000 and 3,600 tokens,
# and 9,000 on 1,024 GPUs. The 8,192 tokens are above it on the first two clusters. On the third
# they are slightly below it, but attention, which R/β does not count, overlaps communication as
# well, and hides the rest.
#
# ### Formula and run compared
#
# The next cells find the bytes of the formula again in a second way: measured on ranks of this
# machine, emulated, or on paper. The model of 100 million parameters is a transformer of 12 layers
# and width 768, once with DDP and autocast, once with FSDP2, on two GPUs.


# %% hundred_million
HUNDRED = dataclasses.replace(
    shape("small"), num_layers=12, width=768, num_heads=12, num_kv_heads=12
)
HUNDRED = dataclasses.replace(HUNDRED, hidden_width=2048, vocab_size=9_800)


def train_hundred(how, num_steps=2):
    """Train 100 million parameters in mixed precision."""
    model, policy = transformer(HUNDRED), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if how == "DDP":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        model = sharded(model, mp_policy=policy)
    adam = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.zeros(1, HUNDRED.context_length, dtype=torch.long)
    for _ in range(num_steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "DDP"):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        adam.step()
        adam.zero_grad()


# %% second_ways
def states_of(held):
    """The bytes of weights, gradients and optimizer state."""
    return sum(held[kind] for kind in KINDS)


def on_paper(how):
    """What a rank of two holds at its peak with 100 million parameters."""
    run = ws.paper(train_hundred, how, world_size=2, cluster="dgx-h100", echo=False)
    return run.memory[0].peak


here = ws.run(train, 3, zero3_step, 3, memory=True, **REAL).values[0][0]
emulated = {name: states_of(run.values[0][0]) for name, run in runs.items()}
layer = [run_of[num].memory[0].peak["activations"] for num in (2, 4)]

# %% formula_beside_run
few, many, table = NUM_PARAMETERS, HUNDRED.num_parameters, []
kept_bytes = LLAMA.layer_activation_bytes(1, LLAMA.context_length)
for what, by, formula, size in (
    (
        f"ZeRO-3, {few:,}, {world_size} ranks",
        "measured here",
        16 * few / world_size,
        states_of(here),
    ),
    (f"DDP, {few:,}, 4 ranks", "emulated", 16 * few, emulated["DDP"]),
    (f"ZeRO-2, {few:,}, 4 ranks", "emulated", (2 + 14 / 4) * few, emulated["ZeRO-2"]),
    ("DDP, 100 million, 2 GPUs", "on paper", 16 * many, states_of(on_paper("DDP"))),
    ("FSDP2, 100 million, 2 GPUs", "on paper", 8 * many, states_of(on_paper("FSDP2"))),
    ("activations of a layer of 8B", "on paper", kept_bytes, (layer[1] - layer[0]) / 2),
):
    row = {"bytes on a rank": what, "found": by, "formula_bytes": formula, "run_bytes": size}
    table.append({**row, "error": f"{formula / size - 1:+.2%}"})
draw.table(table, title="Formula beside measurement, emulation and paper")

# %% [markdown]
# For the states the formula is right to the byte or nearly so, at every stage, whether they were
# measured, emulated or run on paper. It leaves out what comes on top of the states, and for Llama 3
# 8B, in the previous table, that is most of the peak.
#
# ### Does it fit?
#
# Choose a model, a number of GPUs and a batch. Activations are counted from the layer's shape,
# either all kept or with each layer recomputed from its input; ZeRO-3 also holds two gathered
# layers, the one in use and the next one. The logits and what the allocator wastes are not
# included.


# %% what_fits
def what_fits(model="llama-3-8b", num_ranks=8, num_sequences=1, recomputes=False):
    """A bar for each stage: what a rank holds, computed, against a GPU of 80 GB."""
    sizes = shape(model)
    length, layer_bytes = sizes.context_length, 2 * sizes.num_layer_parameters
    kept = sizes.layer_activation_bytes(num_sequences, length)
    inputs = 2 * num_sequences * length * sizes.width
    activations = sizes.num_layers * (inputs if recomputes else kept) + recomputes * kept
    bars = {}
    for stage, name in enumerate(STAGES):
        bars[name] = held_bytes(sizes.num_parameters, num_ranks, stage)
        bars[name]["gathered"] = 2 * layer_bytes if stage == 3 else 0
        bars[name]["activations"] = activations
    fitting = [name for name, bar in bars.items() if sum(bar.values()) <= 80e9]
    title = f"{model} on {num_ranks:,} GPUs, {num_sequences} x {length:,} tokens each, computed"
    picture = draw.memory(bars, 80e9, title, "GPU")
    return picture, f"Fits into 80 GB: {', '.join(fitting) or 'nothing'}."


# %% fits
from worldsize.explore import explore

explore(
    what_fits,
    model=["llama-2-7b", "llama-3-8b", "llama-3-70b", "llama-3-405b"],
    num_ranks=(1, 4096, "x2"),
    num_sequences=(1, 16, "x2"),
    recomputes=False,
)

# %% [markdown]
# Choose Llama 3 70B and raise the number of GPUs: what keeps it from fitting on any number? Tick
# `recomputes`: how many GPUs does it take now? And which control lets the 8B model take four
# sequences on 8 GPUs?
#
# <details><summary>Answer</summary>
#
# The activations of one sequence, 218 GB: data parallelism does not shard them on any number of
# GPUs. With each layer recomputed, 13.5 GB of them remain, and ZeRO-3 fits from **32 GPUs** on,
# with 52.2 GB on each; with 16 it would need 87.4 GB on each. For the 8B model, too, the control is
# `recomputes`: four sequences have 176 GB of activations, or 14.1 GB with recomputation, and then
# ZeRO-1 is enough, with 58.3 GB.
#
# </details>
#
# ## 7. When it breaks
#
# ### The loss is right, the gradient is not
#
# In December 2025 a user trained the same model three times with DeepSpeed, with the same seed
# (deepspeedai/DeepSpeed, issue 7718). Up to version 0.17.5, with ZeRO-2, the gradient norms of the
# first steps were 4.74, 3.98 and 6.03. From 0.17.6 on, also with ZeRO-2, they were 1.63, 1.49 and
# 3.25, while the losses agreed to four digits at first: 1.4401, 1.3686. With ZeRO-3 the new version
# gave 4.77. There was no error and no warning. In August 2026 issue 8224 gave the cause of a
# similar fault, in versions 0.18.3 to 0.19.3 with bfloat16: **a module that is used twice in a
# step**, such as an encoder applied to two inputs, gets its gradient in two pieces, and the
# reduction left one of them out. A fix came five days later (pull request 8245). It is not the
# fault of the first issue: that one was fixed in 0.18.3 (a maintainer, huggingface/trl, issue
# 4540), **the version in which this one began**. Only a comparison with a different version or a
# different stage showed either of them.
#
# The mistake is easy to make when gradients are sent as soon as they are computed. The next cells
# make it in our own ZeRO-2, with one layer that is applied to two inputs:


# %% used_twice
def used_twice(adds):
    """The loss, and the norm of the mean gradient of a layer that a step applies to two inputs."""
    weight = starting_weights()[0].requires_grad_()
    inputs = [rows_of(step, torch.float32) for step in (0, 1)]
    outputs = [forward(rows, weight.detach()) for rows in inputs]
    loss = sum(one.square().mean() for one in outputs)
    kept = torch.zeros(WIDTH * WIDTH // dist.get_world_size())
    for rows, one in zip(inputs, outputs, strict=True):
        of_weight, _ = backward(2 * one / one.numel(), rows, one, weight.detach())
        arrived = torch.empty_like(kept)
        dist.reduce_scatter_tensor(arrived, of_weight.view(-1))
        kept = kept + arrived if adds else arrived
    square = (kept / dist.get_world_size()).square().sum()
    dist.all_reduce(square)
    return loss, square.sqrt()


def in_one_process(num_ranks):
    """The same by autograd alone, over the rows of all ranks."""
    weight = starting_weights()[0].requires_grad_()
    inputs = [rows_of(step, torch.float32, rank) for rank in range(num_ranks) for step in (0, 1)]
    loss = sum(forward(rows, weight).square().mean() for rows in inputs) / num_ranks
    loss.backward()
    return loss, weight.grad.norm()


# %% used_twice_shown
table = []
for name, adds in (("keeps the last piece", False), ("adds the pieces", True)):
    values = ws.run(used_twice, adds, **EMULATED).values
    loss = sum(loss.item() for loss, _ in values) / NUM_RANKS
    table.append({"sharded gradient": name, "loss": f"{loss:.4f}", "norm": f"{values[0][1]:.5f}"})
loss, norm = in_one_process(NUM_RANKS)
table.append({"sharded gradient": "one process", "loss": f"{loss:.4f}", "norm": f"{norm:.5f}"})
draw.table(table, title=f"A layer used twice in a step, {NUM_RANKS} ranks, emulated")

# %% [markdown]
# **What was seen**: the same losses at first, but different gradient norms. **What it was**: one of
# two pieces of a gradient was lost. **What finds it in minutes**: comparing one step's gradient
# with that of one process, for a model with a module that is used twice. The loss of the first step
# can never show this fault, because it is computed before any gradient is used. Lab 7 asks for this
# comparison.
#
# ### torchtune divided its gradients once too often
#
# In December 2024 gradients in torchtune turned out to be too small by a factor of the world size,
# 8 in the reviewer's run (pytorch/torchtune, pull request 2172). FSDP and DDP divide the sum of the
# gradients by the number of ranks; torchtune divided by the number of all ranks' tokens as well.
# The loss curves looked the same. The next cell shows why:


# %% divided_twice
def distance_moved(make_optimizer, divisor, num_steps=20):
    """How far a layer's weight moves when all of its gradients are divided by `divisor`."""
    start, rows = starting_weights()[0], rows_of(0, torch.float32, rank=0)
    weight = start.clone().requires_grad_()
    optimizer = make_optimizer([weight])
    for _ in range(num_steps):
        optimizer.zero_grad()
        (forward(rows, weight).square().mean() / divisor).backward()
        optimizer.step()
    return (weight.detach() - start).norm().item()


ratios = {}
for name, make_optimizer in (
    ("AdamW", lambda weights: torch.optim.AdamW(weights, lr=1e-3)),
    ("SGD", lambda weights: torch.optim.SGD(weights, lr=0.01)),
):
    right, too_small = (distance_moved(make_optimizer, divisor) for divisor in (1, 8))
    ratios[name] = too_small / right
    print(f"{name:<5} with gradients of an eighth: moves {ratios[name]:.2f} times as far")

# %% [markdown]
# AdamW divides each gradient by its own size, so a constant factor cancels; clipping to a norm
# hides it as well. SGD moves an eighth as far. A comparison with one process shows the factor at
# once. A loss curve with AdamW does not.
#
# (A third mistake of this kind is in lab 7: each rank computes the norm for **clipping** over its
# own shard only. Then the clipping depends on the number of GPUs; torch issue 170862 is one such
# report.)

# %% [markdown]
# ### Find the bug: an optimizer that holds the old weights
#
# 8 minutes · medium
#
# A colleague shards a layer with `fully_shard`. The gradients are computed, and the optimizer steps
# without an error. Yet the loss does not fall. Run the check, read what the audit of the run found,
# and repair the function.
#
# <details><summary>Hint</summary>
#
# `fully_shard` replaces each parameter with a DTensor. Which tensors does the optimizer hold?
# </details>


# %% sharded_losses tags=["turn"]
def sharded_losses(layer, rows, num_steps):
    """The loss before each of some AdamW steps of a layer that FSDP2 shards."""
    ### BEGIN SOLUTION
    fully_shard(layer)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
    ### INSTEAD
    # optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
    # fully_shard(layer)
    ### END SOLUTION
    losses = []
    for _ in range(num_steps):
        loss = layer(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %% check_sharded_losses
def losses_on_a_rank():
    """The losses of 10 steps."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    return sharded_losses(layer, rows_of(0, torch.float32)[:, :8], 10)


with check.turn("sharded_losses"):
    run = ws.run(losses_on_a_rank, **EMULATED, audit=True)
    first, *_, last = run.values[0]
    if not last < 0.9 * first:
        hint = "; ".join(f"audit: {one.what}. Cure: {one.cure}" for one in run.audit.findings)
        raise CheckFailed("a loss that falls", f"{first:.4f}, and {last:.4f} ten steps later", hint)
    print(f"Right. The loss falls from {first:.4f} to {last:.4f} in ten steps.")

# %% [markdown]
# No error was raised, because an optimizer may hold tensors that never get a gradient: it skips
# them.

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | 16 bytes a parameter | stages 1, 2, 3 shard 12, 14, 16 of them | 2 + 2 + 12; section 3 |
# | 2, 2, 2, 3 passes of P (N - 1)/N | full sharding sends 1.5 times DDP | section 4 |
# | R/β tokens a GPU hide full sharding | 1,200 on 8 A100s, 2,300 on 8 H100s | section 6 |
# | 33 million elements a call | smaller gathers are slow | FSDP, figure 2b; section 4 |
# | 4R/B bytes a second in all | fetching the optimizer state in a step's time | section 4 |

# %% [markdown]
# ## 8. Problems
#
# 1. Llama 2 7B has 6.74 billion parameters, and you have 8 GPUs of 40 GB. What is the lowest stage
#    that leaves 12 GB for activations?
#
# <details><summary>Answer</summary>
#
# DDP needs 16 × 6.74 = 107.8 GB. Stage 1 needs (4 + 12/8) × 6.74 = 37.1 GB and leaves 2.9. Stage 2
# needs (2 + 14/8) × 6.74 = 25.3 GB and leaves 14.7: **stage 2**, and it sends no more than DDP.
#
# </details>
#
# 2. A step accumulates the gradients of 4 micro-batches. How many passes of P (N - 1)/N does each
#    stage send in a step, if none may hold more than the table of section 4 shows?
#
# <details><summary>Answer</summary>
#
# DDP and stage 1 hold whole gradients, so they accumulate locally and send once: **2**. Stage 2 may
# not keep whole gradients: it needs a reduce-scatter for each micro-batch, and one all-gather: 4 +
# 1 = **5**. Stage 3 gathers twice and reduces once for each micro-batch: 4 × 3 = **12**. If it
# keeps whole gradients (2P bytes more), stage 3 sends 4 × 2 + 1 = 9; if it also keeps the weights
# between passes, it is stage 1.
#
# </details>
#
# 3. A training run has a global batch of 4 million tokens. β is 292 GB/s on 64 H100s and 118 GB/s
#    on 1,024; R is 794 TFLOP/s. Does a step with full sharding wait for communication on 64 GPUs?
#    On 1,024?
#
# <details><summary>Answer</summary>
#
# On 64: 62,500 tokens a GPU against R/β = 794,000 / 292 = 2,720. It does not wait. On 1,024: 3,906
# tokens against 794,000 / 118 = 6,730. It waits, and a step takes at least 6,730 / 3,906 = 1.7
# times its compute. A larger batch, HSDP, or tensor parallelism within the node (week 8) would
# help.
#
# </details>
#
# 4. The tables of section 6 leave the update out. Adam reads and writes 28 bytes for each parameter
#    that a rank updates. An H100 moves 3.35 TB/s. How long does the update of 8 billion parameters
#    take with DDP, and how long if it is sharded over 8 GPUs? Compare it with the compute of 8,192
#    tokens at 794 TFLOP/s.
#
# <details><summary>Answer</summary>
#
# 224 GB / 3.35 TB/s = 66.9 ms with DDP, 8.4 ms sharded. The compute is 6 × 8 × 10⁹ × 8,192 / 794 ×
# 10¹² = 495 ms. Sharding the update saves 58.5 ms, 12% of the compute: more than full sharding
# costs at that number of tokens. (At 16 bytes a parameter, 8 billion do not fit with DDP anyway.)
#
# </details>
#
# 5. You are given 512 H100s of 80 GB in nodes of 8 and Llama 3 70B (70.6 billion parameters). You
#    want HSDP with as few GPUs in a shard group as possible, and half of the memory for
#    activations. How many GPUs are in a group? What does a rank send across nodes in the all-reduce
#    between the replicas?
#
# <details><summary>Answer</summary>
#
# 16 × 70.6 = 1,130 GB. Within one node that is 141 GB a GPU: too much. 40 GB a GPU takes 28.2 GPUs,
# so **32**, four nodes: 35.3 GB on each. There are 16 replicas. A shard's gradients are 2 × 70.6 /
# 32 = 4.4 GB in bfloat16; in a ring of 16 each rank sends 2 × 15/16 × 4.4 = 8.3 GB. The three
# passes within the group, 31/32 × 3 × 141.2 GB, cross nodes as well, because a group has four
# nodes.
#
# </details>

# %% [markdown]
# ## 9. Self-check
#
# First, compare your predictions with the results.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions follow. Every answer, right or wrong, has its own explanation.

# %% self_check
quiz.ask("week07", seed=seed)

# %% [markdown]
# ## To take with you
#
# - Training holds 16 bytes for each parameter, and twelve of them are used only by the optimizer.
#   Adam updates each element independently, so each rank can update a part.
# - ZeRO-1 and ZeRO-2 send as many bytes as DDP: they update between the two halves of the
#   all-reduce. ZeRO-3 and FSDP send one and a half times as many.
# - R/β tokens on each GPU hide what full sharding sends. What remains are the first gather, the
#   last reduction, and copies in each layer: "5 to 15%" with a few thousand tokens on each GPU.
# - Sharding shrinks model states. Activations stay, and for one long sequence they are most of the
#   peak.
# - A gathered weight is free only when nothing refers to it any longer.
# - Test every sharded gradient against the one that a single process computes.
#
# **Now the lab**: [lab 7, ZeRO-1, 2 and 3 by hand](../labs/lab07/lab07.ipynb). You handle modules,
# hooks, tied parameters, prefetch, and clipping by the norm of all shards. Then **week 8**, *Tensor
# parallelism*: splitting a single matmul.
