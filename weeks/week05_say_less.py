# %% [markdown]
# # Week 5. Say less: gradient compression and communication scheduling
#
# | | |
# |---|---|
# | Reading | about 75 minutes |
# | Running | about a minute on two CPU cores; GPUs are used if there are enough |
# | You need | [week 4](week04_synchronous_or_asynchronous.ipynb) and weeks 1 to 3 |
# | You do not need | a network, a cluster, or a course in optimisation |
# | Afterwards | lab 5, *a compressing communication hook* |
#
# Where ranks do the adding, an all-reduce cannot send less than $2(N-1)/N$ times the gradient on
# average: week 2 proved it. There is one way out. Send something **smaller than the gradient**, and
# hope that training does not notice. This week is about when it does not, and when it is worth the
# work.
#
# **N** is the number of ranks, **S** the size of the gradient in bytes, **n** the number of its
# elements.

# %% [markdown]
# ## 1. The question
#
# > How little of a gradient must be sent so that training still goes where it should, and when does
# > sending less take less time?

# %% parameters tags=["parameters"]
# ranks in the experiments on this machine and in the emulated training runs: 2, 4 or 8
world_size = 2
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
cluster = "a100-10gbe-x8"  # the emulated cluster of the pictures; the table names its own
seed = 0
# loss with the largest 1% of each gradient alone, over the loss with all, after 60 steps
predicted_loss_ratio = None
# from which on gathering the largest 1% sends as much as all-reducing everything
predicted_ranks = None
predicted_int8_ranks = None  # from which on gathering int8 sends as much as all-reducing float32
predicted_speedup = None  # of a step on 10 Gb/s Ethernet when gradients go as float16, four ranks

# %% setup
import math
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import worldsize as ws
from worldsize import draw, emulate, hardware, images, ledger, models, quiz, units
from worldsize.explore import explore

Path("build/week05").mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # as the ranks do: they share the cores
PIXELS, LABELS = images.load_digits()
predictions = ledger.Predictions("week05")
print(
    f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs, {len(LABELS)} images of digits"
)

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers, and waits. An entry of a float32 gradient takes 4 bytes; one
# that is sent alone takes 4 more for its place.

# %% predict
predictions.ask(
    "loss with the largest 1% over loss with all", predicted_loss_ratio, "times", section=3
)
predictions.ask("ranks at which gathering 1% saves nothing", predicted_ranks, "ranks", section=4)
predictions.ask(
    "ranks at which gathering int8 saves nothing", predicted_int8_ranks, "ranks", section=4
)
predictions.ask("speed-up by float16 on 10 Gb/s", predicted_speedup, "times", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### The place to do it: a communication hook
#
# When a bucket of gradients is complete, DDP all-reduces it. With a **communication hook** it calls
# your function instead. You get the bucket, and return a *future*: a promise of the tensor that
# shall take its place. The backward pass goes on meanwhile.
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
# The harness for the whole lesson: a small convolutional network learns digits with a hook of our
# choice, plain SGD, 64 images a rank and step.


# %% harness
def rank_device():
    """This rank's GPU with NCCL, and the CPU otherwise."""
    return (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if dist.get_backend() == "nccl"
        else torch.device("cpu")
    )


def loss_of(model):
    """The loss over every third image."""
    device = next(model.parameters()).device
    with torch.no_grad():
        return F.cross_entropy(model(PIXELS[::3].to(device)), LABELS[::3].to(device)).item()


# %% train
def train(make_hook, num_steps=60, rate=0.1):
    """The loss before training and after every ten steps, between two barriers."""
    torch.set_num_threads(1)
    ddp = DistributedDataParallel(models.vision_net(seed=seed).to(rank_device()))
    ddp.register_comm_hook(*make_hook())
    dist.barrier()
    optimizer, losses = torch.optim.SGD(ddp.parameters(), lr=rate), [loss_of(ddp.module)]
    for step in range(num_steps):
        places = (torch.arange(64) + 64 * (dist.get_world_size() * step + dist.get_rank())) % len(
            LABELS
        )
        optimizer.zero_grad()
        F.cross_entropy(
            ddp(PIXELS[places].to(rank_device())), LABELS[places].to(rank_device())
        ).backward()
        optimizer.step()
        losses += [loss_of(ddp.module)] if step % 10 == 9 else []
    dist.barrier()
    return losses


# %% [markdown]
# ### The obvious idea: only what is large
#
# Most entries of a gradient are near zero. Set all but the largest 1% to zero, and send the rest.
# This first version saves nothing yet: it sends the zeros too. The question comes first: **does the
# model still learn?**


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
# And a fair rival: 1% **at random**. If all ranks draw the same places, from the same seed, no
# places need to be sent, and the values can be summed by an all-reduce of n/100 numbers. To be
# right *on average* they must be multiplied by 100, because each entry comes once in 100 steps.


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


losses = ws.run(
    train_with_each, METHODS, world_size=world_size, backend=backend, echo=False
).values[0]
for name, of_method in losses.items():
    print(f"{name:<16} loss " + "  ".join(f"{loss:6.3f}" for loss in of_method))
predictions.reveal(
    "loss with the largest 1% over loss with all",
    losses["largest 1%"][-1] / losses["everything"][-1],
    "times",
)

# %% worse_drawn
finite = {
    name: of_method
    for name, of_method in losses.items()
    if all(math.isfinite(loss) for loss in of_method)
}
draw.curves(
    finite,
    x_label="tens of steps",
    title=f"Sending a part and forgetting the rest, {world_size} real ranks",
)

# %% [markdown]
# All four are worse than sending everything. The largest 1% go in a direction that is **wrong on
# average**: an entry that stays small is dropped in every step. Random entries left as they are
# point the right way on average and have a hundredth of the length: as with a learning rate a
# hundred times smaller, training hardly moves. Random entries times 100 are right on average, and
# each single step is so far off that training explodes: the losses become `nan`.
#
# ### Two ways to be wrong
#
# Let $C(g)$ be the compressed gradient. Two numbers measure its error, both relative to the length
# of $g$:
#
# - **bias**: how far the *average* of $C(g)$ over many draws is from $g$;
# - **spread**: how far single draws are from their average.
#
# SGD can live with spread, when the learning rate is small enough, because it averages over steps
# anyway. Bias does not average out. The next cell measures both, for one real gradient of the
# network and six compressors. For random entries times n/k there is a closed form: no bias, and a
# spread of $\sqrt{n/k - 1}$.


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
    "float16": lambda vector: vector.half().float(),
    "int8, rounded at random": to_int8,
    "sign": to_sign,
    "largest 1%": to_largest,
    "random 1%": lambda vector: to_random(vector, 1.0),
    "random 1% x 100": lambda vector: to_random(vector, 100.0),
}

