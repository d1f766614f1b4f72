# %% [markdown]
# # Week 5. Say less: gradient compression and communication scheduling
#
# | | |
# |---|---|
# | Reading and doing | about 100 minutes: four short exercises, two bugs to find, an explorer |
# | Running | about a minute on two CPU cores; GPUs are used if there are enough |
# | You need | [week 4](week04_synchronous_or_asynchronous.ipynb) and weeks 1 to 3 |
# | You do not need | a network, a cluster, or a course in optimisation |
# | Afterwards | lab 5, *a compressing communication hook* |
#
# Week 2 proved that in an all-reduce whose sums are computed by the ranks, each rank sends on
# average at least $2(N-1)/N$ times the gradient. There is one way out: send something **smaller
# than the gradient**, in the hope that training does not suffer. This week is about when training
# does not suffer, and when the saving is worth the work.
#
# **N** is the number of ranks, **S** the size of the gradient in bytes, **n** the number of its
# entries. Unless stated otherwise, a gradient is sent in bfloat16, 2 bytes an entry. That takes one
# line of code, and every other method has to beat it.

# %% [markdown]
# ## 1. The question
#
# > How much of a gradient must be sent for training to reach the same loss, and when does sending
# > less take less time?
#
# Afterwards you can say of any compressor whether it is wrong on average or only noisy, how many
# bytes it sends on how many ranks, and on which link it pays.

# %% parameters tags=["parameters"]
# ranks in the experiments on this machine and in the emulated training runs: 2, 4 or 8
world_size = 2
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
cluster = "a100-10gbe-x8"  # the emulated cluster of the pictures; the tables name their own
seed = 0
# loss with the largest 1% of each gradient alone, over the loss with all, after 60 steps
predicted_loss_ratio = None
# from which on gathering the largest 1% sends as much as all-reducing everything in bfloat16
predicted_ranks = None
predicted_int8_ranks = None  # from which on gathering int8 sends as much as all-reducing bfloat16
predicted_speedup = None  # of a step on 10 Gb/s: bfloat16 gradients against float32, four ranks

# %% setup
import math
import os
import statistics
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import worldsize as ws
from worldsize import check, draw, emulate, faults, hardware, images, ledger, models, quiz, text
from worldsize.explore import explore

torch.set_num_threads(1)  # as the ranks do: they share the cores
PIXELS, LABELS = images.load_digits()
TOKENS = text.tokens()
predictions = ledger.Predictions("week05")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")
print(f"{len(LABELS):,} images of digits, {len(TOKENS):,} bytes of text")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers, and waits. An entry of a bfloat16 gradient takes 2 bytes. An
# entry that is sent alone takes 4 more for its index.

# %% predict
predictions.ask(
    "loss with the largest 1% over loss with all", predicted_loss_ratio, "times", section=3
)
predictions.ask("ranks at which gathering 1% saves nothing", predicted_ranks, "ranks", section=4)
predictions.ask(
    "ranks at which gathering int8 saves nothing", predicted_int8_ranks, "ranks", section=4
)
predictions.ask("speed-up by bfloat16 on 10 Gb/s", predicted_speedup, "times", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### Where compression happens: a communication hook
#
# When a bucket of gradients is complete, DDP all-reduces it. With a **communication hook** it calls
# your function instead. The function gets the bucket and returns a *future*, a promise of the
# tensor that will replace it. Meanwhile the backward pass goes on.
#
# ```text
# backward ──► bucket is complete ──► hook(state, bucket) ──► future ··· its tensor ──► optimizer
# ```
#
# This hook does what DDP does by itself. `bucket.buffer()` is one flat tensor with all gradients of
# the bucket.


# %% plain_hook
def plain_hook(state, bucket):
    """A future of the mean of the gradients: what DDP does without a hook."""
    mean = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(mean, async_op=True).get_future().then(lambda _: mean)


# %% [markdown]
# Two models learn in this lesson. A small convolutional network learns digits, with plain SGD and
# 64 images per rank and step; it shows an effect within seconds. The course's transformer, in its
# tiniest size, learns the bytes of a real text, with Adam; it shows whether the effect carries
# over.


# %% tasks
def rank_device():
    """This rank's GPU with NCCL, and the CPU otherwise."""
    if dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


def new_model(task):
    """The model of a task, "digits" or "text", and its optimizer."""
    if task == "digits":
        model = models.vision_net(seed=seed).to(rank_device())
        return model, torch.optim.SGD(model.parameters(), lr=0.1)
    model = models.Transformer(models.shape("tiny"), seed=seed).to(rank_device())
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)


# %% batches
def batch(task, number):
    """The inputs and targets of one step of one rank; all numbers give different ones."""
    if task == "digits":
        places = (torch.arange(64) + 64 * number) % len(LABELS)
        inputs, targets = PIXELS[places], LABELS[places]
    else:
        inputs, targets = text.batch(TOKENS, 4, 64, torch.Generator().manual_seed(number))
    return inputs.to(rank_device()), targets.to(rank_device())


def loss_of(model, inputs, targets):
    """The mean loss, over images or over tokens."""
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


@torch.no_grad()
def final_loss(task, model):
    """The loss over every third image, or over 2,048 tokens."""
    if task == "digits":
        return loss_of(model, PIXELS[::3].to(rank_device()), LABELS[::3].to(rank_device())).item()
    return statistics.mean(loss_of(model, *batch(task, 10**6 + part)).item() for part in range(8))


# %% train
def train(make_hook, task="digits", num_steps=60):
    """The loss after every ten steps, under DDP with a hook; all training is between barriers."""
    torch.set_num_threads(1)
    model, optimizer = new_model(task)
    ddp, losses = DistributedDataParallel(model), []
    ddp.register_comm_hook(*make_hook())
    dist.barrier()
    for step in range(num_steps):
        optimizer.zero_grad()
        loss_of(ddp, *batch(task, dist.get_world_size() * step + dist.get_rank())).backward()
        optimizer.step()
        losses += [final_loss(task, model)] if step % 10 == 9 else []
    dist.barrier()
    return losses


# %% [markdown]
# ### The obvious idea: send only the largest entries
#
# Some entries of a gradient are much larger than others. Set all but the largest 1% to zero, and
# send the rest. This first version saves nothing yet, since it sends the zeros too. The first
# question is: **does the model still learn?**


# %% largest_only
def largest_only(fraction):
    """A hook, with its state, that drops all but the largest entries of each bucket."""

    def hook(state, bucket):
        buffer = bucket.buffer()
        num_kept = max(1, round(fraction * len(buffer)))
        smallest_kept = buffer.abs().sort().values[-num_kept]
        buffer.masked_fill_(buffer.abs() < smallest_kept, 0.0).div_(dist.get_world_size())
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda _: buffer)

    return None, hook


# %% [markdown]
# A fair competitor is 1% **at random**. If all ranks draw the same indices, from the same seed, no
# indices need to be sent, and an all-reduce of n/100 elements adds up the values. To be right *on
# average* they must be multiplied by 100, because each entry is sent once in 100 steps.


