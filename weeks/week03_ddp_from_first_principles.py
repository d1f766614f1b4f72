# %% [markdown]
# # Week 3. DDP from first principles
#
# | | |
# |---|---|
# | Reading | about 70 minutes |
# | Running | about a minute on two CPU cores; GPUs are used if there are enough |
# | You need | [week 2](week02_all_reduce_from_scratch.ipynb): the bytes and time of an all-reduce |
# | You do not need | torch's `DistributedDataParallel`, or how autograd works inside |
# | Afterwards | lab 3, *write DDP* |
#
# Last week you took the all-reduce apart. Now it is a part: a call that takes so long for so many
# bytes. This week is about **when** to make that call. Torch's answer is `DistributedDataParallel`,
# **DDP** for short: one line round a model. By the end you know what that line does, and when it
# cannot help.

# %% [markdown]
# ## 1. The question
#
# > A gradient has to travel before it can be used. How much of that time can a training step hide?

# %% parameters tags=["parameters"]
world_size = 2  # ranks in the experiments on this machine: 2 or 4
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
cluster = "pcie-box"  # the emulated cluster of the pictures; the tables name their own
seed = 0
# 10 ms of compute, then 8 ms of communication: the share of compute
predicted_efficiency_percent = None
# the same 10 ms and 8 ms, cut into 8 layers and overlapped as well as can be
predicted_overlapped_percent = None
# what a second GPU adds to the step over PCIe 4: 2,048 rows, a model of 1M weights
predicted_pcie_percent = None
# rows a step below which two GPUs over PCIe lose to one, however large the model
predicted_rows = None

# %% setup
import math
import os
import statistics
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import worldsize as ws
from worldsize import draw, emulate, hardware, ledger, operators, pricing, quiz, units
from worldsize.explore import explore

Path("build/week03").mkdir(parents=True, exist_ok=True)
DDP = nn.parallel.DistributedDataParallel
predictions = ledger.Predictions("week03")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers, and waits. A *row* is one sample of a linear layer's input:
# an image, or one token of a text. A step of B rows is one forward and one backward pass over them.