# %% bias_and_spread
torch.manual_seed(seed)
network = models.vision_net(seed=seed)
F.cross_entropy(network(PIXELS[:128]), LABELS[:128]).backward()
gradient = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
share = (
    gradient.abs().sort(descending=True).values[: len(gradient) // 100].norm() ** 2
    / gradient.norm() ** 2
)
print(f"{len(gradient):,} entries; the largest 1% hold {share:.0%} of the squared length")
print(f"{'':<26} bias   spread   (formula)")
for name, compress in COMPRESSORS.items():
    draws = torch.stack([compress(gradient) for _ in range(400)])
    spread = (draws - draws.mean(dim=0)).norm(dim=1).square().mean().sqrt() / gradient.norm()
    of_mean = (draws.mean(dim=0) - gradient).norm() / gradient.norm()
    # without what 400 draws leave by chance
    bias = (of_mean**2 - spread**2 / len(draws)).clamp(min=0).sqrt()
    formula = f"{math.sqrt(99):9.2f}" if name == "random 1% x 100" else ""
    print(f"{name:<26} {bias:5.3f} {spread:7.3f} {formula}")

# %% [markdown]
# Rounding to float16, or to int8 at random, does next to no harm. The sign and the largest 1% have
# no spread at all and a large bias. And the last line shows the price of being right on average
# with 1%.
#
# ## 4. Build it well
#
# ### Fewer bits for each number
#
# A float32 has 32 bits, and a gradient does not need them all. **float16** and **bfloat16** take
# half; a sum of float16 numbers is a float16 number, so they can go through an all-reduce as they
# are.


# %% half_hook
def half_hook(state, bucket):
    """A future of the mean of the gradients, which travel as float16."""
    buffer = bucket.buffer()
    halves = buffer.to(torch.float16).div_(
        dist.get_world_size()
    )  # divide first: the sum must not pass 65,504
    future = dist.all_reduce(halves, async_op=True).get_future()
    return future.then(lambda _: buffer.copy_(halves))


# %% [markdown]
# **int8** takes a quarter: a whole number from -127 to 127, and one scale for the bucket. But two
# int8 numbers have no int8 sum: 100 + 100 does not fit. So every rank must get the numbers of
# *every other* rank, by an all-gather, and add them up itself. The same holds for a **sign**, one
# bit an entry, and for entries with places.


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
# ### A sum stays small, a collection grows
#
# This is the first trap of compression. An all-reduce sends $2 (N-1)/N$ times its tensor from each
# rank, never more than twice. An all-gather sends $N - 1$ times a rank's part: it **grows with N**.
# With a part of $f \cdot S$ bytes both are equal where
#
# $$(N - 1) \, f \, S = \frac{2 (N - 1)}{N} \, S \quad\Longleftrightarrow\quad N = \frac{2}{f}$$

# %% gather_or_reduce
GATHERED = {"int8": 1 / 4, "sign": 1 / 32, "largest 1%, 8 bytes an entry": 0.01 * 8 / 4}
print("sent by each rank for 100 MB of float32, computed, in MB")
print(
    f"{'ranks':<30}" + "".join(f"{n:>8}" for n in (2, 8, 64, 100, 512)) + "   as much as float32 at"
)
for name, bytes_per_byte in {"float32, all-reduce": 1.0, "float16, all-reduce": 0.5}.items():
    print(
        f"{name:<30}"
        + "".join(f"{200 * (n - 1) / n * bytes_per_byte:8.1f}" for n in (2, 8, 64, 100, 512))
    )
for name, f in GATHERED.items():
    row = "".join(f"{100 * (n - 1) * f:8.1f}" for n in (2, 8, 64, 100, 512))
    print(
        f"{name + ', all-gather':<30}".replace(", 8 bytes an entry", "")
        + row
        + f"{2 / f:12.0f} ranks"
    )
predictions.reveal("ranks at which gathering int8 saves nothing", 2 / GATHERED["int8"])
predictions.reveal(
    "ranks at which gathering 1% saves nothing", 2 / GATHERED["largest 1%, 8 bytes an entry"]
)

# %% [markdown]
# "int8 sends a quarter" is true of two ranks and false of eight, where the all-gather sends as much
# as plain float32. "Top 1% sends 1%" is 2% with the places, and nothing is saved from 100 ranks on.
# Compressors whose results can be **added while compressed** do not have this problem: float16,
# random entries at agreed places, and the one that comes below.
#
# ### Error feedback: what is not sent is not lost
#
# Now the bias. Take one number: its gradient is 0.3 in every step, and only 0 or 1 can be sent.
# Rounding sends 0 for ever. Instead **keep what was not sent, and add it to the next gradient**:

# %% error_feedback
kept, sent_in_all = 0.0, 0
print("step   gradient + kept   sent   kept   sent in all   all gradients")
for step in range(1, 11):
    total = 0.3 + kept
    sent = round(total)
    kept = round(total - sent, 6) + 0.0
    sent_in_all += sent
    print(f"{step:4} {total:13.1f} {sent:12.0f} {kept:8.1f} {sent_in_all:10.0f} {0.3 * step:14.1f}")

# %% [markdown]
# The sum of what was sent never leaves the sum of the gradients by more than what is kept. In
# symbols, with memory $e_t$, gradient $g_t$ and compressor $C$:
#
# $$\text{send } C(g_t + e_t), \quad e_{t+1} = g_t + e_t - C(g_t + e_t)
# \quad\Longrightarrow\quad \sum_t \text{sent} = \sum_t g_t - e_{T+1}$$
#
# A bias becomes a delay. This is **error feedback** (Seide et al. 2014, *1-bit stochastic gradient
# descent*; Stich, Cordonnier and Jaggi 2018, *Sparsified SGD with memory*). Karimireddy et al.
# 2019, *Error feedback fixes SignSGD and other gradient compression schemes*, prove that SGD with
# it converges as fast as without compression, up to terms that vanish faster.
#
# The next cell tries it on the network, in one process that plays both workers, on flat gradients:
# no messages here, only the arithmetic.


# %% simulated
def simulate(compress, has_memory, num_workers=2, num_steps=60, rate=0.1):
    """The losses after every ten steps, with workers simulated in one process."""
    torch.manual_seed(seed)
    model = models.vision_net(seed=seed)
    parameters = list(model.parameters())
    memory = torch.zeros(num_workers, sum(one.numel() for one in parameters))
    losses = [loss_of(model)]
    for step in range(num_steps):
        mean = 0.0
        for worker in range(num_workers):
            places = (torch.arange(64) + 64 * (num_workers * step + worker)) % len(LABELS)
            loss = F.cross_entropy(model(PIXELS[places]), LABELS[places])
            gradients = torch.autograd.grad(loss, parameters)
            total = torch.cat([one.flatten() for one in gradients]) + memory[worker]
            sent = compress(total)
            memory[worker] = total - sent if has_memory else 0.0
            mean = mean + sent / num_workers
        with torch.no_grad():
            weights = nn.utils.parameters_to_vector(parameters) - rate * mean
            nn.utils.vector_to_parameters(weights, parameters)
        if step % 10 == 9:
            losses.append(loss_of(model))
    return losses


# %% with_and_without_memory
simulated = {"everything": simulate(lambda vector: vector, has_memory=False)}
for name in ("sign", "random 1%"):
    for has_memory in (False, True):
        label = f"{name}, with memory" if has_memory else name
        simulated[label] = simulate(COMPRESSORS[name], has_memory)
for name, of_method in simulated.items():
    print(f"{name:<24} loss after 60 steps {of_method[-1]:.3f}")
draw.curves(
    simulated, x_label="tens of steps", title="With memory and without, two workers in one process"
)

# %% [markdown]
# The sign with memory ends about where everything ends, with one bit an entry. Random entries gain
# less: at 1% an entry waits a hundred steps for its turn, and there were only sixty. A bias has
# become a delay, and a delay of a hundred steps is long.
#
# Put the two together, **the largest entries, and memory**, and you have the hook of the first half
# of lab 5.
#
# ### A matrix with few directions
#
# The gradient of a layer is a matrix: one row for each output, one column for each input. Its rows
# are all combinations of the inputs that the batch had, and often a few directions hold most of it.
# The *singular values* say how much each direction holds. Here is the last layer of the network, 10
# rows and 512 columns, before training and after some.


# %% singular_values
def held_by_directions(num_steps):
    """The share of the last layer's squared gradient in its r strongest directions."""
    model = models.vision_net(seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(num_steps + 1):
        places = (torch.arange(128) + 128 * step) % len(LABELS)
        optimizer.zero_grad()
        F.cross_entropy(model(PIXELS[places]), LABELS[places]).backward()
        optimizer.step()
    squares = torch.linalg.svdvals(model[-1].weight.grad).square()
    return (squares.cumsum(dim=0) / squares.sum()).tolist()


held = {"in the first step": held_by_directions(0), "after 40 steps": held_by_directions(40)}
for label, shares in held.items():
    print(f"{label:<18} 2 of 10 directions hold {shares[1]:.0%}, 4 hold {shares[3]:.0%}")
print(f"2 directions are {2 * (10 + 512):,} numbers instead of {10 * 512:,}")
draw.curves(
    held, x_label="directions", y_label="share held", title="Few directions hold most of a gradient"
)

# %% [markdown]
# **PowerSGD** (Vogels, Karimireddy and Jaggi 2019, *PowerSGD: practical low-rank gradient
# compression*) sends r directions: two thin factors with $r (n + m)$ numbers for a matrix of $n$
# rows and $m$ columns. It finds them without computing singular values, keeps what they miss in a
# memory, and above all **its factors can be all-reduced**. How that works is the second half of lab
# 5; in section 5 torch's own hook shows what it is worth.
#
# ### Say it less often
#
# Instead of less, one can send more rarely. Two ways, with very different results:
#
# - **Gradient accumulation**: add up the gradients of H batches, then exchange and update once. It
#   is exactly training with a batch that is H times larger: nothing is approximated, and there are
#   H times fewer updates.
# - **Local SGD** (Stich 2019, *Local SGD converges fast and communicates little*): every rank
#   updates its own copy H times; then the *parameters* are averaged. As many updates as before, and
#   in between the copies drift apart.


# %% less_often
def train_rarely(every, is_local, num_steps=60, rate=0.1):
    """The loss after some batches, with ranks that communicate only after every few of them."""
    torch.set_num_threads(1)
    device, rank, num_ranks = rank_device(), dist.get_rank(), dist.get_world_size()
    model = models.vision_net(seed=seed).to(device)
    dist.barrier()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    summed = torch.zeros_like(flat)
    for step in range(1, num_steps + 1):
        places = (torch.arange(64) + 64 * (num_ranks * (step - 1) + rank)) % len(LABELS)
        loss = F.cross_entropy(model(PIXELS[places].to(device)), LABELS[places].to(device))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        summed += torch.cat([gradient.flatten() for gradient in gradients])
        if is_local:
            flat -= rate * summed
            summed.zero_()
        if step % every == 0:
            dist.all_reduce(exchanged := flat if is_local else summed)
            exchanged /= num_ranks
            if not is_local:
                flat -= rate * summed / every
                summed.zero_()
        nn.utils.vector_to_parameters(flat.clone(), model.parameters())
    dist.barrier()
    return [loss_of(model)]


# %% [markdown]
# ### Say the urgent thing first
#
# The last way sends every byte, and sends it in a better **order**. Backward makes the last layer's
# gradient first, so that DDP sends it first. But the next forward pass needs the *first* layer
# first, and its gradient is at the end of the queue. Turn the queue round: whenever the link is
# free, send what will be needed soonest (P3, Jayarajan et al. 2019; ByteScheduler, Peng et al.
# 2019, which also cuts large tensors so that urgent ones need not wait for them).
#
# A network like the early image models: five convolutions of 250 kB, and a last, dense layer of 10
# MB, cut into ten pieces. With `is_urgent` it first sends only those pieces that the link can begin
# during backward. When backward is over, the convolutions go, first layer first, and the other
# pieces last. Forward of each layer waits for that layer alone.

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
piece_s = next(event.duration_s for event in in_order.of(0) if event.name == "all_reduce")
urgent = ws.run(one_step, True, math.ceil(LAST * BACKWARD_S / piece_s), **on_ethernet).timeline
schedules = {"as backward makes them": in_order, "what is needed first, first": urgent}
for name, timeline in schedules.items():
    print(
        f"{name:<28} {timeline.end_s * 1e3:5.2f} ms, {timeline.bytes_sent(0) / 1e6:.1f} MB sent by"
        " each rank"
    )
draw.timelines(schedules, title="One backward and the next forward, emulated on 4 x 10 Gb/s")

# %% [markdown]
# The same bytes, the same link, and the step is shorter: forward begins while the rest still
# travels. It takes no accuracy, because nothing is left out. torch's DDP does not do this: the
# optimizer steps when *all* gradients are there. FSDP, in week 7, will bring it back in another
# form.
#
# ## 5. Compare with the production oracle
#
# torch has hooks of its own, in `torch.distributed.algorithms.ddp_comm_hooks`. Ours must give the
# same model: after ten steps on real ranks, compare all weights.


# %% against_the_oracle
def weights_after(make_hook):
    """All weights after ten steps with this hook, or with DDP alone if it is None."""
    torch.set_num_threads(1)
    ddp = DistributedDataParallel(models.vision_net(seed=seed).to(rank_device()))
    if make_hook:
        ddp.register_comm_hook(*make_hook())
    for step in range(10):
        places = (torch.arange(64) + 64 * (dist.get_world_size() * step + dist.get_rank())) % len(
            LABELS
        )
        ddp.zero_grad()
        F.cross_entropy(
            ddp(PIXELS[places].to(rank_device())), LABELS[places].to(rank_device())
        ).backward()
        with torch.no_grad():
            for parameter in ddp.parameters():
                parameter -= 0.1 * parameter.grad
    return nn.utils.parameters_to_vector(ddp.parameters()).detach()


# %% differences
def differences():
    """The differences between our hooks and torch's."""
    torch_half = weights_after(lambda: (None, default_hooks.fp16_compress_hook))
    return {
        "plain_hook from DDP without a hook": (
            weights_after(lambda: (None, plain_hook)) - weights_after(None)
        ),
        "half_hook from fp16_compress_hook": weights_after(lambda: (None, half_hook)) - torch_half,
    }


for name, difference in (
    ws.run(differences, world_size=world_size, backend=backend, echo=False).values[0].items()
):
    print(f"{name:<36} largest difference {difference.abs().max().item():.1e}")
    assert difference.abs().max() < 1e-5

# %% [markdown]
# ### Loss against bytes
#
# Now everything on one plot. Each method trains the same network for sixty batches a rank on an
# emulated cluster: the ranks and the training are real, and all bytes that a rank sends after the
# start are counted. torch's PowerSGD all-reduces everything in its first two steps, as its memory
# must not meet DDP's new buckets, and these bytes count too. (DDP refuses torch's bfloat16 hook, by
# its name, where there is no NCCL; in a function of ours it runs.)


# %% power_sgd
def power_sgd(rank):
    """torch's PowerSGD hook, and its state."""
    settings = {"start_powerSGD_iter": 2, "min_compression_rate": 1, "random_seed": seed}
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, **settings)
    return state, powerSGD_hook.powerSGD_hook


HOOKS = {
    "everything": lambda: (None, plain_hook),
    "float16 (torch)": lambda: (None, default_hooks.fp16_compress_hook),
    "bfloat16 (torch)": lambda: (
        None,
        lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket),
    ),
    "int8": lambda: (None, int8_hook),
    "sign": lambda: (None, sign_hook),
    "random 10%": lambda: random_only(0.1, scaled=False),
    "random 1%": lambda: random_only(0.01, scaled=False),
    "PowerSGD rank 1 (torch)": lambda: power_sgd(1),
    "PowerSGD rank 2 (torch)": lambda: power_sgd(2),
}


