# %% [markdown]
# # Week 4. Synchronous or asynchronous
#
# | | |
# |---|---|
# | Reading | about 70 minutes |
# | Running | about a minute on two CPU cores; GPUs are used if there are enough |
# | You need | [week 3](week03_ddp_from_first_principles.ipynb): the cost of an all-reduce a step |
# | You do not need | several machines, or to have used remote procedure calls |
# | Afterwards | lab 4, *parameter server* |
#
# So far all ranks took every step together. That has a price whenever one of them is slow, and a
# reward: the weights are exactly those of one process with a larger batch. This week looks at both,
# and at what happens without it.
#
# **N** is the number of workers, **B** the batch of one worker, **τ** (tau) the number of updates
# by which a gradient is late.

# %% [markdown]
# ## 1. The question
#
# > What does it cost to wait for the slowest worker, and what does it cost not to wait?

# %% parameters tags=["parameters"]
world_size = 3  # workers in the experiments on this machine, 2 or more; a server comes on top
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
cluster = "dgx-h100"  # the emulated cluster of the pictures; the tables name their own
seed = 0
# of their throughput that 8 workers keep, all waiting for one that is 5 times slower
predicted_sync_percent = None
predicted_async_percent = None  # that they keep if nobody waits for anybody
# mean steps that the slowest of 64 takes, times being exponential with mean 1
predicted_slowest_of_64 = None
# updates by which a gradient is late on average: 8 workers that do not wait
predicted_staleness = None
# by which the stable learning rate falls when gradients are 7 updates late
predicted_rate_factor = None
# of a server over all-reduce on this machine, one of the workers 5 times slower
predicted_speedup = None

# %% setup
import math
import os
import socket
import statistics
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.nn.functional import cross_entropy, one_hot

import worldsize as ws
from worldsize import draw, emulate, hardware, ledger, models, quiz
from worldsize.explore import explore
from worldsize.faults import SlowRank
from worldsize.images import load_digits

torch.set_num_threads(1)  # the matrices are tiny: threads would only wait for each other
predictions = ledger.Predictions("week04")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for six numbers, and waits.

# %% predict
predictions.ask("kept by 8 waiting for one slow worker", predicted_sync_percent, "%", section=3)
predictions.ask("kept by 8 that do not wait", predicted_async_percent, "%", section=3)
predictions.ask("the slowest of 64", predicted_slowest_of_64, "mean steps", section=3)
predictions.ask("mean staleness of 8 workers", predicted_staleness, "updates", section=4)
predictions.ask("learning rate, 7 updates late", predicted_rate_factor, "times smaller", section=4)
predictions.ask("speed-up of a server here, one worker slow", predicted_speedup, "times", section=4)

# %% [markdown]
# ## 3. Build it worse first
#
# ### Synchronous SGD is SGD with a larger batch
#
# In **synchronous** SGD each worker computes the gradient of its own batch, all-reduce averages,
# and all take the same step. The mean of N means over B samples each is the mean over N·B samples.
# So nothing is new about the mathematics: it is SGD with batch N·B.
#
# The model is one linear layer on handwritten digits: its arithmetic takes almost no time, so that
# the time of a step can be whatever we want to study.

# %% model
images, labels = load_digits()
pixels = images.flatten(1)  # (1797, 64)
BATCH, RATE = 32, 0.02


def batches_of(worker):
    """This worker's batches, without end: lists of samples, drawn from a seed of its own."""
    generator = torch.Generator().manual_seed(1_000 * seed + worker)
    while True:
        yield torch.randint(len(labels), (BATCH,), generator=generator)


def gradient_at(weights, batch):
    """The gradient of the mean loss of these samples, by hand: inputs times (softmax - label)."""
    inputs, wanted = pixels[batch].to(weights.device), labels[batch].to(weights.device)
    error = torch.softmax(inputs @ weights, dim=1) - one_hot(wanted, 10)
    return inputs.T @ error / len(batch)  # (64, 10)


def loss_of(weights):
    return cross_entropy(pixels @ weights.cpu(), labels).item()


# %% [markdown]
# Each step here takes 20 ms of pretended work, which the worker sleeps. One worker, drawn by the
# seed, is a **straggler**: it takes five times as long. It may sit on a hot node, share its GPU
# with somebody, or read from a slow disk; in large clusters some worker always does.

# %% straggler
STEP_S, SLOW_FACTOR = 0.02, 5.0
straggler = int(torch.randint(world_size, (), generator=torch.Generator().manual_seed(seed)))


def pretend_to_work(worker, slow_worker):
    with ws.span("gradient"):
        time.sleep(STEP_S * (SLOW_FACTOR if worker == slow_worker else 1))


# %% [markdown]
# The gradients are real, and so is the all-reduce.


# %% synchronous
def synchronous(num_steps, slow_worker):
    """Seconds of the run, and (seconds, gradients so far, weights) after every step."""
    torch.set_num_threads(1)
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if dist.get_backend() == "nccl"
        else "cpu"
    )
    rank, weights, batches, history = (
        dist.get_rank(),
        torch.zeros(64, 10, device=device),
        batches_of(dist.get_rank()),
        [],
    )
    dist.barrier()
    start_s = time.perf_counter()
    for step in range(1, num_steps + 1):
        pretend_to_work(rank, slow_worker)
        dist.all_reduce(gradient := gradient_at(weights, next(batches)))
        weights -= RATE * gradient  # the sum: a step of RATE for each of the workers' gradients
        history.append(
            (time.perf_counter() - start_s, step * dist.get_world_size(), weights.tolist())
        )
    return history