# %% predict
predictions.ask("efficiency, 10 ms and then 8 ms", predicted_efficiency_percent, "%", section=3)
predictions.ask(
    "efficiency, the same in 8 layers, overlapped", predicted_overlapped_percent, "%", section=4
)
predictions.ask("PCIe adds to a step of 2,048 rows", predicted_pcie_percent, "%", section=6)
predictions.ask("rows below which two GPUs always lose", predicted_rows, "rows", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### One call for each parameter
#
# The loop of week 1: run backward, then all-reduce the gradients one after the other. The model is
# a small one, four linear layers, so it has eight parameters: four weights and four biases.


# %% one_call_each
def mlp(width=512, num_layers=4):
    """A model of linear layers with the same weights on every rank."""
    torch.manual_seed(seed)
    layers = [layer for _ in range(num_layers) for layer in (nn.Linear(width, width), nn.Tanh())]
    on_gpus = dist.is_initialized() and dist.get_backend() == "nccl"
    return nn.Sequential(*layers).to(
        torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else "cpu"
    )


def rows_of(model, num_rows):
    """Input for a model that requires a gradient, like that of a layer inside a larger network."""
    weight = next(model.parameters())
    rows = torch.randn(
        num_rows, weight.shape[1], generator=torch.Generator().manual_seed(seed + dist.get_rank())
    )
    return rows.to(weight.device).requires_grad_()


def one_call_each(model):
    """Average every gradient over all ranks, in place, one by one."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


# %% [markdown]
# A harness: one training step, with forward, backward and what comes after it marked, in a loop
# whose first step does not count. `emulate.elapsed()` is the rank's own clock: virtual time on an
# emulated cluster, otherwise the machine's.


# %% harness
def timed_steps(synchronise, width, num_rows, repeats, num_skipped=1):
    """Seconds of each step on this rank, without the first ones, which open connections."""
    torch.set_num_threads(1)
    model, times_s = mlp(width), []
    rows = rows_of(model, num_rows)
    for _ in range(num_skipped + repeats):
        model.zero_grad()
        start_s = emulate.elapsed()
        with ws.span("forward", kind="forward"):
            loss = model(rows).square().mean()
        with ws.span("backward", kind="backward"):
            loss.backward()
        synchronise(model)
        next(model.parameters()).grad[0, 0].item()  # reading it waits for a GPU
        times_s.append(emulate.elapsed() - start_s)
    return times_s[num_skipped:]


def one_call(model):
    """Send all gradients in one tensor; to time a step, the copy back is not needed."""
    dist.all_reduce(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))


def no_call(model):
    """Send nothing: one GPU alone."""


# %% naive_emulated
runs = {
    name: ws.run(timed_steps, function, 512, 256, 1, world_size=2, cluster=cluster, echo=False)
    for name, function in (
        ("a call each", one_call_each),
        ("one call", one_call),
        ("no call", no_call),
    )
}
for name, run in runs.items():
    num_calls = sum(
        event.name == "all_reduce" and event.kind == "communication" for event in run.timeline.of(0)
    )
    print(
        f"{name:<12} {units.format_time_s(run.values[0][0]):>8} a step, {num_calls // 2}"
        " all-reduces in it"
    )
draw.timelines(
    {name: run.timeline for name, run in runs.items()}, title=f"Two steps, emulated on {cluster}"
)

# %% [markdown]
# Same bytes, and eight latencies instead of one. In both, the link does nothing while the GPU
# works, and the GPU does nothing while the link works. Copying everything into one **flat** tensor
# saves latencies, and cannot begin before the last gradient is there.
#
# The same on real ranks of this machine. All of them share its cores and its memory:

# %% naive_measured
measured_s = {}
for name, function in (
    ("a call each", one_call_each),
    ("one call", one_call),
    ("no call", no_call),
):
    values = ws.run(
        timed_steps, function, 512, 256, 7, world_size=world_size, backend=backend, echo=False
    ).values
    measured_s[name] = statistics.median(max(of_ranks) for of_ranks in zip(*values, strict=True))
    print(
        f"{name:<12} {units.format_time_s(measured_s[name]):>8} a step, measured on {world_size}"
        " ranks here"
    )

# %% [markdown]
# ### Communication efficiency
#
# The share of a step in which the GPU computes is its **communication efficiency**:
#
# $$\text{efficiency} = \frac{\text{compute}}{\text{compute} + \text{communication}}$$
#
# A step of 10 ms of compute, and then 8 ms of communication which nothing hides: $10 / 18$. Emulate
# exactly that. The link is made by hand for it, 1 GB/s with no latency, so that 8 MB between two
# ranks take 8 ms; and instead of a model, `emulate.spend` lets each rank work for a given time.

# %% by_hand
LINK = hardware.Link("by hand, 1 GB/s", 0.0, 1e9, "made for this lesson, 2026", kind="pcie")
BY_HAND = hardware.Cluster(
    name="by hand", gpu=hardware.A100, gpus_per_node=2, intra=LINK, library="gloo"
)
FORWARD_S, BACKWARD_S, GRADIENT_BYTES = 0.010 / 3, 0.020 / 3, 8_000_000


def step_in_outline(num_parts, is_overlapped):
    """A step without a model: gradients travel during the next part's backward or at the end."""
    with ws.span("forward", kind="forward"):
        emulate.spend(FORWARD_S)
    gradients, under_way = torch.ones(num_parts, GRADIENT_BYTES // 4 // num_parts), []
    for part in gradients:
        with ws.span("backward", kind="backward"):
            emulate.spend(BACKWARD_S / num_parts)
        if is_overlapped:
            under_way.append(dist.all_reduce(part, async_op=True))
    if not is_overlapped:
        under_way = [dist.all_reduce(gradients, async_op=True)]
    for work in under_way:
        work.wait()


# %% ten_over_eighteen
def outline(num_parts, is_overlapped, where=BY_HAND):
    """The timeline of such a step."""
    options = {"world_size": 2, "cluster": where, "compute": "none", "echo": False}
    return ws.run(step_in_outline, num_parts, is_overlapped, **options).timeline


apart = outline(1, is_overlapped=False)
compute_s = FORWARD_S + BACKWARD_S
print(f"formula:  10 / (10 + 8) = {10 / 18:.1%}")
print(f"emulated: {apart.end_s * 1e3:.2f} ms a step, {compute_s / apart.end_s:.1%} of it compute")
assert abs(compute_s / apart.end_s - 10 / 18) < 1e-9
predictions.reveal("efficiency, 10 ms and then 8 ms", 100 * compute_s / apart.end_s)

# %% [markdown]
# ## 4. Build it well
#
# ### When is a gradient ready?
#
# Not at the end of backward. Backward goes through the layers from the last to the first, and the
# gradient of the last layer is complete when the others have hardly begun. Torch can call you then:
# a **hook** on a parameter runs right after its gradient has been added to `grad`. One process is
# enough to watch.
#
# The model has a difficult passenger of each kind: a layer whose weight is **tied** to the first
# one's, a **frozen** one, and a branch that this step does not use.


# %% hooks
class Passengers(nn.Module):
    """A model with a tied, a frozen and an unused layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.unused = nn.Linear(4, 4, bias=False)

    def forward(self, rows):
        return self.frozen(self.tied(torch.tanh(self.second(self.first(rows)))))


passengers, arrived = Passengers(), []
for name, parameter in passengers.named_parameters():
    if parameter.requires_grad:
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: arrived.append(name))
passengers(torch.ones(2, 4)).sum().backward()
print("parameters:    ", ", ".join(name for name, _ in passengers.named_parameters()))
print("gradients came:", ", ".join(arrived))

# %% [markdown]
# Read the two lists against each other:
#
# - They come in **reverse order**: `second` before `first`.
# - The **tied** weight is one parameter under two names, and listed once. Its hook runs once, when
#   both uses have been added; so it comes last, although the tied layer's backward is the first of
#   all.
# - The **frozen** weight has no gradient, and takes no hook (torch refuses one).
# - The hook of the **unused** one never runs. Code that waits for it waits for ever. Section 7
#   comes back to this.
#
# ### Overlap
#
# So begin to send while backward still works. Take the step by hand, 10 ms and 8 ms, in eight
# layers. When a layer's gradients are ready, an all-reduce starts with `async_op=True`: the call
# comes back at once, with a handle to wait for at the end.

# %% overlapped
hidden = outline(8, is_overlapped=True)
print(
    f"one call at the end: {apart.end_s * 1e3:.2f} ms, {compute_s / apart.end_s:.1%} of it compute"
)
print(
    f"eight, overlapped:   {hidden.end_s * 1e3:.2f} ms, {compute_s / hidden.end_s:.1%} of it"
    " compute"
)
predictions.reveal("efficiency, the same in 8 layers, overlapped", 100 * compute_s / hidden.end_s)
both = {"one call at the end": apart, "eight calls, overlapped": hidden}
draw.timelines(both, title="10 ms of compute, 8 ms of communication, emulated")

# %% [markdown]
# What decides now? The first gradients are ready after forward and an eighth of backward. From then
# on the link has work without a break, 8 ms of it. Call the compute of the forward $F$, of the
# backward $W$, and let $n$ equal parts take $c$ seconds each on the link. The link can do part $k$
# when it is ready, and when part $k - 1$ is through:
#
# $$e_k = \max\!\left(F + \tfrac{k}{n} W,\; e_{k-1}\right) + c,
# \qquad \text{step} = \max(F + W,\; e_n)$$
#
# If a part takes longer to send than to compute, the link is never idle again, and the step is
# $F + W/n + n c$. If it takes less, the link waits for each part, and only the last one is exposed:
# $F + W + c$. So
#
# - **overlap hides at most the backward pass**, less its first part;
# - with more parts, less stays exposed, but each part costs a latency.


# %% formula
def overlapped_s(forward_s, backward_s, num_parts, part_s):
    """Seconds of a step whose gradients leave in equal parts, each as soon as it is ready."""
    through_s = 0.0
    for part in range(1, num_parts + 1):
        through_s = max(forward_s + part / num_parts * backward_s, through_s) + part_s
    return max(forward_s + backward_s, through_s)


print("parts    formula   emulated   error   compute")
for num_parts in (1, 2, 4, 8, 16):
    wanted_s = overlapped_s(FORWARD_S, BACKWARD_S, num_parts, 0.008 / num_parts)
    got_s = outline(num_parts, is_overlapped=True).end_s
    print(
        f"{num_parts:5} {wanted_s * 1e3:7.2f} ms {got_s * 1e3:7.2f} ms {wanted_s / got_s - 1:+7.1%}"
        f" {0.01 / got_s:8.1%}"
    )

# %% [markdown]
# With ever smaller parts the step comes near to $F + 8$ ms, 11.3 ms, and no nearer: 8 ms do not fit
# behind 6.7 ms of backward. And these links have no latency. Real ones do, so a part should be many
# layers, or many small parameters. A **bucket** is such a part: as many gradients as fit into a
# given number of bytes.
#
# ### How large should a bucket be?
#
# Too small, and each pays its latency; too large, and the first one is full late. Here is a model
# with 24 layers of 16 MB, whose backward takes 0.6 ms a layer, on a ring of your choice. Everything
# in it is computed from the formulas of last week and of this one; nothing runs.


# %% buckets
def step_with_buckets(
    bucket_bytes=25_000_000, num_ranks=8, bandwidth_bytes_per_s=25e9, latency_s=20e-6
):
    """The computed timeline of a step, and its exposed communication."""
    events = [ws.Event(0, "compute", "forward", "forward", 0.0, 24 * 0.3e-3)]
    now_s, link_free_s, waiting_bytes = events[0].end_s, 0.0, 0
    for layer in reversed(range(24)):
        events.append(ws.Event(0, "compute", "backward", f"layer {layer}", now_s, now_s + 0.6e-3))
        now_s, waiting_bytes = now_s + 0.6e-3, waiting_bytes + 16_000_000
        if waiting_bytes >= bucket_bytes or layer == 0:
            start_s = max(now_s, link_free_s)
            bytes_s = 2 * (num_ranks - 1) / num_ranks * waiting_bytes / bandwidth_bytes_per_s
            link_free_s = start_s + 2 * (num_ranks - 1) * latency_s + bytes_s
            kind = "communication"
            events.append(ws.Event(0, kind, kind, "bucket", start_s, link_free_s))
            waiting_bytes = 0
    step = ws.Timeline.of_events(events)
    times = {"step_s": step.end_s, "exposed_s": step.exposed_communication_s()}
    return step, {**times, "compute_fraction": now_s / step.end_s}


# %% buckets_explored
explore(
    step_with_buckets,
    bucket_bytes=(1_000_000, 400_000_000, "x1.3"),
    num_ranks=(2, 1024, "x2"),
    bandwidth_bytes_per_s=(1e9, 400e9, "x1.3"),
    latency_s=(1e-6, 1e-3, "x2"),
)

# %% [markdown]
# Move one slider at a time. With which bandwidth does the size of a bucket hardly matter? How many
# ranks make small buckets expensive, and why? The best sizes for three fabrics, by the same
# formula:

# %% best_bucket
sizes_bytes = [16_000_000 * layers for layers in (1, 2, 3, 4, 6, 8, 12, 24)]
for name, ring in {
    "8 ranks, 400 GB/s, 3 µs": (8, 400e9, 3e-6),
    "8 ranks, 25 GB/s, 20 µs": (8, 25e9, 20e-6),
    "64 ranks, 25 GB/s, 20 µs": (64, 25e9, 20e-6),
}.items():
    steps_s = {size: step_with_buckets(size, *ring)[0].end_s for size in sizes_bytes}
    best = min(steps_s, key=steps_s.get)
    best_s, smallest_s, one_s = (
        units.format_time_s(steps_s[size]) for size in (best, sizes_bytes[0], sizes_bytes[-1])
    )
    print(
        f"{name:<25} best {units.format_bytes(best):>7}: {best_s}; smallest {smallest_s}, one"
        f" bucket {one_s}"
    )

# %% [markdown]
# This lesson does not build the buckets: which gradients go together, who sends them and when, what
# happens to the ones that never come. That is lab 3.
#
# ## 5. Compare with the production oracle
#
# ### The same gradients
#
# `DDP(model)` does all of it. First: does it give what the plain loop gives? Real ranks, real
# sockets.


# %% same_gradients
def against_ddp():
    """The largest difference of gradients between DDP and the plain loop, over two steps."""
    ours, theirs = mlp(64), DDP(mlp(64))
    rows, worst = rows_of(ours, 32), 0.0
    for _ in range(2):
        ours.zero_grad()
        theirs.zero_grad()
        ours(rows).square().mean().backward()
        one_call_each(ours)
        theirs(rows).square().mean().backward()
        pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
        worst = max(worst, *((a.grad - b.grad).abs().max().item() for a, b in pairs))
    return worst


difference = max(ws.run(against_ddp, world_size=world_size, backend=backend, echo=False).values)
print(f"largest difference of a gradient from DDP's: {difference:.1e}")
assert difference < 1e-6

# %% [markdown]
# ### What DDP says on the wire
#
# Unmodified DDP runs on the emulated cluster too, where every operation is noted. Three steps, with
# buckets of 1 MiB for our 4.2 MB of gradients:


# %% ddp_on_the_wire
def ddp_steps(num_steps, num_rows, **options):
    """Seconds of each step with torch's DDP on this rank, and where its buckets were cut."""
    torch.set_num_threads(1)
    parallel = DDP(mlp(), bucket_cap_mb=1, **options)
    rows, times_s = rows_of(parallel.module, num_rows), []
    for _ in range(num_steps):
        parallel.zero_grad()
        start_s = emulate.elapsed()
        with ws.span("forward", kind="forward"):
            loss = parallel(rows).square().mean()
        with ws.span("backward", kind="backward"):
            loss.backward()
        next(parallel.parameters()).grad[0, 0].item()  # reading it waits for a GPU
        times_s.append(emulate.elapsed() - start_s)
    return times_s


def calls_of(run):
    """Name and bytes of rank 0's collectives, in order."""
    return [(one.name, one.size_bytes) for one in run.timeline.of(0) if one.kind == "communication"]


ddp = ws.run(ddp_steps, 3, 1024, world_size=2, cluster=cluster, echo=False)
for name, size_bytes in calls_of(ddp):
    print(f"{name:<11} {size_bytes:>9,} B")

# %% [markdown]
# Read it from the top:
#
# - An **all-gather** and a **broadcast** of a few bytes: do all ranks have parameters of the same
#   shapes?
# - A **broadcast** of all parameters: everybody starts from rank 0's weights.
# - The first step: **one all-reduce of everything**. By default DDP does not cut yet. It notes in
#   which order gradients become ready, and rank 0 hands that order out: two small broadcasts.
# - From the second step on: **buckets**, in the order noted. A layer has 1,050,624 bytes, its
#   weight alone 1 MiB. Torch closes a bucket when it has *reached* the cap, so here a bucket may be
#   larger than the cap. (Lab 3 has the other rule: never above, unless a single parameter is.)
#
# In bytes, the last two steps send the same as the first. In time:

# %% ddp_overlaps
first_s, _, third_s = ddp.values[0]
print(f"step 1, one bucket:     {units.format_time_s(first_s)}")
print(f"step 3, in buckets:     {units.format_time_s(third_s)}")
print(f"overlap over the whole run: {ddp.timeline.overlap_fraction(0):.0%} of the communication")
draw.timeline(ddp.timeline, title=f"torch's DDP, emulated on {cluster}")

# %% [markdown]
# ### Other options of DDP
#
# | Option | what it changes |
# |---|---|
# | `with ddp.no_sync():` | forward **and** backward inside send nothing, and gradients add up |
# | `find_unused_parameters=True` | looks for unused parameters after each forward |
# | `static_graph=True` | promises that every step uses the same parameters in the same order |
# | `broadcast_buffers=True` (default) | gives all ranks rank 0's buffers before each forward |
# | `gradient_as_bucket_view=True` | gradients live in the buckets: one copy less |
#
# Count what four of them send. The model now has a `BatchNorm`, so it has buffers.


# %% options_on_the_wire
def two_steps(is_silent, options):
    """Take two steps with DDP, the first of them inside `no_sync` if `is_silent`."""
    torch.manual_seed(seed)
    parallel = DDP(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)), **options)
    rows = torch.randn(4, 8)
    with parallel.no_sync() if is_silent else nullcontext():
        parallel(rows).square().mean().backward()
    parallel(rows).square().mean().backward()