# %% random_only
def random_only(fraction, scaled):
    """A hook, with its state, that sends entries at random places, the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)

    def hook(state, bucket):
        buffer = bucket.buffer()
        num_kept = max(1, round(fraction * len(buffer)))
        places = torch.randperm(len(buffer), generator=generator)[:num_kept].to(buffer.device)
        chosen = buffer[places] / dist.get_world_size()
        factor = len(buffer) / num_kept if scaled else 1.0
        future = dist.all_reduce(chosen, async_op=True).get_future()
        return future.then(lambda _: buffer.zero_().index_copy_(0, places, factor * chosen))

    return None, hook


# %% worse_first
METHODS = {
    "everything": lambda: (None, plain_hook),
    "largest 1%": lambda: largest_only(0.01),
    "random 1%": lambda: random_only(0.01, scaled=False),
    "random 10% x 10": lambda: random_only(0.1, scaled=True),
    "random 1% x 100": lambda: random_only(0.01, scaled=True),
}


def train_with_each(methods):
    """The losses with each of these hooks, one after the other on the same ranks."""
    return {name: train(make_hook) for name, make_hook in methods.items()}


here = {"world_size": world_size, "backend": backend, "echo": False}
losses = ws.run(train_with_each, METHODS, **here).values[0]
rows = [{"sent": name, "after 60 steps": f"{one[-1]:.3f}"} for name, one in losses.items()]
ratio = losses["largest 1%"][-1] / losses["everything"][-1]
predictions.reveal("loss with the largest 1% over loss with all", ratio, "times")
draw.table(rows, title=f"Loss on {world_size} real ranks, measured here")

# %% worse_drawn
finite = {name: one for name, one in losses.items() if all(map(math.isfinite, one))}
title = f"Sending a part and forgetting the rest, {world_size} real ranks, measured here"
draw.curves(finite, x_label="tens of steps", title=title)

# %% [markdown]
# All four are worse than sending everything. The largest 1% of the entries give a direction that is
# **wrong on average**: an entry that stays small is dropped in every step. Unscaled random entries
# point the right way on average, but are a hundredth as long. Training then hardly moves, as with a
# learning rate a hundred times smaller. Scaled random entries are right on average. With one entry
# in ten, multiplied by 10, the model still learns, though how fast depends on the seed; with one in
# a hundred, multiplied by 100, steps are so far off that the loss becomes NaN.
#
# ### Two ways to be wrong
#
# Let $C(g)$ be the compressed gradient. Two numbers measure its error, both relative to the norm of
# $g$:
#
# - **bias**: how far the *average* of $C(g)$ over many draws is from $g$;
# - **spread**: how far single draws are from their average.
#
# SGD tolerates spread if the learning rate is small enough, because it averages over steps anyway.
# Bias does not average out. The next cells measure both, for six compressors and one real gradient
# of the network.


# %% compressing
def to_int8(vector):
    """The vector rounded up or down at random, so that it is right on average, to 255 steps."""
    step = vector.abs().max() / 127
    rounded = (vector / step + torch.rand_like(vector)).floor()
    return rounded.clamp(-127, 127) * step  # 127.999999 may round to 128


def to_sign(vector):
    """The signs, all times the mean magnitude: one bit an entry, and one number."""
    return vector.sign() * vector.abs().mean()


def to_random(vector, factor):
    """One entry in a hundred, at random."""
    return torch.where(torch.rand_like(vector) < 0.01, factor * vector, 0.0)


def to_largest(vector):
    """The largest hundredth of the entries."""
    return torch.where(vector.abs() >= vector.abs().quantile(0.99), vector, 0.0)


# %% compressors
COMPRESSORS = {
    "bfloat16": lambda vector: vector.bfloat16().float(),
    "int8, rounded at random": to_int8,
    "sign": to_sign,
    "largest 1%": to_largest,
    "random 1%": lambda vector: to_random(vector, 1.0),
    "random 1% x 100": lambda vector: to_random(vector, 100.0),
}

# %% bias_and_spread
torch.manual_seed(seed)
network, _ = new_model("digits")
loss_of(network, *batch("digits", 0)).backward()
gradient = torch.cat([weight.grad.flatten() for weight in network.parameters()])
largest = gradient.abs().sort(descending=True).values[: len(gradient) // 100]
share, rows = (largest.norm() / gradient.norm()).item() ** 2, []
for name, compress in COMPRESSORS.items():
    draws = torch.stack([compress(gradient) for _ in range(400)])
    spread = (draws - draws.mean(dim=0)).norm(dim=1).square().mean().sqrt() / gradient.norm()
    of_mean = (draws.mean(dim=0) - gradient).norm() / gradient.norm()
    # without what 400 draws leave by chance
    bias = (of_mean**2 - spread**2 / len(draws)).clamp(min=0).sqrt()
    rows.append({"compressor": name, "bias": f"{bias:.3f}", "spread": f"{spread:.3f}"})
print(f"{len(gradient):,} entries; the largest 1% hold {share:.0%} of the squared length")
draw.table(rows, title="Bias and spread of one gradient, measured here over 400 draws")

# %% [markdown]
# Rounding to bfloat16, or stochastically to int8, does next to no harm. The sign and the largest 1%
# have no spread at all and a large bias. The last line shows what it costs to be right on average
# with 1%.
#
# ### Your turn: the price of being right on average
#
# 5 minutes · medium
#
# A compressor sends k of n entries, drawn at random, each times n/k. It has no bias. Write its
# spread, and compare it with the last line of the table.
#
# <details><summary>Hint</summary>
#
# An entry g arrives with probability $p = k/n$, as $g/p$, and as 0 otherwise. Its variance is
# $g^2/p - g^2$. The spread is the square root of the sum of these variances, divided by the
# gradient's norm, the square root of the sum of all $g^2$.
# </details>


# %% spread_of_random tags=["turn"]
def spread_of_random(num_entries, num_sent):
    """The spread of `num_sent` random entries, each times `num_entries` / `num_sent`."""
    ### BEGIN SOLUTION
    return math.sqrt(num_entries / num_sent - 1)
    ### END SOLUTION


# %% check_spread_of_random
with check.turn("spread_of_random"):
    generator, hint = torch.Generator().manual_seed(seed), "The entries themselves cancel."
    for num_sent in (10, 250, 1000):
        arrives = torch.rand(4000, 1000, generator=generator) < num_sent / 1000
        found = (arrives * 1000 / num_sent - 1).square().mean().sqrt().item()
        spread = spread_of_random(1000, num_sent)
        check.expect_close(spread, found, f"the spread of {num_sent} in 1,000", hint, rtol=0.02)
    print(f"Right. 10%: {spread_of_random(10, 1):.0f}; 1%: {spread_of_random(100, 1):.2f}.")

# %% [markdown]
# Noise with 99 times the gradient's squared norm requires a learning rate about 100 times smaller.
# But entries multiplied by 100, at a hundredth of the rate, are the *unscaled* entries again:
# nothing is gained.
#
# ## 4. Build it well
#
# ### Fewer bits for each entry
#
# A float32 has 32 bits, and a gradient does not need them all. **bfloat16** takes half of them, and
# bfloat16 values can be summed in bfloat16, so they can go through an all-reduce as they are.


# %% bfloat16_hook
def bfloat16_hook(state, bucket):
    """A future of the mean of the gradients, which travel as bfloat16."""
    buffer = bucket.buffer()
    halves = buffer.to(torch.bfloat16).div_(dist.get_world_size())
    future = dist.all_reduce(halves, async_op=True).get_future()
    return future.then(lambda _: buffer.copy_(halves))


# %% [markdown]
# **int8** takes a quarter: an integer from -127 to 127, and one scale for the bucket. But the sum
# of two int8 values need not fit into int8: 100 + 100 does not. So every rank must get the values
# of *every other* rank, by an all-gather, and add them up itself. The same holds for a **sign**,
# one bit an entry, and for entries with indices.


# %% int8_hook
def int8_hook(state, bucket):
    """A future of the mean of the gradients, which travel as int8 with one scale for each rank."""
    buffer, size = bucket.buffer(), dist.get_world_size()
    scale = (buffer.abs().max() / 127).clamp(min=1e-30).reshape(1)
    rounded = (buffer / scale + torch.rand_like(buffer)).floor_().clamp_(-127, 127).to(torch.int8)
    all_rounded = rounded.new_empty(size, len(buffer))
    all_scales = scale.new_empty(size, 1)
    works = [
        dist.all_gather(list(all_rounded.unbind()), rounded, async_op=True),
        dist.all_gather(list(all_scales.unbind()), scale, async_op=True),
    ]
    futures = torch.futures.collect_all([work.get_future() for work in works])
    return futures.then(lambda _: torch.mean(all_rounded * all_scales, dim=0, out=buffer))


# %% sign_hook
POWERS_OF_2 = 2 ** torch.arange(8)


def sign_hook(state, bucket):
    """A future of the mean over the ranks of sign times mean magnitude, eight signs a byte."""
    buffer, size = bucket.buffer(), dist.get_world_size()
    scale, powers = buffer.abs().mean().reshape(1), POWERS_OF_2.to(buffer.device)
    bits = F.pad(buffer >= 0, (0, -len(buffer) % 8)).view(-1, 8)
    packed = (bits * powers).sum(dim=1).to(torch.uint8)
    all_packed, all_scales = packed.new_empty(size, len(packed)), scale.new_empty(size, 1)
    works = [
        dist.all_gather(list(all_packed.unbind()), packed, async_op=True),
        dist.all_gather(list(all_scales.unbind()), scale, async_op=True),
    ]

    def unpack(_):
        bits = (all_packed.unsqueeze(-1) & powers).bool().view(size, -1)[:, : len(buffer)]
        return torch.mean((2.0 * bits - 1.0) * all_scales, dim=0, out=buffer)

    return torch.futures.collect_all([work.get_future() for work in works]).then(unpack)


# %% [markdown]
# One scale for a whole bucket has a weakness. The largest entry decides the step between two int8
# values, and an entry smaller than that step becomes either 0 or a whole step.
#
# ### Your turn: a scale for each block
#
# 8 minutes · medium
#
# Round to the *nearest* int8 value, with a separate scale for each block of `block_size` entries,
# and return the vector as the receiver would see it.
#
# <details><summary>Hint</summary>
#
# `vector.view(-1, block_size)` has a row for each block. `amax(dim=1, keepdim=True)` is the largest
# entry of each row, as a column, so that every row can be divided by its own maximum. The largest
# must become 127.
# </details>


# %% to_int8_blocks tags=["turn"]
def to_int8_blocks(vector, block_size):
    """The vector after rounding to int8 with a scale for each block; no block is all zeros."""
    ### BEGIN SOLUTION
    blocks = vector.view(-1, block_size)
    steps = blocks.abs().amax(dim=1, keepdim=True) / 127
    return ((blocks / steps).round() * steps).flatten()
    ### END SOLUTION


# %% check_to_int8_blocks
with check.turn("to_int8_blocks"):
    vector = torch.tensor([1.27, 0.014, -0.3, 0.0, 127.0, 0.6, -2.4, 0.3])
    rounded = to_int8_blocks(vector.clone(), 4)
    expected = torch.tensor([1.27, 0.01, -0.3, 0.0, 127.0, 1.0, -2.0, 0.0])
    hint = "Steps are 0.01 in the first block, whose largest entry is 1.27, and 1 in the second."
    check.expect_close(rounded, expected, "two blocks of four", hint)
    some, errors = gradient[: len(gradient) // 64 * 64], {}
    for size in (len(some), 64):
        errors[size] = ((to_int8_blocks(some.clone(), size) - some).norm() / some.norm()).item()
    print(f"Right. The network's gradient, one scale: {errors[len(some)]:.2%} off;")
    print(f"blocks of 64, each with a scale of 4 bytes: {errors[64]:.2%}, in 1.06 bytes an entry.")

# %% [markdown]
# ### All-reduce does not grow with N, all-gather does
#
# This is the first trap of compression. An all-reduce sends $2 (N-1)/N$ times its tensor from each
# rank, never more than twice. An all-gather sends $N - 1$ times a rank's part: it **grows with N**.
# With a part of $f \cdot S$ bytes the two are equal where
#
# $$(N - 1) \, f \, S = \frac{2 (N - 1)}{N} \, S \quad\Longleftrightarrow\quad N = \frac{2}{f}$$

# %% gather_or_reduce
REDUCED = {"bfloat16": 2.0, "float32": 4.0}  # bytes an entry
GATHERED = {"int8": 1.0, "sign": 1 / 8, "largest 1%": 0.01 * (2 + 4)}
rows = []
for name, entry_bytes in (REDUCED | GATHERED).items():
    row = {"sent": name, "by": "all-gather" if name in GATHERED else "all-reduce"}
    for n in (2, 8, 64, 512):
        times = n - 1 if name in GATHERED else 2 * (n - 1) / n
        row[f"{n} ranks, MB"] = round(100 * times * entry_bytes, 1)
    if name in GATHERED:
        row["as much as bfloat16 at"] = f"{2 * REDUCED['bfloat16'] / entry_bytes:.0f} ranks"
    rows.append(row)
predictions.reveal("ranks at which gathering int8 saves nothing", 4 / GATHERED["int8"])
predictions.reveal("ranks at which gathering 1% saves nothing", 4 / GATHERED["largest 1%"])
draw.table(rows, title="Sent by each rank, 100 million entries, computed")

# %% [markdown]
# "int8 sends half of bfloat16" is true of two ranks. On four, the all-gather sends as much as
# bfloat16 does. "The largest 1% send 1%" is 3% with the indices, and saves nothing on 67 ranks or
# more. Compressors whose results can be **added while compressed** do not have this problem:
# bfloat16, random entries at agreed indices, and PowerSGD, described below.
#
# ### Error feedback: keep what was not sent
#
# Now consider the bias. Take one parameter: its gradient is 0.3 in every step, and only 0 or 1 can
# be sent. Rounding sends 0 forever. Instead **keep what was not sent, and add it to the next
# gradient**:

# %% error_feedback
kept, sent_in_all, rows = 0.0, 0, []
for step in range(1, 11):
    total = 0.3 + kept
    sent = round(total)
    kept = round(total - sent, 6) + 0.0
    sent_in_all += sent
    row = {"step": step, "gradient + kept": f"{total:.1f}", "sent": sent, "kept": f"{kept:.1f}"}
    rows.append(row | {"sent in all": sent_in_all, "all gradients": f"{0.3 * step:.1f}"})
draw.table(rows, title="A gradient of 0.3, sent as whole numbers, computed")

# %% [markdown]
# The sum of what was sent is the sum of the gradients minus what is kept. In symbols, with memory
# $e_t$, gradient $g_t$ and compressor $C$:
#
# $$\text{send } C(g_t + e_t), \quad e_{t+1} = g_t + e_t - C(g_t + e_t)
# \quad\Longrightarrow\quad \sum_t \text{sent} = \sum_t g_t - e_{T+1}$$
#
# A bias becomes a delay. This is **error feedback** (Seide et al. 2014, *1-bit stochastic gradient
# descent*; Stich, Cordonnier and Jaggi 2018, *Sparsified SGD with memory*). Karimireddy et al.
# 2019, *Error feedback fixes SignSGD and other gradient compression schemes*, prove that SGD with
# it converges as fast as without compression, up to terms that vanish faster.
#
# The next cell tries it on the network, in one process that computes both workers' gradients. No
# messages are sent; only the arithmetic matters here.


# %% simulated
def simulate(compress, has_memory, num_workers=2, num_steps=60, rate=0.1):
    """The losses after every ten steps, with workers simulated in one process."""
    torch.manual_seed(seed)
    model, _ = new_model("digits")
    weights, losses = list(model.parameters()), []
    memory = torch.zeros(num_workers, sum(one.numel() for one in weights))
    for step in range(num_steps):
        mean = 0.0
        for worker in range(num_workers):
            loss = loss_of(model, *batch("digits", num_workers * step + worker))
            gradients = torch.autograd.grad(loss, weights)
            total = torch.cat([one.flatten() for one in gradients]) + memory[worker]
            sent = compress(total)
            memory[worker] = total - sent if has_memory else 0.0
            mean = mean + sent / num_workers
        with torch.no_grad():
            moved = nn.utils.parameters_to_vector(weights) - rate * mean
            nn.utils.vector_to_parameters(moved, weights)
        losses += [final_loss("digits", model)] if step % 10 == 9 else []
    return losses


# %% with_and_without_memory
simulated = {"everything": simulate(lambda vector: vector, has_memory=False)}
for name in ("sign", "random 1%"):
    for has_memory in (False, True):
        label = f"{name}, with memory" if has_memory else name
        simulated[label] = simulate(COMPRESSORS[name], has_memory)
for name, of_method in simulated.items():
    print(f"{name:<24} loss after 60 steps {of_method[-1]:.3f}")
title = "With memory and without, two workers in one process, measured here"
draw.curves(simulated, x_label="tens of steps", title=title)

# %% [markdown]
# The sign with memory ends at about the same loss as sending everything, with one bit an entry.
# Random entries gain less: at 1% an entry waits a hundred steps on average, and there were only
# sixty. The bias has become a delay, and a delay of a hundred steps is long.
#
# Combine **the largest entries with a memory**, and you have the hook of the first half of lab 5.
#
# ### A matrix with few directions
#
# The gradient of a layer is a matrix: one row for each output, one column for each input. Each row
# is a combination of the batch's inputs, and often a few directions hold most of the matrix. The
# squares of its *singular values* give the share that each direction holds.


# %% singular_values
def held_by_directions(task, name, num_steps=40):
    """The share of a matrix's squared gradient in its strongest directions, after some steps."""
    model, optimizer = new_model(task)
    for step in range(num_steps + 1):
        optimizer.zero_grad()
        loss_of(model, *batch(task, step)).backward()
        optimizer.step()
    squares = torch.linalg.svdvals(model.get_parameter(name).grad).square()
    return (squares.cumsum(dim=0) / squares.sum()).tolist()