# %% loss_and_bytes
def train_all():
    """The losses of every method, one after the other."""
    losses = train_with_each(HOOKS)
    for every in (4, 10):
        losses[f"accumulated, {every} steps"] = train_rarely(every, is_local=False)
        losses[f"local SGD, {every} steps"] = train_rarely(every, is_local=True)
    return losses


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
run = ws.run(train_all, world_size=world_size, cluster=cluster, compute="none", echo=False)
last_losses = {name: of_method[-1] for name, of_method in run.values[0].items()}
points = dict(
    zip(
        last_losses,
        zip(sent_between_barriers(run.timeline), last_losses.values(), strict=True),
        strict=True,
    )
)
num_bytes = points["everything"][0]
for name, (size_bytes, loss) in points.items():
    print(
        f"{name:<26} {units.format_bytes(size_bytes):>8} {size_bytes / num_bytes:7.1%}   loss"
        f" {loss:.3f}"
    )


# %% loss_axes
def label_axes(axes):
    """Give the axes of loss against bytes their scales, labels and title."""
    axes.set(xscale="log", yscale="log", ylabel="loss")
    axes.set_xlabel("bytes sent by each rank in 60 steps")
    axes.margins(0.12, 0.5)
    axes.xaxis.set_major_formatter(lambda size, _: units.format_as("size_bytes", size))
    axes.yaxis.set_major_formatter(lambda loss, _: f"{loss:g}")
    axes.minorticks_off()
    axes.set_yticks([0.25, 0.5, 1, 2])
    title = "Loss against bytes: real training, emulated wire"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")