# %% synchronous_measured
NUM_STEPS = 15
on_ranks = {"world_size": world_size, "backend": backend, "echo": False}
together = ws.run(synchronous, NUM_STEPS, straggler, **on_ranks)
alone = ws.run(synchronous, NUM_STEPS, None, **on_ranks)
for name, run in (("no straggler", alone), (f"worker {straggler} slow", together)):
    end_s, num_gradients, _ = run.values[0][-1]
    print(
        f"{name:<14} {end_s / NUM_STEPS * 1e3:5.0f} ms a step, {num_gradients / end_s:5.0f}"
        " gradients/s, measured here"
    )
draw.timeline(
    together.timeline, title="All-reduce in every step, one straggler: measured on this machine"
)

# %% [markdown]
# Look at the gaps: all the others spend four fifths of their time waiting. **A synchronous step
# takes as long as its slowest worker**, and it does not help that the rest are fast:
#
# $$t_{\text{sync}} = \max_i t_i + t_{\text{all-reduce}}$$

# %% one_slow_of_eight
times_s = [STEP_S] * 7 + [SLOW_FACTOR * STEP_S]
full_rate, sync_rate = 8 / STEP_S, 8 / max(times_s)
async_rate = sum(1 / time_s for time_s in times_s)
print(f"8 workers, one 5 times slower, computed: {full_rate:.0f} gradients/s if all were fast")
print(f"  all wait for the slowest: {sync_rate:3.0f} gradients/s, {sync_rate / full_rate:.1%}")
print(f"  nobody waits:             {async_rate:3.0f} gradients/s, {async_rate / full_rate:.1%}")
predictions.reveal("kept by 8 waiting for one slow worker", 100 * sync_rate / full_rate)
predictions.reveal("kept by 8 that do not wait", 100 * async_rate / full_rate)

# %% [markdown]
# ### Nobody is broken, and still all wait
#
# Stragglers need not be always the same. Let every step of every worker take a random time. All
# wait for the largest of N draws, and the more workers, the larger that is. For exponential times
# with mean 1 it can be computed: the first of N is done after 1/N, the first of the rest 1/(N − 1)
# later, and so on:
#
# $$E[\max] = \frac{1}{N} + \frac{1}{N-1} + \dots + \frac{1}{1} = H_N \approx \ln N + 0.58$$
#
# The cell holds this against draws, and against 8 ranks on the emulated cluster. There
# `emulate.spend` lets a rank work for some virtual time.


# %% slowest_of_many
def harmonic(count):
    return sum(1 / number for number in range(1, count + 1))


def random_steps(num_steps):
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    for duration_s in torch.empty(num_steps).exponential_(1 / 0.01, generator=generator).tolist():
        emulate.spend(duration_s)
        dist.all_reduce(torch.zeros(1))


draws = torch.empty(20_000, 512).exponential_(1.0, generator=torch.Generator().manual_seed(seed))
for count in (1, 2, 8, 64, 512):
    drawn = draws[:, :count].amax(dim=1).mean().item()
    print(f"{count:4} workers: H_N = {harmonic(count):.2f} mean steps, 20,000 draws {drawn:.2f}")
slow_steps = ws.run(
    random_steps, 100, world_size=8, cluster=cluster, compute="none", echo=False
).timeline
print(
    f"emulated, 8 ranks, 100 steps with a mean of 10 ms: {slow_steps.end_s / 100 / 0.01:.2f} mean"
    " steps"
)
predictions.reveal("the slowest of 64", harmonic(64))

# %% [markdown]
# ### Backup workers
#
# The last of the sum's terms are the large ones: the very slowest wait costs 1, the second slowest
# 1/2. So start *b* workers more than the step needs, take the first N gradients, and drop the rest.
# Chen et al. 2016 (*Revisiting Distributed Synchronous SGD*) do this with these **backup workers**;
# every gradient that counts is fresh.
#
# $$E[\text{the N-th of } N + b] = H_{N+b} - H_b$$

# %% backup_workers
print(
    "60 gradients a step, exponential times, computed:  time of a step   gradients/s for each"
    " worker paid"
)
for backups in (0, 1, 2, 4, 8, 16, 32):
    step = harmonic(60 + backups) - harmonic(backups)
    print(
        f"  {backups:2} backup workers {step:32.2f} mean steps {60 / step / (60 + backups):24.2f}"
    )

# %% [markdown]
# Four backups in 64 nearly halve the step. Many more pay workers for gradients that are thrown
# away.
#
# ## 4. Build it well
#
# ### A server, and nobody waits
#
# The other way out is to give up the common step. A **parameter server** holds the weights. A
# worker pulls them, computes a gradient, pushes it, and pulls again; the server applies each
# gradient when it comes. This is **asynchronous** SGD (Dean et al. 2012, *Large Scale Distributed
# Deep Networks*, call theirs Downpour SGD).
#
# ```text
#               server: weights, version
#              ▲ │         ▲ │        ▲ │
#   gradient   │ │ weights │ │        │ │
#              │ ▼         │ ▼        │ ▼
#           worker 0    worker 1   worker 2       each at its own pace
# ```
#
# In torch, `torch.distributed.rpc` does this: `rpc.rpc_sync("server", function, args)` runs a
# function in the other process and returns what it gives. Its documentation calls it stable and in
# maintenance mode; the idea outlives it. Here the server is rank 0 and the workers are the ranks
# after it. All of it runs on CPUs, GPUs or not.