for name, is_silent, options in (
    ("default", False, {}),
    ("first step in no_sync", True, {}),
    ("find_unused_parameters", False, {"find_unused_parameters": True}),
    ("static_graph", False, {"static_graph": True}),
    ("broadcast_buffers=False", False, {"broadcast_buffers": False}),
):
    run = ws.run(
        two_steps, is_silent, options, world_size=2, cluster=cluster, compute="none", echo=False
    )
    calls = calls_of(run)
    sizes = [size_bytes for call, size_bytes in calls if call == "all_reduce"]
    num_broadcasts = sum(call == "broadcast" for call, _ in calls)
    print(f"{name:<24} all-reduces of {sizes!s:<22} bytes, {num_broadcasts:2} broadcasts")

# %% [markdown]
# The model has 160 numbers in its parameters, 640 bytes. `no_sync` leaves out one all-reduce.
# `find_unused_parameters` adds a small one to each step, one int32 for each of the six parameters:
# which of them did anybody use? (It also walks through the graph after each forward, which the wire
# does not show.) `static_graph` asks that once, in the first step. And without `broadcast_buffers`
# some broadcasts are gone: those of the running mean and variance before each forward.
#
# ## 6. Formula, measurement, emulation
#
# ### What a second GPU adds
#
# Give each of two GPUs a batch of B rows: **weak scaling**, each does what one did before. A linear
# layer with P weights takes 2 P flops for each row forward and 4 P backward (one product for the
# gradient of its input, one for that of its weights). Its gradient has 4 P bytes in float32, and
# between two ranks an all-reduce sends S bytes each way. With R flops a second that the GPU really
# reaches, a link of β bytes a second, and L seconds that even an empty all-reduce takes, nothing
# overlapped:
#
# $$\frac{\text{communication}}{\text{compute}} = \frac{L + 4P/\beta}{6 P B / R}
# = \underbrace{\frac{L R}{6 P B}}_{\text{latency}} +
# \underbrace{\frac{2}{3B} \cdot \frac{R}{\beta}}_{\text{bytes}}$$
#
# Look at the second term. **P has gone.** A larger model has more gradients and more flops in the
# same proportion. What counts is $2/(3B)$, the bytes of gradient for each flop, and $R/\beta$, the
# flops that the GPU does while the link moves a byte.
#
# A rule of thumb says: a second GPU over PCIe adds 20 to 40% to the step of a small model, over
# NVLink 5 to 10%. When does that hold? Emulate it: 2,048 rows, float32, and R as it was measured on
# large products (`worldsize.operators`). Small ones do not fill the GPU: on an A100 each takes
# 10 µs besides, on an H100 5. The table's formula adds that to the compute, for the twelve products
# of our four layers.