# %% loss_picture
def loss_against_bytes(points):
    """A picture with one point for each method."""
    picture = draw.Picture(9, 4.6)
    axes = picture.subplots()
    label = {"fontsize": 8, "rotation_mode": "anchor"}
    by_size = sorted(points.items(), key=lambda point: point[1])
    for place, (name, (size_bytes, loss)) in enumerate(by_size):
        marker = "s" if "torch" in name else "o"
        axes.plot(size_bytes, loss, marker, color="#0072B2", markersize=7)
        # up and down by turns: many lie side by side
        turn, at = (35, "bottom") if place % 2 else (-35, "top")
        axes.annotate(f"  {name}", (size_bytes, loss), rotation=turn, va=at, **label)
    label_axes(axes)
    values = [f"{name} {units.format_bytes(size)} {loss:.2f}" for name, (size, loss) in by_size]
    picture.alt = f"Loss after 60 steps against bytes sent by each rank: {'; '.join(values)}."
    picture.alt += " Squares are torch's own hooks."
    return picture


# %% loss_against_bytes
loss_against_bytes(points)

# %% [markdown]
# Read it from the lower right to the left: how far can you go before the loss rises? Half precision
# and int8 lose nothing here. PowerSGD stays low with a fraction of the bytes: it has a memory. The
# sign has none here, and pays for it. Accumulation has the bytes of local SGD and far fewer
# updates. The lower left corner is where your two hooks of lab 5 will be.
#
# Sixty steps of a small network are not a proof about yours. Two things carry over: a bias without
# memory costs accuracy, and a memory turns it into a delay, which matters less the longer you
# train.