# %% parameter_server
class Server:
    """The weights, the number of updates, and a history; rpc calls come in several threads."""

    def __init__(self, weights):
        self.weights, self.version, self.lock = weights, 0, threading.Lock()
        self.start_s, self.history, self.staleness = time.perf_counter(), [], []


def push_and_pull(gradient, worker, version):
    """The weights and their version, after this gradient of an older version is applied."""
    server = sys.modules["__main__"].server
    with server.lock:
        if gradient is not None:
            # a new tensor: replies under way keep the old one
            server.weights = server.weights - RATE * gradient
            server.staleness.append((worker, server.version - version))
            server.version += 1
            now_s = time.perf_counter() - server.start_s
            server.history.append((now_s, server.version, server.weights.tolist()))
        return server.weights, server.version


# %% join_rpc
def join_rpc():
    """Let the ranks call each other, as "rank0", "rank1", ..."""
    rank, port = dist.get_rank(), [0]
    if rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = [free.getsockname()[1]]
    dist.broadcast_object_list(port)
    here = sys.modules["__main__"]
    here.push_and_pull, here.server = (
        push_and_pull,
        Server(torch.zeros(64, 10)),
    )  # rpc looks functions up by name
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port[0]}", _transports=["uv"]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a torch-internal use of the process group
        rpc.init_rpc(
            f"rank{rank}", rank=rank, world_size=dist.get_world_size(), rpc_backend_options=options
        )
    dist.barrier()
    here.server.start_s = time.perf_counter()


# %% [markdown]
# A worker's loop is short. That the weights are a new tensor in every update is no luxury: a reply
# that is still being sent must not change.


# %% asynchronous
def asynchronous(duration_s, slow_worker):
    """The server's history of (seconds, updates, weights) and of (worker, updates late)."""
    torch.set_num_threads(1)
    join_rpc()
    worker, start_s = dist.get_rank() - 1, time.perf_counter()
    if worker >= 0:
        batches, (weights, version) = (
            batches_of(worker),
            rpc.rpc_sync("rank0", push_and_pull, (None, worker, 0)),
        )
        while time.perf_counter() - start_s < duration_s:
            pretend_to_work(worker, slow_worker)
            gradient = gradient_at(weights, next(batches))
            with ws.span("push and pull", "communication"):
                weights, version = rpc.rpc_sync("rank0", push_and_pull, (gradient, worker, version))
    rpc.shutdown()  # waits until nobody calls any more
    server = sys.modules["__main__"].server
    return {"history": server.history, "staleness": server.staleness}


# %% asynchronous_measured
with_server = {"world_size": world_size + 1, "backend": "gloo", "echo": False}
budget_s = together.values[0][-1][0]  # what the synchronous run took
at_will = ws.run(asynchronous, budget_s, straggler, **with_server)
served = at_will.values[0]
sync_rate_here = NUM_STEPS * world_size / budget_s
async_rate_here = len(served["history"]) / served["history"][-1][0]
print(
    f"all-reduce {sync_rate_here:4.0f} gradients/s, server {async_rate_here:4.0f} gradients/s,"
    " measured here"
)
predictions.reveal("speed-up of a server here, one worker slow", async_rate_here / sync_rate_here)
draw.timeline(at_will.timeline, title="A server's workers, measured here")

# %% [markdown]
# No gaps. The fast workers do not notice the slow one, and the throughput is the **sum of the
# rates**:
#
# $$\text{gradients per second} = \sum_i \frac{1}{t_i + t_{\text{push, pull}}}$$
#
# Does it learn? The same wall time, the same learning rate for each gradient:


# %% loss_against_time
def sampled(history, times_s):
    """The loss at each of these times."""
    losses = []
    for time_s in times_s:
        done = [weights for at_s, _, weights in history if at_s <= time_s]
        losses.append(loss_of(torch.tensor(done[-1])) if done else math.log(10))
    return losses


ticks_s = [budget_s * tick / 30 for tick in range(1, 31)]
against_time = {
    "all-reduce": sampled(together.values[0], ticks_s),
    "server": sampled(served["history"], ticks_s),
}
draw.curves(
    against_time,
    x_label=f"time, in thirtieths of {budget_s:.1f} s",
    title="Loss on all digits with one straggler, measured here",
)

# %% [markdown]
# On this easy problem the server is ahead: it applies more gradients in the same time. So why does
# nearly everybody train synchronously? Look at what the gradients were.
#
# ### Stale gradients
#
# While a worker computes, others push. When its gradient arrives, the weights are no longer those
# it was computed at: it is **stale**. Its staleness τ is the number of updates in between. The
# server has counted it.

# %% staleness_measured
by_worker = {
    worker: [tau for who, tau in served["staleness"] if who == worker]
    for worker in range(world_size)
}
for worker, delays in by_worker.items():
    counts = ", ".join(f"{tau}: {count}" for tau, count in sorted(Counter(delays).items()))
    name = f"worker {worker}{' (slow)' if worker == straggler else ''}"
    print(
        f"{name}: {len(delays)} gradients, mean {statistics.mean(delays):.1f} updates late"
        f" ({counts})"
    )