# %% machine
class Machine(NamedTuple):
    """In the formulas' terms: R, the latency of an all-reduce, beta, a product's start."""

    flops_per_s: float
    latency_s: float
    bytes_per_s: float
    start_s: float = 0.0


def described(where):
    """The machine of a described cluster: what its GPU reaches, and a priced all-reduce."""
    link = where.intra if where.num_nodes == 1 else where.inter
    latency_s = pricing.price("all_reduce", 4, range(2), where).time_s
    rate = operators.flops_per_s("matmul", "float32", where.gpu)
    start_s = operators.time_s(operators.Operator("matmul", "float32", 0, 0), where.gpu)
    return Machine(rate, latency_s, link.bandwidth_bytes_per_s, start_s)


# %% added
def layers_s(num_weights, num_rows, machine):
    """Seconds of forward and backward through four layers: three products in each."""
    return 3 * 4 * machine.start_s + 6 * num_weights * num_rows / machine.flops_per_s


def added_fraction(num_weights, num_rows, machine):
    """The time that a second GPU adds without overlap, as a fraction of a step on one GPU."""
    communication_s = machine.latency_s + 4 * num_weights / machine.bytes_per_s
    return communication_s / layers_s(num_weights, num_rows, machine)


# %% rule_of_thumb
def alone_and_together(width, num_rows):
    """Seconds of a step of one GPU alone, and of two with one all-reduce after backward."""
    return [
        timed_steps(function, width, num_rows, 1, num_skipped=0)[0]
        for function in (no_call, one_call)
    ]


