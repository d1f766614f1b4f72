# %% [markdown]
# # Week 4. Synchronous or asynchronous
#
# | | |
# |---|---|
# | Reading and doing | about 100 minutes: four short exercises, two bugs to find, an explorer |
# | Running | less than a minute on two CPU cores; GPUs are used if there are enough |
# | You need | [week 3](week03_ddp_from_first_principles.ipynb): what an all-reduce adds to a step |
# | You do not need | several machines, or to have used remote procedure calls |
# | Afterwards | lab 4, *parameter server* |
#
# So far all ranks have taken every step together. That costs time whenever one of them is slow, and
# has a benefit: the weights are exactly those of one process with a larger batch. This week looks
# at both, and at what happens when no worker waits.
#
# **N** is the number of workers, **B** the batch of one worker, **τ** (tau) the number of updates
# by which a gradient is late.

# %% [markdown]
# ## 1. The question
#
# > What does it cost to wait for the slowest worker, and what does it cost not to wait?
#
# Afterwards you can say from a log of step times what waiting costs, how late a parameter server's
# gradients are and which learning rate they allow, and when the server's link is full.

# %% parameters tags=["parameters"]
world_size = 3  # workers in the experiments on this machine, 2 or more; a server comes on top
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
cluster = "dgx-h100"  # the emulated cluster of the pictures; the tables name their own
seed = 0
# percent of full throughput: 8 workers, all waiting for one that is 5 times slower
predicted_sync_percent = None
predicted_async_percent = None  # the same 8 workers, if nobody waits for anybody
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
from collections import Counter, deque
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.nn.functional import cross_entropy, one_hot

import worldsize as ws
from worldsize import check, draw, emulate, hardware, ledger, models, quiz, text
from worldsize.explore import explore
from worldsize.faults import SlowRank
from worldsize.images import load_digits

torch.set_num_threads(1)  # the matrices are tiny: threads would only wait for each other
predictions = ledger.Predictions("week04")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for six numbers, and waits. As soon as a result is known, it is printed next to
# your prediction.

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
# In **synchronous** SGD each worker computes the gradient of its own batch, an all-reduce averages
# the gradients, and all workers take the same step. The mean of N means over B samples each is the
# mean over all N·B samples. So the mathematics is not new: this is SGD with batch N·B.
#
# The model is one linear layer on handwritten digits. Its arithmetic takes almost no time, so we
# can choose how long a step takes.

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
# Each step here takes 20 ms of simulated work, during which the worker sleeps. One worker, chosen
# by the seed, is a **straggler**: its steps take five times as long. Its node may be hot, its GPU
# shared or its disk slow. In a large cluster some worker is always slow for one of these reasons.

# %% straggler
STEP_S, SLOW_FACTOR = 0.02, 5.0
straggler = int(torch.randint(world_size, (), generator=torch.Generator().manual_seed(seed)))


def pretend_to_work(worker, slow_worker):
    with ws.span("gradient"):
        time.sleep(STEP_S * (SLOW_FACTOR if worker == slow_worker else 1))


# %% [markdown]
# Only the work is simulated: the gradients and the all-reduce are real.


# %% synchronous
def device_of_rank():
    """This rank's GPU, or the CPU."""
    on_gpus = dist.get_backend() == "nccl"
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")


def synchronous(num_steps, slow_worker):
    """(Seconds so far, gradients so far, weights) after every step."""
    torch.set_num_threads(1)
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    weights, batches = torch.zeros(64, 10, device=device_of_rank()), batches_of(rank)
    history = []
    dist.barrier()
    start_s = time.perf_counter()
    for step in range(1, num_steps + 1):
        pretend_to_work(rank, slow_worker)
        dist.all_reduce(gradient := gradient_at(weights, next(batches)))
        weights -= RATE * gradient  # the sum: a step of RATE for each worker's gradient
        history.append((time.perf_counter() - start_s, step * num_workers, weights.tolist()))
    return history


# %% synchronous_measured
NUM_STEPS = 15
on_ranks = {"world_size": world_size, "backend": backend, "echo": False}
sync_run = ws.run(synchronous, NUM_STEPS, straggler, **on_ranks)
sync_run_without_straggler = ws.run(synchronous, NUM_STEPS, None, **on_ranks)
for name, run in (
    ("no straggler", sync_run_without_straggler),
    (f"worker {straggler} slow", sync_run),
):
    end_s, num_gradients, _ = run.values[0][-1]
    print(
        f"{name}: {end_s / NUM_STEPS * 1e3:.0f} ms a step, {num_gradients / end_s:.0f} gradients/s"
    )
draw.timeline(sync_run.timeline, title="All-reduce in every step, one straggler, measured here")

# %% [markdown]
# The long gaps show waiting, on which the other workers spend four fifths of their time. **A
# synchronous step takes as long as its slowest worker**, however fast the rest are:
#
# $$t_{\text{sync}} = \max_i t_i + t_{\text{all-reduce}}$$
#
# Take eight workers, each of which reaches an MFU (week 1) of 40% when it never waits:

# %% one_slow_of_eight
times_s = [STEP_S] * 7 + [SLOW_FACTOR * STEP_S]
full_rate, sync_rate = 8 / STEP_S, 8 / max(times_s)
async_rate = sum(1 / time_s for time_s in times_s)
rates = {
    "all are fast": full_rate,
    "one is 5 times slower, all wait": sync_rate,
    "one is 5 times slower, nobody waits": async_rate,
}
rows = [(name, rate, rate / full_rate, 0.40 * rate / full_rate) for name, rate in rates.items()]
columns = ("8 workers", "gradients/s", "kept_fraction", "MFU_fraction")
predictions.reveal("kept by 8 waiting for one slow worker", 100 * sync_rate / full_rate)
predictions.reveal("kept by 8 that do not wait", 100 * async_rate / full_rate)
draw.table(rows, title="Steps of 20 ms, and of 100 ms, computed", columns=columns)

# %% [markdown]
# ### Random step times
#
# The straggler need not always be the same worker. Let every step of every worker take a random
# time. All workers wait for the largest of N draws, which grows with the number of workers. For
# exponential times with mean 1 it can be computed: the first of N is done after 1/N on average, the
# first of the remaining ones 1/(N − 1) later, and so on:
#
# $$E[\max] = \frac{1}{N} + \frac{1}{N-1} + \dots + \frac{1}{1} = H_N \approx \ln N + 0.58$$
#
# The cell compares this with random draws, and with 8 ranks on the emulated cluster, where
# `emulate.spend` makes a rank work for some virtual time.


# %% slowest_of_many
def harmonic(count):
    return sum(1 / number for number in range(1, count + 1))


def random_steps(num_steps):
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    for duration_s in torch.empty(num_steps).exponential_(1 / 0.01, generator=generator).tolist():
        emulate.spend(duration_s)
        dist.all_reduce(torch.zeros(1))


draws = torch.empty(20_000, 512).exponential_(1.0, generator=torch.Generator().manual_seed(seed))
emulated_8 = {"world_size": 8, "compute": "none", "echo": False}
end_s = ws.run(random_steps, 100, cluster=cluster, **emulated_8).timeline.end_s
rows = []
for count in (1, 2, 8, 64, 512):
    drawn = draws[:, :count].amax(dim=1).mean().item()
    row = {"workers": count, "formula": harmonic(count), "20,000 draws": drawn}
    rows.append(row | {"100 emulated steps": end_s / 100 / 0.01 if count == 8 else None})