mean_here = statistics.mean(tau for _, tau in served["staleness"])
print(f"all gradients: mean {mean_here:.2f}, where N - 1 = {world_size - 1}")
predictions.reveal("mean staleness of 8 workers", 8 - 1)

# %% [markdown]
# The slow worker's gradients are the stalest. But the **mean over all gradients is N − 1, whatever
# the speeds**. Every push falls into one open step of each of the other N − 1 workers, and makes
# that one's gradient an update later. So P pushes make P·(N − 1) updates of staleness in all. (A
# little less here: the first steps begin and the last ones end in company.) Asynchrony has no
# setting for this number; only fewer workers or a bound have.
#
# ### Why stale gradients hurt
#
# Take the simplest loss there is, $\frac{\lambda}{2} x^2$ with curvature λ, and let each gradient
# be τ updates late:
#
# $$x_{t+1} = x_t - \eta \lambda \, x_{t-\tau}$$
#
# With τ = 0 this shrinks as long as $\eta \lambda < 2$. With a delay, the correction comes when x
# has already moved on, and pushes it past the middle: it swings. Where is the edge? There x neither
# grows nor shrinks, $x_t = z^t$ with $z = e^{i\theta}$:
#
# $$z^{\tau} (1 - z) = \eta \lambda, \qquad |1 - z| = 2 \sin \tfrac{\theta}{2}, \qquad
# \arg\left(z^{\tau} (1 - z)\right) = \tau\theta - \tfrac{\pi - \theta}{2}$$
#
# The right side is a positive number, so the angle must be 0: $\theta = \pi / (2\tau + 1)$ is the
# first solution, and
#
# $$\eta \lambda \;<\; 2 \sin \frac{\pi}{2 (2\tau + 1)}$$


# %% stability
def stable_rate(delay):
    """The largest stable learning rate times curvature, by the formula."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def is_stable(rate, delay, num_steps=4_000):
    """True if x shrinks, by running it."""
    xs = [1.0] * (delay + 1)
    for _ in range(num_steps):
        xs.append(xs[-1] - rate * xs[-1 - delay])
    return max(map(abs, xs[-4 * delay - 4 :])) < 1


for delay in (0, 1, 3, 7, 31):
    low, high = 0.0, 3.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(middle, delay) else (low, middle)
    factor = 2 / stable_rate(delay)
    print(
        f"{delay:2} late: formula {stable_rate(delay):.3f}, found by running {low:.3f},"
        f" {factor:4.1f} times smaller"
    )
predictions.reveal("learning rate, 7 updates late", 2 / stable_rate(7))

# %% [markdown]
# So with 8 workers, where gradients are 7 late, the learning rate has to be almost ten times
# smaller than with fresh ones. Then the throughput is no gift: N workers bring N times the
# gradients, each of which may move N times less.
#
# There is a well-known remedy: divide each gradient's learning rate by its staleness (Zhang et al.
# 2016, *Staleness-aware Async-SGD for Distributed Deep Learning*). Is that enough on this
# quadratic? The bound is not proportional to 1/τ, so compute how much of the fresh bound η may take
# before it:

# %% divided_by_staleness
for delay in (1, 2, 4, 8, 16, 256):
    print(
        f"tau {delay:3}: rate / tau is stable up to {stable_rate(delay) * delay / 2:.0%} of the"
        " fresh bound"
    )

# %% [markdown]
# With a delay of one update, dividing by τ changes nothing, and the bound has halved. For long
# delays the share tends to π/4. **A learning rate within half of the fresh bound survives division
# by τ; one near the edge does not.** Dividing by 2τ is safe for every τ ≥ 1.
#
# ### A bound in between
#
# **Bounded staleness** lets workers run ahead, but not far: nobody begins a step while it is more
# than *s* steps ahead of the slowest (Ho et al. 2013, *More Effective Distributed ML via a Stale
# Synchronous Parallel Parameter Server*). s = 0 is synchronous, s = ∞ is the server above. Move the
# sliders. The pictures are computed.


# %% bounded_staleness
def finished_s(step_s, staleness):
    """When each worker ends each of its steps, from their durations, under the staleness bound."""
    ends_s = [[0.0] for _ in step_s]
    for step in range(len(step_s[0])):
        open_s = max(
            times[max(0, step - staleness)] for times in ends_s
        )  # all have done what the bound asks
        for times, durations in zip(ends_s, step_s, strict=True):
            times.append(max(times[-1], open_s) + durations[step])
    return ends_s


# %% staleness_explorer
def workers(slow_factor=4.0, staleness=1, num_workers=4, is_always_the_same=True):
    """A picture of 12 steps with one slow worker: always the same, or another one in each step."""
    turns = torch.randint(
        num_workers, (12,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    slow_ones = [0] * 12 if is_always_the_same else turns
    step_s = [
        [0.01 * (slow_factor if slow == rank else 1) for slow in slow_ones]
        for rank in range(num_workers)
    ]
    ends_s = finished_s(step_s, staleness)
    events = [
        ws.Event(rank, "main", "compute", str(step + 1), end_s - duration_s, end_s)
        for rank, times in enumerate(ends_s)
        for step, (end_s, duration_s) in enumerate(zip(times[1:], step_s[rank], strict=True))
    ]
    run = ws.Timeline.of_events(events)
    summary = {"all done after, end_s": run.end_s, "idle_fraction": run.bubble_fraction()}
    return draw.timeline(run, f"At most {staleness} steps ahead, computed"), summary


explore(workers, slow_factor=(1.0, 8.0, 0.5), staleness=(0, 12), num_workers=(2, 8))

# %% [markdown]
# Set `is_always_the_same` and raise the bound: the fast ones run ahead once, and then go at the
# slow one's pace. Take it away, so that in each step another worker is slow: now a small bound lets
# each make up for its own bad luck. Which suggests a rule, and the next cell computes it for long
# runs.

# %% always_or_now_and_then
chance = torch.Generator().manual_seed(seed)
now_and_then = (0.01 * torch.empty(8, 2_000).exponential_(1.0, generator=chance)).tolist()
always = [[0.01 * (5 if worker == 0 else 1)] * 2_000 for worker in range(8)]
print("8 workers, 2,000 steps each, computed: gradients/s with a bound of")
for name, step_s in (
    ("times exponential, mean 10 ms", now_and_then),
    ("one worker 50 ms, others 10 ms", always),
):
    rates = {
        bound: 8 * 2_000 / max(times[-1] for times in finished_s(step_s, bound))
        for bound in (0, 1, 4, 16)
    }
    print(f"  {name}: " + ", ".join(f"{bound}: {rate:.0f}" for bound, rate in rates.items()))

# %% [markdown]
# **A bound pays for luck, not for a broken node.** Where each is slow now and then, a bound of 4
# gives much of what no bound would give (800 gradients/s). Where the same worker is slow for ever,
# every finite bound ends at its pace.
#
# ### Large batches
#
# Synchronous training has the opposite trouble: no gradient is stale, but N workers make a batch of
# N·B, and there are N times fewer steps in an epoch. The **linear scaling rule** says: when the
# batch grows k times, take k times the learning rate (Goyal et al. 2017, *Accurate, Large Minibatch
# SGD: Training ImageNet in 1 Hour*). Its reason is one line. k small steps, and one large step:
#
# $$w_k = w_0 - \eta \sum_{j<k} g_j(w_j) \qquad
# \qquad w = w_0 - k \eta \cdot \frac{1}{k} \sum_{j<k} g_j(w_0)$$
#
# They agree as long as $g_j(w_j) \approx g_j(w_0)$: while k steps change the gradient little. That
# is least true at the start, and so the rule comes with a **warm-up**, in which the learning rate
# grows to its full value step by step.


# %% large_batches
def trained(batch, rate, warmup_steps, trial, num_epochs=4):
    """The share of held-out digits that a small network has right after these epochs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(100 * seed + trial)
        sizes = ((64, 64), (64, 64), (64, 10))
        layers = [layer for size in sizes for layer in (torch.nn.Linear(*size), torch.nn.ReLU())][
            :-1
        ]
        order = torch.randperm(len(labels))
        shuffles = [order[:1_536][torch.randperm(1_536)] for _ in range(num_epochs)]
    net = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    batches = [part for shuffle in shuffles for part in shuffle.split(batch)]
    for step, chosen in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = rate * min(1, step / max(1, warmup_steps))
        optimizer.zero_grad()
        cross_entropy(net(pixels[chosen]), labels[chosen]).backward()
        optimizer.step()
    held_out = order[1_536:]
    with torch.no_grad():
        return (net(pixels[held_out]).argmax(dim=1) == labels[held_out]).float().mean().item()


