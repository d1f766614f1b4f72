# %% [markdown]
# # Week 1. Why one GPU is not enough
#
# | | |
# |---|---|
# | Reading and doing | about 90 minutes: four short exercises, two bugs to find, three explorers |
# | Running | about a minute on two CPU cores; GPUs are used if there are enough |
# | You need | to have trained a network in PyTorch: `loss.backward()`, `optimizer.step()` |
# | You do not need | to have run anything on two processes or two GPUs |
# | Afterwards | lab 1, *average the gradients* |
#
# You have trained on one GPU. This week you train on two processes, then on four, and get **the
# same model, step by step**. Every later week makes this faster, smaller or safer.
#
# Three terms first. A **rank** is one process of a training job, usually with a GPU of its own;
# ranks are numbered from 0. The **world size** is the number of ranks. A **collective** is a call
# that all ranks make together, such as `all_reduce`: each rank passes in a tensor, and each gets
# back the sum of all of them.

# %% [markdown]
# ## 1. The question
#
# > What must several processes communicate so that together they train exactly the model that one
# > process would have trained? And what does that communication cost?
#
# Afterwards you can say how long a model trains on how many GPUs and whether it fits on them; train
# on several ranks and prove that the result is right; and tell from two numbers whether a link is
# fast enough.

# %% parameters tags=["parameters"]
world_size = 2  # ranks in the small experiments: 2 or 4
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
# the emulated cluster of the pictures in section 6; the table there names its own
cluster = "dgx-h100"
seed = 0
predicted_years = None  # to train GPT-3 on one A100
predicted_memory_gb = None  # to train a model of 7.5 billion parameters with Adam
predicted_hours = None  # between two unexpected stops of a job on 16,384 GPUs
predicted_speedup = None  # of two ranks over one, for the small network below, on this machine

# %% setup
import copy
import json
import math
import os
import statistics
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

import worldsize as ws
from worldsize import check, draw, hardware, images, ledger, models, operators, quiz, units
from worldsize.explore import explore

folder = Path("build/week01")
folder.mkdir(parents=True, exist_ok=True)
predictions = ledger.Predictions("week01")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers, and waits. Only you see them, and a guess that is ten times
# off teaches more than a number that you only read. As soon as a result is known, it is printed
# next to your prediction, which you then cannot change any more. A number that replaces a `None`
# above counts as an answer.