predictions.reveal("the slowest of 64", harmonic(64))
draw.table(rows, title="Mean time of the slowest, in mean steps: computed, drawn and emulated")

# %% [markdown]
# ### Your turn: from a log of step times
#
# 8 minutes · medium
#
# Real step times are not exponential, but you can measure them. `times_s` is a log of one worker's
# steps. How long does a synchronous step of `num_workers` workers take on average, if each of them
# draws its time from this log, independently? Compute it exactly, without random draws.
#
# <details><summary>Hint</summary>
#
# Sort the log. The slowest of N is at most the i-th of M times with probability $(i/M)^N$. So it is
# *exactly* the i-th with probability $(i/M)^N - ((i-1)/M)^N$.
# </details>


# %% slowest_of tags=["turn"]
def slowest_of(times_s, num_workers):
    """The mean of the largest of `num_workers` times, each drawn from this log."""
    ### BEGIN SOLUTION
    count = len(times_s)
    return sum(
        time_s * ((place / count) ** num_workers - ((place - 1) / count) ** num_workers)
        for place, time_s in enumerate(sorted(times_s), start=1)
    )
    ### END SOLUTION


# %% check_slowest_of
with check.turn("slowest_of"):
    hint = "With one worker it is the mean of the log."
    check.expect_close(slowest_of([2.0, 1.0], 1), 1.5, "one worker, a log of 2 s and 1 s", hint)
    hint = "Both draw 1 s in one case of four: 1 s a quarter of the time, and 2 s otherwise."
    check.expect_close(slowest_of([2.0, 1.0], 2), 1.75, "two workers, a log of 2 s and 1 s", hint)
    log_s = [0.1] * 99 + [0.5]
    slowest_s = slowest_of(log_s, 64)
    hint = "All 64 draw 0.1 s with probability 0.99 to the power of 64."
    check.expect_close(slowest_s, 0.5 - 0.4 * 0.99**64, "64 workers, 1 slow step in 100", hint)
    print(f"Right. 64 workers, one step in 100 of 0.5 s, others 0.1 s: {slowest_s:.2f} s a step.")

# %% [markdown]
# A worker that is slow in one step of a hundred loses 4% by itself. Sixty-four of them in
# synchronous steps take nearly three times as long.
#
# ### Backup workers
#
# The last terms of the harmonic sum are the largest: waiting for the slowest worker adds 1, for the
# second slowest 1/2. So start *b* more workers than the step needs, take the first N gradients, and
# drop the rest. Chen et al. 2016 (*Revisiting Distributed Synchronous SGD*) call these **backup
# workers**. Every gradient that is used is fresh.
#
# $$E[\text{the N-th of } N + b] = H_{N+b} - H_b$$
#
# The table has two kinds of step times: exponential, and 1 plus an exponential time with mean 0.3.
# Starting more workers costs money, so the last column divides by all workers that are paid for.

# %% backup_workers
KINDS = {"exponential": (0.0, 1.0), "1 + exponential of 0.3": (1.0, 0.3)}  # least time, mean on top
chance = torch.Generator().manual_seed(seed)
on_top = torch.empty(4_000, 92).exponential_(1.0, generator=chance)
rows = []
for kind, (least, mean) in KINDS.items():
    for backups in (0, 1, 2, 4, 8, 16, 32):
        step = least + mean * (harmonic(60 + backups) - harmonic(backups))
        drawn = least + mean * on_top[:, : 60 + backups].kthvalue(60, dim=1).values.mean().item()
        row = {"step times": kind, "backups": backups, "formula": step, "4,000 draws": drawn}
        rows.append(row | {"gradients a paid worker": 60 / step / (60 + backups)})
draw.table(rows, title="60 gradients a step with backup workers, computed and drawn")

# %% [markdown]
# With exponential times four backups shorten the step from 4.68 to 2.66, by 43%, and the last
# column rises with every row: it seems that more backups always pay. That is a property of the
# exponential distribution: a worker that has computed for a long time is no nearer to its end than
# one that has just begun, so stopping it loses nothing. Real steps have a minimum time. For these
# the column has a maximum, at 8 to 16 backups; with 32 **you pay for gradients that you throw
# away**.

# %% [markdown]
# ## 4. Build it well
#
# There are three options: no worker waits (4a), workers wait only for those far behind (4b), or all
# wait and make the most of the large batch (4c).
#
# ### 4a. A parameter server: no worker waits
#
# A **parameter server** holds the weights. A worker pulls them, computes a gradient, pushes it, and
# pulls again; the server applies each gradient when it arrives. This is **asynchronous** SGD (Dean
# et al. 2012, *Large Scale Distributed Deep Networks*, call their version Downpour SGD).
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
# function in another process and returns its result. (The documentation calls it stable and in
# maintenance mode.) Here the server is rank 0 and worker 0 is rank 1. All of them run on CPUs, even
# if there are GPUs.


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
    here = sys.modules["__main__"]  # where rpc looks functions up by name
    here.push_and_pull, here.server = push_and_pull, Server(torch.zeros(64, 10))
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
# A worker's loop is short.


# %% asynchronous
def asynchronous(duration_s, slow_worker):
    """A dict: "history", (seconds, updates so far, weights) after each update, and "staleness",
    (worker, updates late) of each gradient; both are empty on workers."""
    torch.set_num_threads(1)
    join_rpc()
    worker, start_s = dist.get_rank() - 1, time.perf_counter()
    if worker >= 0:
        batches = batches_of(worker)
        weights, version = rpc.rpc_sync("rank0", push_and_pull, (None, worker, 0))
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
budget_s = sync_run.values[0][-1][0]  # what the synchronous run took
async_run = ws.run(asynchronous, budget_s, straggler, **with_server)
async_history = async_run.values[0]["history"]
staleness = async_run.values[0]["staleness"]
sync_rate_here = NUM_STEPS * world_size / budget_s
async_rate_here = len(async_history) / async_history[-1][0]
print(f"all-reduce {sync_rate_here:.0f} gradients/s, server {async_rate_here:.0f} gradients/s")
predictions.reveal("speed-up of a server here, one worker slow", async_rate_here / sync_rate_here)
draw.timeline(async_run.timeline, title="A server's workers, measured here")

# %% [markdown]
# There are hardly any gaps. The slow worker does not delay the fast ones, and the throughput is the
# **sum of the rates**:
#
# $$\text{gradients per second} = \sum_i \frac{1}{t_i + t_{\text{push, pull}}}$$
#
# Does it learn? Here is the loss of both runs over the same time, with the same learning rate for
# each gradient:


# %% loss_against_time
def sampled(history, times_s):
    """The loss at each of these times."""
    losses = []
    for time_s in times_s:
        done = [weights for at_s, _, weights in history if at_s <= time_s]
        losses.append(loss_of(torch.tensor(done[-1])) if done else math.log(10))
    return losses


ticks_s = [budget_s * tick / 30 for tick in range(31)]
against_time = {
    "all-reduce": sampled(sync_run.values[0], ticks_s),
    "server": sampled(async_history, ticks_s),
}
title = "Loss on all digits with one straggler, measured here"
draw.curves(against_time, x_label="seconds", title=title, x=ticks_s)