# %% large_batches_compared
settings = {
    "batch  16, rate 0.01": (16, 0.01, 0),
    "batch 256, rate 0.01": (256, 0.01, 0),
    "batch 256, rate 0.16 (16 times)": (256, 0.16, 0),
    "batch 256, rate 0.16, 6 steps of warm-up": (256, 0.16, 6),
    "batch 256, rate 0.64 (64 times), warm-up": (256, 0.64, 6),
}
for name, setting in settings.items():
    shares = [trained(*setting, trial) for trial in range(4)]
    summary = (
        f"{statistics.mean(shares):.0%} of held-out digits right (from {min(shares):.0%} to"
        f" {max(shares):.0%})"
    )
    print(f"{name:<41} {4 * 1_536 // setting[0]:3} steps: {summary}")

# %% [markdown]
# Four epochs each, four trials. With the same rate the large batch has too few steps to get
# anywhere; the scaled rate brings most of it back. A run of 24 steps has little to gain from a
# warm-up; Goyal et al. use five epochs of it in ninety. And there is an end: beyond it the rate is
# simply too large, for the same reason as ever. A quadratic bears $\eta \lambda < 2$, with momentum
# *m* $\eta \lambda < 2 (1 + m)$, and no warm-up helps. A batch can replace steps only while its
# gradient is noisy.
#
# ### A learning rate for each layer
#
# One reason why a large rate fails: layers differ. Compare, for each layer, the length of its
# weights and of its gradient. A rate of η moves a layer by the share
# $\eta \lVert g \rVert / \lVert w \rVert$ of itself.

# %% layers_differ
net = models.vision_net(width=8, seed=seed)
cross_entropy(net(images[:256]), labels[:256]).backward()
print("layer       weights  gradient  a rate of 0.32 moves it by")
for name, weights in net.named_parameters():
    weights_norm, gradient_norm = weights.norm().item(), weights.grad.norm().item()
    print(
        f"{name:<10} {weights_norm:8.2f} {gradient_norm:9.3f}"
        f" {0.32 * gradient_norm / weights_norm:16.1%}"
    )