MATRICES = {  # task, name, rows, columns
    "digits, last layer": ("digits", "6.weight"),
    "transformer, MLP": ("text", "layers.0.mlp.up.weight"),
    "transformer, query": ("text", "layers.1.attention.query.weight"),
}
held = {label: held_by_directions(*matrix) for label, matrix in MATRICES.items()}
for label, shares in held.items():
    print(f"{label:<18} 2 of {len(shares)} directions hold {shares[1]:.0%}, 4 hold {shares[3]:.0%}")
print(f"2 directions of 192 x 64 are {2 * (192 + 64):,} numbers instead of {192 * 64:,}")
title = "Few directions hold most of a gradient, after 40 steps, measured here"
first = {label: shares[:10] for label, shares in held.items()}
draw.curves(first, x_label="directions", y_label="share held", title=title)

# %% [markdown]
# **PowerSGD** (Vogels, Karimireddy and Jaggi 2019, *PowerSGD: practical low-rank gradient
# compression*) sends r directions: two thin factors with $r (n + m)$ elements for a matrix of $n$
# rows and $m$ columns. It finds them without computing singular values, and keeps what they miss in
# a memory. Above all, **its factors can be all-reduced**. How that works is the second half of lab
# 5; section 5 shows what torch's own hook gains.
#
# ### Communicate less often
#
# Instead of sending less, one can send less often. There are two ways, with very different results:
#
# - **Gradient accumulation**: add up the gradients of H batches, then exchange and update once.
#   This is exactly training with a batch that is H times larger. Nothing is approximated, and there
#   are H times fewer updates.
# - **Local SGD** (Stich 2019, *Local SGD converges fast and communicates little*): every rank
#   updates its own copy H times; then the *weights* are averaged. There are as many updates as
#   before, but between averages the copies drift apart.
#
# How far they drift depends on the data. The next cell simulates eight workers in one process:
# first all draw from the same images, then **each has its own eighth of the images, sorted by
# digit**.