added = {}
print("2,048 rows   weights    added, formula   emulated")
for name in ("pcie-box", "dgx-a100", "dgx-h100"):
    for width in (256, 512, 1024):
        num_weights, where = 4 * width * (width + 1), hardware.cluster(name)
        alone_s, together_s = ws.run(
            alone_and_together, width, 2048, world_size=2, cluster=where, echo=False
        ).values[0]
        added[name, width] = together_s / alone_s - 1
        formula = added_fraction(num_weights, 2048, described(where))
        print(
            f"{name:<12} {units.format_count(num_weights):>7} {formula:14.1%}"
            f" {added[name, width]:12.1%}"
        )
predictions.reveal("PCIe adds to a step of 2,048 rows", 100 * added["pcie-box", 512])

# %% [markdown]
# Look at the second row of PCIe and of the A100's NVLink: a model of one million weights, at 2,048
# rows. There the rule of thumb holds for both at once.
#
# Now the third rows. The model is four times larger. PCIe still adds a quarter: bytes decide there,
# and P has gone. Over NVLink a third less is left: that was *latency*, which a larger model pays
# only once. And the H100, whose link is faster, pays a larger percentage than the A100, because its
# flops have grown by more than its link has. So the rule of thumb is right for
# one size of model, one size of batch and one GPU. Where bytes decide, PCIe 4 and NVLink 3 differ
# by the ratio of their links, ten, and not by four. The rows for which each half of the rule holds,
# by the second term alone:

# %% where_it_holds
for name, low, high in (("pcie-box", 0.2, 0.4), ("dgx-a100", 0.05, 0.1), ("dgx-h100", 0.05, 0.1)):
    machine = described(hardware.cluster(name))
    ratio = machine.flops_per_s / machine.bytes_per_s
    print(
        f"{name:<9} {ratio:4.0f} flops a byte: adds {low:.0%} to {high:.0%} from"
        f" {2 * ratio / 3 / high:5.0f} to {2 * ratio / 3 / low:5.0f} rows"
    )

# %% [markdown]
# Three more reasons to distrust any such percentage: tensor cores make R larger (16 times in
# bfloat16 on an A100) and halve the bytes; a convolution uses each weight at every pixel, so that
# one image is hundreds of rows; and DDP overlaps, so that most of it disappears.
#
# ### When two are slower than one
#
# Now keep the whole batch at B rows and give each GPU half of it: **strong scaling**. One GPU takes
# $6PB/R$. Two take half of that, and the communication. Two are faster when
#
# $$\frac{3PB}{R} > L + \frac{4P}{\beta} \quad\Longleftrightarrow\quad
# P > P^* = \frac{L}{3B/R - 4/\beta},
# \quad\text{if}\quad B > B^* = \frac{4}{3} \cdot \frac{R}{\beta}$$
#
# So there are two ways to lose. A **model below P\*** cannot pay the latency. And with a **batch
# below B\*** two lose with *any* model, because its gradients take longer to send than half of the
# work to do.


# %% break_even
def break_even_weights(num_rows, machine):
    """The number of weights from which two GPUs are faster than one; infinity if they never are."""
    saved_s = 3 * num_rows / machine.flops_per_s - 4 / machine.bytes_per_s  # of each weight
    return machine.latency_s / saved_s if saved_s > 0 else math.inf