# %% predict
predictions.ask("GPT-3 on one A100", predicted_years, "years", section=3)
predictions.ask("memory of a 7.5B model", predicted_memory_gb, "GB", section=3)
predictions.ask("between two stops of 16,384 GPUs", predicted_hours, "hours", section=3)
predictions.ask("speed-up of 2 ranks", predicted_speedup, "times", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### One GPU: the time
#
# Training a transformer costs about six floating-point operations for each parameter and each
# token: two in the forward pass (a multiplication and an addition), four in the backward pass,
# which computes two gradients.
#
# $$\text{FLOPs} \approx 6 \, N \, D \qquad N \text{ parameters}, \; D \text{ tokens}$$
#
# (Kaplan et al. 2020, *Scaling Laws for Neural Language Models*, section 2.1.) GPT-3 has 175
# billion parameters and saw 300 billion tokens (Brown et al. 2020, table 2.1). An A100 computes at
# most 312 TFLOP/s in bfloat16 (NVIDIA A100 data sheet, without sparsity); the fastest matmul
# measured on one reached 271.2 TFLOP/s (`stas00/ml-engineering`, compute/accelerator).

# %% time_to_train
gpt3_parameters, gpt3_tokens = 175e9, 300e9
gpt3_flops = 6 * gpt3_parameters * gpt3_tokens
for source, flops_per_s in {"data sheet": 312e12, "best measured": 271.2e12}.items():
    took = units.format_time_s(gpt3_flops / flops_per_s)
    print(f"{units.format_count(gpt3_flops)} FLOPs, {source}: {took}")
predictions.reveal("GPT-3 on one A100", gpt3_flops / 312e12 / units.YEAR)

# %% [markdown]
# Decades, on a GPU that never waits for anything. On 1,024 A100s it would be 34 days, according to
# Narayanan et al. 2021 (*Efficient Large-Scale Language Model Training on GPU Clusters Using
# Megatron-LM*, section 5.1). They measured 140 TFLOP/s on each GPU, and count eight operations
# instead of six because they compute the forward pass twice to save memory.
#
# The share of the peak that goes into those six operations is the **model FLOPs utilisation**, or
# MFU (Chowdhery et al. 2022, *PaLM*, section 4.1). Recomputed work does not count. Many weeks of
# this course print it.

# %% time_on_a_cluster
cluster_s = 8 * gpt3_parameters * gpt3_tokens / (1024 * 140e12)
mfu_fraction = gpt3_flops / cluster_s / (1024 * 312e12)
print(f"1,024 A100s at 140 TFLOP/s: {units.format_time_s(cluster_s)}")
print(f"{140 / 312:.0%} of the peak; MFU {mfu_fraction:.0%}, without the second forward pass")

# %% [markdown]
# ### Your turn: days on a cluster
#
# 3 minutes · easy
#
# How many days does a model train on `num_gpus` GPUs, each with this peak and this MFU?
#
# <details><summary>Hint</summary>
#
# The time in seconds is FLOPs divided by FLOP/s. `units.DAY` is the number of seconds in a day.
# </details>


# %% training_days tags=["turn"]
def training_days(num_parameters, num_tokens, num_gpus, peak_flops_per_s, mfu_fraction):
    """Days of training on this many GPUs."""
    ### BEGIN SOLUTION
    flops_per_s = num_gpus * peak_flops_per_s * mfu_fraction
    return 6 * num_parameters * num_tokens / flops_per_s / units.DAY
    ### END SOLUTION


# %% check_training_days
with check.turn("training_days"):
    days = training_days(gpt3_parameters, gpt3_tokens, 1024, 312e12, mfu_fraction)
    hint = "Six operations for each parameter and token, on all GPUs, at their MFU; in days."
    check.expect_close(days, 33.9, "the days of GPT-3 on 1,024 A100s", hint, rtol=2e-3)
    days = training_days(405e9, 15.6e12, 16_384, 989e12, 0.40)
    check.expect_close(days, 67.7, "the days of Llama 3 405B on 16,384 H100s", hint, rtol=2e-3)
    print("Right. Llama 3 405B: 68 days at an MFU of 40%; it saw 15.6 trillion tokens.")

# %% [markdown]
# ### How large should the model be?
#
# More GPUs can train a larger model, or train the same model on more tokens. For a given number of
# FLOPs the loss is lowest when both grow together. Hoffmann et al. 2022 (*Training Compute-Optimal
# Large Language Models*) fitted this **scaling law** to more than 400 models, and then trained
# Chinchilla: 70 billion parameters on 1.4 trillion tokens, 20 for each parameter. With $D = 20 N$ a
# budget of $C = 6 N D$ FLOPs calls for $N = \sqrt{C / 120}$ parameters. This is what clusters of
# H100s (989 TFLOP/s in bfloat16, NVIDIA H100 data sheet) can train in 30 days at an MFU of 40%:

# %% compute_optimal
rows = []
for num_gpus in (1, 8, 64, 1024, 16_384):
    flops = num_gpus * 989e12 * 0.40 * 30 * units.DAY
    num_parameters = (flops / (6 * 20)) ** 0.5
    counts = map(units.format_count, (num_parameters, 20 * num_parameters))
    rows.append((num_gpus, f"{flops:.1e}", *counts))
columns = ("H100s", "operations", "parameters", "tokens")
draw.table(rows, title="Compute-optimal models of 30 days, computed", columns=columns)

# %% [markdown]
# A hundred times the GPUs train a model only ten times as large, since it also sees ten times as
# many tokens. Models that many people will use are trained on far more than 20 tokens a parameter:
# a small model costs less each time it answers. Llama 3 405B saw 39 for each parameter, 15.6
# trillion in all (Llama team 2024, *The Llama 3 Herd of Models*, section 3).

# %% [markdown]
# ### One GPU: the memory
#
# Four things fill memory while a network trains.
#
# - **Weights**: the parameters themselves.
# - **Gradients**: one value for each weight.
# - **Optimizer state**: Adam keeps two more values for each weight, the running means of the
#   gradient and of its square.
# - **Activations**: what the forward pass keeps because the backward pass needs it. They grow with
#   the batch.
#
# Do not take this on trust: count the bytes. Torch calls a hook for every tensor that the forward
# pass keeps.


# %% count_activations
def activation_bytes(model, batch):
    """Bytes that the forward pass keeps for the backward pass, weights not counted."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(batch).sum()
    assert loss.requires_grad  # alive until here, and with it all that was kept
    return sum(kept.values())


# %% [markdown]
# The other three need no trick: add up the tensors. The network is a small convolutional one; the
# images are 1,797 handwritten digits of 8 by 8 pixels (UCI *Optical Recognition of Handwritten
# Digits*, shipped with this course).

# %% count_memory
pixels, labels = images.load_digits()


def memory_parts(batch_size):
    """Bytes by what they are for, after one step of Adam on this many images."""
    model = models.vision_net(width=32, seed=seed)
    optimizer = torch.optim.Adam(model.parameters())
    kept = activation_bytes(model, pixels[:batch_size])
    F.cross_entropy(model(pixels[:batch_size]), labels[:batch_size]).backward()
    optimizer.step()
    state = [tensor for tensors in optimizer.state.values() for tensor in tensors.values()]
    return {
        "weights": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.grad.nbytes for p in model.parameters()),
        "optimizer state": sum(tensor.nbytes for tensor in state),
        "activations": kept,
    }


measured = {f"batch of {size}": memory_parts(size) for size in (4, 16, 64)}
draw.memory(measured, title="A small network, bytes counted")

# %% [markdown]
# Weights, gradients and optimizer state stay as they are; activations grow with the batch.
# Activations also come and go within a step. The next cell shows the same four parts over two
# steps, in a separate process: `ws.run` starts it, counts its tensors, and returns the counts. A
# `ws.span` names a part of the step, which later pictures draw as a bar.


# %% one_step_of_adam
def one_step_of_adam(pixels, labels):
    """Take two steps; the first one makes the optimizer's state."""
    torch.set_num_threads(1)
    model = models.vision_net(width=32, seed=seed)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        with ws.span("forward", kind="forward"):
            loss = F.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        with ws.span("backward", kind="backward"):
            loss.backward()
        with ws.span("update", kind="update"):
            optimizer.step()


some = pixels[:64].clone(), labels[:64].clone()
step_run = ws.run(one_step_of_adam, *some, world_size=1, backend="gloo", memory=True, echo=False)
draw.memory_use({"rank 0": step_run.memory[0]}, title="Two steps by kind, measured here")

# %% [markdown]
# In each step the forward pass adds activations; the backward pass frees them again, and leaves
# gradients behind. The first update adds Adam's state, which stays. *Temporaries* are tensors that
# live only for a moment, such as the gradients *of* activations. **The peak decides whether a model
# fits.** It lies in the backward pass, where such a gradient meets activations not yet freed.
#
# Mixed-precision training with Adam holds **16 bytes for each parameter**: 2 for the bf16 weight, 2
# for its gradient, and 12 for the optimizer, which keeps its own 4-byte copy of the weight and two
# 4-byte means (Rajbhandari et al. 2020, *ZeRO*, section 3.1).


# %% memory_of_large_models
def model_bytes(num_parameters):
    """Bytes by part, for mixed-precision Adam, activations not counted."""
    return {
        "weights": 2 * num_parameters,
        "gradients": 2 * num_parameters,
        "optimizer state": (4 + 4 + 4) * num_parameters,
    }


sizes = {"1.5B (GPT-2)": 1.5e9, "7.5B": 7.5e9, "13B": 13e9}
predictions.reveal("memory of a 7.5B model", sum(model_bytes(7.5e9).values()) / units.GB)
large = {label: model_bytes(num_parameters) for label, num_parameters in sizes.items()}
draw.memory(large, 80 * units.GB, "Mixed-precision Adam, computed", "one A100 or H100")

# %% [markdown]
# Activations come on top. For *s* tokens, *b* sequences, width *h* and *a* heads, a transformer
# layer keeps
#
# $$\text{bytes} = s \, b \, h \, \Big( 34 + 5 \frac{a s}{h} \Big)$$
#
# (Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*,
# equation 1). The table has three shapes, with **one sequence** on the GPU:

# %% activations_of_large_models
SHAPES = {  # parameters, tokens of a sequence, width, heads, layers
    "GPT of 7.5B": (7.5e9, 2048, 4096, 32, 36),
    "GPT of Llama 2 7B's shape": (6.74e9, 4096, 4096, 32, 32),
    "GPT-3": (gpt3_parameters, 2048, 12_288, 96, 96),
}
rows = []
for name, (num_parameters, s, h, a, num_layers) in SHAPES.items():
    kept_bytes = num_layers * s * h * (34 + 5 * a * s / h)
    state_bytes = sum(model_bytes(num_parameters).values())
    rows.append((name, s, state_bytes, kept_bytes, f"{state_bytes / kept_bytes:.1f}"))
columns = ("model", "tokens", "states_bytes", "activations_bytes", "sequences for as much")
title = "States of mixed-precision Adam, and activations of one sequence, computed"
draw.table(rows, title=title, columns=columns)

# %% [markdown]
# The last column says how many sequences fill as much memory as all states together: one to four at
# 7 billion parameters, ten at 175 billion. No training run keeps that much: week 6 removes most of
# the activations, week 7 splits the states.
#
# More GPUs help only if the model is *split* over them. Give each GPU the whole model, and each
# needs all of these bytes, however many GPUs there are. Move the sliders: does any number of GPUs
# help a model of 70 billion parameters that is not split?


# %% memory_of_one_gpu
def on_one_gpu(num_parameters=7_500_000_000, num_gpus=8):
    """The memory of one GPU, computed: with a whole model on each, and with an even split."""
    whole = model_bytes(num_parameters)
    split = {part: size / num_gpus for part, size in whole.items()}
    title = (
        f"{units.format_count(num_parameters)} parameters on {num_gpus} GPUs, computed, without"
        " activations"
    )
    return draw.memory(
        {"whole model on each": whole, f"a part of 1/{num_gpus} on each": split},
        80 * units.GB,
        title,
        "one H100",
    )


SIZES = [1_500_000_000, 7_500_000_000, 70_000_000_000, 175_000_000_000]
explore(on_one_gpu, num_parameters=SIZES, num_gpus=(1, 64, "x2"))

# %% [markdown]
# ### Your turn: GPUs for the states
#
# 3 minutes · easy
#
# What is the smallest number of GPUs over which weights, gradients and optimizer state can be split
# equally so that each part fits? Activations are not counted.
#
# <details><summary>Hint</summary>
#
# 16 bytes for each parameter. You cannot buy a fraction of a GPU: `math.ceil` rounds up.
# </details>


# %% gpus_for_states tags=["turn"]
def gpus_for_states(num_parameters, gpu_bytes):
    """The least number of GPUs that hold the states, split evenly."""
    ### BEGIN SOLUTION
    return math.ceil(16 * num_parameters / gpu_bytes)
    ### END SOLUTION


# %% check_gpus_for_states
with check.turn("gpus_for_states"):
    hint = "16 bytes a parameter over the bytes of a GPU, rounded up."
    for num_parameters, expected in ((1.5e9, 1), (5e9, 1), (7.5e9, 2), (175e9, 35)):
        what = f"the GPUs of 80 GB for {units.format_count(num_parameters)} parameters"
        check.expect_close(gpus_for_states(num_parameters, 80 * units.GB), expected, what, hint)
    print("Right. GPT-3's states alone fill 35 GPUs of 80 GB.")

# %% [markdown]
# ### Four pillars
#
# One GPU is too slow, and too small. Everything that follows in this course builds on four ideas.
#
# | Pillar | What is split | What is communicated | Which limit it lifts |
# |---|---|---|---|
# | **Data parallelism** | the batch; each rank has the model | gradients | speed |
# | **Model and tensor parallelism** | the model, by layers or inside them | activations | memory |
# | **Parameter server or all-reduce** | the work of adding up | gradients | the busiest link |
# | **Fault tolerance** | nothing: it keeps the job alive | checkpoints | time between failures |
#
# *Parameter server or all-reduce* is one line of arithmetic. Let *S* be the size of the gradients
# and *N* the world size. A server receives *S* from each rank and sends *S* back: $2 N S$ over its
# one link. In a ring, each rank sends $2 (N - 1) / N \cdot S$, which is always less than $2 S$
# (week 2 derives it, and you write it).

# %% who_carries_the_bytes
# ResNet-50 in float32; number of parameters: torchvision's documentation
gradient_bytes = 25_557_032 * 4
rows = [
    (num_ranks, 2 * num_ranks * gradient_bytes, 2 * (num_ranks - 1) / num_ranks * gradient_bytes)
    for num_ranks in (2, 8, 64, 512)
]
columns = ("ranks", "server's link_bytes", "each link of a ring_bytes")
title = "Bytes on a link in each step, ResNet-50 in float32, computed"
draw.table(rows, title=title, columns=columns)

# %% [markdown]
# *Fault tolerance* is one division. Llama 3 405B was trained on 16,384 H100s. In 54 days the job
# was interrupted unexpectedly 419 times (Llama team 2024, section 3.3.4), whatever the cause:
# GPUs, hosts, cables, software.

# %% hours_between_stops
hours_between_stops = 54 * 24 / 419
gpu_years = 16_384 * 54 * units.DAY / 419 / units.YEAR
print(f"one interruption every {hours_between_stops:.1f} hours, or {gpu_years:.1f} GPU-years")
predictions.reveal("between two stops of 16,384 GPUs", hours_between_stops)

# %% [markdown]
# ### Several ranks that never communicate
#
# Now run something. The first idea: start several processes, give each a part of the data, and let
# them train.
#
# Each rank draws the *same* batch of 256 (same generator, same seed) and takes *its own* equal part
# of it. Every world size of this lesson divides 256. Lab 1 asks what to do when it does not.

# %% the_pieces
BATCH_SIZE, LEARNING_RATE, STEPS = 256, 0.3, 30


def part_of_batch(step, rank, world_size):
    """Indices of this rank's equal part of the batch of this step."""
    chooser = torch.Generator().manual_seed(step)
    batch = torch.randint(1797, (BATCH_SIZE,), generator=chooser)  # the same on every rank
    return batch.chunk(world_size)[rank]


def start():
    """This rank's device, model and optimizer; every rank starts from the same weights."""
    torch.set_num_threads(1)  # one rank, one core
    on_gpus = dist.get_backend() == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    model = models.vision_net(width=32, seed=seed).to(device)
    return device, model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


# %% [markdown]
# `ws.run` runs a function on real ranks: separate processes, joined by `torch.distributed`. The
# function is an ordinary one, and what the ranks return comes back as a list.
#
# This one trains without any communication. Its last lines only observe: they measure how far each
# rank's weights are from the mean of all ranks.


# %% train_apart
def train_apart(pixels, labels):
    """The distance of this rank's weights from the mean of all ranks' weights, after each step."""
    device, model, optimizer = start()
    distances = []
    for step in range(STEPS):
        mine = part_of_batch(step, dist.get_rank(), dist.get_world_size())
        loss = F.cross_entropy(model(pixels[mine].to(device)), labels[mine].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        mean = weights.clone()
        dist.all_reduce(mean)
        distances.append((weights - mean / dist.get_world_size()).norm().item())
    return distances


apart = ws.run(train_apart, pixels, labels, world_size=4, backend=backend)
distances = {f"rank {rank}": values for rank, values in enumerate(apart.values)}
title = "The weights of four ranks that never communicate, measured here"
draw.curves(distances, y_label="distance from the mean", title=title)

# %% [markdown]
# They start from the same weights and see different data: after one step they differ, and nothing
# brings them together again. These are four models, each trained on a quarter of the data.
# **Nothing was gained by running them at the same time.**
#
# ### Several ranks that all send to rank 0
#
# So they must communicate. What exactly? Look at the gradient of the batch. The loss is a mean over
# *B* images, so the gradient is a mean too; with *N* equal parts, it is the mean of their means:
#
# $$g = \frac{1}{B} \sum_{i=1}^{B} g_i
#     = \frac{1}{N} \sum_{r=1}^{N} \Big( \underbrace{
#       \frac{N}{B} \sum_{i \in \text{part } r} g_i}_{\text{gradient of rank } r} \Big)$$
#
# That can be checked in one process, before anything is launched.


# %% mean_of_means
def gradient(indices):
    """The gradient of the mean loss over these images, as one long vector."""
    model = models.vision_net(width=32, seed=seed)
    F.cross_entropy(model(pixels[indices]), labels[indices]).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


whole = gradient(part_of_batch(0, 0, 1))
parts = [gradient(part_of_batch(0, rank, 4)) for rank in range(4)]
mean = torch.stack(parts).mean(dim=0)
off = (whole - mean).abs().max()
print(f"largest gradient {whole.abs().max():.3f}, largest difference {off:.1e}")
assert torch.allclose(whole, mean, atol=1e-6)

# %% [markdown]
# The difference is rounding: float32 keeps about seven digits, and the sums are taken in a
# different order.
#
# So each rank must get the mean of all gradients. The obvious way is to send them all to rank 0,
# which averages them and sends the result back. The next cell does so, one tensor at a time, with
# 16 MB of gradients on four ranks.


# %% through_rank_0
def through_rank_0(gradients):
    """Seconds to average the gradients by way of rank 0."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.barrier()  # all start together
    start_s = time.perf_counter()
    for gradient in gradients:
        inbox = [torch.empty_like(gradient) for _ in range(world_size)] if rank == 0 else None
        with ws.span("gather", kind="communication"):
            dist.gather(gradient, inbox, dst=0)
        if rank == 0:
            with ws.span("mean", kind="compute"):
                torch.mean(torch.stack(inbox), dim=0, out=gradient)
        with ws.span("send back", kind="communication"):
            dist.broadcast(gradient, src=0)
    return time.perf_counter() - start_s


gradients = [torch.full((1_000_000,), float(number)) for number in range(4)]
star = ws.run(through_rank_0, gradients, world_size=4, backend="gloo")
draw.timeline(star.timeline, title="Through rank 0, measured here")

# %% [markdown]
# Read the rows. All gradients pass through rank 0, which adds them up alone. (The *bubble* in the
# title is the share of the time in which ranks do not compute; *exposed* communication is not
# hidden behind computing.) The long *send back* bars of the others are mostly waiting: they have
# made the call, and rank 0 has not. With more ranks, rank 0 receives more, and the others wait
# longer.

# %% [markdown]
# ## 4. Build it well
#
# ### One call: all-reduce
#
# `dist.all_reduce` gives every rank the sum of all ranks' tensors, with no rank in the middle. Week
# 2 shows how. Here is the same mean, of the same tensors.


# %% by_all_reduce
def by_all_reduce(gradients):
    """Seconds to average the gradients with one all-reduce for each."""
    dist.barrier()
    start_s = time.perf_counter()
    for gradient in gradients:
        with ws.span("all-reduce", kind="communication"):
            dist.all_reduce(gradient)
        with ws.span("divide", kind="compute"):
            gradient /= dist.get_world_size()
    return time.perf_counter() - start_s


direct = ws.run(by_all_reduce, gradients, world_size=4, backend="gloo")
for way, run in {"through rank 0": star, "by all-reduce": direct}.items():
    print(f"{way}: {units.format_time_s(max(run.values))}")
draw.timeline(direct.timeline, title="By all-reduce, measured here")

# %% [markdown]
# This is one run of each: run the cells again before you quote a ratio. Only the shape of the
# picture does not depend on the machine. Every rank now does the same work, and none waits for one
# that has more to do.
#
# ### The four steps of data parallelism
#
# 1. **Split**: each rank takes its part of the batch.
# 2. **Compute**: forward and backward on that part, with the whole model.
# 3. **Synchronise**: all ranks average their gradients.
# 4. **Update**: each rank steps its own optimizer. Same weights, same gradient: the weights stay
#    the same.
#
# Step 3 is the only new one. Step 4 needs no communication at all.
#
# On a GPU a call returns as soon as its work has been *launched*. Each part here therefore waits
# for the GPU at its end, so that its bar is as long as its work. A program that is not being
# measured does not wait.


# %% part_of_a_step
@contextmanager
def part(name, kind, device):
    """A span that ends when its work is done."""
    with ws.span(name, kind=kind):
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)


# %% four_steps
def train_together(pixels, labels, steps):
    """This rank's weights after some steps of data-parallel training."""
    device, model, optimizer = start()
    dist.barrier()  # all start together
    for step in range(steps):
        with part("split", "data", device):
            mine = part_of_batch(step, dist.get_rank(), dist.get_world_size())
            x, y = pixels[mine].to(device), labels[mine].to(device)
        with part("forward", "forward", device):
            loss = F.cross_entropy(model(x), y)
        with part("backward", "backward", device):
            optimizer.zero_grad()
            loss.backward()
        with part("synchronise", "communication", device):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        with part("update", "update", device):
            optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


together = ws.run(train_together, pixels, labels, 4, world_size=world_size, backend=backend)
assert all(torch.equal(final, together.values[0]) for final in together.values)
draw.timeline(together.timeline, title=f"{world_size} ranks, 4 steps, measured here")

# %% [markdown]
# The `assert` holds bit for bit: after four steps, every rank has the same weights. Where
# *synchronise* is longer on one rank than on another, that rank is waiting: a collective ends only
# after the last rank has called it. The first step takes longer than the others, because it
# includes all one-time work.
#
# ### Your turn: the accuracy of all ranks
#
# 8 minutes · medium
#
# Gradients are not all that ranks exchange. Each rank has tested the model on images of its own:
# `num_right` of `num_images` were right. Return the accuracy on the images of **all** ranks, on
# every rank. `dist.all_reduce(tensor)` replaces the tensor with the sum over all ranks.
#
# <details><summary>Hint</summary>
#
# Ranks may have tested different numbers of images. Which two numbers add up over ranks? One
# all-reduce can carry both: a tensor has more than one element.
# </details>


# %% accuracy_of_all tags=["turn"]
def accuracy_of_all(num_right, num_images):
    """The accuracy on the images of all ranks."""
    ### BEGIN SOLUTION
    counts = torch.tensor([num_right, num_images], dtype=torch.float64)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
    ### END SOLUTION


# %% check_accuracy_of_all
with check.turn("accuracy_of_all"):
    tested = [(30, 60), (5, 5), (0, 35)]  # right, tested: on each of three ranks

    def test_on_a_rank():
        return accuracy_of_all(*tested[dist.get_rank()])

    hint = "The mean of the ranks' accuracies is 0.5. It counts 5 images as much as 60."
    values = ws.run(test_on_a_rank, world_size=3, backend="gloo", echo=False).values
    for rank, accuracy in enumerate(values):
        check.expect_close(accuracy, 0.35, f"the accuracy that rank {rank} returns", hint)
    print("Right: 35 of 100. Sums add up over ranks; means do not.")

# %% [markdown]
# The mean of means was right for gradients because the parts were equally large. Once they are not,
# add up sums and counts. Lab 1 begins there.
#
# ### One process, two ranks, four ranks
#
# Now the promise of this week: **N ranks with a batch of B/N train the same model as one process
# with a batch of B.** First comes the one process, which knows nothing of ranks: the usual training
# loop, with a timer around each step. It computes in float64, for a reason that the picture below
# shows.


# %% one_process
def one_process(steps):
    """The loss and the seconds of each step of plain training on one device."""
    device = torch.device("cuda") if use_gpus else torch.device("cpu")
    model = models.vision_net(width=32, seed=seed).double().to(device)
    x, y = pixels.double().to(device), labels.to(device)
    losses, step_times_s = [], []
    for step in range(steps):
        start_s = time.perf_counter()
        batch = part_of_batch(step, 0, 1).to(device)
        loss = F.cross_entropy(model(x[batch]), y[batch])
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.grad
        losses.append(loss.item())
        step_times_s.append(time.perf_counter() - start_s)
    return {"losses": losses, "step_times_s": step_times_s[5:]}  # warm-up left out


# %% run_one_process
num_gpus = torch.cuda.device_count()
use_gpus = num_gpus >= 2 and backend != "gloo"
num_threads = torch.get_num_threads()
torch.set_num_threads(1)  # one process, one core, as each rank below
reports = {1: one_process(STEPS)}
torch.set_num_threads(num_threads)
losses, step_s = reports[1]["losses"], statistics.median(reports[1]["step_times_s"])
print(f"one process: the loss goes from {losses[0]:.2f} to {losses[-1]:.2f} in {STEPS} steps")
print(f"{units.format_time_s(step_s)} a step")

# %% [markdown]
# `ws.run` is for short experiments. Real jobs are scripts, started by `torchrun`: it starts the
# ranks and gives each its identity in environment variables (`RANK`, `LOCAL_RANK`, `WORLD_SIZE`).
# The script runs in new processes and sees none of this notebook's variables. It has three parts.
# First: which rank am I, and on which device?

# %% script_who_am_i
# %%writefile build/week01/train_digits.py
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from worldsize import models

folder, backend, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
world_size = int(os.environ["WORLD_SIZE"])
on_gpus = backend != "gloo" and torch.cuda.device_count() >= world_size
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
torch.set_num_threads(1)  # one rank, one core: else one rank would take them all
dist.init_process_group("nccl" if on_gpus else "gloo", device_id=device if on_gpus else None)
rank = dist.get_rank()
print(f"I am rank {rank} of {world_size}, on {device}, and use {dist.get_backend()}")

# %% [markdown]
# Second, the four steps, with a timer around them.

# %% script_four_steps
# %%writefile -a build/week01/train_digits.py

pixels, labels = torch.load(f"{folder}/digits.pt", map_location=device)
pixels = pixels.double()
# the same seed: the same start on every rank
model = models.vision_net(width=32, seed=seed).double().to(device)
losses, step_times_s = [], []
for step in range(30):
    start_s = time.perf_counter()
    chooser = torch.Generator().manual_seed(step)  # 1. split
    mine = torch.randint(len(pixels), (256,), generator=chooser).chunk(world_size)[rank].to(device)
    loss = F.cross_entropy(model(pixels[mine]), labels[mine])  # 2. compute
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # 3. synchronise
            parameter -= 0.3 * parameter.grad / world_size  # 4. update: plain SGD, written out
    total_loss = loss.detach().clone()
    dist.all_reduce(total_loss)  # only to report the loss of the whole batch
    losses.append(total_loss.item() / world_size)
    step_times_s.append(time.perf_counter() - start_s)

# %% [markdown]
# Third, rank 0 writes down what happened. If all ranks wrote the same file, they would overwrite
# each other.

# %% script_report
# %%writefile -a build/week01/train_digits.py

if rank == 0:
    after_warm_up = step_times_s[5:]
    report = {"losses": losses, "step_times_s": after_warm_up, "backend": dist.get_backend()}
    with open(f"{folder}/{world_size}_ranks.json", "w") as file:
        json.dump(report, file)
dist.destroy_process_group()

# %% [markdown]
# Run it under real torchrun. In a terminal you would type
# `torchrun --nproc-per-node 2 train_digits.py ...`; `ws.torchrun` does that, and shows which rank
# printed each line. (After `%load_ext worldsize`, a cell that begins with
# `%%torchrun --nproc-per-node 2` is a script too.) With two GPUs or more, it uses NCCL and as many
# ranks as the GPUs allow; otherwise it uses Gloo, on two and on four CPU ranks.

# %% two_and_four
torch.save((pixels, labels), folder / "digits.pt")
for n in [n for n in (2, 4) if not use_gpus or n <= num_gpus]:
    arguments = [str(folder), "nccl" if use_gpus else "gloo", str(seed)]
    job = ws.torchrun(folder / "train_digits.py", *arguments, nproc_per_node=n)
    reports[n] = json.loads((folder / f"{n}_ranks.json").read_text())
    step_s = statistics.median(reports[n]["step_times_s"])
    print(f"{n} ranks: {units.format_time_s(step_s)} a step; the whole job {job.duration_s:.1f} s")

# %% same_curve
losses = {f"{n} ranks" if n > 1 else "one process": one["losses"] for n, one in reports.items()}
alone = torch.tensor(losses["one process"])
for name, values in losses.items():
    assert torch.allclose(torch.tensor(values), alone, atol=1e-6), name
title = "The same batch, split: the same curve, measured here"
draw.curves(losses, y_label="loss of the whole batch", title=title, difference_from="one process")

# %% [markdown]
# The curves coincide (upper panel, drawn from thick to thin). The lower panel shows the difference:
# rounding. Float64 keeps 16 digits, and no mistake can hide behind so small a difference. Float32
# keeps seven: now and then a value lands on the other side of a ReLU's zero, and from there the two
# runs slowly diverge, which would look like a mistake.
#
# A job this short spends most of its time starting up: each rank is a new Python process that
# imports torch.
#
# ### The other way to split: an assembly line
#
# Data parallelism needs the whole model on every rank. When it does not fit, split the model: rank
# 0 holds the first layers, rank 1 the next, and so on. A batch passes through them like a car
# through a factory.
#
# The two pictures below are **computed, not measured**. With the batch in one piece, three of four
# ranks are idle at any time. Split into small pieces, it keeps several ranks busy at once: with *p*
# stages and *m* pieces, for *m* / (*m* + *p* − 1) of the time. Week 9 builds it.


# %% assembly_line
def assembly_line(num_stages, num_pieces):
    """The timeline of a forward pass of one second of work a stage, cut into pieces."""
    piece_s = 1 / num_pieces
    return ws.Timeline.of_events(
        ws.Event(
            stage,
            "main",
            "forward",
            f"{piece + 1}",
            (stage + piece) * piece_s,
            (stage + piece + 1) * piece_s,
        )
        for stage in range(num_stages)
        for piece in range(num_pieces)
    )


print(f"busy: {1 / (1 + 4 - 1):.0%} with 1 piece, {8 / (8 + 4 - 1):.0%} with 8 pieces")
draw.timeline(assembly_line(4, 1), title="Computed, one piece")

# %% assembly_line_in_pieces
draw.timeline(assembly_line(4, 8), title="Computed, eight pieces")

# %% [markdown]
# ## 5. Compare with the production oracle
#
# torch does all this in one line: `DistributedDataParallel` averages the gradients during the
# backward pass. You write it yourself in lab 3. Here it is the reference: with the same data and
# the same initial weights, it must arrive at our weights.


# %% against_ddp
def train_ddp(pixels, labels, steps):
    """This rank's weights after the same steps, with torch's own data parallelism."""
    device, model, optimizer = start()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    for step in range(steps):
        mine = part_of_batch(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        F.cross_entropy(parallel(pixels[mine].to(device)), labels[mine].to(device)).backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


ours = together.values[0]  # after four steps
theirs = ws.run(train_ddp, pixels, labels, 4, world_size=world_size, backend=backend).values[0]
assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
off = (ours - theirs).abs().max()
print(f"largest weight {ours.abs().max():.3f}, largest difference from DDP {off:.1e}")

# %% [markdown]
# ## 6. Formula, measurement, emulation
#
# ### How much faster?
#
# **Amdahl**: the work is fixed, one batch that is split ever finer. If a fraction *s* of it cannot
# be split, *N* ranks are
#
# $$\text{speed-up} = \frac{1}{s + (1 - s)/N}$$
#
# times as fast, and never more than 1/*s* times. (Amdahl 1967, *Validity of the Single Processor
# Approach*, AFIPS.)
#
# **Gustafson**: the time is fixed, and the batch grows with the ranks. If a fraction *s* of the
# time is not split, *N* ranks do *s* + (1 − *s*) *N* times the work. (Gustafson 1988, *Reevaluating
# Amdahl's Law*, CACM 31.)


# %% two_laws
def amdahl(num_ranks, serial):
    return 1 / (serial + (1 - serial) / num_ranks)


def gustafson(num_ranks, serial):
    return serial + (1 - serial) * num_ranks


def two_laws(serial_fraction=0.05, num_ranks=64):
    """Both laws as curves, and their values for this many ranks."""
    ranks = range(1, num_ranks + 1)
    laws = {
        "ideal": list(ranks),
        "Gustafson": [gustafson(n, serial_fraction) for n in ranks],
        "Amdahl": [amdahl(n, serial_fraction) for n in ranks],
    }
    faster, more = laws["Amdahl"][-1], laws["Gustafson"][-1]
    summary = f"{num_ranks} ranks: {faster:.1f} times as fast (Amdahl),"
    summary += f" or {more:.1f} times the work (Gustafson)."
    title = f"The same {serial_fraction:.0%} serial, computed"
    return draw.curves(laws, "times faster, or the work", "number of ranks", title), summary


explore(two_laws, serial_fraction=(0.0, 0.5, 0.01), num_ranks=(2, 1024, "x2"))

# %% [markdown]
# The two laws do not contradict each other: they answer different questions. In training, Amdahl's
# is *how soon is this step done*, with a fixed batch; Gustafson's is *how many samples go through
# in an hour*, with a batch that grows with the ranks.
#
# Now the measurement. The batch of 256 was fixed, so this is Amdahl's case.

# %% measured_scaling
step_times_s = {n: report["step_times_s"] for n, report in reports.items()}
where = reports[2]["backend"]
draw.scaling(step_times_s, title=f"Measured here, {where}, {os.cpu_count()} cores")

# %% [markdown]
# A formula is useful when it predicts a run that it was not fitted to. Fit *s* to one and two ranks
# only, and predict the speed-up of the largest number of ranks.

# %% held_out
median_s = {n: statistics.median(times) for n, times in step_times_s.items()}
speedups = {n: median_s[1] / median_s[n] for n in median_s}
predictions.reveal("speed-up of 2 ranks", speedups[2])
serial = min(1, max(0, 2 / speedups[2] - 1))  # from speed-up = 1 / (s + (1 - s) / 2)
most = max(speedups)
predicted = amdahl(most, serial)
print(f"2 ranks: {speedups[2]:.2f} times one process, so {serial:.0%} of the work is serial")
print(f"{most} ranks: predicted by Amdahl {predicted:.2f}, measured {speedups[most]:.2f}", end=", ")
print(f"error of the formula {predicted / speedups[most] - 1:+.0%}")

# %% [markdown]
# Amdahl's law does not know the machine. It assumes a processor for every rank: with fewer than
# four cores, four ranks share them, and the error comes from the missing hardware.
#
# It does not know about communication either. If two ranks were slower than one here, no *s* from 0
# to 1 explains it (*s* is then capped at 100%): averaging cost more than splitting saved. With a
# network this small, or on a machine this busy, that happens. Week 3 finds the size from which a
# second GPU pays.
#
# ### How long does a step take?
#
# So write down both times, computing and communication. Each rank works on *B* samples of its own.
# A network of *L* square layers of width *W*, without biases, costs two FLOPs per weight and sample
# in the forward pass and four in the backward pass, but only two in the first layer, because the
# gradient of the images is not needed. Then every layer's gradient, $S = 4 W^2$ bytes, is
# all-reduced by *N* ranks:
#
# $$t = \underbrace{\frac{(6 L - 2) \, W^2 B}{\text{FLOP/s}}}_{\text{compute}}
#     + \underbrace{L \Big( 2 (N - 1) \, \alpha +
#     \frac{2 (N - 1)}{N} \frac{S}{\beta} \Big)}_{\text{communication}}$$
#
# The first term is the FLOP count of section 3 divided by the rate that matmuls of this size reach,
# which is less than the GPU's peak. The second is week 2's: a ring over links with a latency of α
# seconds and a bandwidth of β bytes per second. The two add up because this week's step computes
# first and communicates afterwards.
#
# Which link a byte takes depends on where the two GPUs are. The picture shows a node with eight
# H100s, and the path of a byte from its first GPU to a GPU in another node:

# %% a_node
draw.node("h100-ndr-x2", path=("gpu0", "node1.gpu0"))

# %% [markdown]
# First, run the step on a cluster that you need not have. The run below is **emulated**: eight real
# ranks exchange real gradients, but every operation is given the time that it would take on the
# described cluster. A matmul takes as long as matmuls of its size were measured to take on such a
# GPU (`worldsize.operators`); an all-reduce takes as long as a model of NCCL predicts for those
# links.


# %% wide_step
LAYERS, WIDTH, SAMPLES = 2, 1024, 512  # 512 samples on each rank


def wide_step(network, samples):
    """Take one data-parallel step on this rank's samples."""
    with ws.span("forward", kind="forward"):
        loss = network(samples).square().mean()
    with ws.span("backward", kind="backward"):
        network.zero_grad()
        loss.backward()
    with ws.span("synchronise", kind="communication"):
        for parameter in network.parameters():
            dist.all_reduce(parameter.grad)
    with ws.span("update", kind="update"), torch.no_grad():
        for parameter in network.parameters():
            parameter -= 0.01 / dist.get_world_size() * parameter.grad


def wide_network(device):
    """A network of wide layers, the same on every rank, and samples that are this rank's own."""
    torch.manual_seed(seed)
    layers = [(torch.nn.Linear(WIDTH, WIDTH, bias=False), torch.nn.ReLU()) for _ in range(LAYERS)]
    network = torch.nn.Sequential(*[module for pair in layers for module in pair]).to(device)
    return network, torch.randn(SAMPLES, WIDTH, device=device) + dist.get_rank()


# %% emulated_step
def one_wide_step():
    """Take one step in virtual time."""
    torch.set_num_threads(1)
    network, samples = wide_network("cpu")
    wide_step(network, samples)


def emulated(where, num_ranks):
    """The timeline of one step on a described cluster, from the start of the forward pass on."""
    events = ws.run(one_wide_step, world_size=num_ranks, cluster=where, echo=False).timeline.events
    start_s = min(event.start_s for event in events if event.kind == "forward")
    return ws.Timeline.of_events(
        replace(event, start_s=event.start_s - start_s, end_s=event.end_s - start_s)
        for event in events
        if event.start_s >= start_s
    )


steps = {cluster: emulated(cluster, min(8, hardware.cluster(cluster).world_size))}
draw.timeline(steps[cluster], title=f"One step, emulated on {cluster}")

# %% [markdown]
# All ranks do the same in the same time, as long as nothing goes wrong. Nothing is computed while
# the ranks communicate; week 3 changes that.
#
# Next, run it on this machine, where we measure the parts: the computing of one rank by itself, and
# the all-reduces alone. Their sum takes the place of the formula.


# %% measured_step
def timed_steps(repeats):
    """Seconds of a step, and of its all-reduces alone, on this rank: the medians."""
    torch.set_num_threads(1)
    on_gpus = dist.get_backend() == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    network, samples = wide_network(device)

    def seconds_of(work):
        dist.barrier()
        start_s = time.perf_counter()
        work()
        next(network.parameters())[0, 0].item()  # reading a number waits for a GPU
        return time.perf_counter() - start_s

    steps_s = [seconds_of(lambda: wide_step(network, samples)) for _ in range(repeats + 1)]
    gradients = [parameter.grad for parameter in network.parameters()]
    talks_s = [seconds_of(lambda: [*map(dist.all_reduce, gradients)]) for _ in range(repeats)]
    return statistics.median(steps_s[1:]), statistics.median(talks_s)


# %% measured_step_here
same = "nccl" if num_gpus >= world_size and backend != "gloo" else "gloo"  # also for one rank
alone = ws.run(timed_steps, 5, world_size=1, backend=same, echo=False).values
several = ws.run(timed_steps, 5, world_size=world_size, backend=same, echo=False).values
compute_s, (step_s, talk_s) = alone[0][0], map(max, zip(*several, strict=True))

# %% [markdown]
# The table compares the two on three clusters of eight GPUs: eight H100s on NVLink, eight A100s on
# PCIe, and eight nodes of one A100, joined by 10 Gb/s Ethernet.


# %% step_formula
def formula_s(num_ranks, link, flops_per_s):
    """Seconds of compute and of communication in one step."""
    chunk_s = link.latency_s + 4 * WIDTH**2 / num_ranks / link.bandwidth_bytes_per_s
    ring_s = 2 * (num_ranks - 1) * chunk_s
    return (6 * LAYERS - 2) * WIDTH**2 * SAMPLES / flops_per_s, LAYERS * ring_s


def flops_per_s_of(gpu):
    """The flops a second that one of the step's matrix products reaches."""
    size_bytes = 4 * (2 * SAMPLES * WIDTH + WIDTH**2)  # what it reads and writes
    product = operators.Operator("matmul", "float32", 2 * SAMPLES * WIDTH**2, size_bytes)
    return product.flops / operators.time_s(product, gpu)


# %% side_by_side
ethernet = replace(hardware.cluster("a100-10gbe"), name="8 x 10 Gb/s", gpus_per_node=1, num_nodes=8)
rows = []
for where in (hardware.cluster("dgx-h100"), hardware.cluster("pcie-box"), ethernet):
    joint = where.intra if where.num_nodes == 1 else where.inter
    parts_s = formula_s(8, joint, flops_per_s_of(where.gpu))
    on_it = steps.get(where.name) or emulated(where, 8)
    rows.append((f"{where.name}, emulated", 8, *parts_s, on_it.end_s))
rows.append(("this machine, measured", world_size, compute_s, talk_s, step_s))
compared = []
for *which, work_s, wire_s, run_s in rows:
    both_s, error = work_s + wire_s, f"{(work_s + wire_s) / run_s - 1:+.0%}"
    compared.append((*which, work_s, wire_s, both_s, run_s, error, work_s / both_s))
columns = ("where", "ranks", "compute_s", "communication_s", "both_s", "run_s", "error")
title = "One step: the formula's parts, and the run"
draw.table(compared, title=title, columns=(*columns, "efficiency_fraction"))

# %% [markdown]
# Read the last column first. **Communication efficiency** is computing time divided by computing
# plus communication time. The second and the third row have the same network, the same batch and
# GPUs of the same peak: the interconnect explains nearly all of the difference.
#
# Then the errors. Each has a reason:
#
# - **dgx-h100**: the formula counts only matmuls and assumes a ring. For so small a tensor NCCL is
#   faster than a ring: it lets the NVLink switch do the adding (NVLS).
# - **pcie-box**: eight GPUs share one host bridge, which cannot carry eight full links at once.
# - **8 x 10 Gb/s**: nearly right, because one term dominates, and the formula contains it.
# - **this machine**: the parts were measured one at a time. In a step the ranks share cores, caches
#   and memory. A large error means fewer cores than ranks.
#
# ### Which link is fast enough?
#
# **Computed, not measured.** Take the gradients of ResNet-50, all-reduced in one piece after the
# backward pass, and move the sliders. The last column is the computing time at which the step is
# 90% efficient. Go from 8 ranks to 1,024: which row grows most, which least, and why?
#
# <details><summary>Answer</summary>
#
# The bytes on a link stay below 2 S, but each rank adds two latencies. NVLink's all-reduce, nearly
# all of it latency by then, takes 14 times as long; that of 10 Gb/s takes half as long again.
# </details>


# %% link_and_step
LINKS = [hardware.NVLINK4, hardware.PCIE4, hardware.IB_NDR]
LINKS += [hardware.ETHERNET_100G, hardware.ETHERNET_10G]


def efficiency(compute_s=0.1, num_ranks=8, size_bytes=gradient_bytes):
    """Communication efficiency on each link, and the compute that it takes to reach 90%."""
    rows = []
    for link in LINKS:
        chunk_s = link.latency_s + size_bytes / num_ranks / link.bandwidth_bytes_per_s
        talk_s = 2 * (num_ranks - 1) * chunk_s
        row = {
            "link": link.name,
            "all_reduce_s": talk_s,
            "efficiency_fraction": compute_s / (compute_s + talk_s),
        }
        rows.append({**row, "compute_for_90%_s": 9 * talk_s})
    return rows


explore(efficiency, compute_s=(0.001, 2.0, "x2"), num_ranks=(2, 1024, "x2"))

# %% [markdown]
# ### Your turn: enough samples
#
# 10 minutes · medium
#
# Computing grows with the batch, communication does not. How many samples must each rank have so
# that the network of the formula above reaches this communication efficiency? `formula_s` uses
# `LAYERS`, `WIDTH` and `SAMPLES`, its computing time is proportional to `SAMPLES`, and you may call
# it here. Do not round.
#
# <details><summary>Hint</summary>
#
# With t for computing and c for communication, e = t / (t + c). Solve for t, then compare it with
# the computing time of `SAMPLES` samples.
# </details>


# %% enough_samples tags=["turn"]
def enough_samples(efficiency_fraction, num_ranks, link, flops_per_s):
    """Samples on each rank at which computing is this fraction of the step."""
    ### BEGIN SOLUTION
    computing_s, sending_s = formula_s(num_ranks, link, flops_per_s)
    wanted_s = sending_s * efficiency_fraction / (1 - efficiency_fraction)
    return SAMPLES * wanted_s / computing_s
    ### END SOLUTION


# %% check_enough_samples
with check.turn("enough_samples"):
    slow = replace(hardware.ETHERNET_10G, latency_s=0.0, bandwidth_bytes_per_s=1e9)
    hint = "At half, computing and communication take equally long; at 90% it is nine to one."
    for fraction, expected in ((0.5, 11_200.0), (0.9, 100_800.0)):
        enough = enough_samples(fraction, 8, slow, 8e12)
        check.expect_close(enough, expected, f"the samples for {fraction:.0%}", hint)
    print("Right. Eight H100s that are 90% efficient need, on each rank:")
    for wire in (hardware.NVLINK4, hardware.PCIE4, hardware.ETHERNET_10G):
        enough = enough_samples(0.9, 8, wire, flops_per_s_of(hardware.H100))
        print(f"{enough:>9,.0f} samples on {wire.name}")

# %% [markdown]
# The width cancels, except in the latency term: a larger layer computes longer *and* sends more.
# What matters is the ratio of FLOP/s to bytes per second. Week 3 turns it into a rule.

# %% [markdown]
# ### Five numbers to ask of any run
#
# - **Throughput**: samples per second.
# - **Scaling efficiency**: speed-up divided by the number of ranks.
# - **Communication efficiency**: computing time divided by computing plus communication time.
# - **Memory utilisation**: bytes in use divided by bytes available.
# - **Recovery time**: from the report of a failure until the job is past the step at which it
#   failed.
#
# Four of them take one line each.

# %% key_metrics
n = 2
throughput = BATCH_SIZE / median_s[n]  # of the training on two ranks in section 4
scaling_efficiency = speedups[n] / n
talking = together.timeline.share("communication")  # of the four steps in section 4
capacity_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
if use_gpus:
    capacity_bytes = torch.cuda.get_device_properties(0).total_memory
in_use_bytes = sum(memory_parts(BATCH_SIZE // n).values())
metrics = {
    "throughput": f"{throughput:,.0f} images/s",
    "scaling efficiency": f"{scaling_efficiency:.0%}",
    "communication efficiency": f"{1 - talking:.0%}",
    "memory utilisation": f"{in_use_bytes / capacity_bytes:.3%}",
}
title = f"Measured here, of {units.format_bytes(capacity_bytes)} of memory"
draw.table([*metrics.items()], title=title, columns=("metric", "two ranks"))

# %% [markdown]
# The fifth needs a failure. This job saves its weights every 5 steps, and rank 1 dies in step 13.
# Then the same job starts again, finds the checkpoint, and repeats the lost steps.


# %% fragile_job
def fragile(pixels, labels, path, dies):
    """The step that this start began from."""
    device, model, optimizer = start()
    saved = {"step": 0, "model": model.state_dict()}
    if os.path.exists(path):
        saved = torch.load(path, map_location=device)
    model.load_state_dict(saved["model"])
    for step in range(saved["step"], 14):
        if dies and step == 13 and dist.get_rank() == 1:
            raise RuntimeError("this rank's GPU fell off the bus")
        mine = part_of_batch(step, dist.get_rank(), dist.get_world_size())
        F.cross_entropy(model(pixels[mine].to(device)), labels[mine].to(device)).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and (step + 1) % 5 == 0:
            torch.save({"step": step + 1, "model": model.state_dict()}, path)
    return saved["step"]


# %% recovery_time
checkpoint = folder / "checkpoint.pt"
checkpoint.unlink(missing_ok=True)
try:
    ws.run(fragile, pixels, labels, str(checkpoint), True, world_size=2, backend=backend)
except ws.RankFailed as failure:
    print(failure)
failed_s = time.perf_counter()
again = ws.run(fragile, pixels, labels, str(checkpoint), False, world_size=2, backend=backend)
recovery_time_s = time.perf_counter() - failed_s
lost = 13 - again.values[0]
print(f"recovery time {recovery_time_s:.2f} s; {lost} steps were done a second time")

# %% [markdown]
# ## 7. When it breaks
#
# ### The loud failure: a rank that finishes early
#
# Rank 0 has three batches, the others have four: a data set that does not divide evenly. In its
# fourth step, rank 1 calls `all_reduce`, and rank 0 never does.


# %% one_batch_short
def one_batch_short():
    """The number of batches that this rank got through."""
    num_batches = 3 if dist.get_rank() == 0 else 4
    for _ in range(num_batches):
        gradient = torch.ones(1, device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(gradient)
        gradient.item()
    return num_batches


try:
    ws.run(one_batch_short, world_size=world_size, backend=backend, stalled_s=1)
except ws.RunTimeout as report:
    print(report)

# %% [markdown]
# **Symptom**: no output and, until the group's timeout (by default 10 minutes with NCCL, 30 with
# Gloo), no error. The job hangs, on GPUs at full utilisation, because a waiting NCCL kernel spins.
# **Cause**: a collective ends when *all* ranks have called it, and one never did. **Fix**: every
# rank makes the same calls in the same order, including at the end of the data. When a job hangs,
# ask which rank is missing, not which ones wait: the report names both.
#
# This has happened to so many people that torch was changed for it. In February 2020 a developer of
# torch wrote that several users had run into it (pytorch issue 33148): ranks with more batches
# hang, because the rank with the fewest does not take part in the additional all-reduces. Samplers
# that deal data out evenly help, says the proposal of May 2020 (issue 38174), but not in all cases.
# So DDP got a mode, `with model.join():` (pull request 42577). Before a step all ranks add up a
# number, 1 from a rank that has data and 0 from one that has none. A rank without data goes on
# making the same calls as the others, with zeros, until no rank has any left.
#
# The price is one more collective in every step, for the sake of the last one. If you can count the
# batches in advance, give every rank the same number, and pay nothing.
#
# ### Find the bug: four ranks, noisier than one
#
# 8 minutes · medium
#
# A colleague saves a line: each rank draws only its own part of the batch. On four ranks all
# weights stay equal and nothing hangs. Yet the loss is noisier than that of one process. Run the
# check, read what it found, and repair the function.
#
# <details><summary>Hint</summary>
#
# Print the images of ranks 0 and 1 in step 0. A generator with the same seed gives the same
# numbers. How does `part_of_batch` take different parts of one batch?
# </details>


# %% colleagues_part tags=["turn"]
def colleagues_part(step, rank, world_size):
    """Indices of this rank's part of the batch of this step."""
    chooser = torch.Generator().manual_seed(step)
    ### BEGIN SOLUTION
    batch = torch.randint(1797, (BATCH_SIZE,), generator=chooser)
    return batch[rank * BATCH_SIZE // world_size : (rank + 1) * BATCH_SIZE // world_size]
    ### INSTEAD
    # return torch.randint(1797, (BATCH_SIZE // world_size,), generator=chooser)
    ### END SOLUTION


# %% check_colleagues_part
with check.turn("colleagues_part"):
    drawn = torch.cat([colleagues_part(0, rank, 4) for rank in range(4)])
    whole_batch = part_of_batch(0, 0, 1)
    num_drawn, expected = (len(set(indices.tolist())) for indices in (drawn, whole_batch))
    if num_drawn < expected:
        hint = "All ranks draw the same 64 images, so that three ranks repeat what the first does."
        check.expect_close(num_drawn, expected, "different images in the batch of four ranks", hint)
    hint = "Together the parts must be the batch that one process draws with this seed."
    check.expect_close(drawn, whole_batch, "the parts of all ranks together", hint)
    print("Right. Four ranks on the same data are one rank with a quarter of the batch.")

# %% [markdown]
# A comparison with one process finds it in one step, because the gradients differ. The loss curve
# does not reveal it: it is a good curve for a smaller batch.
#
# ### The quiet failure: the sum instead of the mean
#
# Leave out one line, `parameter.grad /= world_size`. Every rank still has the same weights, so
# nothing looks wrong.


# %% sum_instead_of_mean
def train_on_the_sum(pixels, labels):
    """The loss of the whole batch at each step, with gradients that are summed and not divided."""
    device, model, optimizer = start()
    losses = []
    for step in range(STEPS):
        mine = part_of_batch(step, dist.get_rank(), dist.get_world_size())
        loss = F.cross_entropy(model(pixels[mine].to(device)), labels[mine].to(device))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        dist.all_reduce(total := loss.detach().clone())
        losses.append(total.item() / dist.get_world_size())
    return losses


summed = ws.run(train_on_the_sum, pixels, labels, world_size=4, backend=backend).values[0]
outcome = {"one process": reports[1]["losses"], "four ranks, sum": summed}
draw.curves(outcome, title="One process, and four ranks that sum their gradients, measured")

# %% [markdown]
# **Symptom**: training that was stable on one GPU becomes unstable on several, and worse the more
# you use. **Cause**: the sum of *N* gradients is *N* times their mean, so the learning rate is *N*
# times too large. **Fix**: divide by the world size.
#
# A loss that stays near ln 10 is that of a network that guesses among ten digits:

# %% loss_of_a_guess
guess = math.log(10)
print(f"loss of guessing one of ten: {guess:.3f}; last loss with the sum: {summed[-1]:.3f}")

# %% [markdown]
# Adam would hide it: it divides by the size of the gradient, so that a factor of *N* nearly
# cancels. A bug that one optimizer shows and another hides is best found as you did above, by
# comparing with one process.
#
# An **audit** needs no second program. With `audit=True` every rank records a few numbers about
# each gradient after its backward pass and before the step, and the records of all ranks are
# compared after the run. It knows some sixty faults of this kind, and names the line.

# %% audited
run = ws.run(train_on_the_sum, pixels, labels, world_size=4, backend=backend, echo=False, audit=5)
print(run.audit)

# %% [markdown]
# ### Find the bug: a checkpoint that resumes to a different run
#
# 6 minutes · medium
#
# A colleague adds momentum to the job of section 6, saves a checkpoint and resumes from it. The job
# goes on at the right step with the right weights, and the loss keeps falling. Yet from the first
# step after the checkpoint on, the weights are not those of the run that was never interrupted.
# Run the check, read what it found, and repair the function.
#
# <details><summary>Hint</summary>
#
# With momentum, a step depends on more than the weights and the gradient. Where does
# `torch.optim.SGD` keep the rest?
# </details>


# %% state_to_save tags=["turn"]
def state_to_save(model, optimizer):
    """Everything of this job on which its next step depends, by the name of its owner."""
    ### BEGIN SOLUTION
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    ### INSTEAD
    # return {"model": model.state_dict()}
    ### END SOLUTION


# %% check_state_to_save
def six_steps(resume_after=None):
    """The weights after six steps with momentum, if asked for with a restart in between."""
    saved = {}
    for step in range(6):
        if step in (0, resume_after):
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            for name, owner in (("model", model), ("optimizer", optimizer)):
                if name in saved:
                    owner.load_state_dict(saved[name])
        rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        saved = copy.deepcopy(state_to_save(model, optimizer))
    return model.weight.detach()


with check.turn("state_to_save"):
    hint = "The model continues from its checkpoint, and the momentum starts again at zero."
    resumed = six_steps(resume_after=3)
    check.expect_close(resumed, six_steps(), "the weights of a run resumed after three steps", hint)
    print("Right. The resumed run and the run without interruption have the same weights.")

# %% [markdown]
# The loss curve of the wrong version looks right, because momentum builds up again within about ten
# steps. **Test a checkpoint by its next step**: save, take one step, load, take it again, compare.

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | 6 FLOPs a parameter and token | GPT-3: 32 years on one A100, 34 days on 1,024 | section 3 |
# | 16 B a parameter | 5 billion parameters fill 80 GB, before any activation | section 3 |
# | 20 tokens a parameter | compute-optimal: 100 times the GPUs, 10 times the model | section 3 |
# | 2 S, however many ranks | a ring's link; a server's link carries 2 N S | section 3 |
# | 3 hours | between two interruptions of 16,384 GPUs: 5.8 GPU-years each | section 3 |
# | 9 to 1 | computing to communication for 90% | section 6 |

# %% [markdown]
# ## 8. Problems
#
# **1.** A model of 13 billion parameters is to see 260 billion tokens on 128 A100s at an MFU of
# 45%. How long does it take?
#
# <details><summary>Answer</summary>
#
# $6 \cdot 13 \cdot 10^9 \cdot 260 \cdot 10^9 = 2.03 \cdot 10^{22}$ operations at
# $128 \cdot 312 \cdot 10^{12} \cdot 0.45 = 1.80 \cdot 10^{16}$ a second: $1.13 \cdot 10^6$ s, 13
# days.
# </details>
#
# **2.** Plain SGD without momentum, everything in float32: how many bytes does each parameter need,
# activations not counted? With momentum? With Adam?
#
# <details><summary>Answer</summary>
#
# A weight and its gradient: 8. Momentum is one more value: 12. Adam keeps two: 16. Mixed precision
# needs 16 as well: its 16-bit weights and gradients save 4 bytes, and its master weights cost 4.
# </details>
#
# **3.** Eight ranks draw batches of 32 each and average their gradients with `all_reduce` and a
# division by 8. Which batch on one process do you compare this with, and what must be the same in
# both runs?
#
# <details><summary>Answer</summary>
#
# With the 256 samples of all ranks together: the same samples in every step, the same initial
# weights, the same learning rate. If one process draws 32, it trains a different model, however
# well both do.
# </details>
#
# **4.** Two ranks are 1.6 times as fast as one. What does Amdahl's law predict for eight, and for
# any number?
#
# <details><summary>Answer</summary>
#
# $s = 2/1.6 - 1 = 0.25$. Eight: $1/(0.25 + 0.75/8) = 2.9$. Any number: less than $1/s = 4$. If the
# batch may grow with the ranks, Gustafson's law applies instead: with a quarter of the time serial,
# eight ranks do $0.25 + 0.75 \cdot 8 = 6.25$ times the work.
# </details>
#
# **5.** A step computes for 90 ms and then all-reduces for 30 ms. What is its communication
# efficiency? Another network is twice as fast. What does that gain? And GPUs that are twice as
# fast?
#
# <details><summary>Answer</summary>
#
# 90/120 = 75%. The network: 90 + 15 = 105 ms, 1.14 times as fast, at 86%. The GPUs: 45 + 30 = 75
# ms, 1.6 times as fast, at 60%. Faster GPUs make the job *less* efficient, and are still the better
# buy here.
# </details>
#
# **6.** *Design.* A job on 512 GPUs has the same interruption rate per GPU as Llama 3's, and it
# saves a checkpoint once an hour. How many interruptions are there in 30 days, and how much work is
# lost if each costs half an interval and ten minutes for the restart? What would you change?
#
# <details><summary>Answer</summary>
#
# One in 5.8 GPU-years: $512 \cdot 30 / 365 / 5.8 = 7.3$. Each loses 30 + 10 minutes, 4.8 hours of
# 720 in all, 0.7%. Nothing needs to change: saving more often costs time as well. On 16,384 GPUs
# the same job would have 232 interruptions and lose 155 hours, over a fifth; there the interval
# decides. Week 12 finds the best one.
# </details>
#
# ## 9. Self-check
#
# First, compare your predictions with the results. Where a ratio is far from 1, read again.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions follow. Every answer, right or wrong, has its own explanation.

# %% self_check
quiz.ask("week01", seed=seed)

# %% [markdown]
# ## To take with you
#
# - One GPU is too slow (decades) and too small (16 bytes for each parameter, activations on top).
# - Data parallelism: split, compute, synchronise, update. Ranks exchange one thing, once a step:
#   their gradients, of which each needs the mean.
# - N ranks of batch B/N train the model of one rank of batch B, up to rounding. If yours do not,
#   look for a sum that should be a mean, for different starting weights, and for ranks that see
#   the same data.
# - Speed-up has a ceiling: the part that is not split (Amdahl), and the available hardware.
# - A collective waits for every rank. One missing rank stops all the others.
#
# **Now the lab**: [lab 1, average the gradients](../labs/lab01/lab01.ipynb). There the batch does
# not divide evenly, ranks start from different weights, and some gradients are missing. Then [week
# 2, all-reduce from scratch](week02_all_reduce_from_scratch.ipynb): what the call of this week
# moves.