# %% local_sgd
def local_sgd(every, own_data, num_workers=8, num_steps=60, rate=0.1):
    """The loss at the end, and how far apart the copies were, relative to the weights' length."""
    model, _ = new_model("digits")
    weights = list(model.parameters())
    order, share = LABELS.argsort(stable=True), len(LABELS) // num_workers
    copies = nn.utils.parameters_to_vector(weights).detach().repeat(num_workers, 1)
    for step in range(num_steps):
        generator = torch.Generator().manual_seed(step)
        for worker, copy in enumerate(copies):
            places = torch.randint(len(LABELS), (32,), generator=generator)
            if own_data:
                places = order[worker * share + places % share]
            nn.utils.vector_to_parameters(copy.clone(), weights)
            loss = loss_of(model, PIXELS[places], LABELS[places])
            gradients = torch.autograd.grad(loss, weights)
            copy -= rate * torch.cat([one.flatten() for one in gradients])
        if (step + 1) % every == 0:
            mean = copies.mean(dim=0)
            drift = (copies - mean).norm(dim=1).mean() / mean.norm()
            copies = mean.repeat(num_workers, 1)
    nn.utils.vector_to_parameters(mean, weights)
    return final_loss("digits", model), drift.item()


# %% drift
rows = []
for own_data, interval in ((False, 1), (False, 10), (True, 1), (True, 4), (True, 10)):
    loss, drift = local_sgd(interval, own_data)
    data = "each its own digits" if own_data else "all digits"
    row = {"data of a worker": data, "steps between averages": interval, "loss": f"{loss:.3f}"}
    rows.append(row | {"drift_fraction": drift})
draw.table(rows, title="Local SGD, eight workers in one process, 60 steps, measured here")

# %% [markdown]
# Where all workers draw from the same images, an average every 10 steps costs hardly anything.
# Where each has its own, the copies drift two to four times as far, and the longer they go without
# averaging, the higher the loss. On shuffled data the saving can be large. DiLoCo (Douillard et al.
# 2023, *DiLoCo: distributed low-communication training of language models*) lets each worker take
# hundreds of steps of AdamW, and treats the mean change of the weights as a gradient for a second
# optimizer, one with momentum. Its abstract reports that 8 workers do as well as synchronous
# training, with 500 times less communication.
#
# ### Your turn: bits for each parameter and step
#
# 5 minutes · easy
#
# One number serves to compare everything so far: the bits that a rank sends for each parameter and
# each step. An exchange carries `bits` for each parameter, and there is one every `every` steps. It
# is a ring all-reduce, or an all-gather.
#
# <details><summary>Hint</summary>
#
# How often does a rank send each element? $2(N - 1)/N$ times in an all-reduce, $N - 1$ times in an
# all-gather.
# </details>


# %% bits_a_step tags=["turn"]
def bits_a_step(num_ranks, bits, every=1, is_gathered=False):
    """Bits that a rank sends for each parameter and step."""
    ### BEGIN SOLUTION
    times_sent = num_ranks - 1 if is_gathered else 2 * (num_ranks - 1) / num_ranks
    return bits * times_sent / every
    ### END SOLUTION


# %% check_bits_a_step
with check.turn("bits_a_step"):
    hint = "Bits times how often they leave a rank, over the steps of an exchange."
    check.expect_close(bits_a_step(8, 16), 28.0, "bfloat16 on 8 ranks", hint)
    check.expect_close(bits_a_step(8, 1, is_gathered=True), 7.0, "signs on 8 ranks", hint)
    check.expect_close(bits_a_step(64, 32, every=500), 0.126, "64 ranks, every 500 steps", hint)
    print("Right. On 64 ranks, in bits:")
    ways = {"bfloat16": (16,), "sign": (1, 1, True), "float32, every 500 steps": (32, 500)}
    for name, given in ways.items():
        print(f"{name:<28} {bits_a_step(64, *given):6.2f}")

# %% [markdown]
# ### Send first what is needed first
#
# The last method sends every byte, in a better **order**. Backward makes the last layer's gradient
# first, so DDP sends it first. But the next forward pass needs the *first* layer first, and its
# gradient is at the end of the queue. So reverse the queue: whenever the link is free, send what
# will be needed soonest (P3, Jayarajan et al. 2019, *Priority-based parameter propagation for
# distributed DNN training*; ByteScheduler, Peng et al. 2019, which also splits large tensors into
# pieces so that urgent ones need not wait for them).
#
# Take a network like the early image models: five convolutions of 250 kB, and a last, dense layer
# of 10 MB, split into ten pieces. With `is_urgent` the dense layer first sends only as many pieces
# as the link can start during backward. After backward come the convolutions, first layer first,
# then the remaining pieces. The forward pass of each layer waits for that layer alone.

# %% schedule
FORWARD_S, BACKWARD_S, LAST = 1e-3, 2e-3, 5
ETHERNET = replace(hardware.cluster("a100-10gbe"), name="4 x 10 Gb/s", gpus_per_node=1, num_nodes=4)


def one_step(is_urgent, num_early):
    """Backward through six layers, with all-reduces in one of two orders, and the next forward."""
    works = {layer: [] for layer in range(LAST + 1)}

    def send(layer, num_messages, num_elements):
        for _ in range(num_messages):
            works[layer].append(dist.all_reduce(torch.ones(num_elements), async_op=True))

    for layer in reversed(range(LAST + 1)):
        with ws.span(f"backward {layer}", kind="backward"):
            emulate.spend(BACKWARD_S)
        if layer == LAST:
            send(LAST, num_early, 250_000)
        elif not is_urgent:
            send(layer, 1, 62_500)
    for layer in range(LAST) if is_urgent else ():
        send(layer, 1, 62_500)
    send(LAST, 10 - num_early, 250_000)
    go_forward(works)


# %% next_forward
def go_forward(works):
    """Run the next forward pass: each layer as soon as its own gradients are there."""
    for layer in range(LAST + 1):
        for work in works[layer]:
            work.wait()
        with ws.span(f"forward {layer}", kind="forward"):
            emulate.spend(FORWARD_S)


on_ethernet = {"world_size": 4, "cluster": ETHERNET, "compute": "none", "echo": False}
in_order = ws.run(one_step, False, 10, **on_ethernet).timeline
one_piece_s = next(event.duration_s for event in in_order.of(0) if event.name == "all_reduce")
urgent = ws.run(one_step, True, math.ceil(LAST * BACKWARD_S / one_piece_s), **on_ethernet).timeline
schedules = {"backward's order": in_order, "urgent first": urgent}
for name, timeline in schedules.items():
    sent_mb = timeline.bytes_sent(0) / 1e6
    print(f"{name:<16} {timeline.end_s * 1e3:5.2f} ms, {sent_mb:.1f} MB sent by each rank")
draw.timelines(schedules, title="One backward and the next forward, emulated on 4 x 10 Gb/s")

# %% [markdown]
# The same bytes go over the same link, and the step is shorter: forward begins while the rest is
# still on its way. Accuracy does not suffer, because nothing is left out. torch's DDP does not do
# this: the optimizer steps when *all* gradients have arrived. FSDP, in week 7, uses the idea in a
# different form.
#
# ### Your turn: the order of a queue by priority
#
# 10 minutes · medium
#
# `ready_s[layer]` is the time at which backward has computed the gradient of a layer; layer 0 is
# the first. Sending one gradient takes `piece_s`, and the link sends one at a time. Return the
# layers in the order in which they are sent, if the link always takes the ready layer that forward
# needs first.
#
# <details><summary>Hint</summary>
#
# Keep the current time, and the layers that still wait with the time at which each is ready. If
# none is ready, advance to the earliest time. `min` of the ready ones is the layer that forward
# needs first.
# </details>


# %% send_order tags=["turn"]
def send_order(ready_s, piece_s):
    """The layers in the order in which the link sends their gradients."""
    ### BEGIN SOLUTION
    waiting, order, now_s = dict(enumerate(ready_s)), [], 0.0
    while waiting:
        now_s = max(now_s, min(waiting.values()))
        layer = min(layer for layer, at_s in waiting.items() if at_s <= now_s)
        order.append(layer)
        del waiting[layer]
        now_s += piece_s
    return order
    ### END SOLUTION


# %% check_send_order
with check.turn("send_order"):
    made_s = [5.0, 4.0, 3.0, 2.0, 1.0]
    hint = "This link keeps up with backward: each gradient goes as soon as it is there."
    found = torch.tensor(send_order(made_s, 0.5))
    check.expect_close(found, torch.tensor([4, 3, 2, 1, 0]), "the order on a fast link", hint)
    hint = "At 1 s only layer 4 is ready, and is sent until 3 s. Then layers 3 and 2 are ready."
    found = torch.tensor(send_order(made_s, 2.0))
    check.expect_close(found, torch.tensor([4, 2, 0, 1, 3]), "the order on a slow link", hint)
    print("Right. On the slow link forward can begin after 7 s; in backward's order, after 11 s.")

# %% [markdown]
# ## 5. Compare with the production oracle
#
# torch has its own hooks, in `torch.distributed.algorithms.ddp_comm_hooks`. Ours must give the same
# model: after ten steps on real ranks, compare all weights. (Without NCCL, DDP rejects torch's
# bfloat16 hook by its name. Wrapped in a function of our own it runs.)


# %% against_the_oracle
def torch_bfloat16(state, bucket):
    """torch's bfloat16 hook under another name."""
    return default_hooks.bf16_compress_hook(state, bucket)