# %% [markdown]
# **LARS** (You, Gitman and Ginsburg 2017, *Large Batch Training of Convolutional Networks*) gives
# each layer a rate that makes this share the same for all. η is the trust coefficient, β the weight
# decay, γ the learning rate:
#
# $$\lambda = \eta \, \frac{\lVert w \rVert}{\lVert g \rVert + \beta \lVert w \rVert}
# \qquad v \leftarrow m \, v + \gamma \, \lambda \, (g + \beta w) \qquad w \leftarrow w - v$$
#
# **LAMB** (You et al. 2020, *Large Batch Optimization for Deep Learning: Training BERT in 76
# minutes*) does it to Adam's direction $r = \hat m / (\sqrt{\hat v} + \epsilon)$:
#
# $$w \leftarrow w -
# \gamma \, \frac{\lVert w \rVert}{\lVert r + \lambda w \rVert} \, (r + \lambda w)$$
#
# (Some pages print $\lVert m \rVert$ below that fraction. It must be the length of what is
# subtracted, or the step is not the intended share of the layer.) Numbers by hand, for $w = (3, 4)$
# and $g = (0.6, 0.8)$, so that the lengths are 5 and 1:

# %% by_hand
print(f"LARS, coefficient 0.001, no decay: ratio 0.001 x 5 / 1 = {0.001 * 5 / 1}")
print(
    "LARS, weight decay 0.2:            ratio 0.001 x 5 / (1 + 0.2 x 5) ="
    f" {0.001 * 5 / (1 + 0.2 * 5)}"
)
print(
    "LAMB, step 1, no decay: r = g / |g| by element = (1, 1), ratio 5 / sqrt(2) ="
    f" {5 / math.sqrt(2):.3f}"
)
print(
    f"so with a rate of 0.01 LAMB moves the layer by 0.01 x {5 / math.sqrt(2):.3f} x sqrt(2) ="
    " 0.05, 1% of its length"
)

# %% [markdown]
# The share of a LAMB step is γ itself, whatever the gradient. You will write both in the lab.
#
# ## 5. Compare with the production oracle
#
# Synchronous: torch's DDP, and a single process with batch N·B and `torch.optim.SGD`, must give the
# weights of section 3. (DDP averages, so its rate is N times ours.)


# %% by_ddp
def by_ddp(num_steps):
    """The weights after as many steps, by DistributedDataParallel and torch's SGD."""
    torch.set_num_threads(1)
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if dist.get_backend() == "nccl"
        else torch.device("cpu")
    )
    layer = torch.nn.Linear(64, 10, bias=False, device=device)
    torch.nn.init.zeros_(layer.weight)
    model = torch.nn.parallel.DistributedDataParallel(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE * dist.get_world_size())
    batches = batches_of(dist.get_rank())
    for _ in range(num_steps):
        chosen = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(pixels[chosen].to(device)), labels[chosen].to(device)).backward()
        optimizer.step()
    return layer.weight.detach().T.contiguous().cpu()


# %% in_one_process
def in_one_process(num_steps):
    """The weights after as many steps of one process with the batches of all workers together."""
    weights, all_batches = (
        torch.zeros(64, 10, requires_grad=True),
        [batches_of(worker) for worker in range(world_size)],
    )
    optimizer = torch.optim.SGD([weights], lr=RATE * world_size)
    for _ in range(num_steps):
        chosen = torch.cat([next(batches) for batches in all_batches])
        optimizer.zero_grad()
        cross_entropy(pixels[chosen] @ weights, labels[chosen]).backward()
        optimizer.step()
    return weights.detach()


# %% against_the_oracle
ours = torch.tensor(together.values[0][-1][2])
oracles = {
    "DDP": ws.run(by_ddp, NUM_STEPS, **on_ranks).values[0],
    f"one process, batch {world_size * BATCH}": in_one_process(NUM_STEPS),
}
for name, theirs in oracles.items():
    difference = (ours - theirs).abs().max().item()
    print(f"synchronous, all-reduce by hand against {name:<24} largest difference {difference:.1e}")
    assert difference < 1e-5

# %% [markdown]
# The straggler changed the time, and not one weight. Asynchronous: with one worker, nothing is
# stale, and the server must be plain SGD. With several the order of pushes is chance, so hold the
# result against torch's SGD fed with the server's own record: the same number of updates, each with
# a worker's next batch, taken at the version that it had pulled.


# %% replayed
def replayed(staleness):
    """The weights after these updates in one process, with gradients as late as the server's."""
    weights, versions = torch.zeros(64, 10, requires_grad=True), [torch.zeros(64, 10)]
    optimizer = torch.optim.SGD([weights], lr=RATE)
    batches = {worker: batches_of(worker) for worker in range(world_size)}
    for worker, tau in staleness:
        weights.grad = gradient_at(versions[len(versions) - 1 - tau], next(batches[worker]))
        optimizer.step()
        versions.append(weights.detach().clone())
    return weights.detach()


single = ws.run(asynchronous, 0.3, None, world_size=2, backend="gloo", echo=False).values[0]
for name, run in (("1 worker", single), (f"{world_size} workers", served)):
    difference = (
        (torch.tensor(run["history"][-1][2]) - replayed(run["staleness"])).abs().max().item()
    )
    latest = max(tau for _, tau in run["staleness"])
    print(
        f"server, {name}: {len(run['history'])} updates, up to {latest} late, largest difference"
        f" {difference:.1e}"
    )
    assert difference < 1e-5