# %% [markdown]
# ## 6. Formula, measurement, emulation
#
# Fewer bytes are no goal. A shorter step is. Compressing takes time on the same GPU that computes
# gradients, and the wire may have been hidden behind backward anyway.
#
# Take L equal layers, each a bucket. Forward takes $f$ a layer; backward, **with the work of
# compressing**, takes $b$; the wire takes $m$ for a bucket. Buckets go one after the other, each
# when its backward is done. Either the wire keeps up, and only the last bucket shows; or it does
# not, and all L of them follow the first backward:
#
# $$t = L f + L b + \max\bigl(m, \; L m - (L - 1) \, b\bigr)$$
#
# | What travels | $m$ |
# |---|---|
# | float32, float16, agreed places: all-reduce of $s$ bytes | $2 (N-1) (\alpha + s / (N \beta))$ |
# | int8: all-gather of $s$ bytes and of a scale | $(N-1) \, (2 \alpha + s / \beta)$ |
#
# The next cells run six layers of 524 kB under DDP, each with 0.25 ms of forward and 0.5 ms of
# backward beside its matrix products. One rank alone, which sends nothing, shows what backward and
# compressing take together; the formula adds the wire.


# %% layer_times
LAYER_FORWARD_S, LAYER_BACKWARD_S = 0.25e-3, 0.5e-3


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
    """A matrix of 524 kB, and the time of a larger layer."""

    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_outputs, bias=False)

    def forward(self, x):
        return Spend.apply(self.linear(x))