def weights_after(hook, num_steps=10):
    """All weights after some steps with this hook, or with DDP alone if it is None."""
    torch.set_num_threads(1)
    model, optimizer = new_model("digits")
    ddp = DistributedDataParallel(model)
    if hook:
        ddp.register_comm_hook(None, hook)
    for step in range(num_steps):
        optimizer.zero_grad()
        loss_of(ddp, *batch("digits", dist.get_world_size() * step + dist.get_rank())).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# %% differences
PAIRS = {
    "plain_hook from DDP without a hook": (plain_hook, None),
    "bfloat16_hook from torch's": (bfloat16_hook, torch_bfloat16),
}


def differences():
    """The largest difference between the weights with our hooks and with torch's."""
    return {
        name: (weights_after(ours) - weights_after(theirs)).abs().max().item()
        for name, (ours, theirs) in PAIRS.items()
    }


for name, difference in ws.run(differences, **here).values[0].items():
    print(f"{name:<36} largest difference {difference:.1e}")
    assert difference < 1e-5

# %% [markdown]
# ### Loss against bytes
#
# The next plots show all methods, for both models. Each method trains on sixty batches a rank on an
# emulated cluster: the ranks and the training are real, and all bytes that a rank sends after the
# start are counted. torch's PowerSGD sends everything uncompressed at first: by default for 1,000
# steps, here for two, the fewest that it allows, because DDP regroups its buckets then and PowerSGD
# keeps its memory by bucket. These bytes are included.


# %% power_sgd
def power_sgd(rank):
    """torch's PowerSGD hook, and its state."""
    settings = {"start_powerSGD_iter": 2, "min_compression_rate": 1, "random_seed": seed}
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, **settings)
    return state, powerSGD_hook.powerSGD_hook


HOOKS = {
    "bfloat16 (torch)": lambda: (None, torch_bfloat16),
    "float32": lambda: (None, plain_hook),
    "int8": lambda: (None, int8_hook),
    "sign": lambda: (None, sign_hook),
    "random 10%": lambda: random_only(0.1, scaled=False),
    "random 1%": lambda: random_only(0.01, scaled=False),
    "PowerSGD rank 1 (torch)": lambda: power_sgd(1),
    "PowerSGD rank 4 (torch)": lambda: power_sgd(4),
}


# %% less_often
def mean_over_ranks(tensors):
    """Average tensors over all ranks, in place, with one all-reduce."""
    together = torch.cat([one.flatten() for one in tensors])
    dist.all_reduce(together)
    parts = together.div_(dist.get_world_size()).split([one.numel() for one in tensors])
    for one, part in zip(tensors, parts, strict=True):
        one.copy_(part.view_as(one))


# %% train_rarely
def train_rarely(every, is_local, task, num_steps=60):
    """The loss at the end, with ranks that communicate only after every few batches."""
    torch.set_num_threads(1)
    (model, optimizer), size, rank = new_model(task), dist.get_world_size(), dist.get_rank()
    weights = list(model.parameters())
    dist.barrier()
    for step in range(num_steps):
        (loss_of(model, *batch(task, size * step + rank)) / (1 if is_local else every)).backward()
        is_exchange = (step + 1) % every == 0
        if is_exchange and not is_local:
            mean_over_ranks([weight.grad for weight in weights])
        if is_exchange or is_local:
            optimizer.step()
            optimizer.zero_grad()
        if is_exchange and is_local:
            mean_over_ranks([weight.data for weight in weights])
    dist.barrier()
    return final_loss(task, model)


# %% loss_and_bytes
def train_all(task):
    """The last loss of every method, one after the other."""
    losses = {name: train(make_hook, task)[-1] for name, make_hook in HOOKS.items()}
    losses["accumulated, 10 steps"] = train_rarely(10, False, task)
    return losses | {"local SGD, 10 steps": train_rarely(10, True, task)}


def sent_between_barriers(timeline):
    """The bytes that rank 0 sent between pairs of barriers, without DDP's broadcasts."""
    events, sent = [event for event in timeline.of(0) if event.kind == "communication"], [0.0]
    for event in events:
        if event.name == "barrier":
            sent.append(0.0)
        elif event.name != "broadcast":
            sent[-1] += event.sent_bytes
    return sent[1::2]


# %% losses_and_bytes
FAMILIES = {
    "fewer bits": ("bfloat16 (torch)", "float32", "int8", "sign"),
    "fewer entries": ("random 10%", "random 1%"),
    "fewer directions": ("PowerSGD rank 1 (torch)", "PowerSGD rank 4 (torch)"),
    "less often": ("accumulated, 10 steps", "local SGD, 10 steps"),
}
family_of = {name: family for family, names in FAMILIES.items() for name in names}
emulated = {"world_size": world_size, "cluster": cluster, "compute": "none", "echo": False}
points, rows = {"digits": [], "text": []}, {name: {"method": name} for name in family_of}
for learned in points:
    run = ws.run(train_all, learned, timeout_s=300, **emulated)
    sent = sent_between_barriers(run.timeline)
    for (name, loss), sent_bytes in zip(run.values[0].items(), sent, strict=True):
        points[learned].append((name, sent_bytes, loss, family_of[name]))
        rows[name][f"{learned}, of bfloat16's bytes_fraction"] = sent_bytes / sent[0]
        rows[name][f"{learned}, loss"] = f"{loss:.3f}"
draw.table([*rows.values()], title=f"60 steps, {world_size} ranks: real training, emulated wire")

# %% loss_against_bytes
axes = {"x_label": "sent by each rank_bytes", "y_label": "loss", "log": "xy"}
title = "loss against bytes, real training, emulated wire; lower left is better"
draw.scatter(points["digits"], title=f"Digits: {title}", **axes)

# %% text_against_bytes
draw.scatter(points["text"], title=f"Text: {title}", **axes)

# %% [markdown]
# Start at bfloat16 and go to the left: how far can you go before the loss rises? int8 loses nothing
# here. On the digits PowerSGD keeps a low loss with a fifth of the bytes, because it has a memory;
# the sign, which has none here, ends higher. On the text the order is reversed: the sign raises the
# loss by less than 2% with a sixteenth of the bytes, and PowerSGD of rank 1 raises it more. Adam
# divides each entry by its own typical size, so that it depends less on magnitudes; and the
# transformer's gradients have more directions, as section 4 measured. Accumulation sends the same
# bytes as local SGD and makes far fewer updates. Your two hooks of lab 5 belong in the lower left
# corner.
#
# Sixty steps of two small models prove little about yours. Two results carry over: a bias without
# memory costs accuracy, and a memory turns it into a delay, which matters less the longer you
# train. One result does not. Here all ranks draw from the same data, and so local SGD reaches a
# lower loss than every compressor that sends less than half of bfloat16's bytes. Section 4 shows
# where it loses.

# %% [markdown]
# ## 6. Formula, emulation, and a link that changes
#
# The goal is a shorter step, not fewer bytes. Compressing takes time on the GPU that also computes
# gradients, and communication may have been hidden behind backward anyway.
#
# The picture shows the two cases, with six equal layers, each a bucket, whose buckets are sent one
# after the other. In the upper one the link keeps up with backward, and only the last bucket is
# exposed. In the lower one it does not, and all six are sent back to back once the first one is
# ready.

# %% overlapped
NUM_LAYERS, LAYER_FORWARD_S, LAYER_BACKWARD_S = 6, 0.25e-3, 0.5e-3
BUCKET_BYTES = 256 * 512 * 4  # in float32