print("LARS and LAMB in torch.optim:", any(hasattr(torch.optim, name) for name in ("LARS", "LAMB")))

# %% [markdown]
# Given the record, an asynchronous run can be repeated; without it never. Two runs of it differ,
# and a bug that shows in one may hide in the next: a cost that no throughput table lists.
#
# For LARS and LAMB torch has no oracle. There the formula, worked by hand, is what you have.
#
# ## 6. Formula, measurement, emulation
#
# One more term is missing. The server has **one link**, and every push crosses it twice: S bytes of
# gradient in, S bytes of weights out. A server that handles one worker at a time needs
# $2(\alpha + S/\beta)$ for each, and no number of workers gets past that:
#
# $$\text{gradients per second} \leq \frac{1}{2 (\alpha + S/\beta)}$$
#
# On the emulated clusters there is no rpc, so the server is written with `send` and `recv`.
# `dist.recv` without a source takes what comes first, from anybody. Workers have their own numbers
# of steps, so that all end at about the same time. The slow one is slow by the emulator's
# `SlowRank`. A step takes 2 ms, a gradient has 400 kB.


# %% emulated_server
WORK_S, SIZE = 0.002, 400_000


def any_comes_first(gradient_bytes, shares):
    """One server, rank 0, without any bound; the other ranks do as many steps as `shares` says."""
    rank, tensor = dist.get_rank(), torch.zeros(gradient_bytes // 4)
    if rank == 0:
        for _ in range(sum(shares)):
            worker = dist.recv(tensor)
            dist.send(tensor, worker)
        return
    for _ in range(shares[rank - 1]):
        emulate.spend(WORK_S)
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


def in_step(gradient_bytes, num_steps):
    """All-reduce in every step; rank 0, which was the server above, is left out."""
    tensor = torch.zeros(gradient_bytes // 4)
    group = dist.new_group(range(1, dist.get_world_size()))
    for _ in range(num_steps if dist.get_rank() else 0):
        emulate.spend(WORK_S)
        dist.all_reduce(tensor, group=group)


# %% side_by_side
ethernet = replace(hardware.cluster("a100-10gbe"), name="8 x 10 Gb/s", gpus_per_node=1, num_nodes=8)
slow_seventh = [SlowRank(7, factor=SLOW_FACTOR)]
emulated = {"world_size": 8, "compute": "none", "faults": slow_seventh, "echo": False}
rows = []
for where in (hardware.cluster("dgx-h100"), hardware.cluster("pcie-box"), ethernet):
    link = where.intra if where.num_nodes == 1 else where.inter
    message_s = link.latency_s + SIZE / link.bandwidth_bytes_per_s
    ring_s = 12 * (link.latency_s + SIZE / 7 / link.bandwidth_bytes_per_s)
    sync_s = ws.run(in_step, SIZE, 10, cluster=where, **emulated).timeline.end_s / 10
    rows.append((where.name, "all-reduce", 7 / (SLOW_FACTOR * WORK_S + ring_s), 7 / sync_s))
    shares = [20] * 6 + [4]
    served_s = ws.run(any_comes_first, SIZE, shares, cluster=where, **emulated).timeline.end_s
    rates = 6 / (WORK_S + 2 * message_s) + 1 / (SLOW_FACTOR * WORK_S + 2 * message_s)
    rows.append((where.name, "server", min(rates, 1 / (2 * message_s)), sum(shares) / served_s))

# %% table
rows = [(f"{name}, emulated", 7, kind, formula, rate) for name, kind, formula, rate in rows]
here = [
    ("all-reduce", world_size / (SLOW_FACTOR * STEP_S), sync_rate_here),
    ("server", (world_size - 1) / STEP_S + 1 / (SLOW_FACTOR * STEP_S), async_rate_here),
]
rows += [
    ("this machine, measured", world_size, kind, formula, rate) for kind, formula, rate in here
]
print(
    f"{'one worker 5 times slower, on':<26} N {'':<11} {'formula':>12} {'run':>12}  error of the"
    " formula"
)
for name, count, kind, formula, rate in rows:
    print(
        f"{name:<29} {count} {kind:<11} {formula:6.0f} a sec. {rate:6.0f} a sec."
        f" {formula / rate - 1:+8.0%}"
    )

# %% [markdown]
# Three things to read off:
#
# - **All-reduce**: the slowest worker decides everywhere, and the network hardly matters. The
#   formula takes a plain ring; the emulated clusters price NCCL's all-reduce, and both are small
#   beside 10 ms.
# - **The server on NVLink and PCIe**: the sum of rates, four times as much. On **10 Gb/s** the link
#   is full: seven workers could send far more than it takes, and most of the gain is gone. (Near
#   saturation the formula, a minimum of two limits, says too much: workers already queue.)
# - **This machine**: the formula knows sleeping only. Waking up, arithmetic, rpc and the other
#   processes on the same cores come on top, in every step, and weigh most where steps are short.
#
# At how many workers is the server's link full? Where the sum of rates meets the limit:

# %% saturation
resnet_bytes = 25_557_032 * 4  # ResNet-50 in fp32; number of parameters: torchvision documentation
print("ResNet-50, 0.2 s a step, computed: workers that one server can feed")
for link in (hardware.ETHERNET_10G, hardware.ETHERNET_100G, hardware.IB_NDR):
    exchange_s = 2 * (link.latency_s + resnet_bytes / link.bandwidth_bytes_per_s)
    most = (0.2 + exchange_s) / exchange_s
    print(f"  {link.name:<24} {exchange_s * 1e3:6.1f} ms for each gradient: {most:5.1f} workers")

# %% [markdown]
# That is why parameter servers come in numbers, each with a part of the weights (Li et al. 2014,
# *Scaling Distributed Machine Learning with the Parameter Server*), and why a ring needs none: each
# rank brings its own link.
#
# ## 7. When it breaks
#
# ### The loss explodes, and only with many workers
#
# A learning rate that is well within the bound of fresh gradients, on the quadratic
# $\frac{1}{2} x^2$. Seven equal workers on the emulated cluster, a server without a bound. Each
# gradient is 6 updates late.


# %% quadratic
def quadratic(rate, num_steps):
    """On the server, x after every update, from 1; a worker's gradient is the x that it pulled."""
    rank, x, seen = dist.get_rank(), torch.ones(1), []
    if rank == 0:
        for _ in range(num_steps * (dist.get_world_size() - 1)):
            worker = dist.recv(gradient := torch.empty(1))
            x -= rate * gradient
            seen.append(x.item())
            dist.send(x, worker)
        return seen
    for _ in range(num_steps):
        emulate.spend(WORK_S)
        dist.send(x, 0)
        dist.recv(x, 0)
    return None


# %% stale_divergence
swings = {}
print(f"the bound with tau = 6 is {stable_rate(6):.3f}")
for rate in (0.1, 0.2, 0.3):
    run = ws.run(quadratic, rate, 12, world_size=8, cluster=cluster, compute="none", echo=False)
    swings[f"server, rate {rate}"] = run.values[0]
    late, fresh = run.values[0][-1], (1 - rate) ** 84
    print(f"rate {rate}: x ends at {late:8.2g}, with fresh gradients at {fresh:.1g}")
title = "Seven workers, gradients 6 updates late, emulated"
draw.curves(swings, y_label="x", x_label="update", title=title)

# %% [markdown]
# **Symptom**: training is fine on one or two workers, and with more it swings, then diverges;
# nobody changed the model. **Cause**: staleness grows with the workers, N − 1 on average, and the
# bound on the learning rate falls with it. **Fix**: a smaller rate, fewer workers for each server,
# a staleness bound, or synchronous training with the time of stragglers bought back by backup
# workers. Momentum makes it worse: asynchrony acts like momentum of its own (Mitliagkas et al.
# 2016, *Asynchrony begets Momentum*), so that the two add up.
#
# ### The server that is asynchronous in name only
#
# This one waits for worker 1, then for worker 2, and so on. It looks natural, passes every test of
# its result, and is as slow as all-reduce.


# %% in_turn
def one_after_the_other(gradient_bytes, num_steps):
    """A server that takes the workers in a fixed order."""
    rank, tensor = dist.get_rank(), torch.zeros(gradient_bytes // 4)
    for _ in range(num_steps):
        if rank:
            emulate.spend(WORK_S)
            dist.send(tensor, 0)
            dist.recv(tensor, 0)
        for worker in range(1, dist.get_world_size()) if rank == 0 else ():
            dist.recv(tensor, worker)
            dist.send(tensor, worker)


in_turn = ws.run(one_after_the_other, SIZE, 6, cluster=cluster, **emulated).timeline
as_they_come = ws.run(any_comes_first, SIZE, [20] * 6 + [4], cluster=cluster, **emulated).timeline
for name, run, count in (("in turn", in_turn, 7 * 6), ("as they come", as_they_come, 124)):
    print(f"{name:<13} {count / run.end_s:4.0f} gradients/s, emulated on {cluster}")
draw.timelines(
    {"in turn": in_turn, "as they come": as_they_come},
    title="One slow worker, emulated",
    streams=["compute"],
)

# %% [markdown]
# **Symptom**: the throughput of an asynchronous job is N times that of its slowest worker.
# **Cause**: a receive that names its source, in a loop over workers; the same happens behind a lock
# that a worker holds while it computes. **Fix**: take whatever comes first: a receive from any
# source, or one thread for each caller, as rpc does.
#
# ## 8. Self-check
#
# First, your predictions beside the results.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions. Each answer has its own explanation, also the wrong ones.

# %% self_check
quiz.ask("week04", seed=seed)

# %% [markdown]
# ## To take with you
#
# - Synchronous SGD with N workers is SGD with batch N·B. Its step takes the maximum of N times; a
#   server's throughput is the sum of N rates, until its link is full.
# - Without a bound gradients are N − 1 updates late on average, whatever the speeds.
# - On a quadratic the stable rate falls from 2 to 2 sin(π / (2(2τ + 1))): about N times less for N
#   workers.
# - A staleness bound evens out luck. It does not help against a worker that is always slow;
#   dropping it does.
# - Backup workers keep gradients fresh and drop the slowest few, which are those that cost most.
# - Large batches: scale the rate with the batch, warm up, and give each layer its own rate (LARS,
#   LAMB). All of it ends where the gradient has no noise left.
#
# **Now the lab**: [lab 4, parameter server](../labs/lab04/lab04.ipynb). Your server keeps a bound,
# and its workers find out only by waiting. Then **week 5**, [*Say less*](week05_say_less.ipynb):
# when the link is full, send fewer bytes.