# %% [markdown]
# On this easy problem the server is ahead: it applies more gradients in the same time. Then why is
# nearly all training synchronous? Look at the gradients.
#
# ### Stale gradients
#
# While a worker computes, others push. When its gradient arrives, the weights have moved on: the
# gradient is **stale**. Its staleness τ is the number of updates in between, which our server has
# counted.

# %% staleness_measured
rows = []
for worker in range(world_size):
    delays = [tau for who, tau in staleness if who == worker]
    counts = ", ".join(f"{tau}: {count}" for tau, count in sorted(Counter(delays).items()))
    row = {"worker": worker, "slow": worker == straggler, "gradients": len(delays)}
    rows.append(row | {"mean updates late": statistics.mean(delays), "late: how often": counts})
mean_here = statistics.mean(tau for _, tau in staleness)
print(f"all gradients: mean {mean_here:.2f}, where N - 1 = {world_size - 1}")
predictions.reveal("mean staleness of 8 workers", 8 - 1)
draw.table(rows, title="How many updates late gradients were, measured here")

# %% [markdown]
# The slow worker's gradients are the stalest. Yet the **mean over all gradients is N − 1, whatever
# the speeds**. Whenever one worker pushes, each of the other N − 1 is in the middle of a step, and
# the gradient of that step becomes one update staler. So P pushes add up to P·(N − 1) updates of
# staleness. (Measured, it is a little less: all first steps begin together, so that the first
# gradients are less late.) TensorFlow's documentation of `SyncReplicasOptimizer` warns of the same
# N − 1. No setting of the server lowers this number; only fewer workers or a staleness bound do.
#
# ### Your turn: staleness from a log
#
# 6 minutes · medium
#
# A server writes a log: ("pull", 2) when it sends the weights to worker 2, ("push", 2) when it
# applies a gradient of worker 2. Return the staleness of each push, in the order of the pushes. A
# worker need not pull right after a push.
#
# <details><summary>Hint</summary>
#
# Keep two things while you read the log: the number of pushes so far, and for each worker what that
# number was when it last pulled.
# </details>


# %% staleness_of tags=["turn"]
def staleness_of(log):
    """By how many updates each pushed gradient is late; `log` has (what happened, worker)."""
    ### BEGIN SOLUTION
    pulled_at, late = {}, []
    for action, worker in log:
        if action == "pull":
            pulled_at[worker] = len(late)
        else:
            late.append(len(late) - pulled_at[worker])
    return late
    ### END SOLUTION


# %% check_staleness_of
with check.turn("staleness_of"):
    log = [("pull", 0), ("pull", 1), ("push", 0), ("pull", 2), ("pull", 0), ("push", 0)]
    log += [("push", 1), ("pull", 1), ("push", 2), ("push", 1)]
    found = torch.tensor(staleness_of(log), dtype=torch.float64)
    hint = "Count the pushes of *all* workers between a worker's last pull and its push."
    expected = torch.tensor([0, 0, 2, 2, 1], dtype=torch.float64)
    check.expect_close(found, expected, f"the staleness of the pushes in {log}", hint)
    log = [("pull", worker) for worker in range(8)]
    for turn in range(800):
        log += [("push", turn % 8), ("pull", turn % 8)]
    mean = statistics.mean(staleness_of(log))
    check.expect_close(mean, 6.965, "the mean of 8 workers that push in turn, 100 times each", hint)
    print(f"Right. Eight workers that push in turn, 100 times each: {mean:.2f} on average.")

# %% [markdown]
# ### Why stale gradients hurt
#
# Take the simplest loss, $\frac{\lambda}{2} x^2$ with curvature λ, and let each gradient be τ
# updates late:
#
# $$x_{t+1} = x_t - \eta \lambda \, x_{t-\tau}$$
#
# With fresh gradients (τ = 0) x shrinks as long as $\eta \lambda < 2$. Here are three learning
# rates with τ = 7, all of them far below that:


# %% late_gradients
def x_with_late_gradients(rate, delay, num_steps, momentum=0.0):
    """x after each update, from 1, by gradients of x that are so many updates late; λ is 1."""
    xs, velocity = [1.0] * (delay + 1), 0.0
    for _ in range(num_steps):
        velocity = momentum * velocity + xs[-1 - delay]
        xs.append(xs[-1] - rate * velocity)
        if abs(xs[-1]) > 1e6:
            break  # it diverges
    return xs[delay:]


rates = {f"rate {rate}": x_with_late_gradients(rate, 7, 150) for rate in (0.19, 0.209, 0.22)}
draw.curves(rates, y_label="x", x_label="update", title="Gradients 7 updates late, computed")

# %% [markdown]
# The correction arrives when x has already moved on, and pushes it past the minimum: x oscillates.
# Between oscillations that die out and oscillations that grow lies the edge of stability, where
# they continue forever, like one coordinate of a point that goes round a circle. Each update turns
# the point by an angle θ. Here are five of its positions for τ = 3:


# %% on_the_edge
def on_the_edge(delay=3):
    """A point at the edge of stability, which each update turns by the same angle, computed."""
    angle = math.pi / (2 * delay + 1)
    places = {f"$x_{{t{n:+d}}}$" if n else "$x_t$": n * angle for n in range(-delay, 2)}
    opposite = f"$-x_{{t-{delay}}}$"
    places[opposite] = math.pi - delay * angle
    arrows = [("$x_t$", "$x_{t+1}$"), ("", opposite)]  # the step, and minus the gradient it takes
    return draw.circle(places, arrows, f"τ = {delay} at the edge of stability, computed")


on_the_edge()

# %% [markdown]
# The step from $x_t$ to $x_{t+1}$ must be $-\eta \lambda \, x_{t-\tau}$. So the two arrows in the
# picture are parallel, and that fixes θ. The step is a chord of the circle: seen from the direction
# of $x_t$, it points to $\pi/2 + \theta/2$. The point $x_{t-\tau}$ lies τθ behind $x_t$, so its
# opposite points to $\pi - \tau\theta$. The two are equal:
#
# $$\frac{\pi}{2} + \frac{\theta}{2} = \pi - \tau\theta \qquad\Rightarrow\qquad
# \theta = \frac{\pi}{2\tau + 1}$$
#
# The length of the chord is $2 \sin(\theta/2)$, and that of $\eta \lambda \, x_{t-\tau}$ is
# $\eta \lambda$. So the edge lies at $\eta \lambda = 2 \sin(\theta/2)$, and below it x shrinks:
#
# $$\eta \lambda \;<\; 2 \sin \frac{\pi}{2 (2\tau + 1)}$$
#
# The cell also finds the edge by running the recurrence, without momentum and with it.