# %% step_time
def step_time_s(make_hook, num_steps):
    """Seconds of a step with this hook: the median, after DDP has regrouped its buckets."""
    shapes = [(256, 512), (512, 256)] * (NUM_LAYERS // 2)
    model = nn.Sequential(*[Layer(*shape) for shape in shapes]).to(rank_device())
    ddp, times_s = DistributedDataParallel(model, bucket_cap_mb=0.4), []
    ddp.register_comm_hook(*make_hook())
    x = torch.ones(1, 256, device=rank_device())
    for _ in range(num_steps):
        ddp.zero_grad()
        dist.barrier()
        start_s = emulate.elapsed()
        ddp(x).sum().backward()
        model[0].linear.weight.grad[0, 0].item()  # reading it waits for a GPU
        times_s.append(emulate.elapsed() - start_s)
    return statistics.median(times_s[2:])


def step_times_s(num_steps):
    """The same for each method."""
    torch.set_num_threads(1)
    return {method: step_time_s(make_hook, num_steps) for method, make_hook in STEP_HOOKS.items()}


# %% formula
NUM_LAYERS, BUCKET_BYTES = 6, 256 * 512 * 4
STEP_HOOKS = {
    "float32": lambda: (None, plain_hook),
    "float16": lambda: (None, half_hook),
    "int8": lambda: (None, int8_hook),
    "random 1%": lambda: random_only(0.01, scaled=False),
}


def wire_s(method, num_ranks, alpha_s, beta):
    """Seconds of one bucket on the wire."""
    if method == "int8":
        return (num_ranks - 1) * (2 * alpha_s + BUCKET_BYTES / 4 / beta)
    fraction = {"float32": 1.0, "float16": 0.5, "random 1%": 0.01}[method]
    return 2 * (num_ranks - 1) * (alpha_s + fraction * BUCKET_BYTES / (num_ranks * beta))


def formula_s(alone_s, bucket_wire_s):
    """Seconds of a step, from that of one rank alone and the time of one bucket on the wire."""
    backward_s = alone_s / NUM_LAYERS - LAYER_FORWARD_S
    late_s = NUM_LAYERS * bucket_wire_s - (NUM_LAYERS - 1) * backward_s
    return alone_s + max(bucket_wire_s, late_s)


# %% [markdown]
# On this machine no data sheet gives α and β. So time one bucket on the wire by itself, of each
# kind, with nothing else going on.


# %% wire_measured
def bucket_times_s(repeats=9):
    """Seconds of one bucket on the wire for each method, alone: the median."""
    torch.set_num_threads(1)
    size, num = dist.get_world_size(), BUCKET_BYTES // 4
    part = torch.zeros(num, dtype=torch.int8, device=rank_device())
    parts = list(part.new_empty(size, num).unbind())
    calls = {"int8": lambda: dist.all_gather(parts, part)}
    for method, num_sent, dtype in (
        ("float32", num, "float32"),
        ("float16", num, "float16"),
        ("random 1%", num // 100, "float32"),
    ):
        tensor = torch.zeros(num_sent, dtype=getattr(torch, dtype), device=rank_device())
        calls[method] = lambda tensor=tensor: dist.all_reduce(tensor)
    medians_s = {}
    for method, call in calls.items():
        times_s = []
        for _ in range(repeats):
            dist.barrier()
            start_s = time.perf_counter()
            call()
            parts[0][0].item()
            times_s.append(time.perf_counter() - start_s)
        medians_s[method] = statistics.median(times_s)
    return medians_s


# %% side_by_side
rows = []
for where in (hardware.cluster("dgx-h100"), hardware.cluster("pcie-box"), ETHERNET):
    link = where.intra if where.num_nodes == 1 else where.inter
    alone, together = (
        ws.run(step_times_s, 3, world_size=n, cluster=where, echo=False).values[0] for n in (1, 4)
    )
    for method in STEP_HOOKS:
        bucket_s = wire_s(method, 4, link.latency_s, link.bandwidth_bytes_per_s)
        rows.append(
            (
                f"{where.name}, emulated",
                4,
                method,
                formula_s(alone[method], bucket_s),
                together[method],
            )
        )
here = {"backend": backend, "echo": False}
buckets_s = ws.run(bucket_times_s, world_size=world_size, **here).values[0]
alone, together = (
    ws.run(step_times_s, 12, world_size=n, **here).values[0] for n in (1, world_size)
)
for method in STEP_HOOKS:
    formula = formula_s(alone[method], buckets_s[method])
    rows.append(("this machine, measured", world_size, method, formula, together[method]))

# %% table
print(
    f"{'a step of 6 x 524 kB on':<24} N {'what travels':<12} {'formula':>9} {'run':>9}  error  "
    " against float32"
)
for where, num_ranks, method, formula, time_s in rows:
    plain_s = next(row[4] for row in rows if row[0] == where and row[2] == "float32")
    print(
        f"{where:<24} {num_ranks} {method:<12} {units.format_time_s(formula):>9}"
        f" {units.format_time_s(time_s):>9} {formula / time_s - 1:+6.1%}"
        f" {time_s / plain_s - 1:+12.1%}"
    )
found_s = {(where, method): time_s for where, _, method, _, time_s in rows}
on_10_gb = "4 x 10 Gb/s, emulated"
predictions.reveal(
    "speed-up by float16 on 10 Gb/s", found_s[on_10_gb, "float32"] / found_s[on_10_gb, "float16"]
)

# %% [markdown]
# Three clusters, three answers:
#
# - **NVLink**: nothing to win. The wire is hidden but for the last bucket, all methods lie within
#   half a percent, and int8 makes the step longer: its work is more than what it saves.
# - **PCIe**: the same within two percent, with a little more wire to save.
# - **10 Gb/s Ethernet**: the wire decides, and every method makes the step shorter. float16, one
#   line of code, takes more than half of what there is to take. Here the formula is short by up to
#   about a tenth: the emulator prices the library's own protocols over TCP, whose steps cost more
#   than the link's α.
#
# The emulator prices each of these operations by the bytes that it moves, at the rate that a copy
# reaches. A real kernel has a start-up time, and selecting the largest entries takes many passes:
# compressing really takes longer, and loses earlier. Agarwal et al. 2022, *On the utility of
# gradient compression in distributed training systems*, tried more than 200 setups in data centres
# and found a speed-up over well-tuned SGD in 6 of them (their abstract).
#
# On **this machine** the ranks share cores: compressing and the wire are both work of the CPU, and
# a number that is right for a GPU says little here. The error of the formula says how little.
#
# ### Find the break-even
#
# The formula in your hands. Compressing takes `work_s_per_gb`; the default of 20 ms a gigabyte is
# our assumption, not a measurement: a GPU with 2 TB/s of memory that reads and writes the gradient
# twenty times. Where does each line cross the first, and what happens to the gathered one with more
# ranks?

# %% explorer
METHOD_PARTS = {
    "float32": (1.0, False),
    "float16": (0.5, False),
    "PowerSGD, 1%": (0.01, False),
    "largest 1%": (0.02, True),
}


def step_by_link(num_ranks=32, gradient_bytes=1e9, compute_s=0.2, work_s_per_gb=0.02):
    """A picture of the step's time, computed, against link speed; nothing is hidden."""

    def line(fraction, is_gathered):
        hops = (num_ranks - 1) * (1 if is_gathered else 2 / num_ranks)
        work_s = 0.0 if fraction == 1 else work_s_per_gb * gradient_bytes / 1e9
        return lambda beta: compute_s + work_s + hops * fraction * gradient_bytes / beta

    speeds = [10 ** (8 + place / 16) for place in range(65)]
    picture = draw.Picture(9, 3.8)
    axes = picture.subplots()
    times_s = {name: [*map(line(*parts), speeds)] for name, parts in METHOD_PARTS.items()}
    for (name, of_name_s), style in zip(times_s.items(), ("-", "--", "-.", ":"), strict=True):
        axes.loglog(speeds, of_name_s, style, label=name, linewidth=2.2)
    return finished(picture, axes, times_s, speeds)


# %% explorer_drawn
def finished(picture, axes, times_s, speeds):
    """The picture with axes, a title and words."""
    best = [min(times_s, key=lambda name: times_s[name][place]) for place in range(len(speeds))]
    from_place = next((place for place, name in enumerate(best) if name == "float32"), None)
    end = "no link here is so fast that float32 wins"
    if from_place is not None:
        end = f"float32 wins from {units.format_as('bandwidth_bytes_per_s', speeds[from_place])} on"
    axes.xaxis.set_major_formatter(lambda speed, _: units.format_as("bandwidth_bytes_per_s", speed))
    axes.yaxis.set_major_formatter(lambda time, _: units.format_as("time_s", time))
    axes.minorticks_off()
    axes.set(xlabel="link of each rank", ylabel="time of a step")
    axes.legend(frameon=False)
    axes.set_title("Computed, not measured", loc="left", fontsize=11, fontweight="bold")
    picture.alt = f"Computed time of a step: on the slowest link {best[0]} is fastest; {end}."
    return picture, picture.alt


explore(
    step_by_link,
    num_ranks=(2, 1024, "x2"),
    gradient_bytes=(1e6, 1e10, "x2"),
    compute_s=(0.01, 1.0, "x1.3"),
    work_s_per_gb=(0.001, 0.5, "x1.5"),
)

# %% [markdown]
# ## 7. When it breaks
#
# ### The sign that always points the wrong way
#
# Minimise $x/4$ on the interval from -1 to 1: the best x is -1. Each gradient is noisy: 4 in one
# case of four, and -1 in the other three. The mean is 1/4, so SGD goes down. The *sign* is negative
# three times of four. (After the counter-examples of Karimireddy et al. 2019.)


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
for name, x in ends.items():
    print(f"{name:<18} ends at x = {x:+.2f}")

# %% [markdown]
# **Symptom**: the loss falls at first, and then settles at a value that no learning rate improves;
# here it rises. **Cause**: the compressor is wrong on average, and in the same direction in every
# step. **Fix**: a memory, or a compressor that is right on average (rounding at random instead of
# to the nearest).
#
# ### The largest number that is none
#
# float16 ends at 65,504, and below $6 \cdot 10^{-8}$ it knows only zero (IEEE 754, binary16). A
# gradient does not care. The same gradients, scaled up and down as a loss scale or a learning-rate
# schedule might, through torch's float16 hook on real ranks:


# %% out_of_range
def out_of_range(make_hook, factors):
    """For each factor, the numbers of gradients that overflow and that become zero."""
    torch.set_num_threads(1)
    ddp = DistributedDataParallel(models.vision_net(seed=seed).to(rank_device()))
    ddp.register_comm_hook(*make_hook())
    found = []
    for factor in factors:
        gradients = [(one, torch.rand_like(one) + 0.5) for one in ddp.parameters()]
        ddp.zero_grad()
        ddp(PIXELS[:1].to(rank_device()))  # DDP prepares its buckets in forward
        sum((factor * one * wanted).sum() for one, wanted in gradients).backward()
        given = torch.cat([one.grad.flatten() for one in ddp.parameters()])
        found.append((int((~given.isfinite()).sum()), int((given == 0).sum())))
    return found


FACTORS = (1e-9, 1e-7, 1.0, 1e4, 1e6)
print(f"{'gradients of about':<20}" + "".join(f"{factor:>16g}" for factor in FACTORS))
for name in ("float16 (torch)", "bfloat16 (torch)"):
    found = ws.run(
        out_of_range, HOOKS[name], FACTORS, world_size=world_size, backend=backend, echo=False
    ).values[0]
    print(f"{name:<20}" + "".join(f"{bad:6} inf {zero:4} 0" for bad, zero in found))

# %% [markdown]
# **Symptom**: weights that are `nan` after one step, or a layer that never moves. **Cause**:
# float16 has too few exponents. **Fix**: bfloat16, which has float32's range and fewer digits; or
# to scale the loss so that gradients lie in the middle of float16's range, which is where week 6
# begins.
#
# ### Two buckets, two orders
#
# The third one we met when writing this lesson. PowerSGD must all-reduce P before it can compute Q.
# torch's hook starts the second all-reduce *in a callback* of the first. With several buckets there
# are several callbacks, and nothing says in which order they run: rank 0 may begin Q of one bucket
# when rank 1 begins that of another. Collectives have no names (week 2, section 7). Small networks
# have one bucket, and never show it.


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
    ws.run(several_buckets, world_size=3, cluster=cluster, timeout_s=5, echo=False)
    print("This time all ranks had the same order.")
except ws.RunError as report:
    print("\n".join(line for line in str(report).splitlines() if "do not match" in line) or report)

# %% [markdown]
# **Symptom**: a hang, or mixed gradients, from time to time and only with larger models. **Cause**:
# collectives that start in callbacks, whose order is nobody's promise. **Fix**: start every
# collective in the hook itself, as DDP calls hooks in the same order on all ranks; or give torch's
# hook a single bucket (`bucket_cap_mb` larger than the model). (Seen with Gloo and with the
# emulator, torch 2.13. NCCL may order callbacks by its stream; we have not tried.)
#
# ## 8. Self-check
#
# First, your predictions beside the results.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions. Each answer has its own explanation, also the wrong ones.

# %% self_check
quiz.ask("week05", seed=seed)

# %% [markdown]
# ## To take with you
#
# - A compressor has a bias and a spread. SGD lives with spread; a bias needs a memory, which makes
#   of it a delay.
# - What can be added while compressed goes through an all-reduce. What cannot must be gathered, and
#   grows with N: int8 saves nothing from 8 ranks on, the largest 1% nothing from 100.
# - float16 and bfloat16 cost one line. float16 ends at 65,504.
# - Compressing pays only for wire that shows. On fast links backward hides the wire, and
#   compressing is work.
# - Order is free: what is needed first should be sent first.
#
# **Now the lab**: [lab 5, a compressing communication hook](../labs/lab05/lab05.ipynb). The largest
# entries with a memory, and two thin factors in place of a matrix. Then [week 6, precision and
# activations](week06_precision_and_activations.ipynb): fewer bits not only on the wire, but
# everywhere.