def overlapped(size_bytes, work_s=0.0):
    """One step of six layers, each sending so many bytes after so much work of compressing."""
    works = []
    with ws.span("forward", kind="forward"):
        emulate.spend(NUM_LAYERS * LAYER_FORWARD_S)
    for layer in reversed(range(NUM_LAYERS)):
        with ws.span(f"backward {layer}", kind="backward"):
            emulate.spend(LAYER_BACKWARD_S + work_s)
        works.append(dist.all_reduce(torch.ones(size_bytes // 4), async_op=True))
    for work in works:
        work.wait()


half = BUCKET_BYTES // 2
on_two = {
    "NVLink": ws.run(overlapped, half, **{**on_ethernet, "cluster": "dgx-h100"}).timeline,
    "10 Gb/s": ws.run(overlapped, BUCKET_BYTES, **on_ethernet).timeline,
}
draw.timelines(on_two, title="One step of six layers on four ranks, emulated")

# %% [markdown]
# Take L layers. Forward takes $f$ a layer; backward, *together with the work of compressing*, takes
# $b$; a bucket takes $m$ on the link. If the link keeps up, only the last bucket is exposed. If
# not, the L buckets are sent back to back, beginning when the first one is ready:
#
# $$t = L f + L b + \max\bigl(m, \; L m - (L - 1) \, b\bigr)$$
#
# An all-reduce of $s$ bytes takes $m = 2 (N-1) (\alpha + s / (N \beta))$. For int8, the all-gathers
# of $s$ bytes and of a scale take $(N-1) \, (2 \alpha + s / \beta)$.
#
# The next cells run six layers of 262 kB in bfloat16 under DDP, each with 0.25 ms of forward and
# 0.5 ms of backward in addition to its matmuls. One rank alone, which sends nothing, shows what
# backward and compressing take together. The formula adds the communication.


# %% layers
class Spend(torch.autograd.Function):
    """An identity that takes a given time in forward and in backward."""

    @staticmethod
    def forward(ctx, x):
        emulate.spend(LAYER_FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        emulate.spend(LAYER_BACKWARD_S)
        return gradient


class Layer(nn.Module):
    """A matrix of 131,072 weights, and the time of a larger layer."""

    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_outputs, bias=False)

    def forward(self, x):
        return Spend.apply(self.linear(x))


# %% step_time
def step_time_s(make_hook, num_steps=3):
    """Seconds of a step with this hook, after DDP has regrouped its buckets."""
    shapes = [(256, 512), (512, 256)] * (NUM_LAYERS // 2)
    model = nn.Sequential(*[Layer(*shape) for shape in shapes])
    ddp, x = DistributedDataParallel(model, bucket_cap_mb=0.4), torch.ones(1, 256)
    ddp.register_comm_hook(*make_hook())
    for _ in range(num_steps):
        ddp.zero_grad()
        dist.barrier()
        start_s = emulate.elapsed()
        ddp(x).sum().backward()
        end_s = emulate.elapsed()
    return end_s - start_s


def step_times_s():
    """The same for each method."""
    torch.set_num_threads(1)
    return {method: step_time_s(make_hook) for method, make_hook in STEP_HOOKS.items()}


# %% formula
STEP_HOOKS = {
    "bfloat16": lambda: (None, bfloat16_hook),
    "float32": lambda: (None, plain_hook),
    "int8": lambda: (None, int8_hook),
    "random 1%": lambda: random_only(0.01, scaled=False),
}


def wire_s(method, num_ranks, alpha_s, beta):
    """Seconds of one bucket on the wire."""
    if method == "int8":
        return (num_ranks - 1) * (2 * alpha_s + BUCKET_BYTES / 4 / beta)
    fraction = {"bfloat16": 0.5, "float32": 1.0, "random 1%": 0.01}[method]
    return 2 * (num_ranks - 1) * (alpha_s + fraction * BUCKET_BYTES / (num_ranks * beta))


def formula_s(alone_s, bucket_s):
    """Seconds of a step, from that of one rank alone and the time of one bucket on the wire."""
    backward_s = alone_s / NUM_LAYERS - LAYER_FORWARD_S
    late_s = NUM_LAYERS * bucket_s - (NUM_LAYERS - 1) * backward_s
    return alone_s + max(bucket_s, late_s)


# %% side_by_side
rows, emulated_s = [], {}
for where in (hardware.cluster("dgx-h100"), hardware.cluster("pcie-box"), ETHERNET):
    link = where.intra if where.num_nodes == 1 else where.inter
    alone, together = (
        ws.run(step_times_s, world_size=n, cluster=where, echo=False).values[0] for n in (1, 4)
    )
    for sent_as in STEP_HOOKS:
        bucket_s = wire_s(sent_as, 4, link.latency_s, link.bandwidth_bytes_per_s)
        formula, time_s = formula_s(alone[sent_as], bucket_s), together[sent_as]
        emulated_s[where.name, sent_as] = time_s
        row = {"four ranks on": where.name, "what travels": sent_as, "formula_s": formula}
        row |= {"emulated_s": time_s, "formula is off by": f"{formula / time_s - 1:+.1%}"}
        change = time_s / together["bfloat16"] - 1
        rows.append(row | {"against bfloat16": f"{change:+.1%}"})
ratio = emulated_s[ETHERNET.name, "float32"] / emulated_s[ETHERNET.name, "bfloat16"]
predictions.reveal("speed-up by bfloat16 on 10 Gb/s", ratio, "times")
note = "Latencies of TCP (30 µs) are our assumption; the other links' sources: worldsize.hardware"
draw.table(rows, title="A step of six layers, formula and emulation", note=note)

# %% [markdown]
# The three clusters give three answers:
#
# - **NVLink**: there is nothing to gain. Communication is hidden except for the last bucket, and
#   all methods lie within about a percent of each other.
# - **PCIe**: here, too, all methods are the same within about one percent.
# - **10 Gb/s Ethernet**: the link decides. Compared with float32, bfloat16 gains two thirds of what
#   1% of the entries would gain, with one line of code. On four ranks int8 sends as many bytes as
#   bfloat16, and is faster because an all-gather has half as many messages in sequence. The formula
#   is up to a tenth too short here: the emulator prices the library's own protocols over TCP, whose
#   steps cost more than the link's α.
#
# The emulator prices each of these operations by the bytes that it moves, at the rate that a copy
# reaches. A real kernel has a start-up time, and selecting the largest entries takes many passes.
# So real compression is slower than emulated, and stops paying at a lower bandwidth. Agarwal et al.
# 2022, *On the utility of gradient compression in distributed training systems*, tried more than
# 200 setups in data centres and found a speed-up over well-tuned SGD in 6 of them (their abstract).
#
# No row here is measured on this machine. Its ranks share cores, so that compressing and sending
# are both work of the CPU, and a formula made for a GPU and a separate network does not hold.
#
# ### What is there to gain for a large model?
#
# Compression can save at most the exposed part of the communication. For Llama 3 8B on 64 H100s,
# with one sequence of 8,192 tokens on each and 40% of the peak, a step computes for about a second.
# On which link is anything exposed?

# %% llama
LLAMA, NUM_GPUS = models.shape("llama-3-8b"), 64
compute_s = LLAMA.flops(8192, 8192) / (0.40 * hardware.H100.peak_flops_per_s["bfloat16"])
mfu_note = f"A step computes for {compute_s:.2f} s at an MFU of 40%, two thirds of it backward"
rows = []
for link in (hardware.NVLINK4, hardware.IB_NDR, hardware.ETHERNET_100G, hardware.ETHERNET_10G):
    hops = 2 * (NUM_GPUS - 1) / NUM_GPUS
    on_wire_s = hops * 2 * LLAMA.num_parameters / link.bandwidth_bytes_per_s
    exposed_s = max(0.0, on_wire_s - 2 / 3 * compute_s)
    row = {"link of each GPU": link.name, "wire_s": on_wire_s, "exposed_s": exposed_s}
    rows.append(row | {"most that compression saves_fraction": exposed_s / (compute_s + exposed_s)})
draw.table(rows, title="Llama 3 8B, gradients in bfloat16, computed", note=mfu_note)

# %% [markdown]
# On NVLink and InfiniBand there is nothing to gain: backward hides the whole exchange. At 100
# Gb/s and below compression is worth a great deal. So is a larger batch on each GPU, as long as
# the batch is not too large for training (week 4).
#
# ### Find the break-even
#
# The explorer draws the same formula over the size of the gradient, with two thirds of the
# computing to hide communication behind. Compressing takes `work_s_per_gb`; the default of 20 ms a
# gigabyte is our assumption, not a measurement: a GPU with 2 TB/s of memory that reads and writes
# the gradient twenty times. Above which size does another method beat bfloat16, and what happens to
# the gathered method with more ranks?

# %% explorer
SENT = {  # fraction of the bytes of bfloat16, and all-reduces or all-gathers
    "bfloat16": (1.0, 1, False),
    "PowerSGD, 1%": (0.01, 2, False),
    "largest 1%": (0.03, 1, True),
}


def step_by_size(num_ranks=32, link_bytes_per_s=1.17e9, compute_s=0.2, work_s_per_gb=0.02):
    """The time of a step, computed, by the size of a gradient in bfloat16."""

    def line(fraction, num_calls, is_gathered):
        hops = (num_ranks - 1) * (1 if is_gathered else 2 / num_ranks)
        latency_s = num_calls * (num_ranks - 1) * (1 if is_gathered else 2) * 30e-6

        def time_s(size_bytes):
            work_s = 0.0 if fraction == 1 else work_s_per_gb * size_bytes / 1e9
            on_wire_s = latency_s + hops * fraction * size_bytes / link_bytes_per_s
            return compute_s + work_s + max(0.0, on_wire_s - 2 / 3 * compute_s)

        return time_s

    title = "Time of a step by the size of its gradient in bfloat16, computed"
    lines = {name: line(*parts) for name, parts in SENT.items()}
    return draw.cost(lines, (1e6, 1e10), title=title)


# %% explored
explore(
    step_by_size,
    num_ranks=(2, 1024, "x2"),
    link_bytes_per_s=(1e8, 1e11, "x2"),
    compute_s=(0.01, 1.0, "x1.3"),
    work_s_per_gb=(0.001, 0.5, "x1.5"),
)

# %% [markdown]
# ### A link that changes
#
# A link that is shared with other jobs is not equally fast all day, and no choice made at the start
# is always right. So choose *during* the run: time the steps, try the other method now and then,
# and continue with the faster one.
#
# Here is a step like that of the picture, on 10 Gb/s, and on the same cluster with one node's link
# at a fifth of its bandwidth. "1%" sends a hundredth of the entries, and takes 0.4 ms of work for
# each layer. On an emulated link all steps of one kind take the same time, so one of each is run.
# The policies then run for 72 steps, of which steps 31 to 54 are on the slow link.

# %% ways
WAYS = {"bfloat16": (BUCKET_BYTES // 2, 0.0), "1%": (BUCKET_BYTES // 100, 0.4e-3)}
SLOW = faults.SlowLink(ETHERNET.route(0, 1).hops[0].name, factor=5)


def way_times_s():
    """Seconds of a step by each way to send."""
    found_s = {}
    for way, (size_bytes, work_s) in WAYS.items():
        start_s = emulate.elapsed()
        overlapped(size_bytes, work_s)
        found_s[way] = emulate.elapsed() - start_s
    return found_s


STEP_S = {
    link: ws.run(way_times_s, faults=faults_of_link, **on_ethernet).values[0]
    for link, faults_of_link in (("10 Gb/s", []), ("a fifth of it", [SLOW]))
}
draw.table(
    [{"link": link, **{f"{way}_s": one[way] for way in WAYS}} for link, one in STEP_S.items()],
    title="One step by link and method, emulated",
)


# %% changing_link
def follow(links, try_every=12):
    """Seconds of each step, if the method is the faster one as far as is known."""
    known_s, times_s = {}, []
    for step, link in enumerate(links):
        faster, slower = sorted(WAYS, key=lambda way: known_s.get(way, 0.0))
        method = slower if step % try_every == 0 else faster
        known_s[method] = STEP_S[link][method]
        times_s.append(known_s[method])
    return times_s


LINKS = 30 * ["10 Gb/s"] + 24 * ["a fifth of it"] + 18 * ["10 Gb/s"]
policies_s = {f"always {way}": [STEP_S[link][way] for link in LINKS] for way in WAYS}
policies_s["the faster one"] = follow(LINKS)
for policy, of_policy_s in policies_s.items():
    print(f"{policy:<16} 72 steps in {sum(of_policy_s) * 1e3:.0f} ms")
in_ms = {policy: [1e3 * time_s for time_s in of_policy] for policy, of_policy in policies_s.items()}
draw.curves(in_ms, y_label="ms", title="Steps on a link that shrinks and recovers, emulated")

# %% [markdown]
# *Always bfloat16* is best on the free link and worst on the busy one; for *always 1%* it is the
# reverse. The policy that measures pays for its trials (the peaks), and when the link recovers it
# sends 1% for six more steps, until the next trial. It is still faster than both. Whether sending
# only 1% is acceptable at all is a question of the loss (section 5). And one condition comes first:
# **all ranks must choose the same method**.
#
# ## 7. When it breaks
#
# ### Find the bug: each rank looks at its own clock
#
# 8 minutes · medium
#
# A colleague runs the policy of the last section on real ranks. It works for days, and then the job
# hangs. Run the check, read what it found, and repair the function. `times_s` are one
# rank's own measurements, by method.
#
# <details><summary>Hint</summary>
#
# When both methods take about the same time, rank 0 and rank 1 may see different winners. Let them
# agree before they choose: `dist.broadcast` of rank 0's times, or `dist.all_reduce` with
# `op=dist.ReduceOp.MAX`. Both take a tensor.
# </details>


# %% colleagues_choice tags=["turn"]
def colleagues_choice(times_s):
    """The method of the next steps, the same on all ranks, from each rank's own seconds."""
    methods = sorted(times_s)
    ### BEGIN SOLUTION
    together_s = torch.tensor([times_s[method] for method in methods])
    dist.all_reduce(together_s, op=dist.ReduceOp.MAX)
    return methods[int(together_s.argmin())]
    ### INSTEAD
    # return min(methods, key=lambda method: times_s[method])
    ### END SOLUTION


# %% check_colleagues_choice
def choose_and_send(times_s):
    """What this rank chose, after a step's all-reduce with it."""
    method = colleagues_choice(times_s)
    dist.all_reduce(torch.ones(WAYS[method][0] // 4))
    return method


with check.turn("colleagues_choice"):
    two_ranks = {"world_size": 2, "cluster": ETHERNET, "compute": "none", "echo": False}
    near = [({"bfloat16": 6.01, "1%": 6.02},), ({"bfloat16": 6.03, "1%": 6.02},)]
    ws.run(choose_and_send, each=near, **two_ranks)
    for faster in WAYS:
        clear = [({way: 5.0 + rank + 2 * (way != faster) for way in WAYS},) for rank in range(2)]
        found = ws.run(choose_and_send, each=clear, **two_ranks).values
        if found != [faster, faster]:
            hint = "The choice must still be the method with the shorter time."
            raise check.CheckFailed(f"{faster!r} on both ranks", f"{found}", hint)
    print("Right. A choice that changes what is sent must be made once, for all ranks.")

# %% [markdown]
# ### Find the bug: a sum of different entries
#
# 8 minutes · medium
#
# A colleague writes the random sparsifier of section 3 as a function. Each rank draws its own
# entries, "so that together they cover more". The sizes match, nothing hangs, and the loss falls at
# first. Run the check, read what it found, and repair the function.
#
# <details><summary>Hint</summary>
#
# `all_reduce` adds the first value of each rank to the first of the others, whatever entry it came
# from. How do all ranks draw the same entries without sending them?
# </details>


# %% mean_of_random_entries tags=["turn"]
def mean_of_random_entries(gradient, step, num_sent):
    """The mean gradient in `num_sent` entries, random ones in each step, and zeros elsewhere."""
    generator = torch.Generator()
    ### BEGIN SOLUTION
    generator.manual_seed(step)
    ### INSTEAD
    # generator.manual_seed(1000 * dist.get_rank() + step)
    ### END SOLUTION
    chosen = torch.randperm(gradient.numel(), generator=generator)[:num_sent]
    sent = gradient[chosen]
    dist.all_reduce(sent)
    return torch.zeros_like(gradient).index_copy_(0, chosen, sent / dist.get_world_size())


# %% check_mean_of_random_entries
def sparse_means():
    """What this rank makes of gradients in which entry i is i + 1 on every rank, in two steps."""
    gradient = torch.arange(1.0, 101.0)
    return [mean_of_random_entries(gradient, step, 10) for step in (0, 1)]


with check.turn("mean_of_random_entries"):
    two_ranks = {"world_size": 2, "cluster": ETHERNET, "compute": "none", "echo": False}
    of_ranks = ws.run(sparse_means, **two_ranks).values
    for rank, means in enumerate(of_ranks):
        for step, mean in enumerate(means):
            entries = torch.nonzero(mean).flatten()
            hint = "Values of different entries were added to each other."
            what = f"rank {rank}'s entries in step {step}, each the mean of equal ones"
            check.expect_close(mean[entries], entries + 1.0, what, hint)
    if torch.equal(of_ranks[0][0], of_ranks[0][1]):
        raise check.CheckFailed("new entries in each step", "the same ones in steps 0 and 1")
    print("Right. The seed is the step: all ranks draw the same entries, and new ones each time.")

# %% [markdown]
# ### PowerSGD sent fewer bytes and was no faster
#
# PowerSGD was published in 2019, and in November 2020 a developer of torch proposed it as a hook,
# because its factors can be all-reduced (pytorch issue 47202). The first version compressed every
# matrix, even where the two factors are no smaller than the matrix; a threshold was requested in
# February 2021 (issue 52034). In September one of PowerSGD's authors opened issue 65813. A recent
# paper, a preprint of Agarwal et al. above, argued that the time of compressing often outweighs the
# gain. The costly part, he writes, is not the matmuls. It is the orthogonalisation of P's columns,
# and according to the DALL-E team's timings a kernel made for it could be up to 100 times faster.
# In March 2022 a user who trained a T5 of 11 billion parameters with rank 32 reported what the GPU
# does meanwhile: it was 44% busy during compression, because the hook takes one matrix after the
# other. With all matrices of one shape in one batched matmul, compression and communication
# together took less than half as long (issue 74907).
#
# The bytes had been right all along. **How this week's tools find it**: run the hook on *one* rank,
# which sends nothing. The extra time of its step is the cost of compression; if that is more than
# the exposed communication, the hook cannot pay on any number of ranks.
#
# ### The sign that always points the wrong way
#
# Minimise $x/4$ on the interval from -1 to 1: the best x is -1. Each gradient is noisy: 4 in one
# case out of four, and -1 in the other three. The mean is 1/4, so SGD goes down. The *sign* is
# negative three times out of four. (After the counter-examples of Karimireddy et al. 2019.)


# %% wrong_way
def descend(compress, has_memory, num_steps=4000, rate=0.001):
    """x after `num_steps` steps from 0, held between -1 and 1."""
    generator = torch.Generator().manual_seed(seed)
    x, kept = 0.0, 0.0
    for _ in range(num_steps):
        gradient = 4.0 if torch.rand((), generator=generator) < 0.25 else -1.0
        total = gradient + kept
        sent = compress(total)
        kept = total - sent if has_memory else 0.0
        x = min(1.0, max(-1.0, x - rate * sent))
    return x


ends = {
    "gradient": descend(lambda total: total, has_memory=False),
    "sign": descend(lambda total: math.copysign(1.0, total), has_memory=False),
    "sign, with memory": descend(lambda total: math.copysign(1.0, total), has_memory=True),
}
for name, end in ends.items():
    print(f"{name:<18} ends at x = {end:+.2f}")

# %% [markdown]
# In training this shows as a loss that falls at first, and then settles at a value that no learning
# rate improves. The compressor is wrong on average, and in the same direction in every step. The
# fix is a memory, or a compressor that is right on average, such as stochastic rounding instead of
# rounding to nearest.
#
# ### float16 overflows
#
# float16 ends at 65,504. Its smallest number is $6 \cdot 10^{-8}$, and anything less than half of
# that is rounded to zero (IEEE 754, binary16). Gradients do not stay in this range. torch's hook
# divides by N before the all-reduce, so that sums over the ranks do not overflow; that brings small
# gradients closer to zero. The cell sends the same gradients, scaled up and down as a loss scale
# would scale them, through torch's hooks on real ranks.


# %% out_of_range
def out_of_range(hook, factors):
    """For each factor, the numbers of gradients that overflow and that become zero."""
    torch.set_num_threads(1)
    ddp, found = DistributedDataParallel(new_model("digits")[0]), []
    ddp.register_comm_hook(None, hook)
    for factor in factors:
        gradients = [(one, torch.rand_like(one) + 0.5) for one in ddp.parameters()]
        ddp.zero_grad()
        ddp(batch("digits", 0)[0])  # DDP prepares its buckets in forward
        sum((factor * one * wanted).sum() for one, wanted in gradients).backward()
        given = torch.cat([one.grad.flatten() for one in ddp.parameters()])
        found.append((int((~given.isfinite()).sum()), int((given == 0).sum())))
    return found


FACTORS, rows = (1e-9, 1e-7, 1.0, 1e4, 1e6), []
for name, torch_hook in (
    ("bfloat16", torch_bfloat16),
    ("float16", default_hooks.fp16_compress_hook),
):
    counts = ws.run(out_of_range, torch_hook, FACTORS, **here).values[0]
    for about, (num_inf, num_zero) in zip(FACTORS, counts, strict=True):
        row = {"torch's hook": name, "gradients of about": f"{about:g}"}
        rows.append(row | {"become infinite": num_inf, "become 0": num_zero})
draw.table(rows, title="What 9,930 gradients become on the way, measured here")

# %% [markdown]
# In training this shows as weights that are NaN after one step, or as a layer that never changes.
# The exponent range of float16 is too small. bfloat16 has the range of float32, with fewer digits;
# otherwise scale the loss so that gradients lie in the middle of float16's range, as week 6
# explains.
#
# ### PowerSGD's callbacks run in different orders on different ranks
#
# We met this failure while writing the lesson. PowerSGD must all-reduce P before it can compute Q.
# torch's hook starts the second all-reduce *in a callback* of the first. With several buckets there
# are several callbacks, and nothing says in which order they run: rank 0 may begin Q of one bucket
# when rank 1 begins that of another. Collectives have no names (week 2, section 7). Small networks
# have one bucket, and never show it. The next cell runs three real ranks over Gloo:


# %% two_orders
def several_buckets():
    """Train six layers in small buckets with torch's PowerSGD."""
    ddp = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)]), bucket_cap_mb=0.01
    )
    ddp.register_comm_hook(*power_sgd(2))
    for _ in range(8):
        ddp(torch.ones(4, 64)).sum().backward()


try:
    ws.run(several_buckets, world_size=3, backend="gloo", timeout_s=5, echo=False)
    print("This time all ranks had the same order. Run the cell again.")
except ws.RunError as report:
    print("\n".join(line for line in str(report).splitlines() if "do not match" in line) or report)

# %% [markdown]
# The job hangs or crashes, and only with larger models. Collectives that are started in callbacks
# are to blame, because nothing guarantees the order of callbacks. Start every collective in the
# hook itself, since DDP calls hooks in the same order on all ranks; or give torch's hook a single
# bucket (`bucket_cap_mb` larger than the model). (Seen with Gloo, torch 2.13. The emulator runs
# callbacks in the order of their hooks; NCCL may do so too, because of its stream: we have not
# tried.)

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | **2/f** ranks | gathering f of the bytes saves nothing: int8 4, sign 32, top 1% 67 | section 4 |
# | **√(n/k - 1)** | spread of k random entries in n, scaled: 10 at 1% | section 3 |
# | **r(n + m)** for nm | a matrix as r directions; they can be all-reduced | section 4 |
# | **16 · 2(N - 1)/N** bits | a parameter and step in bfloat16; local SGD: over H | section 4 |
# | the exposed time | the most that compression can save; 8B on NDR: nothing | section 6 |
# | **3 · 10⁻⁸ to 65,504** | float16's range; outside it 0 or infinity | section 7 |

# %% [markdown]
# ## 8. Problems
#
# **1.** 24 ranks send the largest 0.5% of a gradient as bfloat16 with 4-byte indices. How much less
# is that than an all-reduce in bfloat16? And on 200 ranks?
#
# <details><summary>Answer</summary>
#
# Gathered: $23 \cdot 0.005 \cdot 6 = 0.69$ bytes an entry. All-reduced:
# $2 \cdot 23/24 \cdot 2 = 3.83$, 5.6 times as many. On 200 ranks: $199 \cdot 0.03 = 5.97$ against
# 3.98 bytes, half as much again. Both are equal at $N = 2/f$, with $f = 0.03/2$: 133.
# </details>
#
# **2.** A matrix has 4,096 rows and 14,336 columns. What share of its elements do the factors of
# rank 32 have? Above which rank does PowerSGD send more than the matrix?
#
# <details><summary>Answer</summary>
#
# $32 \cdot (4096 + 14336) / (4096 \cdot 14336) = 1.0\%$. It sends more than the matrix from rank
# 3,186 on: $nm/(n + m) = 3185.8$. In addition to the bytes, there are two all-reduces instead of
# one.
# </details>
#
# **3.** With error feedback a compressor sends an entry in every tenth step, and then everything
# that it has kept. By how many steps is a gradient late on average? Which number of week 4 does
# that remind you of?
#
# <details><summary>Answer</summary>
#
# It waits 0 to 9 steps, 4.5 on average. It is like the staleness of an asynchronous server; what
# week 4 says about learning rates and momentum at a staleness of about 5 holds here too.
# </details>
#
# **4.** A step computes for 200 ms, 130 ms of it backward, and exchanges 500 MB in bfloat16 on 16
# ranks, over 5 GB/s each. A compressor sends a tenth, by all-reduce, after 40 ms of work. Does it
# pay? At which bandwidth does it stop paying?
#
# <details><summary>Answer</summary>
#
# Communication takes $2 \cdot 15/16 \cdot 0.5/5 = 188$ ms, of which 58 are exposed: 258 ms.
# Compressed, it takes 19 ms, hidden: 240 ms. It saves 18 ms. It stops paying where 40 ms are
# exposed: a communication time of 170 ms, at $0.9375 / 0.170 = 5.5$ GB/s. Without overlap it would
# still pay at 20 GB/s.
# </details>
#
# **5.** int8 with one scale for each 64 entries is sent by all-gather. How many bytes does an entry
# take with scales in float32, and with scales in bfloat16? At how many ranks does it send as much
# as bfloat16?
#
# <details><summary>Answer</summary>
#
# $1 + 4/64 = 1.06$ and $1 + 2/64 = 1.03$ bytes. $N = 4/1.06 = 3.8$ and $4/1.03 = 3.9$: on four
# ranks it already sends more.
# </details>
#
# **6.** *Design.* Two data centres with 256 H100s each share a line of 100 Gb/s. Together they will
# train Llama 3 8B. What crosses the line in a synchronous step, how long does it take, and what
# would you do?
#
# <details><summary>Answer</summary>
#
# Reduce inside each centre first (week 2). 16 GB of bfloat16 then cross the line each way: 1.3 s at
# the full 12.5 GB/s, about as long as a step computes (1.2 s). Options, cheapest first: more
# sequences on each GPU between two exchanges (accumulation, if the batch may grow); averaging the
# weights every 100 steps or less often, as DiLoCo does, if both centres can draw from the same
# data: 13 ms a step; PowerSGD on the line alone, if the copies must stay equal. Whichever you
# choose, others use the line too: measure it during the run.
# </details>
#
# ## 9. Self-check
#
# First, compare your predictions with the results.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions follow. Every answer, right or wrong, has its own explanation.

# %% self_check
quiz.ask("week05", seed=seed)

# %% [markdown]
# ## To take with you
#
# - A compressor has a bias and a spread. SGD tolerates spread; a bias needs a memory, which turns
#   it into a delay.
# - What can be added while compressed goes through an all-reduce. What cannot must be gathered, and
#   grows with N: compared with bfloat16, int8 saves nothing on 4 ranks or more, and the largest 1%
#   nothing on 67 or more.
# - bfloat16 costs one line. float16 ends at 65,504.
# - Compression pays only where communication is exposed. On fast links backward hides it, and
#   compressing takes time. Where the link changes, measure, and let one rank decide.
# - Order is free: what is needed first should be sent first.
#
# **Now the lab**: [lab 5, a compressing communication hook](../labs/lab05/lab05.ipynb). You write
# two compressors: the largest entries with a memory, and two thin factors instead of a matrix. Then
# [week 6, precision and activations](week06_precision_and_activations.ipynb): fewer bits not only
# in communication, but everywhere.