def steps_of_both(widths, num_rows, repeats):
    """By width: bytes of gradients, seconds of one GPU with all rows, and of two with half each."""
    found, skipped = [], min(1, repeats - 1)
    for width in widths:
        alone_s = statistics.median(timed_steps(no_call, width, num_rows, repeats, skipped))
        dist.barrier()
        both_s = statistics.median(timed_steps(one_call, width, num_rows // 2, repeats, skipped))
        found.append((16 * width * (width + 1), alone_s, both_s))
    return found


def by_size(found):
    """The curves of `steps_of_both`, and the weights from which two ranks are faster."""
    curves = {"one rank": {}, "two ranks": {}}
    for size_bytes, alone_s, both_s in found:
        curves["one rank"][size_bytes], curves["two ranks"][size_bytes] = alone_s, both_s
    crossed = [size / 4 for size, _, new in draw.crossovers(curves) if new == "two ranks"]
    return curves, crossed[0] if crossed else math.inf


# %% break_even_emulated
ETHERNET = replace(hardware.cluster("a100-10gbe"), name="2 x 10 Gb/s", gpus_per_node=1, num_nodes=2)
CLUSTERS = [hardware.cluster("dgx-a100"), hardware.cluster("pcie-box"), ETHERNET]
print("emulated        rows     B*   P*, formula   emulated")
for where, num_rows, widths in (
    (CLUSTERS[0], 1024, (192, 256)),
    (CLUSTERS[1], 2048, (160, 224)),
    (CLUSTERS[1], 512, (128, 512)),
    (CLUSTERS[2], 2048, (128, 512)),
    (CLUSTERS[2], 32768, (48, 64)),
):
    machine = described(where)
    found = ws.run(
        steps_of_both, widths, num_rows, 1, world_size=2, cluster=where, echo=False
    ).values[0]
    least_rows = 4 * machine.flops_per_s / machine.bytes_per_s / 3
    weights = [break_even_weights(num_rows, machine), by_size(found)[1]]
    by_formula, by_run = (
        "never" if math.isinf(one) else units.format_count(round(one, -2)) for one in weights
    )
    print(f"{where.name:<12} {num_rows:7,} {least_rows:6,.0f} {by_formula:>13} {by_run:>10}")
pcie = described(CLUSTERS[1])
predictions.reveal(
    "rows below which two GPUs always lose", 4 / 3 * pcie.flops_per_s / pcie.bytes_per_s
)

# %% [markdown]
# "Never" means: at no size that was tried. The formula knows the flops of matrix products, one
# latency and one rate. The emulator also prices the activations that are read and written between
# the layers, of which two GPUs have half each, and NCCL's choice of a protocol for each size. So
# two are faster a little earlier than the formula says. On Ethernet, where the gradients take
# nearly all that the products save, it is the activations that decide, and the formula is off by a
# factor of two.
#
# The same on this machine. First what the formula needs to know of it: R from a step of one rank, L
# and β from two all-reduces.


# %% this_machine
def probe():
    """Flops a second of a step here, and the seconds of an all-reduce of 4 bytes and of 8 MB."""
    device = next(mlp(8).parameters()).device
    step_s = min(timed_steps(no_call, 512, 256, 7))
    medians_s = []
    for num_elements in (1, 2_000_000):
        tensor, times_s = torch.ones(num_elements, device=device), []
        for _ in range(12):
            dist.barrier()
            start_s = time.perf_counter()
            dist.all_reduce(tensor)
            tensor[0].item()  # reading it waits for a GPU
            times_s.append(time.perf_counter() - start_s)
        medians_s.append(statistics.median(times_s[2:]))
    return step_s, *medians_s


step_s, small_s, large_s = ws.run(probe, world_size=2, backend=backend, echo=False).values[0]
HERE = Machine(6 * 4 * 512 * 513 * 256 / step_s, small_s, 8e6 / max(large_s - small_s, 1e-9))
print(
    f"here: {HERE.flops_per_s / 1e9:.0f} Gflop/s a rank, {units.format_time_s(small_s)} an"
    f" all-reduce, {units.format_bytes(HERE.bytes_per_s)}/s"
)

# %% break_even_here
NUM_ROWS = 256
widths, options = (16, 32, 64, 128, 256), {"world_size": 2, "backend": backend, "echo": False}
curves, crossed = by_size(ws.run(steps_of_both, widths, NUM_ROWS, 9, **options).values[0])
weights = [break_even_weights(NUM_ROWS, HERE), crossed]
sizes = [
    "at no size" if math.isinf(one) else f"from {units.format_count(round(one, -1))} weights on"
    for one in weights
]
print(
    f"this machine, {NUM_ROWS} rows: two ranks are faster, formula: {sizes[0]}; measured:"
    f" {sizes[1]}"
)
draw.cost(
    curves,
    title=f"A step of {NUM_ROWS} rows by bytes of gradients, measured here, {os.cpu_count()} cores",
)

# %% [markdown]
# Where the lines cross is the break-even size of *this* machine. Left of it a second process costs
# more than it brings. A formula of three numbers gets the place right to a factor of two or three
# at best: small steps are full of work that is no matrix product, and on a shared machine L is the
# time in which somebody wakes up.
#
# ### Side by side
#
# One table: the model with a million weights, 2,048 rows on each of two ranks, once with one
# all-reduce after backward and once with torch's DDP and its buckets of one layer. The formula for
# the first is compute plus communication, for the second `overlapped_s` from section 4 with four
# parts.


# %% side_by_side
def formulas_s(machine, num_rows, num_weights=4 * 512 * 513):
    """Seconds of a step with one all-reduce at the end, and with four that overlap."""
    forward_s = layers_s(num_weights, num_rows, machine) / 3
    sizes_bytes = (4 * num_weights, num_weights)
    one_s, part_s = (machine.latency_s + size / machine.bytes_per_s for size in sizes_bytes)
    return 3 * forward_s + one_s, overlapped_s(forward_s, 2 * forward_s, 4, part_s)


table = []
for where in CLUSTERS:
    options = {"world_size": 2, "cluster": where, "echo": False}
    one_s = ws.run(timed_steps, one_call, 512, 2048, 1, **options).values[0][-1]
    overlapping_s = ws.run(ddp_steps, 3, 2048, **options).values[0][-1]
    formulas = formulas_s(described(where), 2048)
    table.append((f"{where.name}, emulated", formulas, (one_s, overlapping_s)))
real = {"world_size": 2, "backend": backend, "echo": False}
one_s = statistics.median(ws.run(timed_steps, one_call, 512, 256, 7, **real).values[0])
overlapping_s = statistics.median(ws.run(ddp_steps, 9, 256, **real).values[0][2:])
table.append(("here, measured, 256 rows", formulas_s(HERE, 256), (one_s, overlapping_s)))
print(f"{'':<25} {'':<10} {'formula':>8} {'run':>8}  error")
for where, formulas, found in table:
    for name, formula_s, run_s in zip(("at the end", "DDP"), formulas, found, strict=True):
        times = f"{units.format_time_s(formula_s):>8} {units.format_time_s(run_s):>8}"
        print(f"{where:<25} {name:<10} {times} {formula_s / run_s - 1:+6.0%}")

# %% [markdown]
# The formulas are 3 to 12% low, because they leave out the activations between the layers. On PCIe
# DDP hides about half of the all-reduce. On NVLink there is little to hide, and four
# latencies instead of one. On Ethernet there is hardly any compute to hide behind, and the
# latencies eat what overlap saves: there the gradients must become smaller, or be sent less often
# (`no_sync`; week 5).
#
# On this machine the errors are of another kind. Its ranks are its cores: who sends does not
# compute, so there is nothing that one could do in the shadow of the other.
#
# ## 7. When it breaks
#
# ### The loud failure: a parameter that nobody used
#
# A model with two heads, of which each step uses one. One process never minds. Under DDP:


# %% two_heads
class TwoHeads(nn.Module):
    """A body and two heads; a step uses one of them."""

    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, rows, head):
        return self.heads[head](torch.tanh(self.body(rows)))


# %% unused_parameter
def train_heads(chosen, options):
    """The sum of the second head's gradient after steps with heads chosen[r % 2]."""
    torch.manual_seed(seed)
    model = TwoHeads().to("cuda" if dist.get_backend() == "nccl" else "cpu")
    parallel = DDP(model, **options)
    for head in chosen[dist.get_rank() % 2]:
        parallel.zero_grad()
        parallel(torch.ones(2, 4, device=model.body.weight.device), head).sum().backward()
    return model.heads[1].weight.grad.sum().item()


try:
    ws.run(
        train_heads,
        [[0, 0], [0, 0]],
        {},
        world_size=world_size,
        backend=backend,
        echo=False,
        timeout_s=20,
    )
except ws.RunError as report:
    print("\n".join(line for line in str(report).splitlines() if len(line) < 400)[:1500])

# %% [markdown]
# **Symptom**: the *second* step fails, not the one at fault, with "Expected to have finished
# reduction in the prior iteration". **Cause**: the hooks of the unused head never came, its bucket
# never filled, and backward ended without an error. Only the next forward finds the reduction
# unfinished. **Fix**: use every parameter, freeze those that are not trained, or say
# `find_unused_parameters=True`, and pay for the small all-reduce that you saw above.
#
# (The same text stands in many reports, such as pytorch/pytorch issue 43259 on GitHub; some of them
# have a module that is called twice, or a loss that leaves out one of the outputs.)

# %% unused_parameter_found
found = {"find_unused_parameters": True}
values = ws.run(
    train_heads, [[0, 1], [0, 0]], found, world_size=2, backend=backend, echo=False
).values
print(
    f"second step, rank 0 uses the second head, rank 1 does not: its gradient is {values[0]:.2f}"
    f" and {values[1]:.2f}"
)

# %% [markdown]
# The ranks used different heads, and both have the same gradient: rank 1 has counted as zeros.
#
# ### The silent relative: who has no gradient makes no call
#
# The plain loop has a trap of its own. It stands in many training scripts: *skip what has no
# gradient*.


# %% skipping
def skip_what_is_none(chosen):
    """The heads' gradients after a step, averaged by a loop that skips missing ones."""
    torch.manual_seed(seed)
    model = TwoHeads()
    model(torch.ones(2, 4), chosen[dist.get_rank()]).sum().backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    with_gradient = [
        (name, one.grad) for name, one in model.heads.named_parameters() if one.grad is not None
    ]
    return {name: gradient.flatten() for name, gradient in with_gradient}


mixed = ws.run(skip_what_is_none, [0, 1], world_size=2, cluster=cluster, echo=False)
for rank, gradients in enumerate(mixed.values):
    print(
        f"rank {rank}:",
        *(f"head {name} {numbers[0]:.2f} ..." for name, numbers in gradients.items()),
    )

# %% [markdown]
# **Symptom**: none. No error, no hang. **Cause**: collectives have no names. Rank 0's call for its
# first head met rank 1's call for its second one, the sizes fitted, and two different layers were
# averaged with each other. With heads of different sizes it would have hung, as in week 2. **Fix**:
# every rank makes the same calls in the same order, whatever it used; a missing gradient is zeros.
#
# ## 8. Self-check
#
# First, your predictions beside the results.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions. Each answer has its own explanation, also the wrong ones.

# %% self_check
quiz.ask("week03", seed=seed)

# %% [markdown]
# ## To take with you
#
# - Gradients become ready from the last layer to the first. Send them while backward works on the
#   rest.
# - A bucket is a compromise: small ones begin early, large ones pay fewer latencies.
# - Overlap hides communication behind the backward pass, and no more than that.
# - What a second GPU costs is bytes of gradient for each flop, 2/(3B), times flops for each byte of
#   link, R/β. The size of the model matters for the latency only.
# - Two GPUs lose to one if the model is below P\*, and with any model if the batch is below B\*.
# - All ranks make the same calls in the same order. A parameter that one rank did not use still
#   travels.
#
# **Now the lab**: [lab 3, write DDP](../labs/lab03/lab03.ipynb). Then [week 4, synchronous or
# asynchronous](week04_synchronous_or_asynchronous.ipynb): must everybody wait for everybody?