# %% stability
def stable_rate(delay):
    """The largest stable learning rate times curvature, by the formula."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def found_rate(delay, momentum=0.0):
    """The largest learning rate at which x shrinks, by running it."""
    low, high = 0.0, 4.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        xs = x_with_late_gradients(middle, delay, 4_000, momentum)
        low, high = (middle, high) if max(map(abs, xs[-4 * delay - 4 :])) < 1 else (low, middle)
    return low


rows = []
for delay in (0, 1, 3, 7, 31):
    formula, run, with_momentum = stable_rate(delay), found_rate(delay), found_rate(delay, 0.9)
    row = {"late": delay, "formula": formula, "by running": run, "times smaller": 2 / formula}
    row["momentum 0.9, by running"] = with_momentum
    rows.append(row | {"times smaller with momentum": 3.8 / with_momentum})
predictions.reveal("learning rate, 7 updates late", 2 / stable_rate(7))
draw.table(rows, title="The largest stable learning rate on a quadratic, computed")

# %% [markdown]
# With 8 workers, where gradients are 7 updates late, the learning rate has to be almost ten times
# smaller than with fresh ones. So the higher throughput gains nothing: N workers compute N times as
# many gradients, but each step must be about N times smaller. Momentum makes it worse. With fresh
# gradients a momentum of 0.9 *raises* the edge, to 2 (1 + m) = 3.8. With gradients 7 updates late
# it divides the edge by 13, from 0.209 to 0.0157: with momentum the delay costs a factor of more
# than 200. (Mitliagkas et al. 2016, *Asynchrony begets Momentum*, show why: asynchrony acts like
# additional momentum.)
#
# Does this hold for a network, too? The course's transformer has no single curvature. Here it
# learns text with plain SGD in one process, and its gradients wait in a queue until they are late
# enough:


# %% late_transformer
def loss_with_late_gradients(rate, delay, num_steps=60):
    """The loss before each update, by gradients that are so many updates late."""
    model, waiting, losses = models.Transformer(models.shape("tiny"), seed=seed), deque(), []
    weights, chooser = list(model.parameters()), torch.Generator().manual_seed(seed)
    for _ in range(num_steps):
        tokens, targets = text.batch(TOKENS, 4, 64, chooser)
        loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        waiting.append(torch.autograd.grad(loss, weights))
        losses.append(loss.item())
        if len(waiting) > delay:
            with torch.no_grad():
                for weight, gradient in zip(weights, waiting.popleft(), strict=True):
                    weight -= rate * gradient
    return losses


TOKENS = text.tokens()
late_runs = {
    f"rate {rate}, {delay} late": loss_with_late_gradients(rate, delay)
    for rate, delay in ((0.2, 0), (0.2, 7), (0.02, 7))
}
draw.curves(late_runs, title="A small transformer with late gradients, measured here")

# %% [markdown]
# The behaviour is of the same kind: at a learning rate that works with fresh gradients, the loss
# oscillates with late ones; at a tenth of that rate the model learns, but slowly.
#
# There is a well-known remedy: divide each gradient's learning rate by its staleness (Zhang et al.
# 2016, *Staleness-aware Async-SGD for Distributed Deep Learning*). Is that enough on the quadratic?
# The next cell computes how large η may be, as a share of the bound for fresh gradients, so that
# η/τ stays stable:

# %% divided_by_staleness
delays = (1, 2, 4, 8, 16, 256)
name = "largest η, of the bound for fresh gradients_fraction"
rows = [{"updates late": tau, name: tau * stable_rate(tau) / 2} for tau in delays]
draw.table(rows, title="The largest η that is stable after division by τ, computed")

# %% [markdown]
# With a delay of one update, dividing by τ changes nothing, while the bound has halved. For long
# delays the share tends to π/4. **A rate below half the fresh bound is stable once it is divided by
# τ; a rate near the fresh bound need not be.** Dividing by 2τ is safe for every τ ≥ 1.
#
# ### 4b. Bounded staleness
#
# **Bounded staleness** lets workers run ahead, but not far: no worker begins a step while it is
# more than *s* steps ahead of the slowest (Ho et al. 2013, *More Effective Distributed ML via a
# Stale Synchronous Parallel Parameter Server*). With s = 0 training is synchronous; s = ∞ is the
# server of 4a. Move the sliders.


# %% bounded_staleness
def finished_s(step_s, staleness):
    """When each worker ends each of its steps, from their durations, under the staleness bound."""
    ends_s = [[0.0] for _ in step_s]
    for step in range(len(step_s[0])):
        # when all have done what the bound asks
        open_s = max(times[max(0, step - staleness)] for times in ends_s)
        for times, durations in zip(ends_s, step_s, strict=True):
            times.append(max(times[-1], open_s) + durations[step])
    return ends_s


# %% twelve_steps
def workers(slow_factor=4.0, staleness=1, num_workers=4, is_always_the_same=True):
    """A picture of 12 steps with one slow worker: always the same, or another one in each step."""
    chooser = torch.Generator().manual_seed(seed)
    turns = torch.randint(num_workers, (12,), generator=chooser).tolist()
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
    summary = {"end_s": run.end_s, "idle_fraction": run.bubble_fraction()}
    return draw.timeline(run, f"Twelve steps, staleness bound {staleness}, computed"), summary


# %% staleness_explorer
explore(
    workers,
    slow_factor=(1.0, 8.0, 0.5),
    staleness=(0, 12),
    num_workers=(2, 8),
    is_always_the_same=True,
)

# %% [markdown]
# Raise the bound: the fast workers run ahead once, and then proceed at the slow worker's pace. Now
# clear `is_always_the_same`, so that a different worker is slow in each step: even a small bound
# lets a worker catch up after its slow step. The next cell tests this in long runs.

# %% always_or_now_and_then
chance = torch.Generator().manual_seed(seed)
now_and_then = (0.01 * torch.empty(8, 2_000).exponential_(1.0, generator=chance)).tolist()
always = [[0.01 * (5 if worker == 0 else 1)] * 2_000 for worker in range(8)]
rows = []
for name, step_s in (
    ("times exponential, mean 10 ms", now_and_then),
    ("one worker 50 ms, others 10 ms", always),
):
    row = {"gradients/s with a bound of": name}
    for bound in (0, 1, 4, 16):
        row[str(bound)] = 8 * 2_000 / max(times[-1] for times in finished_s(step_s, bound))
    rows.append(row | {"no bound": sum(len(one) / sum(one) for one in step_s)})
draw.table(rows, title="8 workers, 2,000 steps each, computed")

# %% [markdown]
# **A staleness bound evens out random delays. It does not help with a node that is always slow.**
# With random delays a bound of 4 doubles the throughput of synchronous steps, and comes to within
# 25% of the throughput without a bound. With one slow worker, every finite bound ends at that
# worker's pace.
#
# ### 4c. Large batches
#
# Synchronous training has the opposite problem: no gradient is stale, but N workers make a batch of
# N·B, and there are N times fewer steps in an epoch. The **linear scaling rule** says: when the
# batch grows k times, take k times the learning rate (Goyal et al. 2017, *Accurate, Large Minibatch
# SGD: Training ImageNet in 1 Hour*, section 2.1). To see why, compare k small steps with one large
# step:
#
# $$w_k = w_0 - \eta \sum_{j<k} g_j(w_j) \qquad
# \qquad w = w_0 - k \eta \cdot \frac{1}{k} \sum_{j<k} g_j(w_0)$$
#
# They agree as long as $g_j(w_j) \approx g_j(w_0)$, that is while k steps change the gradient
# little. This is least true at the start, so the rule comes with a **warm-up**, in which the
# learning rate grows to its full value step by step.


# %% large_batches
def trained(batch, rate, warmup_steps, trial, num_epochs=4):
    """The share of held-out digits that a small network has right after these epochs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(100 * seed + trial)
        first, second, last = (torch.nn.Linear(64, size) for size in (64, 64, 10))
        order = torch.randperm(len(labels))
        shuffles = [order[:1_536][torch.randperm(1_536)] for _ in range(num_epochs)]
    net = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), last)
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
rows = []
for batch, rate, warmup_steps in (
    (16, 0.01, 0),
    (256, 0.01, 0),
    (256, 0.16, 0),
    (256, 0.16, 6),
    (256, 0.64, 6),
):
    shares = [trained(batch, rate, warmup_steps, trial) for trial in range(4)]
    row = {"batch": batch, "rate": rate, "warm-up": warmup_steps, "steps": 4 * 1_536 // batch}
    row |= {"right_fraction": statistics.mean(shares), "worst trial_fraction": min(shares)}
    rows.append(row | {"best trial_fraction": max(shares)})
draw.table(rows, title="Held-out digits right after four epochs, measured here")

# %% [markdown]
# With the same rate the large batch takes too few steps to make progress; 16 times the rate for 16
# times the batch makes up for most of that. A run of 24 steps gains little from a warm-up; Goyal et
# al. warm up for five epochs of ninety. And there is a limit: beyond it the rate is too large for
# any step to be stable. On a quadratic that is $\eta \lambda < 2 (1 + m)$ with momentum *m*, and no
# warm-up changes it. A larger batch can replace steps only while gradient noise limits progress.
#
# ### Your turn: the learning rate at a step
#
# 5 minutes · easy
#
# Write the schedule of Goyal et al. (section 2.2). `base_rate` is the rate tuned for `base_batch`.
# For `batch` the full rate follows from the linear scaling rule. Step 0 uses `base_rate`; from
# there the rate grows by the same amount in every step and reaches the full rate at step
# `warmup_steps`, where it stays. `warmup_steps` may be 0.
#
# <details><summary>Hint</summary>
#
# First the full rate. Then the fraction of the warm-up that is done at this step, which is never
# more than 1. The rate lies at this fraction of the way from `base_rate` to the full rate.
# </details>


# %% rate_at tags=["turn"]
def rate_at(step, base_rate, base_batch, batch, warmup_steps):
    """The learning rate of this step, counted from 0."""
    ### BEGIN SOLUTION
    full_rate = base_rate * batch / base_batch
    if step >= warmup_steps:
        return full_rate
    return base_rate + (full_rate - base_rate) * step / warmup_steps
    ### END SOLUTION


# %% check_rate_at
with check.turn("rate_at"):
    of_paper = {"base_rate": 0.1, "base_batch": 256, "batch": 8192, "warmup_steps": 780}
    hint = "The full rate is 32 times 0.1. The way up begins at 0.1 and not at 0."
    for step, expected in ((780, 3.2), (50_000, 3.2), (0, 0.1), (390, 1.65)):
        rate = rate_at(step, **of_paper)
        check.expect_close(rate, expected, f"the rate of step {step}, 780 of warm-up", hint)
    rate = rate_at(0, **of_paper | {"warmup_steps": 0})
    check.expect_close(rate, 3.2, "the rate of step 0 without a warm-up", "It is the full rate.")
    print("Right. ImageNet in an hour: a batch of 8,192, a rate of 3.2, five epochs of warm-up.")

# %% [markdown]
# ### A learning rate for each layer
#
# Large rates fail for one more reason: layers differ. For each layer, compare the norm of its
# weights with that of its gradient. A rate of η moves a layer by the fraction
# $\eta \lVert g \rVert / \lVert w \rVert$ of its norm.

# %% layers_differ
net = models.vision_net(width=8, seed=seed)
cross_entropy(net(images[:256]), labels[:256]).backward()
rows = []
for name, weights in net.named_parameters():
    weights_norm, gradient_norm = weights.norm().item(), weights.grad.norm().item()
    row = {"layer": name, "weights": weights_norm, "gradient": gradient_norm}
    rows.append(row | {"a rate of 0.32 moves it by_fraction": 0.32 * gradient_norm / weights_norm})
draw.table(rows, title="Lengths of weights and gradients, measured here")

# %% [markdown]
# The same rate moves the last bias several times as far as the first, and with other seeds up to 19
# times. **LARS** (You, Gitman and Ginsburg 2017, *Large Batch Training of Convolutional Networks*)
# gives each layer a rate that makes this fraction the same for all layers. η is the trust
# coefficient, β the weight decay, γ the learning rate:
#
# $$\lambda = \eta \, \frac{\lVert w \rVert}{\lVert g \rVert + \beta \lVert w \rVert}
# \qquad v \leftarrow m \, v + \gamma \, \lambda \, (g + \beta w) \qquad w \leftarrow w - v$$
#
# **LAMB** (You et al. 2020, *Large Batch Optimization for Deep Learning: Training BERT in 76
# minutes*) does the same to Adam's direction $r = \hat m / (\sqrt{\hat v} + \epsilon)$:
#
# $$w \leftarrow w -
# \gamma \, \frac{\lVert w \rVert}{\lVert r + \lambda w \rVert} \, (r + \lambda w)$$
#
# Here is an example by hand, for $w = (3, 4)$ and $g = (0.6, 0.8)$, whose norms are 5 and 1:

# %% by_hand
print(f"LARS, coefficient 0.001, no decay: ratio 0.001 x 5 / 1 = {0.001 * 5 / 1}")
print(f"LARS, weight decay 0.2: ratio 0.001 x 5 / (1 + 0.2 x 5) = {0.001 * 5 / (1 + 0.2 * 5)}")
ratio = 5 / math.sqrt(2)
print(f"LAMB, step 1, no decay: r = g / |g| by element = (1, 1), ratio 5 / sqrt(2) = {ratio:.3f}")

# %% [markdown]
# At a rate of 0.01 LAMB moves this layer by $0.01 \cdot 3.536 \cdot \sqrt 2 = 0.05$, 1% of its
# norm: the fraction is γ itself, whatever the gradient. You will write both in the lab.
#
# ## 5. Compare with the production oracle
#
# For synchronous training, torch's DDP must give the weights of section 3, and so must a single
# process with batch N·B and `torch.optim.SGD`. (DDP averages, so its rate is N times ours.)


# %% by_ddp
def by_ddp(num_steps):
    """The weights after as many steps, by DistributedDataParallel and torch's SGD."""
    torch.set_num_threads(1)
    device = device_of_rank()
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
    weights = torch.zeros(64, 10, requires_grad=True)
    all_batches = [batches_of(worker) for worker in range(world_size)]
    optimizer = torch.optim.SGD([weights], lr=RATE * world_size)
    for _ in range(num_steps):
        chosen = torch.cat([next(batches) for batches in all_batches])
        optimizer.zero_grad()
        cross_entropy(pixels[chosen] @ weights, labels[chosen]).backward()
        optimizer.step()
    return weights.detach()


# %% against_the_oracle
ours = torch.tensor(sync_run.values[0][-1][2])
oracles = {
    "DDP": ws.run(by_ddp, NUM_STEPS, **on_ranks).values[0],
    f"one process, batch {world_size * BATCH}": in_one_process(NUM_STEPS),
}
for name, theirs in oracles.items():
    difference = (ours - theirs).abs().max().item()
    print(f"all-reduce by hand against {name}: largest difference {difference:.1e}")
    assert difference < 1e-5

# %% [markdown]
# The straggler changed the time, but not a single weight. For asynchronous training with one worker
# nothing is stale, so the server must match plain SGD. With several workers the order of pushes is
# random. So replay the server's record with torch's SGD: for each update, take that worker's next
# batch, and compute the gradient at the version of the weights that the worker had pulled.


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
for name, run in (("1 worker", single), (f"{world_size} workers", async_run.values[0])):
    pushed, (_, num_updates, last) = run["staleness"], run["history"][-1]
    difference = (torch.tensor(last) - replayed(pushed)).abs().max().item()
    print(f"server, {name}: {num_updates} updates, largest difference {difference:.1e}")
    assert difference < 1e-5
print("LARS and LAMB in torch.optim:", any(hasattr(torch.optim, name) for name in ("LARS", "LAMB")))

# %% [markdown]
# An asynchronous run can be repeated only from its record. Two runs differ, and a bug that shows in
# one may not show in the next. For LARS and LAMB torch has no reference implementation. The only
# reference is the formula, worked by hand.
#
# ## 6. Formula, measurement, emulation
#
# One more term is missing. The server has **one link**, and every push crosses it twice: S bytes of
# gradient in, S bytes of weights out. A server that handles one worker at a time needs
# $2(\alpha + S/\beta)$ for each, and no number of workers can exceed that rate:
#
# $$\text{gradients per second} \leq \frac{1}{2 (\alpha + S/\beta)}$$
#
# (A link carries both directions at once. A server that answers one worker while it receives from
# another can use that, and reaches twice as much: $1 / (\alpha + S/\beta)$.)
#
# On the emulated clusters there is no rpc, so the server is written with `send` and `recv`.
# `dist.recv` without a source takes whatever message comes first. The workers take different
# numbers of steps, so that all end at about the same time. The emulator's `SlowRank` makes one of
# them slow. A step takes 2 ms, and a gradient has 400 kB: 200,000 parameters in bfloat16.


# %% emulated_server
WORK_S, SIZE = 0.002, 400_000


def any_comes_first(gradient_bytes, shares):
    """One server, rank 0, without any bound; the other ranks do as many steps as `shares` says."""
    rank, tensor = dist.get_rank(), torch.zeros(gradient_bytes // 2, dtype=torch.bfloat16)
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
    tensor = torch.zeros(gradient_bytes // 2, dtype=torch.bfloat16)
    group = dist.new_group(range(1, dist.get_world_size()))
    for _ in range(num_steps if dist.get_rank() else 0):
        emulate.spend(WORK_S)
        dist.all_reduce(tensor, group=group)


# %% side_by_side
ethernet = replace(hardware.cluster("a100-10gbe"), name="8 x 10 Gb/s", gpus_per_node=1, num_nodes=8)
slow_seventh = {"faults": [SlowRank(7, factor=SLOW_FACTOR)], **emulated_8}
shares = [20] * 6 + [4]
runs = []
for where in (hardware.cluster("dgx-h100"), hardware.cluster("pcie-box"), ethernet):
    link = where.intra if where.num_nodes == 1 else where.inter
    message_s = link.latency_s + SIZE / link.bandwidth_bytes_per_s
    ring_s = 12 * (link.latency_s + SIZE / 7 / link.bandwidth_bytes_per_s)
    sync_s = ws.run(in_step, SIZE, 10, cluster=where, **slow_seventh).timeline.end_s / 10
    name = f"{where.name}, emulated"
    runs.append((name, 7, "all-reduce", 7 / (SLOW_FACTOR * WORK_S + ring_s), 7 / sync_s))
    run = ws.run(any_comes_first, SIZE, shares, cluster=where, **slow_seventh).timeline
    rate = 6 / (WORK_S + 2 * message_s) + 1 / (SLOW_FACTOR * WORK_S + 2 * message_s)
    rate = min(rate, 1 / (2 * message_s))
    runs.append((name, 7, "server", rate, sum(shares) / run.end_s))

# %% table
formula = world_size / (SLOW_FACTOR * STEP_S)
runs.append(("this machine, measured", world_size, "all-reduce", formula, sync_rate_here))
formula = (world_size - 1) / STEP_S + 1 / (SLOW_FACTOR * STEP_S)
runs.append(("this machine, measured", world_size, "server", formula, async_rate_here))
rows = [(*one, f"{one[-2] / one[-1] - 1:+.0%}") for one in runs]  # by formula over by run
columns = ("where", "workers", "by", "formula", "run", "error of the formula")
draw.table(rows, title="Gradients/s, one worker 5 times slower", columns=columns)

# %% [markdown]
# Three things to read off:
#
# - **All-reduce**: the slowest worker decides everywhere; even 10 Gb/s costs only a tenth of the
#   throughput.
# - **The server on NVLink and PCIe** reaches the sum of the rates, four times as much. On **10
#   Gb/s** the link is full, and most of the gain is gone. (Near saturation the formula, the smaller
#   of two limits, is too high, because workers already queue.)
# - **This machine**: the formula counts the sleep alone. Every step also takes time to wake up,
#   compute and call; the shorter the step, the larger that share.
#
# How many workers fill the server's link? As many as bring the sum of the rates up to the limit,
# $(t + 2(\alpha + S/\beta)) \,/\, 2(\alpha + S/\beta)$. The course's large transformer, Llama 3 8B,
# takes a step of 8,192 tokens on each H100 at an MFU of 40%; for ResNet-50, assume 0.2 s.

# %% saturation
large = models.shape("llama-3-8b")
large_s = large.flops(8192, 8192) / (0.40 * hardware.H100.peak_flops_per_s["bfloat16"])
resnet = 25_557_032  # parameters; torchvision's documentation
JOBS = {
    "Llama 3 8B in bfloat16": (2 * large.num_parameters, large_s),
    "ResNet-50 in float32": (4 * resnet, 0.2),
}
print(f"Llama 3 8B: {large_s:.2f} s a step, {8192 / large_s:,.0f} tokens/s on each GPU")
rows = []
for job, (gradient_bytes, step_s) in JOBS.items():
    for link in (hardware.IB_NDR, hardware.ETHERNET_100G, hardware.ETHERNET_10G):
        exchange_s = 2 * (link.latency_s + gradient_bytes / link.bandwidth_bytes_per_s)
        row = {"job": job, "server's link": link.name, "in and out_s": exchange_s}
        rows.append(row | {"workers": (step_s + exchange_s) / exchange_s})
draw.table(rows, title="Workers that fill one server's link, computed")

# %% [markdown]
# One server cannot feed even three GPUs that train an 8B model. That is why several parameter
# servers are used, each with a part of the weights (Li et al. 2014, *Scaling Distributed Machine
# Learning with the Parameter Server*).
#
# ### Your turn: how many servers
#
# 8 minutes · medium
#
# N workers take steps of `step_s` each, and no worker may wait. Each of n servers holds 1/n of the
# weights; its link carries 1/n of every gradient and of every copy of the weights, one message at a
# time. What is the smallest n at which no link is overloaded? (A link that is exactly full is not
# overloaded.)
#
# <details><summary>Hint</summary>
#
# The workers make N / `step_s` gradients per second. Each gradient occupies a server's link for
# $2(\alpha + S/(n\beta))$ seconds. In one second that must add up to at most one second.
# </details>


# %% servers_needed tags=["turn"]
def servers_needed(num_workers, step_s, gradient_bytes, link):
    """The least number of servers whose links carry what these workers send and receive."""
    ### BEGIN SOLUTION
    budget_s = step_s / (2 * num_workers) - link.latency_s  # for the bytes of one message
    return math.ceil(gradient_bytes / link.bandwidth_bytes_per_s / budget_s)
    ### END SOLUTION


# %% check_servers_needed
with check.turn("servers_needed"):
    wire = replace(hardware.IB_NDR, latency_s=0.0, bandwidth_bytes_per_s=1e9)
    hint = "8 gradients a second, each 0.1 s in and 0.1 s out: 1.6 s of carrying in every second."
    check.expect_close(servers_needed(8, 1.0, 1e8, wire), 2, "servers for 8 workers", hint)
    late = replace(wire, latency_s=0.025)
    hint = "The latency is paid in full on every server: 0.025 s, in and out, for 8 gradients."
    check.expect_close(servers_needed(8, 1.0, 1e8, late), 3, "servers, latency 25 ms", hint)
    for count in (8, 64, 512):
        needed = servers_needed(count, large_s, 2 * large.num_parameters, hardware.IB_NDR)
        print(f"{count:3} workers that train Llama 3 8B over NDR: {needed} servers")
    print("Right. The servers grow with the workers.")

# %% [markdown]
# That is more than one server for every two workers, each with a link of its own: half-way to a
# ring, where every rank uses its own link and no machine is needed only as a server.
#
# ## 7. When it breaks
#
# ### Google goes back to waiting
#
# In 2012 Google trained asynchronously, on tens of thousands of cores (Dean et al. 2012, section
# 4.1). There was little theory to say that this would converge, but it did. It took care: every
# parameter had a learning rate of its own (Adagrad), and a run began with a single replica, which
# the others joined later. Together, the authors write, these removed nearly all instability. This
# week's bound explains why the second measure helps: with a single replica τ = 0, just when the
# loss changes fastest.
#
# Four years later the same company compared both methods again. Chen et al. 2016 found that
# synchronous training with backup workers converged faster, and to better test accuracy, than
# asynchronous training. Abadi et al. 2016 (*TensorFlow*, OSDI, section 6.3) give the step times of
# Inception-v3 on 50 workers. Four backup workers gave the shortest median step, 1.93 s; a fifth
# made it slightly longer again, because even a gradient that is dropped crosses the network.
# Per worker paid for, three were best: 9.5% better than none.
#
# **How this week's tools find it**: a log of arrivals and `slowest_of` show what waiting costs
# before any GPU is bought, and the table of backup workers, with your times instead of the
# exponential ones, shows where to stop.
#
# ### Find the bug: four learning rates
#
# 8 minutes · medium
#
# Four synchronous workers average their gradients, so their weights should stay equal. A colleague
# adds a schedule: when the loss no longer falls, the learning rate is halved. Every run trains, but
# no two workers end with the same weights. Run the check, read what it found, and repair the
# function.
#
# <details><summary>Hint</summary>
#
# Whose loss does the scheduler see? All workers must base their decision on the same number.
# </details>


# %% train_on_plateaus
def train_on_plateaus():
    """This worker's learning rates, and its weights at the end."""
    weights = torch.zeros(8, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.2)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    generator, rates = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(24):
        rows = torch.randn(8, 8, generator=generator)
        targets = rows.sum(1) + torch.randn(8, generator=generator)
        loss = (rows @ weights - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(weights.grad)
        weights.grad /= dist.get_world_size()
        optimizer.step()
        lower_when_stuck(scheduler, loss)
        rates.append(scheduler.get_last_lr()[0])
    return rates, weights.detach()


# %% lower_when_stuck tags=["turn"]
def lower_when_stuck(scheduler, loss):
    """Show the scheduler the loss of this step, so that all workers keep one learning rate."""
    ### BEGIN SOLUTION
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    scheduler.step(mean)
    ### INSTEAD
    # scheduler.step(loss.detach())
    ### END SOLUTION


# %% check_lower_when_stuck
with check.turn("lower_when_stuck"):
    run = ws.run(train_on_plateaus, world_size=4, cluster=cluster, echo=False, audit=True)
    of_workers = [torch.tensor(rates) for rates, _ in run.values]
    hint = "; ".join(f"audit: {finding.what}, {finding.evidence}" for finding in run.audit.findings)
    for worker, rates in enumerate(of_workers):
        what = f"the learning rates of worker {worker}, as those of worker 0"
        check.expect_close(rates, of_workers[0], what, hint)
    if of_workers[0][-1] == of_workers[0][0]:
        raise check.CheckFailed("a lower rate at the end", "the first rate in all 24 steps")
    print(f"Right. All four go from {of_workers[0][0]:g} to {of_workers[0][-1]:g} together.")

# %% [markdown]
# ### Find the bug: the backup worker that came late
#
# 10 minutes · medium
#
# Of four workers one is a backup: each step takes the first three gradients. An inbox holds what
# has arrived, as (step, worker, gradient) in the order of arrival. The throughput is as computed
# and nothing hangs, but the weights are not those of three workers. Run the check, read what it
# found, and repair the function.
#
# <details><summary>Hint</summary>
#
# What happens to the fourth gradient if it arrives after its step is over? Print the steps and the
# workers in `inbox`.
# </details>


# %% mean_of_the_first tags=["turn"]
def mean_of_the_first(inbox, step, num_needed):
    """The mean of the first gradients that arrived for this step; later ones are dropped."""
    ### BEGIN SOLUTION
    gradients = [gradient for made_in, worker, gradient in inbox if made_in == step]
    ### INSTEAD
    # gradients = [gradient for made_in, worker, gradient in inbox]
    ### END SOLUTION
    return sum(gradients[:num_needed]) / num_needed


# %% check_mean_of_the_first
with check.turn("mean_of_the_first"):
    weights, late = torch.zeros(64, 10), []
    batches = [batches_of(worker) for worker in range(4)]
    for step in range(1, 6):
        made = [(step, worker, gradient_at(weights, next(batches[worker]))) for worker in range(4)]
        inbox, late = late + made, made[3:]  # worker 3's gradient is dropped, and still arrives
        mean = mean_of_the_first(inbox[:-1], step, 3)
        fresh = sum(gradient for _, _, gradient in made[:3]) / 3
        hint = f"The inbox begins with step {inbox[0][0]} of worker {inbox[0][1]}: it is stale."
        what = f"the mean gradient of step {step}"
        check.expect_close(mean, fresh, what, hint, atol=1e-6)
        weights = weights - 3 * RATE * mean
    print("Right. A dropped gradient stays dropped, and every step is that of three workers.")

# %% [markdown]
# The first step was right, so a test of one step passes. For this reason TensorFlow's
# `SyncReplicasOptimizer` sends a step's number along with each gradient, and drops stale ones (its
# documentation).
#
# ### The loss explodes, and only with many workers
#
# The learning rates are well within the bound for fresh gradients, on the quadratic
# $\frac{1}{2} x^2$. Seven equally fast workers on the emulated cluster use a server without a
# bound: each gradient is 6 updates late.


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
    run = ws.run(quadratic, rate, 12, cluster=cluster, **emulated_8)
    swings[f"server, rate {rate}"] = run.values[0]
    late, fresh = run.values[0][-1], (1 - rate) ** 84
    print(f"rate {rate}: x ends at {late:8.2g}, with fresh gradients at {fresh:.1g}")
title = "Seven workers, gradients 6 updates late, emulated"
draw.curves(swings, y_label="x", x_label="update", title=title)

# %% [markdown]
# **Symptom**: training is fine on one or two workers; with more the loss oscillates, then diverges,
# although the model has not changed. **Cause**: staleness grows with the workers, N − 1 on average,
# and the bound on the learning rate falls with it. **Fix**: a smaller rate, less momentum, fewer
# workers for each server, a staleness bound, or synchronous training with backup workers against
# stragglers.
#
# ### The server that is asynchronous in name only
#
# This one waits for worker 1, then for worker 2, and so on. It looks natural, and its sums are
# right, but it is as slow as all-reduce.


# %% in_turn
def one_after_the_other(gradient_bytes, num_steps):
    """A server that takes the workers in a fixed order."""
    rank, tensor = dist.get_rank(), torch.zeros(gradient_bytes // 2, dtype=torch.bfloat16)
    for _ in range(num_steps):
        if rank:
            emulate.spend(WORK_S)
            dist.send(tensor, 0)
            dist.recv(tensor, 0)
        for worker in range(1, dist.get_world_size()) if rank == 0 else ():
            dist.recv(tensor, worker)
            dist.send(tensor, worker)


in_turn = ws.run(one_after_the_other, SIZE, 6, cluster=cluster, **slow_seventh).timeline
as_they_come = ws.run(any_comes_first, SIZE, shares, cluster=cluster, **slow_seventh).timeline
for name, run, count in (("in turn", in_turn, 7 * 6), ("as they come", as_they_come, sum(shares))):
    print(f"{name}: {count / run.end_s:.0f} gradients/s, emulated on {cluster}")
draw.timelines(
    {"in turn": in_turn, "as they come": as_they_come},
    title="One slow worker, emulated",
    streams=["compute"],
)

# %% [markdown]
# **Symptom**: the throughput of an asynchronous job is N times that of its slowest worker.
# **Cause**: a receive that names its source, in a loop over workers; or a lock that a worker holds
# while it computes. **Fix**: take whatever comes first, with a receive from any source or with one
# thread for each caller, as rpc does.

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | ln N + 0.58 | the slowest of N random steps, in mean steps: 4.7 for 64 | section 3 |
# | 8 backups for 60 | best where a step has a minimum time: 1.63 instead of 2.40 | section 3 |
# | N − 1 | updates by which gradients of N workers are late, whatever the speeds | section 4 |
# | N times | less learning rate for N workers that do not wait; more with momentum | section 4 |
# | k times the batch | k times the rate, after a warm-up, while the gradient is noisy | section 4 |
# | 2 S/β each | one server over NDR feeds fewer than three GPUs of an 8B model | section 6 |

# %% [markdown]
# ## 8. Problems
#
# **1.** Of 16 workers 15 take 100 ms for a step and one takes 150 ms. What share of the full
# throughput do synchronous steps keep, what share does a server without a bound keep, and what
# share do you keep if you remove the slow worker?
#
# <details><summary>Answer</summary>
#
# Synchronous: 100/150 = 67%. Server: (15 + 100/150)/16 = 98%. Without it: 15/16 = 94%, with
# synchronous steps and no stale gradient.
# </details>
#
# **2.** Step times are exponential with a mean of 100 ms. By how much does a synchronous step grow
# when 32 workers become 256?
#
# <details><summary>Answer</summary>
#
# $H_{32} = 4.06$ and $H_{256} = 6.12$: from 406 ms to 612 ms, 51% longer. The approximation gives
# ln 256 − ln 32 = ln 8 = 2.08 mean steps, 208 ms. Eight times the workers bring 8/1.51 = 5.3 times
# the gradients.
# </details>
#
# **3.** Abadi et al. find that 3 backups for 50 workers are 9.5% better than none, per worker paid
# for. How much shorter is the step?
#
# <details><summary>Answer</summary>
#
# The speed-up per worker paid for is $t_0 / t_3 \cdot 50/53 = 1.095$, so
# $t_0 / t_3 = 1.16$. The step is 14% shorter, for 6% more workers.
# </details>
#
# **4.** On a quadratic with curvature λ = 50, eleven workers push to a server without a staleness
# bound. Which learning rates are stable? Which are stable for one worker?
#
# <details><summary>Answer</summary>
#
# τ = 10 on average. $2 \sin(\pi / 42) = 0.149$, so η < 0.149/50 = 0.0030. One worker: η < 2/50 =
# 0.04, 13 times as much.
# </details>
#
# **5.** A run with batch 512 and a rate of 0.2 moves to 16 times as many GPUs, with the same batch
# on each. What are the new batch and rate, and how many steps does a warm-up of five epochs take,
# with 1,281,167 images?
#
# <details><summary>Answer</summary>
#
# Batch 8,192, rate 3.2. An epoch has 1,281,167/8,192 = 156.4 steps, so 782 steps.
# </details>
#
# **6.** *Design.* 256 GPUs train an 8B model for a month. Step times vary by a few percent; once a
# day a node is throttled to half its speed until an operator notices. One colleague proposes a
# parameter server, another a staleness bound of 4, a third backup workers. What do you do?
#
# <details><summary>Answer</summary>
#
# A server is ruled out: 256 workers need about 145 servers over NDR (section 6), and gradients are
# 255 updates late. A bound evens out the few percent, but gradients are stale again, and the
# throttled node sets the pace after four steps. Backup workers cover random delays and the
# throttled node alike, but with 8 GPUs a node its gradients all come late: one backup *node* of 32
# costs 3% of the GPUs. Cheaper still: measure every node's step time, and replace a node that is
# slow for a few minutes. Until then it costs half of the throughput. If that is an hour a day, the
# loss is 2%, less than the backup node. So: all-reduce, and an alarm.
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
quiz.ask("week04", seed=seed)

# %% [markdown]
# ## To take with you
#
# - Synchronous SGD with N workers is SGD with batch N·B. Its step takes the largest of N times; a
#   server's throughput is the sum of N rates, until its link is full.
# - Without a bound, gradients are N − 1 updates late on average, whatever the speeds.
# - On a quadratic the stable rate falls from 2 to 2 sin(π / (2(2τ + 1))): about N times less for N
#   workers, and far less with momentum.
# - A staleness bound evens out random delays. It does not help against a worker that is always
#   slow; dropping that worker does.
# - Backup workers keep gradients fresh and drop the slowest few, which cost the most time.
# - Large batches: scale the rate with the batch, warm up, and give each layer its own rate (LARS,
#   LAMB). All of this stops helping once the gradient has no noise left.
#
# **Now the lab**: [lab 4, parameter server](../labs/lab04/lab04.ipynb). Your server enforces a
# staleness bound, and a worker notices it only because it has to wait. Then **week 5**, [*Say
# less*](week05_say_less.ipynb): when the link is full, send fewer bytes.
