# %% [markdown]
# # Week 11. Find the bottleneck
#
# | | |
# |---|---|
# | Reading and doing | about two hours: seven short exercises, a bug to find |
# | Running | about a minute on two CPU cores; no GPU is needed |
# | You need | weeks 2 to 4, 6 and 10: costs of collectives, DDP, stragglers, bfloat16, meshes |
# | You do not need | a GPU, Nsight Systems, InfiniBand |
# | Afterwards | lab 11: a training program whose bottlenecks you are not given |
#
# The previous weeks built things that should be fast. This week you get a program that is slow, and
# you have to find out why. There is no list of tricks to try: each trick helps with one bottleneck,
# and a program seldom has more than one that matters. Instead there is a **method**.

# %% [markdown]
# ## 1. The question
#
# > A training step can wait for many things. Which of them does it wait for now, and how much time
# > would a fix save?
#
# Afterwards you can compute six bounds of a step, recognise ten bottlenecks by their timelines,
# read NCCL's logs, predict what a fix will save before you make it, follow a byte through a node
# and a network, and compute what a step costs in money and energy.

# %% parameters tags=["parameters"]
network = "h100-ndr"  # whose nodes sections 6 and 7 draw and price
seed = 0
# a step whose training data lie in four small files for each micro-batch, on NFS instead of a
# local drive, and are loaded ahead: the step over that with local files
predicted_files = None
# an A100 that multiplies in float32 where bfloat16 would do: the step over that in bfloat16
predicted_float32 = None
# NCCL's ring on 10,000 GPUs, 8 a node: the time of an all-reduce of 4 bytes, in milliseconds
predicted_ring_ms = None
# what the GPUs of Llama 3.1 405B would have cost by the hour, in millions of dollars
predicted_million_dollars = None

# %% setup
import contextlib
import dataclasses
import functools
import json
import math
import os
import pickle
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

# %% setup_torch
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

# %% setup_course
import worldsize as ws
from worldsize import check, draw, emulate, hardware, ledger, quiz, units
from worldsize.check import CheckFailed
from worldsize.explain import explain
from worldsize.explore import explore
from worldsize.faults import SlowLink, SlowRank
from worldsize.hardware import FatTree, Level
from worldsize.models import Transformer, shape
from worldsize.pricing import price
from worldsize.timeline import Event, Timeline

torch.set_num_threads(1)  # as the ranks do: they share the cores
predictions = ledger.Predictions("week11")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers: two ratios of steps, one latency, and one bill.

# %% predict
predictions.ask("files on NFS over local", predicted_files, "times", section=4)
predictions.ask("float32 over bfloat16, A100", predicted_float32, "times", section=4)
predictions.ask(
    "ring of 10,000 GPUs, 4 bytes", predicted_ring_ms, "ms", section=6, choices=(0.1, 2, 24, 400)
)
predictions.ask("GPUs of Llama 3.1 405B", predicted_million_dollars, "million dollars", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### Your turn: what a change can save
#
# 5 minutes · easy
#
# In a step that hides all it can, the loader, the GPU and the network are busy at the same time,
# and the step lasts as long as the one that is busy longest. `busy_s` is a dictionary with the
# seconds of each. The one called `name` becomes `factor` times as fast. How many seconds shorter is
# the step? The check compares with two emulated steps, one before the change and one after it.
#
# <details><summary>Hint</summary>
#
# The length of a step is `max(busy_s.values())`. Which dictionary do you have after the change?
#
# </details>


# %% saved_by tags=["turn"]
def saved_by(busy_s, name, factor):
    """The seconds by which a step gets shorter if one of its resources is faster."""
    ### BEGIN SOLUTION
    faster_s = dict(busy_s)
    faster_s[name] /= factor
    return max(busy_s.values()) - max(faster_s.values())
    ### END SOLUTION


# %% check_saved_by
def at_once(busy_s):
    """The seconds of a step whose resources all begin at once, each on a lane of its own."""
    start_s, lanes = emulate.elapsed(), []
    for name, seconds in busy_s.items():
        with emulate.lane(name) as lane:
            emulate.spend(seconds)
        lanes.append(lane)
    for lane in lanes:
        lane.join()
    return emulate.elapsed() - start_s


with check.turn("saved_by"):
    busy_s = {"loader": 6e-3, "GPU": 4e-3, "network": 1e-3}
    where = {"world_size": 1, "cluster": "pcie-box", "compute": "none", "echo": False}
    before_s = ws.run(at_once, busy_s, **where).values[0]
    for name, factor in (("GPU", 2), ("loader", 1.2), ("loader", 3), ("network", 10)):
        saved_s = float(saved_by(dict(busy_s), name, factor))
        changed_s = busy_s | {name: busy_s[name] / factor}
        after_s = ws.run(at_once, changed_s, **where).values[0]
        what = f"the ms that a {name} {factor} times as fast saves of {busy_s}"
        hint = "What is busy longest after the change? Nothing is saved beyond that."
        check.expect_close(1e3 * saved_s, 1e3 * (before_s - after_s), what, hint, atol=1e-3)
    print("Right: 0, 1, 2 and 0 ms. Once the GPU is busy longest, a faster loader saves no more.")

# %% [markdown]
# ### One program on two small emulated nodes
#
# This week uses **one program**: data-parallel training of a small transformer on four ranks in two
# nodes. So that it runs in seconds on two cores, the transformer is tiny, and so are the GPUs: each
# is an A100 with a 4,000th of its FLOP/s and a 40th of its memory bandwidth, behind a slow network.
# This week only ratios matter, and they are those of real programs: a step takes a few
# milliseconds, most of it compute.

# %% small_nodes
SIZES = dataclasses.replace(
    shape("small"),
    name="our transformer",
    num_layers=2,
    width=96,
    num_heads=4,
    num_kv_heads=4,
    hidden_width=256,
    context_length=32,
)
A100 = hardware.A100
SMALL_GPU = dataclasses.replace(
    A100,
    name="a small A100",
    peak_flops_per_s={name: rate / 4000 for name, rate in A100.peak_flops_per_s.items()},
    memory_bandwidth_bytes_per_s=A100.memory_bandwidth_bytes_per_s / 40,
    launch_s=3e-6,
)

# %% small_network
SMALL_NETWORK = dataclasses.replace(
    hardware.ETHERNET_10G, name="a small network", latency_s=80e-6, bandwidth_bytes_per_s=0.5e9
)
SMALL_NODES = dataclasses.replace(
    hardware.cluster("pcie-box-10gbe"),
    name="two small nodes",
    gpu=SMALL_GPU,
    gpus_per_node=2,
    inter=SMALL_NETWORK,
)
draw.node(SMALL_NODES, ("gpu0", "node1.gpu1"))

# %% [markdown]
# A step accumulates the gradients of several micro-batches. Each micro-batch is read from storage
# and decoded by a CPU, normally while the GPU works on the previous one; then it goes through the
# model. The gradients are averaged once per step. Everything that can go wrong below is **one
# field** of `Job`, or a fault of the machine.


# %% job
@dataclasses.dataclass(frozen=True)
class Job:
    """What one step of the program does on each rank; `axes` are those of the mesh."""

    num_batches: int = 2  # micro-batches, whose gradients add up
    num_sequences: int = 4  # of a micro-batch
    num_together: int = 4  # of these go through the model in one call
    dtype: str = "bfloat16"
    bucket_bytes: int = 400_000
    overlaps: bool = True  # gradients are sent while backward runs
    accumulates: bool = True  # they are sent once, and not for every micro-batch
    loads_ahead: bool = True
    decode_s: float = 2e-3  # of a CPU, for a micro-batch
    num_files: int = 1  # that hold a micro-batch
    store: str = "read local"
    axes: tuple = (("dp", 4), ("tp", 1))


# %% [markdown]
# `emulate.lane("loader")` stands for the loader's own thread. `emulate.transfer` and
# `emulate.spend` take the virtual time of a read and of CPU work.


# %% load
BATCH_BYTES = 400_000


def load(job):
    """Read a micro-batch and make tensors of it, in virtual time."""
    with ws.span("read", kind="data"):
        for _ in range(job.num_files):
            emulate.transfer(BATCH_BYTES // job.num_files, job.store)
    with ws.span("decode", kind="data"):
        emulate.spend(job.decode_s)


# %% batches
def batches(job, place):
    """The step's micro-batches, each loaded while the one before is at work, or when asked for."""
    size = (job.num_sequences, SIZES.context_length + 1)
    generator = torch.Generator().manual_seed(place)
    ahead = contextlib.nullcontext()
    for number in range(job.num_batches):
        if not job.loads_ahead:
            load(job)
        elif number:
            ahead.join()
        with emulate.lane("loader") if job.loads_ahead else contextlib.nullcontext() as ahead:
            if job.loads_ahead:
                load(job)
        yield torch.randint(SIZES.vocab_size, size, generator=generator)
    if job.loads_ahead:
        ahead.join()  # the next step's first


# %% model
ENTERING = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
LEAVING = ("attention.output", "mlp.down")


def replica(job):
    """The model under DDP along dp, cut along tp; its weights; and the rank's place on dp."""
    axes = dict(job.axes)
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    model = Transformer(SIZES, seed=seed)
    if axes["tp"] > 1:
        plan = dict.fromkeys(ENTERING, ColwiseParallel()) | dict.fromkeys(
            LEAVING, RowwiseParallel()
        )
        for layer in model.layers.values():
            parallelize_module(layer, mesh["tp"], plan)
    bucket_mb = job.bucket_bytes / 2**20
    ddp = DistributedDataParallel(model, device_mesh=mesh["dp"], bucket_cap_mb=bucket_mb)
    parameters = list(ddp.parameters())  # those cut along tp are missing after a forward pass
    for _ in range(2):  # DDP has one bucket in its first step, and makes the others in the second
        ddp(torch.zeros(1, 1, dtype=torch.long)).sum().backward()
    ddp.zero_grad()
    return ddp, parameters, mesh.get_local_rank("dp")


# %% gradients
def add_gradients(ddp, part, job):
    """The loss of some sequences as a part of the step's mean; its gradients are added."""
    share = len(part) / (job.num_sequences * job.num_batches)
    is_bfloat16 = job.dtype == "bfloat16"
    with ws.span("forward", kind="forward"), torch.autocast("cpu", enabled=is_bfloat16):
        logits = ddp(part[:, :-1]).flatten(0, 1).float()
        loss = F.cross_entropy(logits, part[:, 1:].flatten()) * share
    with ws.span("backward", kind="backward"):
        loss.backward()
    return loss.item()


def average_afterwards(parameters):
    """Average all gradients over all ranks in one piece, when nothing else is left to do."""
    joined = torch.cat([one.grad.flatten() for one in parameters]) / dist.get_world_size()
    dist.all_reduce(joined)
    for one, mean in zip(parameters, joined.split([p.numel() for p in parameters]), strict=True):
        one.grad.copy_(mean.view_as(one))


# %% [markdown]
# To compute what launching costs, you need the number of kernels. torch passes every operator to a
# `TorchDispatchMode`, and on a GPU each operator that is not a view is a kernel.


# %% kernels
class Kernels(TorchDispatchMode):
    """A count of operators that are kernels on a GPU: all but views."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


# %% train_step
def train_step(job):
    """One step: the mean loss of this rank's tokens, the gradient's norm, the number of kernels."""
    torch.set_num_threads(1)
    (ddp, parameters, place), loss = replica(job), 0.0
    optimizer = torch.optim.AdamW(parameters, foreach=dict(job.axes)["tp"] == 1)
    with ws.span("ready", kind="data"):
        emulate.spend(1e-6)  # the mark from which the step counts
    with Kernels() as kernels:
        for number, batch in enumerate(batches(job, place)):
            sends = job.overlaps and (number == job.num_batches - 1 or not job.accumulates)
            parts = batch.split(job.num_together)
            for part in parts:
                is_sent = sends and (part is parts[-1] or not job.accumulates)
                with contextlib.nullcontext() if is_sent else ddp.no_sync():
                    loss += add_gradients(ddp, part, job)
        if not job.overlaps:
            average_afterwards(parameters)
        norm = sum(one.grad.square().sum() for one in parameters)
        with ws.span("updated", kind="update"):
            optimizer.step()
    return loss, float(norm) ** 0.5, kernels.number


# %% measured
HEALTHY = Job()


def measured(job, faults=(), cluster=SMALL_NODES):
    """A run of the program on the two small nodes, and the timeline of its step."""
    where = {"world_size": 4, "cluster": cluster, "echo": False, "timeout_s": 240}
    run = ws.run(train_step, job, faults=faults, **where)
    kept = []
    for rank in range(4):
        events = run.timeline.of(rank)
        start_s = next(one.end_s for one in events if one.name == "ready")
        end_s = next(one.end_s for one in events if one.name == "updated")
        kept += [one for one in events if start_s <= one.start_s and one.end_s <= end_s]
    return run, Timeline.of_events(kept)


def length_s(timeline):
    """The seconds from a timeline's first event to its last."""
    return timeline.end_s - min(event.start_s for event in timeline.events)


# %% [markdown]
# ### Most advice from a list saves nothing
#
# First try the usual way to make a slow program fast: follow a list of advice from the top. The
# program below is slow, we do not know why, and each row of the table follows one piece of advice.
# All of it is good advice.


# %% advice
SLOW = Job(store="read", num_files=4)
FASTER_GPU = {name: 2 * rate for name, rate in SMALL_GPU.peak_flops_per_s.items()}
AT_ONCE = dataclasses.replace(SMALL_NETWORK, latency_s=0.0)
FASTER = dataclasses.replace(SMALL_GPU, name="twice the GPU", peak_flops_per_s=FASTER_GPU)
ADVICE = {
    "as it is": (SLOW, SMALL_NODES),
    "larger buckets": (dataclasses.replace(SLOW, bucket_bytes=2_000_000), SMALL_NODES),
    "a network without latency": (SLOW, dataclasses.replace(SMALL_NODES, inter=AT_ONCE)),
    "GPUs of twice the rate": (SLOW, dataclasses.replace(SMALL_NODES, gpu=FASTER)),
    "files on a local drive": (HEALTHY, SMALL_NODES),
}

# %% advice_taken
taken = {name: measured(job, cluster=cluster)[1] for name, (job, cluster) in ADVICE.items()}
table = []
for name, timeline in taken.items():
    saved = 1 - length_s(timeline) / length_s(taken["as it is"])
    table.append({"advice": name, "step_s": length_s(timeline), "saved": f"{saved:.1%}"})
files = length_s(taken["as it is"]) / length_s(taken["files on a local drive"])
predictions.reveal("files on NFS over local", files)
draw.table(table, title="Good advice, one piece at a time, emulated")

# %% [markdown]
# Three pieces of advice save nothing, among them GPUs of twice the rate. One saves more than half.
# **Improving anything but the bottleneck saves nothing**, however large the improvement. Such a
# list is not wrong. But it does not show where to start, and after three failures people follow two
# pieces of advice at once and no longer know which of them helped.


# %% [markdown]
# ## 4. Build it well
#
# ### The method
#
# 1. **Measure** one step, on all ranks, with as little disturbance as possible.
# 2. **Compare with the bounds**: how long would the step take if only one resource mattered?
# 3. **Name the suspect** whose removal would save most, and write down how much.
# 4. **Change one thing.** Change nothing else at the same time, even if it is an improvement.
# 5. **Measure again.** Did the change save what you wrote down? Are the results still the same?
#
# Then start again: the next bottleneck is a different one.
#
# ### Six lower bounds of a step
#
# A step cannot be shorter than any of these bounds, and the largest is the one that **binds**:
#
# | Bound | Seconds | Needs |
# |---|---|---|
# | compute | FLOPs / the GPU's FLOP/s in this dtype | a count (week 1) |
# | memory | bytes read and written / the memory bandwidth | a profiler's kernels |
# | launch | kernels · the time to launch one | a count of kernels |
# | wire (communication) | Σ modelled time of each collective | sizes and ranks (week 2) |
# | input | CPU time of the loader / its workers | a run of the loader alone |
# | storage | Σ over all files: latency + bytes / rate | a data sheet, or `fio` |
#
# A memory-bound program has kernels of low **arithmetic intensity**: they do fewer FLOPs per byte
# than the GPU's **ridge point**, which is its FLOP/s divided by its memory bandwidth. The
# **roofline** is the highest FLOP/s that a kernel can reach, as a function of its arithmetic
# intensity: the smaller of the GPU's peak and its memory bandwidth times the intensity. At the
# ridge point both are equal.


# %% ridges
table = []
for gpu in (hardware.A100, hardware.H100, hardware.H200, hardware.B200):
    rates = {name: gpu.peak_flops_per_s[name] for name in ("bfloat16", "float32")}
    row = {"GPU": gpu.name, "bfloat16_flops_per_s": rates["bfloat16"]}
    row["memory_bytes_per_s"] = gpu.memory_bandwidth_bytes_per_s
    row["ridge, operations a byte"] = round(rates["bfloat16"] / gpu.memory_bandwidth_bytes_per_s)
    table.append({**row, "bfloat16 over float32": round(rates["bfloat16"] / rates["float32"], 1)})
draw.table(table, title="Where compute and memory meet, computed from data sheets")

# %% [markdown]
# ### Your turn: a matmul on the roofline
#
# 6 minutes · easy
#
# A matrix of `num_rows` by `num_inner` is multiplied by one of `num_inner` by `num_columns`, all in
# numbers of two bytes. Each matrix is read once, and the result is written once. How many seconds
# does that take at least, on a GPU of `flops_per_s` whose memory moves `bytes_per_s`? The check
# compares with four matmuls whose arithmetic intensity, the FLOP for each byte, NVIDIA printed.
#
# <details><summary>Hint</summary>
#
# Each number of the result takes `num_inner` multiplications and as many additions. Compute and
# memory work at the same time: two bounds, and the larger one binds.
#
# </details>


# %% matmul_s tags=["turn"]
def matmul_s(num_rows, num_inner, num_columns, flops_per_s, bytes_per_s):
    """The seconds that a matmul of two-byte numbers takes at least."""
    ### BEGIN SOLUTION
    flops = 2 * num_rows * num_inner * num_columns
    num_elements = num_rows * num_inner + num_inner * num_columns + num_rows * num_columns
    return max(flops / flops_per_s, 2 * num_elements / bytes_per_s)
    ### END SOLUTION


# %% check_matmul_s
# rows, inner, columns: FLOP a byte, and what binds a V100; NVIDIA, Deep Learning Performance,
# the guides "Matrix Multiplication Background" and, for the last two, "GPU Performance Background"
PRINTED = {
    (8192, 8192, 128): (124.1, "memory"),
    (8192, 8192, 8192): (2730, "compute"),
    (512, 1024, 4096): (315, "compute"),
    (1, 1024, 4096): (1, "memory"),
}
with check.turn("matmul_s"):
    rates = hardware.V100.peak_flops_per_s["float16"], hardware.V100.memory_bandwidth_bytes_per_s
    for given, (intensity, binds) in PRINTED.items():
        reached = rates[0] if binds == "compute" else intensity * rates[1]
        check.expect_close(
            1e6 * float(matmul_s(*given, *rates)),
            1e6 * 2 * math.prod(given) / reached,
            f"the µs of {given[0]:,} x {given[1]:,} times {given[1]:,} x {given[2]:,} on a V100, "
            f"which {binds} binds, at {intensity:,} FLOP a byte",
            hint="2 FLOP for each pair of numbers; three matrices, 2 bytes a number. Which binds?",
            rtol=0.005,
        )
    print("Right, for four matmuls of NVIDIA's guides: memory binds two of them on a V100.")

# %% [markdown]
# The last two are one layer, for 512 rows and for a single one. Its weights are read once in both
# cases. So a small batch waits for memory, whatever the GPU's FLOP/s.


# %% bounds
GRADIENT_BYTES = 4 * SIZES.num_parameters


def flops_of(job):
    """The operations of a rank's step: its products and attention, forward and backward."""
    tokens = job.num_batches * job.num_sequences * SIZES.context_length
    return SIZES.flops(tokens, SIZES.context_length) / dict(job.axes)["tp"]


def bounds(job, num_kernels):
    """The seconds that a step takes at least if one resource alone mattered."""
    rate = SMALL_GPU.peak_flops_per_s[job.dtype]
    stores = {"read": SMALL_NODES.shared_storage, "read local": SMALL_NODES.local_storage}
    store, size_bytes = stores[job.store], BATCH_BYTES / job.num_files
    read_s = job.num_files * (store.latency_s + size_bytes / store.read_bytes_per_s)
    return {
        "compute": flops_of(job) / rate,
        "launch": num_kernels * SMALL_GPU.launch_s,
        "wire": price("all_reduce", GRADIENT_BYTES, range(4), SMALL_NODES).time_s,
        "input": job.num_batches * job.decode_s,
        "storage": job.num_batches * read_s,
    }


# %% bounds_beside_steps
healthy_run, healthy = measured(HEALTHY)
num_kernels = healthy_run.values[0][2]
table = []
for name, job, timeline in (
    ("healthy", HEALTHY, healthy),
    ("files on NFS", SLOW, taken["as it is"]),
):
    found = bounds(job, num_kernels)
    row = {"step": name, **{f"{bound}_s": seconds for bound, seconds in found.items()}}
    table.append({**row, "binds": max(found, key=found.get), "measured_s": length_s(timeline)})
draw.table(table, title="Five bounds beside the step, computed and emulated")

# %% [markdown]
# The healthy step's largest bound is compute. The step takes 2.6 times as long: kernels reach four
# fifths of the peak, small ones less, and launches and a part of the messages add to their time.
# For the slow step the storage bound is three quarters of the measured time. (The memory bound is
# left out, because it needs the bytes of every kernel.)
#
# The bounds show what *cannot* be the reason. They are too coarse to show what the reason is:
# communication can be slow because there are many messages, because they are late, because they are
# sent too often, because a link is slow, or because they cross the wrong link. So look at the step
# itself.


# %% healthy_drawn
draw.timeline(healthy, title="A healthy step, emulated")

# %% [markdown]
# Read the timeline from left to right. The loader's lane is never the last to finish. Gradients of
# the last micro-batch are sent while its backward pass is still running; only those of the first
# layers, which are ready last, have no compute left to hide behind. All ranks do the same at the
# same time.


# %% [markdown]
# ### Six suspects, and what each could save
#
# The second half of the method needs, for each suspect, **the seconds that a fix for it alone would
# save**. All of them come from the timeline and from the machine's data; none needs a change of the
# program first. Look at the rank that works longest: it waits for no other rank, so its waits are
# real communication or real loading.
#
# Its step consists of work, of waiting for messages, and of the rest, which is waiting for data.
# The work includes three suspects: arithmetic in a slow dtype, launches that one larger call would
# save, and a rank that is slower than its peers. Waiting for data includes two: decoding and
# reading. Waiting for messages is one suspect for now.


# %% work
def work_s(timeline, rank):
    """Seconds in which a rank computes."""
    return sum(timeline.time_s(rank, kind) for kind in ("forward", "backward", "update", "compute"))


def slowest(timeline):
    """The rank that works longest: none waits less for the others."""
    return max(range(4), key=lambda rank: work_s(timeline, rank))


# %% suspects
def suspects(job, run, timeline):
    """For each suspect the seconds of the step that would go if it alone were put right."""
    works_s, last = [work_s(timeline, rank) for rank in range(4)], slowest(timeline)
    waits_s = timeline.exposed_communication_s(last)
    data_s = length_s(timeline) - works_s[last] - waits_s
    read_s, decode_s = (
        sum(event.duration_s for event in timeline.of(last) if event.name == name)
        for name in ("read", "decode")
    )
    rates, together = SMALL_GPU.peak_flops_per_s, job.num_together / job.num_sequences
    last_bucket_s = price("all_reduce", HEALTHY.bucket_bytes, range(4), SMALL_NODES).time_s
    found = {
        "input": data_s * decode_s / (read_s + decode_s),
        "storage": data_s * read_s / (read_s + decode_s),
        "launch": run.values[last][2] * SMALL_GPU.launch_s * (1 - together),
        "precision": flops_of(job) / rates[job.dtype] - flops_of(job) / rates["bfloat16"],
        "straggler": works_s[last] - statistics.median(works_s),
        "messages": waits_s - last_bucket_s,  # which nothing can hide
    }
    return {name: max(0.0, round(saved_s, 9)) for name, saved_s in found.items()}  # in whole ns


# %% [markdown]
# Messages can be slow for five reasons, and the seconds do not show which. Each reason has a
# **sign**, a number that differs from its normal value:
#
# | Reason | Sign | Normal value |
# |---|---|---|
# | small buckets | calls each time that the gradients are sent | a few |
# | no overlap | the share of communication time that overlaps with work | about a half here |
# | accumulation | bytes sent, in multiples of the gradients' bytes | 1 |
# | slow link | the calls' time, divided by their modelled time on the described links | 1 |
# | wrong axis | their modelled time, divided by that with the other order of the mesh | at most 1 |
#
# How long is the step once one of them is fixed? A sign is not enough to compute that, because a
# fix uncovers the next bound. Lab 11 asks this question.


# %% calls
def calls_of(timeline):
    """Each collective of the step once: on the rank that called last, which waited for nobody."""
    by_call = {}
    for event in timeline.events:
        if event.kind == "communication":
            by_call.setdefault((event.group, event.peers, event.sequence), []).append(event)
    return [min(events, key=lambda event: event.duration_s) for events in by_call.values()]


def priced_s(event, ranks=None):
    """What a collective should take on the described links: the bound that it is compared with."""
    return price(event.name, event.size_bytes, ranks or event.peers, SMALL_NODES).time_s


def other_order(ranks):
    """The ranks of the same group, if the two axes of a mesh of 2 x 2 changed places."""
    return tuple(sorted(2 * (rank % 2) + rank // 2 for rank in ranks))


# %% signs
def signs(timeline):
    """By reason the sign in the messages of the rank that works longest."""
    rank = slowest(timeline)
    calls = [event for event in calls_of(timeline) if rank in event.peers]
    gradients = [event for event in calls if event.axis != "tp"]
    alone = Timeline([event for event in timeline.events if event.axis != "tp"])
    times_sent = sum(event.size_bytes for event in gradients) / GRADIENT_BYTES
    due_s = sum(priced_s(event) for event in calls)
    return {
        "buckets": len(gradients) / max(1, round(times_sent)),
        "overlap": alone.overlap_fraction(rank),
        "accumulation": times_sent,
        "link": sum(event.duration_s for event in calls) / due_s,
        "axis": due_s / sum(priced_s(event, other_order(event.peers)) for event in calls),
    }


# %% [markdown]
# ### Ten bottlenecks are diagnosed from their slow steps alone
#
# Each is the healthy program with one thing wrong. The table shows the measured step and its
# diagnosis, before anything has been fixed:


# %% symptoms
TWO_AXES = Job(axes=(("dp", 2), ("tp", 2)))
SYMPTOMS = {  # what is wrong, the program as it should be, what differs, faults of the machine
    "input": (HEALTHY, {"loads_ahead": False}, []),
    "storage": (HEALTHY, {"store": "read", "num_files": 4}, []),
    "launch": (HEALTHY, {"num_together": 1}, []),
    "precision": (HEALTHY, {"dtype": "float32"}, []),
    "straggler": (HEALTHY, {}, [SlowRank(2, factor=1.5)]),
    "buckets": (HEALTHY, {"bucket_bytes": 1}, []),
    "overlap": (HEALTHY, {"overlaps": False}, []),
    "accumulation": (HEALTHY, {"accumulates": False}, []),
    "link": (HEALTHY, {}, [SlowLink("node1 nic0 out", factor=6)]),
    "axis": (TWO_AXES, {"axes": (("tp", 2), ("dp", 2))}, []),
}


# %% diagnosed
axes_run, axes = measured(TWO_AXES)
reference = {HEALTHY: healthy, TWO_AXES: axes}
slow_steps, diagnoses = {}, {}
values = {HEALTHY: healthy_run.values[0], TWO_AXES: axes_run.values[0]}
for name, (base, changes, faults) in SYMPTOMS.items():
    job = dataclasses.replace(base, **changes)
    run, slow_steps[name] = measured(job, faults)
    diagnoses[name], values[name] = suspects(job, run, slow_steps[name]), run.values[0]

# %% diagnoses
table = []
for name, found in diagnoses.items():
    named = sorted(found, key=found.get, reverse=True)
    row = {"planted": name, "step_s": length_s(slow_steps[name]), "first suspect": named[0]}
    row["could save_s"] = found[named[0]]
    saved_s = length_s(slow_steps[name]) - length_s(reference[SYMPTOMS[name][0]])
    row |= {"the fix saved_s": saved_s, "second suspect": named[1] if found[named[1]] else "none"}
    table.append({**row, "could save _s": found[named[1]]})
slow_s, fast_s = length_s(slow_steps["precision"]), length_s(healthy)
predictions.reveal("float32 over bfloat16, A100", slow_s / fast_s)
draw.table(
    table, title="Ten bottlenecks, what the step's own diagnosis says, and what the fix gave"
)

# %% [markdown]
# In every row the first suspect is what was planted, or "messages" for the five that make messages
# slow. The seconds that it *could* save are computed from the slow step alone, and the fix saved as
# much, to within a third: so the reason is understood. (The exception is launch: larger calls save
# more than launches, because each matmul has a start-up time of its own.) The last column is the
# next bottleneck, at most a quarter of the first.
#
# Which of the five reasons is it? Read the signs, one row for each step, and look for the value
# that is not normal:

# %% signs_of_messages
table = []
for name in ("healthy", "buckets", "overlap", "accumulation", "link", "axis"):
    found = signs(slow_steps.get(name, healthy))
    table.append({"planted": name} | {sign: round(value, 2) for sign, value in found.items()})
draw.table(table, title="The signs of five steps whose messages are slow, and of the healthy one")

# %% [markdown]
# The abnormal values are on the diagonal: many calls, no overlap, twice the bytes, more than twice
# the modelled time, and the more expensive order. In the step with a slow link, overlap has fallen
# as well. That is a *consequence*: compute hides a smaller share of messages that take longer. So
# read the signs from right to left: a link that is slower than modelled explains low overlap, and
# not the other way round.
#
# Now look at the pictures, each with the healthy step above it. Cover the text below each picture,
# and make your own diagnosis first.


# %% side_by_side
def beside(*names):
    """The healthy step, and these ones below it."""
    first = reference[SYMPTOMS[names[0]][0]]
    return draw.timelines({"healthy": first} | {name: slow_steps[name] for name in names})


beside("input", "storage")

# %% [markdown]
# **Input**: batches are decoded *before* each forward pass, on the ranks' own lane. The loader
# works only when asked, and the GPU waits. Fix: load ahead (`num_workers`, `prefetch_factor`).
# **Storage**: the loader has a lane of its own and never rests, but the GPU still waits. Loading
# ahead cannot hide loading that takes longer than the work. Fix: fewer and larger files, or a
# nearer store. The difference matters, because the fix for one does nothing for the other.

# %% launch_and_precision
beside("launch", "precision")

# %% [markdown]
# Both look the same, and like a larger model: all ranks are busy, and none waits. **Launch**: the
# sequences go through the model one by one, so there are more than three times as many kernels,
# each too small. The sign is that the time depends on their number, not on the work in them. Fix:
# larger calls; where that is impossible, `torch.compile`, fused optimizers, CUDA graphs.
# **Precision**: there are no more kernels than before, but each takes many times as long, with
# names like `sgemm`. Fix: autocast (week 6). `nvidia-smi` shows neither: it counts a GPU as used
# while any kernel runs.
#
# ### Your turn: a CPU that launches ahead
#
# 8 minutes · medium
#
# On a GPU a call returns once its kernel is launched. So the CPU launches one kernel after the
# other, in `launch_s` seconds each, and waits for none of them. The GPU runs them in this order,
# one at a time; `kernels_s` is the list of their seconds. When is the last one done? The check
# compares with an emulated rank whose kernels run on a lane of their own.
#
# <details><summary>Hint</summary>
#
# A kernel starts when two things are done: its launch, and the kernel before it. Go through the
# kernels with two clocks, the CPU's and the GPU's.
#
# </details>


# %% kernels_done_s tags=["turn"]
def kernels_done_s(kernels_s, launch_s):
    """The seconds from the first launch to the end of the last kernel."""
    ### BEGIN SOLUTION
    cpu_s = gpu_s = 0.0
    for kernel_s in kernels_s:
        cpu_s += launch_s
        gpu_s = max(gpu_s, cpu_s) + kernel_s
    return gpu_s
    ### END SOLUTION


# %% check_kernels_done_s
def launching(kernels_s, launch_s):
    """The seconds of a program that launches these kernels, and waits at its end."""
    start_s = emulate.elapsed()
    for kernel_s in kernels_s:
        emulate.spend(launch_s)
        with emulate.lane("GPU") as gpu:
            emulate.spend(kernel_s)
    gpu.join()
    return emulate.elapsed() - start_s


with check.turn("kernels_done_s"):
    where = {"world_size": 1, "cluster": SMALL_NODES, "compute": "none", "echo": False}
    for kernels_us in ([2] * 6, [20] * 4, [40, 1, 1, 1, 1], [1, 1, 1, 40], [9, 1, 9, 1]):
        kernels_s = [1e-6 * kernel_us for kernel_us in kernels_us]
        done_us = 1e6 * float(kernels_done_s(kernels_s, 5e-6))
        ran_us = 1e6 * ws.run(launching, kernels_s, 5e-6, **where).values[0]
        what = f"the µs for kernels of {kernels_us} µs, at 5 µs a launch"
        hint = "While a long kernel runs, the CPU launches the next ones: they wait on the GPU."
        check.expect_close(done_us, ran_us, what, hint, rtol=1e-3)
    print("Right, for kernels that hide their launches, kernels that do not, and both.")

# %% [markdown]
# Kernels of 2 µs take 5 µs each, whatever they compute: the step is **launch-bound**. Launches that
# happen during a long kernel cost nothing. What costs is a long row of small kernels, and every
# call that waits for the GPU, such as `loss.item()`: after it the CPU is no longer ahead.

# %% straggler
beside("straggler")

# %% [markdown]
# **Straggler**: three ranks have long waits, one has none. **The rank that waits least is the
# culprit**; the longest all-reduce is on one of its victims. What is equal on all ranks cannot be
# the cause.

# %% buckets_overlap_accumulation
beside("buckets", "overlap", "accumulation")

# %% [markdown]
# **Small buckets**: many short messages in a row, each mostly latency. **No overlap**: one message,
# and no compute at the same time. **Accumulation**: messages in *every* micro-batch, although only
# those in the last one are needed. Here the micro-batches' own work hides a part of them.

# %% link_and_axis
beside("link")

# %% [markdown]
# **Slow link**: the same messages as in the healthy step, each several times as long, on all ranks:
# a ring is as fast as its slowest link. Only a comparison with the link's expected bandwidth
# reveals it, so know what your links should reach (nccl-tests; week 2's fit).

# %% axis
beside("axis")

# %% [markdown]
# **Wrong axis** (mesh dimension): tensor parallelism over two ranks, whose all-reduces are not
# hidden, runs across the network, and data parallelism inside the nodes. The picture shows many
# waits in forward and in backward, on all ranks. `draw.bytes_by_axis` shows which mesh dimension
# sends the bytes (week 10).
#
# ### The results must stay the same
#
# A speed-up that changes the results has made a different program. So every table of speeds needs a
# table of results like this one:

# %% unchanged
table = []
for name, (base, _, _) in SYMPTOMS.items():
    (first_loss, first_norm, _), (loss, norm, kernels) = values[base], values[name]
    row = {"program": name, "loss": f"{loss:.5f}", "norm of the gradients": f"{norm:.5f}"}
    row |= {"loss, off by": f"{abs(loss / first_loss - 1):.0e}"}
    table.append({**row, "norm, off by": f"{abs(norm / first_norm - 1):.0e}", "kernels": kernels})
draw.table(
    table, title="Loss and gradients of the slow programs, against their healthy one, emulated"
)

# %% [markdown]
# All but one give the results of their healthy program, up to the order of sums. (With two mesh
# dimensions a rank has only its part of the gradients, so the last norm is smaller.) The exception
# is precision, which differs by as much as bfloat16 rounds. You must decide whether that is
# acceptable (week 6).

# %% [markdown]
# ### Your turn: a loader that keeps up
#
# 6 minutes · easy
#
# A loader has `num_workers` processes. Each batch takes `load_s` seconds of one process, and the
# step computes for `compute_s` seconds. With 0 workers the program itself loads the batches. How
# long is a step, once the first batches are loaded?
#
# <details><summary>Hint</summary>
#
# The workers together finish a batch every `load_s / num_workers` seconds. A step can be no shorter
# than that, and no shorter than its own work. When there are no workers, nothing runs at the same
# time.
#
# </details>


# %% loaded_step_s tags=["turn"]
def loaded_step_s(load_s, compute_s, num_workers):
    """Seconds of a step whose batches are loaded by so many workers."""
    ### BEGIN SOLUTION
    if num_workers == 0:
        return load_s + compute_s
    return max(load_s / num_workers, compute_s)
    ### END SOLUTION


# %% loaded_steps
class Decoded(Dataset):
    """Batches that take a worker some time each; of a step, since the check counts steps."""

    def __init__(self, load_s):
        self.load_s = load_s

    def __len__(self):
        return 24

    def __getitem__(self, index):
        emulate.spend(self.load_s)
        return torch.zeros(1)


def loading(load_s, compute_s, num_workers):
    """Seconds of a step of a program with a `DataLoader`, after its first eight."""
    marks_s = []
    for _ in DataLoader(Decoded(load_s), batch_size=None, num_workers=num_workers):
        emulate.spend(compute_s)
        marks_s.append(emulate.elapsed())
    return (marks_s[-1] - marks_s[8]) / (len(marks_s) - 9)


# %% check_loaded_step_s
with check.turn("loaded_step_s"):
    ONE = {"world_size": 1, "cluster": SMALL_NODES, "compute": "none", "echo": False}
    for load_s, compute_s, num_workers in ((6e-3, 9e-3, 0), (30e-3, 9e-3, 2), (6e-3, 9e-3, 1)):
        ran = ws.run(loading, load_s, compute_s, num_workers, **ONE).values[0]
        check.expect_close(
            float(loaded_step_s(load_s, compute_s, num_workers)),
            ran,
            f"a step with {num_workers} workers that take {1e3 * load_s:g} ms a batch, and "
            f"{1e3 * compute_s:g} ms of work",
            hint="Who is done last, the workers or the step's own work? And with no workers?",
            rtol=0.05,
        )
    print("Right, for three programs with torch's own DataLoader on an emulated rank.")

# %% [markdown]
# ### Find the bug: the rank that waits
#
# 8 minutes · medium
#
# A colleague's script prints the rank whose GPU should be replaced: the one whose messages take
# longest. They have replaced two GPUs since then, and nothing got better. Run the check, look at
# the picture, and fix the function. It gets a step's timeline.
#
# <details><summary>Hint</summary>
#
# In `beside("straggler")`, which rank has the *shortest* messages? A rank that arrives early at an
# all-reduce waits there, inside a call that its timeline shows as communication.
#
# </details>


# %% culprit tags=["turn"]
def culprit(timeline):
    """The rank that makes the others wait."""
    ### BEGIN SOLUTION
    return min(range(timeline.num_ranks), key=lambda rank: timeline.time_s(rank, "wait"))
    ### INSTEAD
    # return max(
    #     range(timeline.num_ranks), key=lambda rank: timeline.time_s(rank, "communication")
    # )
    ### END SOLUTION


# %% check_culprit
def even_step():
    """Three times a millisecond of work and an all-reduce."""
    for _ in range(3):
        with ws.span("forward", kind="forward"):
            emulate.spend(1e-3)
        dist.all_reduce(torch.ones(1000))


with check.turn("culprit"):
    where = {"world_size": 4, "cluster": SMALL_NODES, "compute": "none", "echo": False}
    for rank, factor in ((2, 1.4), (0, 3.0), (3, 1.1)):
        step = ws.run(even_step, faults=[SlowRank(rank, factor=factor)], **where).timeline
        if culprit(step) != rank:
            raise CheckFailed(
                f"rank {rank}, whose work takes {factor:g} times as long",
                f"rank {culprit(step)}",
                "Who waits for whom? Compare the ranks' own work, or their waits.",
                picture=lambda step=step: draw.timeline(step, title="The step, emulated"),
            )
    print("Right, for three slow ranks, one of which is slower by a tenth.")

# %% [markdown]
# On an emulated timeline all ranks share one clock. The clocks of a thousand real ranks differ, so
# compare durations, as you have just done: how long each rank computed, or waited. Never compare
# the start on one rank with the end on another.

# %% [markdown]
# ## 5. Compare with the production oracle
#
# ### torch.profiler counts the same messages on real ranks
#
# The timelines above are emulated. Does the real program do the same? The next cells run the same
# function on two processes of this machine over Gloo, with **torch.profiler** switched on by
# `ws.profile()`. On any machine the messages of a step must agree in number and size.


# %% profiled
def profiled_step(job):
    """The same step with torch.profiler watching."""
    with ws.profile():
        return train_step(job)


def sent_really(job):
    """The gradients' all-reduces of a real step: how many, and their bytes, as torch saw them."""
    job = dataclasses.replace(job, axes=(("dp", 2), ("tp", 1)))
    real = ws.run(profiled_step, job, world_size=2, backend="gloo", echo=False, timeout_s=240)
    events = real.timeline.of(0)
    ready_s = next(event.end_s for event in events if event.name == "ready")
    seen = [one for one in events if "all_reduce" in one.name and one.start_s > ready_s]
    profiled = [event for event in seen if event.name.startswith("gloo:")]
    return real, len(profiled), sum(event.size_bytes for event in profiled)


# %% profiler_beside_emulator
table = []
for name in ("healthy", "buckets", "accumulation"):
    job = dataclasses.replace(HEALTHY, **SYMPTOMS[name][1]) if name in SYMPTOMS else HEALTHY
    timeline = slow_steps.get(name, healthy)
    sent = [event for event in timeline.of(0) if event.kind == "communication"]
    real, num_calls, num_bytes = sent_really(job)
    row = {"program": name, "calls, torch.profiler": num_calls, "calls, emulated": len(sent)}
    row["by torch.profiler_bytes"] = num_bytes
    table.append({**row, "emulated_bytes": sum(event.size_bytes for event in sent)})
draw.table(table, title="All-reduces of a step: measured here on two ranks, and emulated on four")

# %% [markdown]
# They agree to the byte. The *times* do not, and need not: one is measured on this machine, the
# other is that of the described cluster. For a program on a real cluster you would now have both:
# the time that a step takes, and the time that it should take.
#
# ### View traces in Perfetto and analyse them with HTA
#
# `torch.profiler` records everything but explains nothing. Its `schedule` keeps the trace small:
# only a few steps after a warm-up. The next cells trace two real ranks, one of which is always
# late:


# %% traced_steps
def traced_steps(folder):
    """The file to which torch.profiler wrote three of ten steps, for which rank 1 comes late."""
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    path = os.path.join(folder, f"rank{dist.get_rank()}.json")
    schedule = torch.profiler.schedule(wait=5, warmup=2, active=3)  # of the steps, ten in all

    def write(profiler):
        profiler.export_chrome_trace(path)

    with torch.profiler.profile(schedule=schedule, on_trace_ready=write) as profiler:
        for _ in range(10):
            time.sleep(0.02 * dist.get_rank())
            model(torch.ones(8, 256)).sum().backward()
            profiler.step()
    return path


# %% chrome_trace
folder = Path(tempfile.mkdtemp())
traced = ws.run(traced_steps, folder, world_size=2, backend="gloo", echo=False).values
path = folder / "healthy_step.json"
path.write_text(healthy.to_chrome_trace())
for one in (*traced, path):
    events = json.loads(Path(one).read_text())["traceEvents"]
    kinds = Counter(event["ph"] for event in events)
    print(f"{one}: {len(events)} events, of which {kinds['X']} have a duration")

# %% [markdown]
# The third file is the emulated step: `Timeline.to_chrome_trace()` writes the same format. Open the
# files in **Perfetto** (ui.perfetto.dev), which keeps them in your browser. The keys W and S zoom,
# A and D move. Select a region, and the total times by name appear below it. First look at a whole
# step, then look for what is *not* there: gaps on the GPU's row. The CPU's row shows what the CPU
# did during a gap.
#
# **Holistic Trace Analysis** (HTA) turns the traces of *all* ranks into tables. Most of its figures
# are about a GPU's kernels, which traces of CPUs do not have. One of them is the same as ours:
# overlap is the time spent computing *while* communicating, divided by the time spent
# communicating. So the next cell writes the emulated step again, as torch.profiler would write it
# on a GPU:


# %% as_kernels
def as_kernels(timeline, rank):
    """A trace of a rank whose events are kernels of a GPU, on one stream each for both kinds."""
    kernels = []
    for event in timeline.of(rank):
        start_us, end_us = round(1e6 * event.start_s), round(1e6 * event.end_s)
        about = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 0, "ts": start_us}
        about |= {"dur": end_us - start_us, "args": {"correlation": len(kernels), "stream": 7}}
        if event.stream == "compute":
            kernels.append(about | {"name": event.name})
        elif event.stream == "communication":
            about["args"]["stream"] = 20
            kernels.append(about | {"name": "ncclDevKernel_AllReduce"})
    return json.dumps({"traceEvents": kernels})


# %% read_by_hta
import logging
import warnings

from worldsize.course import optional, programs


def read_by_hta(files):
    """The traces of these files, one for each rank, as Holistic Trace Analysis has them."""
    from hta.common.trace import Trace

    logging.getLogger("hta").setLevel(logging.ERROR)  # it warns of every file that it reads
    trace = Trace(dict(enumerate(files)))
    trace.load_traces(use_multiprocessing=False)
    return trace


def waits_by_hta(trace, rank):
    """How many all-reduces a rank's trace has, and the seconds that they took together."""
    events, names = trace.get_trace(rank), trace.symbol_table.get_sym_table()
    took_us = [
        took for place, took in zip(events["name"], events["dur"], strict=True)
        if names[place] == "gloo:all_reduce"
    ]  # fmt: skip
    return len(took_us), sum(took_us) / 1e6


# %% by_hta
def by_hta():
    """By HTA: each real rank's all-reduces, and the overlap of each emulated one, in percent."""
    from hta.analyzers.communication_analysis import CommunicationAnalysis

    files = [folder / f"kernels{rank}.json" for rank in range(4)]
    for rank, one in enumerate(files):
        one.write_text(as_kernels(healthy, rank))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what pandas will drop
        real, emulated = read_by_hta(traced), read_by_hta(map(str, files))
        found = CommunicationAnalysis.get_comm_comp_overlap(emulated, visualize=False)
    overlap = dict(zip(found["rank"], found["comp_comm_overlap_pctg"], strict=True))
    return [waits_by_hta(real, rank) for rank in range(2)], [overlap[rank] for rank in range(4)]


waits, overlap = optional.result("week11", "HTA", by_hta)
for rank, (num_calls, took_s) in enumerate(waits):
    print(f"rank {rank}, measured: {num_calls} all-reduces, {units.format_time_s(took_s)}")
for rank, percent in enumerate(overlap):
    due = f"Timeline {healthy.overlap_fraction(rank):.2%}"
    print(f"rank {rank}, emulated: overlap {percent:.2f}% by HTA, {due}")

# %% [markdown]
# The measured lines show the late rank again: rank 0 spends tens of milliseconds in its
# all-reduces, and rank 1, which is late, almost none. The emulated lines show the same overlap,
# computed by two independent programs.
#
# ### Your turn: overlap, as HTA defines it
#
# 5 minutes · easy
#
# For one rank of a timeline, write the ratio that HTA calls overlap: the seconds in which the rank
# both communicates and computes, divided by all seconds in which it communicates.
# `timeline.time_s(rank, "communication")` are the seconds in which the rank communicates, and
# `timeline.exposed_communication_s(rank)` those of them in which it does not compute. The check
# emulates an all-reduce next to work of a known length.
#
# <details><summary>Hint</summary>
#
# The seconds with both are those of communication, less the exposed ones. Neither the seconds of
# computing nor those of the step are in the ratio.
#
# </details>


# %% overlap_of tags=["turn"]
def overlap_of(timeline, rank):
    """The share of a rank's communication next to which it computes."""
    ### BEGIN SOLUTION
    communicates_s = timeline.time_s(rank, "communication")
    both_s = communicates_s - timeline.exposed_communication_s(rank)
    return both_s / communicates_s
    ### END SOLUTION


# %% check_overlap_of
def sum_beside(work_s, then_s):
    """An all-reduce of 400 kB during some work, and more work after it."""
    summed = dist.all_reduce(torch.ones(100_000), async_op=True)
    with ws.span("backward", kind="backward"):
        emulate.spend(work_s)
    summed.wait()
    with ws.span("update", kind="update"):
        emulate.spend(then_s)


with check.turn("overlap_of"):
    where = {"world_size": 4, "cluster": SMALL_NODES, "compute": "none", "echo": False}
    sum_s = price("all_reduce", 400_000, range(4), SMALL_NODES).time_s
    for share, overlap in ((0.25, 0.25), (0.6, 0.6), (1.5, 1.0)):
        step = ws.run(sum_beside, share * sum_s, 2 * sum_s, **where).timeline
        check.expect_close(
            float(overlap_of(step, 0)),
            overlap,
            f"the overlap of an all-reduce next to work of {share:g} times its length",
            hint="Seconds of both over seconds of communication: not exposed, and not of the step.",
            rtol=0.01,
        )
    print("Right, for three steps whose all-reduce is hidden to 25, 60 and 100%.")

# %% [markdown]
# **TensorBoard** shows curves of scalars over steps: loss, seconds a step, tokens a second
# (`pip install tensorboard`, then `torch.utils.tensorboard.SummaryWriter`). Steps that get longer
# over a day are visible there, but not in a trace.
#
# ### py-spy shows the Python stack of a live rank
#
# When a rank hangs, the profiler has not written anything yet. **py-spy** reads the Python stack of
# a running process from outside, without stopping it for more than a moment. In the next cells rank
# 0 looks at rank 1, which is busy:


# %% spied
def unpacks_archives():
    """What rank 1 does all the time."""
    emulate.spend(1.5)


def look_at_rank_1():
    """py-spy's dump of rank 1, by rank 0 while that one works; None if it may not look into it."""
    processes = [None, None]
    dist.all_gather_object(processes, os.getpid())
    if dist.get_rank() == 1:
        return unpacks_archives()
    emulate.spend(0.5)
    command = [programs.find("py-spy"), "dump", "--pid", str(processes[1])]
    plain = {"env": os.environ | {"CLICOLOR_FORCE": "0"}, "text": True}
    done = subprocess.run(command, capture_output=True, timeout=30, **plain)
    return re.sub(r"[^\s(]*/", "", done.stdout).splitlines()[:9] or None  # without folders


# %% live_rank
def dumped():
    """The first lines of py-spy's dump of a rank that works."""
    return ws.run(look_at_rank_1, world_size=2, backend="gloo", echo=False).values[0]


print("\n".join(optional.result("week11", "py-spy", dumped)))

# %% [markdown]
# The innermost call comes first: `spend`, called by `unpacks_archives`. So rank 1 is not in an
# all-reduce at all, although the other ranks' stacks would suggest that it is. On a cluster, use
# `py-spy dump` on the rank that all others wait for, `py-spy record -o flame.svg` to see where the
# time goes over a minute, and `--native` to see calls below Python. py-spy needs root, or
# permission to trace processes.
#
# ### torch's flight recorder keeps every rank's last collectives
#
# A stack shows where a rank is now. In a hang the question is where the ranks first diverged. torch
# keeps a record of that, its **flight recorder**: each rank's last 2,000 collectives, with group,
# sequence number, shape and stack. It is on unless `TORCH_FR_BUFFER_SIZE` is 0. (The older name
# `TORCH_NCCL_TRACE_BUFFER_SIZE` still works. Source: `FlightRecorder.hpp` in torch 2.13.)
#
# On GPUs, NCCL's watchdog writes the record when a collective has timed out, unless
# `TORCH_NCCL_DUMP_ON_TIMEOUT` is 0, and ends the process. Each rank writes to the path in
# `TORCH_FR_DUMP_TEMP_FILE` with its rank at the end, by default
# `~/.cache/torch/comm_lib_trace_rank_0` and so on. With Gloo torch keeps the same record, but no
# watchdog writes it. In the next cells a thread does, in a hang of two real ranks: one skips a step
# whose loss is NaN.


# %% watched
def watch(folder):
    """Write this rank's record after its third collective, and end the process when both have."""
    files = [folder / f"rank_{rank}" for rank in range(2)]
    while len((record := pickle.loads(_distributed_c10d._dump_fr_trace()))["entries"]) < 3:
        time.sleep(0.01)
    # torch 2.13 leaves the group's name out with Gloo, and torchfrtrace looks for it
    record["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    mine = files[dist.get_rank()]
    mine.with_suffix(".part").write_bytes(pickle.dumps(record))
    mine.with_suffix(".part").replace(mine)
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    os._exit(1)


# %% hung
def skip_a_bad_loss(folder):
    """Sum a loss over the ranks three times; rank 1 leaves the second out."""
    threading.Thread(target=watch, args=(folder,), daemon=True).start()
    for step in range(3):
        loss = torch.tensor(math.nan if dist.get_rank() == step == 1 else 0.5)
        if loss.isnan():
            continue
        dist.all_reduce(loss)
    dist.barrier()


records = Path(tempfile.mkdtemp())
with contextlib.suppress(ws.RunError):
    ws.run(skip_a_bad_loss, records, world_size=2, backend="gloo", echo=False)
print(sorted(file.name for file in records.iterdir()))

# %% [markdown]
# Two programs read such records: torch's own `torchfrtrace FOLDER`, which is installed with torch,
# and `python -m worldsize explain FILE...`. The next cells run both from the notebook:

# %% by_torchfrtrace
command = [Path(sys.executable).parent / "torchfrtrace", records]
done = subprocess.run(command, capture_output=True, text=True, timeout=120)
print(done.stderr.partition("collective stack trace")[0] + done.stdout)

# %% by_explain
print(explain(sorted(records.iterdir())))

# %% [markdown]
# Both report that collective 3 is an all-reduce on rank 0 and a barrier on rank 1. `torchfrtrace`
# calls rank 1 the culprit because it compares with the lowest rank, and then shows rank 0's stack.
# `explain` shows both lines of code, and what to look for. Neither names the `continue`: the
# mistake came **before the first calls that do not match**. Rank 1's second all-reduce belonged to
# its third step and matched rank 0's second, so a sum over two different steps went unnoticed. If
# all records match as far as they go, no call is wrong, and a rank is late or dead: the one whose
# record is shorter, or missing.
#
# ### Nsight Systems records what happens below torch
#
# Below torch is CUDA. NVIDIA's **Nsight Systems** records every kernel, copy and driver call of all
# processes on a node. It is not a Python package, and needs a GPU. Call it like this (the flags are
# those in notes by torch's developers, gist mcarilli/376821aa, read 2026):
#
# ```sh
# nsys profile -t cuda,nvtx,osrt,cudnn,cublas --capture-range=cudaProfilerApi \
#     --capture-range-end=stop -o report -f true torchrun --nproc-per-node 8 train.py
# nsys stats report.nsys-rep
# ```
#
# Put `torch.cuda.profiler.start()` and `stop()` around a few steps after the warm-up, and
# `torch.cuda.nvtx.range_push("forward")` and `range_pop()` around code that should have a name.
# Look for the following, in this order:
#
# | Row | Question | Suspect |
# |---|---|---|
# | CUDA HW, kernels | are there gaps? small regular ones, or a large one a step? | launch; input |
# | CUDA API, at a gap | `cudaStreamSynchronize`, `cudaMalloc`? | the program waits for the GPU |
# | NCCL kernels' stream | at the same time as compute kernels, or alone? | overlap |
# | the same, across ranks | which rank's NCCL kernel is *short*? | straggler |
# | OS runtime | are threads of the loader in `read` or `poll`? | storage |
# | kernel names | `sgemm`, or `bf16` and `tensorop`? | precision |

# %% [markdown]
# ## 6. Formula, measurement, emulation, paper
#
# ### A byte's path through a node
#
# Where a message is slow depends on the path of its bytes. Inside a node, **NVLink** connects GPUs
# to each other, or to switches. **PCIe** connects GPUs, NICs and the host. Between nodes is the
# network: **InfiniBand**, or **RoCE**, which is the same protocol over Ethernet. Both can do
# **RDMA**: the NIC reads and writes memory by itself, and no CPU copies anything. With
# **GPUDirect** that memory is the GPU's. The picture shows the best path from a GPU to one in
# another node:

# %% node_rdma
NODES = dataclasses.replace(
    hardware.cluster(network), name="two nodes of four", gpus_per_node=4, nics_per_node=4
)
draw.node(NODES, ("gpu0", "node1.gpu0"))

# %% [markdown]
# The next picture shows the first half of the path without GPUDirect: through the host's memory,
# from which a CPU or the NIC fetches the byte again.

# %% node_host
draw.node(NODES, ("gpu0", "host"))

# %% ways
GIGABYTE = 1e9
copy_rate = NODES.host.link.bandwidth_bytes_per_s
ways = {
    "NVLink, to the neighbour": [NODES.intra.bandwidth_bytes_per_s],
    "PCIe 5, from GPU to GPU": [hardware.PCIE5.bandwidth_bytes_per_s],
    "GPUDirect RDMA, 400 Gb/s": [NODES.inter.bandwidth_bytes_per_s],
    "RDMA through both hosts": [copy_rate, NODES.inter.bandwidth_bytes_per_s, copy_rate],
    "TCP, 100 Gb/s, through both hosts": [copy_rate, hardware.ETHERNET_100G.bandwidth_bytes_per_s],
}
table = []
for name, rates in ways.items():
    row = {"way": name, "in pieces_s": max(GIGABYTE / rate for rate in rates)}
    table.append({**row, "as a whole_s": sum(GIGABYTE / rate for rate in rates)})
draw.table(
    table,
    title="One gigabyte from GPU to GPU, computed from published rates",
    note="In pieces: each piece travels while the next is copied, so the slowest part counts.",
)

# %% [markdown]
# In pieces, the path through the hosts is as fast as the direct one, for *one* GPU. But all GPUs of
# a node share the host's memory and the uplinks of the PCIe switches, and each byte uses them
# twice. NCCL has names for the distance between a GPU and a NIC, from near to far (NCCL 2.30.7,
# `src/include/graph.h`): `NVL` NVLink; `PIX` one PCIe switch; `PXB` several; `PHB` through the CPU;
# `SYS` across the link between the CPUs; `NET`. `nvidia-smi topo -m` prints them for your node. A
# GPU whose NIC is at distance `SYS` is a bottleneck that torch.profiler does not show.
#
# ### NCCL chooses an algorithm and a protocol by size
#
# For each call NCCL chooses an **algorithm**: a ring, trees, or in-network reduction by the
# switches (`NVLS`). It also chooses a **protocol**, which determines how the receiver learns that
# data has arrived. `LL` sends a flag with every 4 bytes of data, so half of the bytes sent are
# flags, but it needs no waiting. `LL128` sends 120 bytes of data in 128. `Simple` sends only data,
# and synchronises. For small messages only latency matters, and for large ones only bandwidth:

# %% nccl_choices
DGX_H200 = hardware.cluster("dgx-h200")
table = []
for power in (3, 10, 16, 20, 21, 24, 30):
    chosen = price("all_reduce", 2**power, range(8), DGX_H200)
    row = {"size_bytes": 2**power, "algorithm": chosen.algorithm, "protocol": chosen.protocol}
    bus = 2**power / chosen.time_s * 2 * 7 / 8
    table.append({**row, "time_s": chosen.time_s, "bus bandwidth_bytes_per_s": bus})
draw.table(table, title="All-reduce on 8 H200, computed from NCCL's constants")

# %% [markdown]
# On such a node NCCL's own log shows `RING` with `LL` up to 1 MiB, and `NVLS` with `SIMPLE` from 2
# MiB on (stas00/ml-engineering, network/benchmarks/README.md, 2026). Note that the bus bandwidth of
# `NVLS` may be *above* the link's: nccl-tests multiplies by 2(N - 1)/N, but where switches add,
# each byte is sent once. 8 H200s reached 473 GB/s over links of 450 (network/README.md).

# %% [markdown]
# ### Your turn: NCCL's own model of a ring
#
# 8 minutes · medium
#
# For small messages NCCL's cost model counts steps. A ring over n GPUs on N nodes takes 2(n - 1)
# steps for an all-reduce. In 2(N - 1) of them data crosses the network, and each of these takes
# `across_s`; each of the others takes `inside_s`. A call also takes a fixed `base_s`. Write the
# sum. On one node no step crosses the network.
#
# <details><summary>Hint</summary>
#
# How many steps stay inside a node? All steps, minus those across the network.
#
# </details>


# %% ring_latency_s tags=["turn"]
def ring_latency_s(num_gpus, num_nodes, base_s, inside_s, across_s):
    """Seconds of a ring's all-reduce of almost nothing."""
    ### BEGIN SOLUTION
    across = 2 * (num_nodes - 1)
    inside = 2 * (num_gpus - 1) - across
    return base_s + inside * inside_s + across * across_s
    ### END SOLUTION


# %% check_ring_latency_s
LL = {"base_s": 6.6e-6, "inside_s": 1.0e-6, "across_s": 2.7e-6}  # NCCL 2.30.7, src/graph/tuning.cc
with check.turn("ring_latency_s"):
    for num_gpus, inside_s in ((8, 0.6e-6), (16, 1e-6), (128, 1e-6), (10_000, 1e-6)):
        nodes = f"h100-ndr-x{num_gpus // 8}"
        check.expect_close(
            float(ring_latency_s(num_gpus, num_gpus // 8, **LL | {"inside_s": inside_s})),
            price("all_reduce", 4, range(num_gpus), hardware.cluster(nodes), "nccl-ring").time_s,
            f"the latency of a ring of {num_gpus:,} GPUs, 8 a node",
            hint="2(n - 1) steps in all, 2(N - 1) of them across.",
            rtol=0.01,
        )
    print("Right: what worldsize's price of NCCL's ring says, from 8 GPUs to 10,000.")


# %% ring_beside_tree
def tree_latency_s(num_gpus, num_nodes, base_s=6.8e-6, inside_s=0.6e-6, across_s=5e-6):
    """The same of a tree: up and down through the node, and through log2 N levels of nodes."""
    in_node, levels = num_gpus / num_nodes - 1, math.floor(math.log2(num_nodes))
    return base_s + 2 * (in_node * inside_s + levels * across_s)


table = []
for num_gpus in (8, 16, 128, 1_024, 10_000):
    where, row = hardware.cluster(f"h100-ndr-x{num_gpus // 8}"), {"GPUs": num_gpus}
    for algorithm in ("nccl-ring", "nccl-tree"):
        found = price("all_reduce", 4, range(num_gpus), where, algorithm)
        row[f"{algorithm}_s"] = found.time_s
    table.append({**row, "tree by formula_s": tree_latency_s(num_gpus, num_gpus // 8)})
predictions.reveal("ring of 10,000 GPUs, 4 bytes", 1e3 * table[-1]["nccl-ring_s"])
draw.table(table, title="An all-reduce of 4 bytes, protocol LL, computed from NCCL's constants")

# %% [markdown]
# A ring takes **24 ms, before a byte has moved**, and a tree a tenth of a millisecond. This is why
# NCCL switches to trees at scale, and why a step must not make many small calls over all GPUs.
#
# ### NCCL's log, line by line
#
# `NCCL_DEBUG=INFO` prints what NCCL found and chose; `NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,TUNING`
# selects the subsystems; `NCCL_DEBUG_FILE=nccl.%h.%p` writes a file for each host and process. The
# lines below have the form given in the source of NCCL 2.30.7, in the file named with each; they
# are not from a recorded log.
#
# | Line | Read it for |
# |---|---|
# | `NET/IB : Using ...; OOB ...` (net_ib/init.cc) | every NIC you paid for; `NET/Socket` is TCP |
# | `Using network ...` (init.cc) | the plug-in that carries messages between nodes |
# | `Channel 00/16 : 0[0] -> 1[1] via P2P/IPC` (p2p.cc) | GPU to GPU, direct |
# | `... via SHM/direct` (shm.cc) | through host memory: on an NVLink node something is wrong |
# | `... [send] via NET/IB/0/GDRDMA` (net.cc) | GPUDirect; without `GDRDMA` the host copies |
# | `Ring 00 : 7 -> 0 -> 1` (init.cc) | the order of the ranks: does it cross nodes once? |
# | `16 coll channels, ... 16 nvls channels` (init.cc) | parallel rings; 0 nvls channels: no NVLS |
# | `Init timings - ... total 3.03 (kernels 1.22, ...)` (init.cc) | start-up: 8 H100, issue 2094 |
# | `AllReduce: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}=...` (enqueue.cc) | the choice |
#
# What would the last line be for your call? `price` makes the same choice:


# %% tuning_line
ALGORITHMS = {"nccl-ring": "RING", "nccl-tree": "TREE", "nvls": "NVLS", "nvls-tree": "NVLSTREE"}


def tuning_line(size_bytes, num_gpus, where):
    """The line that NCCL's TUNING log should have for an all-reduce, by worldsize's price."""
    chosen = price("all_reduce", size_bytes, range(num_gpus), hardware.cluster(where))
    algorithm, protocol = ALGORITHMS[chosen.algorithm], chosen.protocol.upper()
    return f"AllReduce: {size_bytes} Bytes -> Algo {algorithm} proto {protocol}"


for size_bytes, num_gpus, where in (
    (1 << 20, 8, "dgx-h200"),
    (1 << 21, 8, "dgx-h200"),
    (1 << 20, 128, "h100-ndr-x16"),
    (1 << 30, 128, "h100-ndr-x16"),
):
    print(f"{where:12}  {tuning_line(size_bytes, num_gpus, where)}")

# %% [markdown]
# The table lists some of NCCL's variables, with their defaults in 2.30.7, and when to set them:
#
# | Variable | Default | For |
# |---|---|---|
# | `NCCL_SOCKET_IFNAME` | `ib*`, else any but `docker*`, `lo` | the interface for bootstrap |
# | `NCCL_IB_HCA` | all | which NICs to use; leave out the one for storage |
# | `NCCL_IB_DISABLE=1`, `NCCL_P2P_DISABLE=1` | 0 | a *test*: is the fast path even in use? |
# | `NCCL_NET_GDR_LEVEL` | by topology | up to which distance GPUDirect is used |
# | `NCCL_ALGO`, `NCCL_PROTO` | chosen | a *test*; forced `LL128` is unsafe on some paths |
# | `NCCL_BUFFSIZE` | 4 MiB | 8 steps of 512 KiB in flight |
# | `NCCL_IB_TIMEOUT`, `NCCL_IB_RETRY_CNT` | 20, 7 | how long a flapping link is tolerated |
# | `NCCL_CROSS_NIC`, `NCCL_NVLS_ENABLE` | 2, 2 | 2: if it is faster; where it is supported |
#
# NVIDIA's guide itself says that the debugging variables do not belong in scripts. A variable that
# was set for a test and never removed is itself a bottleneck.

# %% [markdown]
# ### On an oversubscribed network the order of the nodes matters
#
# Above the nodes are switches. In a **fat tree** every level has as many links up as down, so that
# all hosts can send to each other at full rate; with k ports on each switch, two levels reach k²/2
# hosts, and three levels k³/4 (half of the ports go up). Links up cost money, so many trees are
# **oversubscribed**: they have fewer links up than down. **Rail-optimised** means that NIC i of
# every node is on leaf switch i: a GPU reaches its counterparts in other nodes through one switch,
# and NVLink carries the rest. In a **dragonfly**, switches form groups, each with a link to every
# other group. With p hosts on each router, a routers in each group, and h links from each router to
# other groups, there are at most ah + 1 groups, and a path crosses at most one link between groups.

# %% switches
table = []
for name, ports, hosts, switches in (
    ("fat tree, 2 levels", 64, 64**2 // 2, 64 + 64 // 2),
    ("fat tree, 3 levels", 64, 64**3 // 4, 5 * 64**2 // 4),
    ("dragonfly, a = 2p = 2h", 31, 16 * 8 * (16 * 8 + 1), 16 * (16 * 8 + 1)),
    ("dragonfly, a = 2p = 2h", 63, 32 * 16 * (32 * 16 + 1), 32 * (32 * 16 + 1)),
):
    row = {"network": name, "ports of a switch": ports, "hosts": hosts, "switches": switches}
    table.append({**row, "hosts a switch": round(hosts / switches, 1)})
draw.table(table, title="How far a network reaches, computed")

# %% [markdown]
# NVIDIA's reference design for 16,384 B200s in 2,048 nodes has three levels, with rails: 512 leaf,
# 512 spine and 256 core switches of 64 ports (DGX SuperPOD reference architecture, B200). Kim et
# al. (2008) put the cost of a dragonfly at half of that of a folded Clos network, for 16,384 nodes.
#
# A ring goes from node to node **in the order of the ranks**. NCCL itself orders the GPUs inside a
# node. The launcher orders the nodes, often alphabetically. The next cell compares two orders of
# the same nodes, one that stays in a pod as long as it can and one that leaves it at every step:

# %% node_orders
LEVELS = (Level("leaf", num_nodes=4), Level("pod", num_nodes=8, oversubscription=4.0))
TREE = dataclasses.replace(
    hardware.H100_NDR, num_nodes=16, network=FatTree(LEVELS, is_rail=False), name="pods, 4:1"
)
NETWORKS = {
    "fat tree, 1:1, rails": hardware.cluster("h100-ndr-x16"),
    "fat tree, pods of 8 nodes, 4:1": TREE,
    "dragonfly, 2 groups of 128 nodes": hardware.cluster("a100-slingshot-x256"),
}
table = []
for name, where in NETWORKS.items():
    half, per_node = where.num_nodes // 2, where.gpus_per_node
    to_and_fro = [node for place in range(half) for node in (place, half + place)]
    row, times = {"network": name}, []
    for order in (range(where.num_nodes), to_and_fro):
        ranks = [per_node * node + gpu for node in order for gpu in range(per_node)]
        times.append(price("all_reduce", 1 << 30, ranks, where, "nccl-ring").time_s)
    row |= {"by pod_s": times[0], "to and fro_s": times[1]}
    table.append({**row, "times": round(times[1] / times[0], 1)})
draw.table(table, title="A ring's all-reduce of 1 GiB in two orders of the nodes, computed")

# %% [markdown]
# Where every level has its full bandwidth, the order costs nothing. Elsewhere it costs up to the
# factor of oversubscription. (The dragonfly is the worst case: it has four links between two
# groups, and the model uses only the shortest paths. Real dragonflies also use longer paths.) On
# Slurm, `--distribution=block`, the plug-in `topology/tree` and sorted host names are the fix; no
# line of the program changes.
#
# ### Latency times the number of files makes loading slow
#
# Each **file** takes a latency, and then its bytes divided by a rate. The rates of large stores are
# high; loading is slow because of the latency times the number of files:

# %% stores
STORES = {
    "8 NVMe drives of the node": hardware.NVME_8,
    "Lustre on flash": hardware.LUSTRE,
    "NFS (Amazon EFS)": hardware.NFS,
    "object store (Amazon S3)": hardware.OBJECT_STORE,
}
table = []
for name, store in STORES.items():
    moving_s, opening_s = 1e9 / store.read_bytes_per_s, 10_000 * store.latency_s
    row = {"store": name, "latency_s": store.latency_s, "one file_s": store.latency_s + moving_s}
    row["10,000 files_s"] = opening_s + moving_s
    table.append({**row, "64 readers_s": max(opening_s / 64, moving_s)})
draw.table(table, title="One gigabyte from a store to a node, computed from published figures")

# %% [markdown]
# So use few large files (shards of 100 MB or more), read them in order, let many readers read
# ahead, and keep a copy on the node's drives where the data fit. The same holds for loading
# programs. `import torch` tries to open 2,339 files, of which 922 do not exist, and each attempt is
# a request to the store (stas00/ml-engineering, storage/README.md, 2026):

# %% import_torch
table = []
for name, found_s, missing_s in (("NVMe", 11e-6, 2.4e-6), ("Lustre", 2.3e-3, 1.1e-3)):
    row = {"store": name, "a file that exists_s": found_s, "one that does not_s": missing_s}
    table.append({**row, "import torch_s": (2339 - 922) * found_s + 922 * missing_s})
draw.table(table, title="The opens of `import torch`, computed from measured ones")

# %% [markdown]
# With a thousand ranks at once, the load on one metadata server is also a thousand times as large.
#
# ### Formula, measurement, emulation and paper compared
#
# Which of the ten bottlenecks can be measured on this machine? Those that need neither a GPU nor a
# network: a loader that does not load ahead, and calls that are too small. A measurement of float32
# here would only show how *this CPU* handles bfloat16.


# %% launch_really
def seconds_of(num_together):
    """The median seconds of forward and backward of four sequences, so many in a call, here."""
    model, taken_s = Transformer(SIZES, seed=seed), []
    parts = torch.zeros(4, 33, dtype=torch.long).split(num_together)
    for _ in range(9):
        start_s = time.perf_counter()
        for part in parts:
            logits = model(part[:, :-1]).flatten(0, 1)
            F.cross_entropy(logits, part[:, 1:].flatten()).backward()
        taken_s.append(time.perf_counter() - start_s)
    return statistics.median(taken_s)


# %% on_paper
GPT2 = dataclasses.replace(
    shape("small"),
    name="GPT-2's size",
    num_layers=12,
    width=768,
    num_heads=12,
    num_kv_heads=12,
    hidden_width=2048,
    vocab_size=32_000,
    context_length=1024,
)


def gpt2_step(dtype):
    """Two steps of data parallelism on paper, with four sequences on each rank."""
    torch.set_default_dtype(dtype)
    model = DistributedDataParallel(Transformer(GPT2))
    torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.zeros(4, GPT2.context_length, dtype=torch.long)
    for _ in range(2):
        logits = model(tokens).flatten(0, 1).float()
        F.cross_entropy(logits, tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% papers
PAPER = {"world_size": 8, "cluster": "dgx-a100", "echo": False, "tokens_per_step": 8 * 4 * 1024}
papers = {
    name: ws.paper(gpt2_step, getattr(torch, name), **PAPER) for name in ("bfloat16", "float32")
}
dgx = hardware.cluster("dgx-a100")
eager = dataclasses.replace(dgx, gpu=dataclasses.replace(dgx.gpu, launch_s=10e-6))

# %% loaders
WAYS = {"load, then work: 6 + 9 ms": (0, 15e-3), "one worker loads ahead: max(6, 9) ms": (1, 9e-3)}
table = []
for name, (num_workers, law_s) in WAYS.items():
    given = (loading, 6e-3, 9e-3, num_workers)
    row = {"a step": name, "formula": units.format_time_s(law_s)}
    here_s = ws.run(*given, world_size=1, echo=False).values[0]
    there_s = ws.run(*given, **ONE).values[0]
    for where, found_s in (("measured here", here_s), ("emulated", there_s)):
        row |= {where: units.format_time_s(found_s), f"off, {where}": f"{found_s / law_s - 1:+.1%}"}
    table.append(row)
draw.table(table, title="torch's DataLoader and the law of its step")

# %% ratios
grown = {name: length_s(slow_steps[name]) / length_s(healthy) for name in ("launch", "precision")}
table = [
    {
        "ratio of two steps": "one by one over together",
        "at most": 4,
        "measured here": round(seconds_of(1) / seconds_of(4), 2),
        "emulated": round(grown["launch"], 2),
    },
    {
        "ratio of two steps": "float32 over bfloat16, A100",
        "at most": 16,
        "emulated": round(grown["precision"], 2),
        "on paper": round(papers["float32"].step_s / papers["bfloat16"].step_s, 2),
    },
    {
        "ratio of two steps": "10 µs more for each kernel",
        "on paper": round(papers["bfloat16"].on(eager).step_s / papers["bfloat16"].step_s, 2),
    },
]
draw.table(table, title="Three ratios: of the small program, and on paper of GPT-2's size")

# %% [markdown]
# The loader's formula holds in emulation, and also here, except for the time that processes need to
# wake up. The ratio of the dtypes stays far below the data sheet's 16: work that is bound by
# memory, launches or messages gains nothing from tensor cores. Calls that are too small cost about
# as much on this CPU as on the small GPU. And a program that does not launch ahead of the GPU pays
# for each kernel: with 10 µs each, that is more than half a step, even for GPT-2's size. **A
# bottleneck belongs to a program on a given machine**, not to the program alone.
#
# ### One percent of a large run costs nearly a million dollars
#
# You pay for GPUs by the hour, whether they work or wait, and for power as well: a node draws most
# of it even while it waits. Prices change every month, so each has its date here, and you can
# insert yours:

# %% prices
DOLLARS_PER_H = {
    "A100": 1.50,  # our choice between 0.80 and 3.00: mercatus-ai.com, May 2026
    "H100": 2.95,  # median of 37 providers: aimultiple.com, GPU index, 20 May 2026
}
NODE_KW = {
    "A100": 6.5 / 8,  # DGX A100, at most, for each GPU: NVIDIA, as quoted by pcnews.ru, 2020
    "H100": 10.2 / 8,  # DGX H100, at most: NVIDIA's guide, as quoted by unanswered.io, 2026
}
PUE = 1.56  # of large sites, 2024: Uptime Institute; Google says 1.1


# %% bill
def bill(num_gpus, hours, gpu):
    """Dollars and kilowatt-hours of so many GPUs for so long, cooling included."""
    gpu_hours = num_gpus * hours
    return gpu_hours * DOLLARS_PER_H[gpu], gpu_hours * NODE_KW[gpu] * PUE


table = []
for name, run in (
    ("as it is", papers["bfloat16"]),
    ("float32", papers["float32"]),
    ("10 µs a kernel", papers["bfloat16"].on(eager)),
    ("over PCIe", papers["bfloat16"].on("pcie-box")),
):
    steps = 1e10 / PAPER["tokens_per_step"]
    dollars, kwh = bill(8, steps * run.step_s / 3600, "A100")
    row = {"program": name, "step_s": run.step_s, "MFU": f"{run.mfu_fraction:.0%}"}
    table.append({**row, "dollars": round(dollars), "kWh": round(kwh)})
draw.table(table, title="10 billion tokens, GPT-2's size on 8 A100, on paper; prices of May 2026")

# %% bill_of_llama
gpu_hours = 30.84e6  # Llama 3.1 405B on H100: Meta's model card, 2024
dollars, kwh = bill(1, gpu_hours, "H100")
gpus_kwh = 0.7 * gpu_hours
predictions.reveal("GPUs of Llama 3.1 405B", dollars / 1e6)
print(f"Llama 3.1 405B: {dollars / 1e6:.0f} million dollars at {DOLLARS_PER_H['H100']} an hour")
print(f"{gpus_kwh / 1e6:.1f} GWh by its GPUs' 700 W, {kwh / 1e6:.0f} GWh by nodes and cooling")
print(f"8,930 t CO2 equivalent by its card: {8.93e6 / gpus_kwh:.3f} kg for each kWh of the GPUs")
print(f"one percent of the step: {dollars / 1e8:.1f} million dollars")

# %% [markdown]
# An engineer who saves one percent of that step saves nearly a million dollars. In the table before
# it, the dtype is worth more than the network. And the energy nearly triples depending on what is
# counted: the GPUs according to their data sheet, or whole nodes with cooling. State which you
# count.
#
# ### Explore
#
# The explorer computes one step of a model with a billion parameters on sixteen GPUs. Choose the
# batch, the files, the loader and the network, and find what binds. The picture shows one rank, and
# the sentence below it names the largest bound.


# %% explored
PARAMETERS, LENGTH = 1e9, 2048


def step_of(sequences=4, files=64, workers=4, cluster="a100-100gbe-x2"):
    """A rank's step by formula: what binds, and a picture of it."""
    where = hardware.cluster(cluster)
    rate = 0.8 * where.gpu.peak_flops_per_s["bfloat16"]
    work_s = 6 * PARAMETERS * sequences * LENGTH / rate
    wire_s = price("all_reduce", 2 * PARAMETERS, range(16), where).time_s
    load_s = files * (hardware.NFS.latency_s + 1e5 / hardware.NFS.read_bytes_per_s) / workers
    ready_s, sent_s = work_s / 3, work_s / 3 + wire_s
    step_s = max(work_s, sent_s, load_s)
    rank = functools.partial(Event, 0)
    events = [
        rank("loader", "data", "load", 0.0, load_s),
        rank("compute", "forward", "forward", 0.0, ready_s),
        rank("compute", "backward", "backward", ready_s, work_s),
        rank("communication", "communication", "all_reduce", ready_s, sent_s),
    ]
    picture = draw.timeline(Timeline.of_events(events), title="A step, computed")
    took = {"compute": work_s, "wire": sent_s, "storage": load_s}
    binds = max(took, key=took.get)
    mfu = 0.8 * work_s / step_s
    return picture, f"{binds} binds: {units.format_time_s(step_s)} a step, MFU {mfu:.0%}"


# %% explore
explore(
    step_of,
    sequences=(1, 32),
    files=(1, 512),
    workers=(1, 16),
    cluster=["a100-100gbe-x2", "a100-hdr-x2", "h100-ndr-x2"],
)

# %% [markdown]
# Begin with the initial settings. Change what does *not* bind, as far as you can: nothing happens.
# Then change what binds until a different bound does. How many sequences does each network need
# before compute binds? With H100s, which of the bounds changed, and which did not?

# %% [markdown]
# ## 7. When it breaks
#
# ### A rail of 400 Gb/s reached only 105
#
# In September 2026 a user had two nodes of eight H100s, each with eight NICs of 400 Gb/s over RoCE
# (NVIDIA/nccl, issues 2408 and 2409, pull request 2410). NCCL reached about 13 GB/s on a
# connection, a quarter of the link's bandwidth. `ib_write_bw` moved 392 Gb/s over the same cable,
# even with messages of 128 KiB, which is the size of the pieces that NCCL sends. So the cause was
# not the cable, the switch or the NIC.
#
# What should you do next? **Vary the size.** With pieces of 128 KiB the rate was 13.1 GB/s, and
# with pieces of 1 MiB it was 87.6.
#
# ### Your turn: latency or bandwidth
#
# 6 minutes · easy
#
# You get two sizes in bytes, and the rates that they reached in bytes per second. If a piece takes
# a fixed time plus a time for each byte, what is the fixed time, and what is the rate without it?
#
# <details><summary>Hint</summary>
#
# The time of a piece is its size divided by its rate. You have two points of a straight line: its
# slope is the time per byte, and its value at size 0 is the fixed time.
#
# </details>


# %% fixed_and_rate tags=["turn"]
def fixed_and_rate(sizes_bytes, rates_bytes_per_s):
    """The fixed seconds of each piece, and the bytes a second besides, from two measurements."""
    ### BEGIN SOLUTION
    small_s, large_s = (n / rate for n, rate in zip(sizes_bytes, rates_bytes_per_s, strict=True))
    per_byte_s = (large_s - small_s) / (sizes_bytes[1] - sizes_bytes[0])
    return small_s - per_byte_s * sizes_bytes[0], 1 / per_byte_s
    ### END SOLUTION


# %% check_fixed_and_rate
def sent_pieces(size_bytes):
    """Seconds of one message from rank 0 to rank 1."""
    piece, start_s = torch.zeros(size_bytes, dtype=torch.uint8), emulate.elapsed()
    if dist.get_rank() == 0:
        dist.send(piece, 1)
    else:
        dist.recv(piece, 0)
    return emulate.elapsed() - start_s


with check.turn("fixed_and_rate"):
    ACROSS = dataclasses.replace(SMALL_NODES, gpus_per_node=1, nics_per_node=1)
    sizes = (128 << 10, 1 << 20)
    where = {"world_size": 2, "cluster": ACROSS, "compute": "none", "echo": False}
    rates = tuple(size / ws.run(sent_pieces, size, **where).values[1] for size in sizes)
    found = fixed_and_rate(sizes, rates)
    hint = "Turn rates into seconds first: the seconds lie on a line, the rates do not."
    latency_s = SMALL_NETWORK.latency_s
    check.expect_close(float(found[0]), latency_s, "the fixed time, emulated", hint, rtol=0.02)
    check.expect_close(float(found[1]), 0.5e9, "the rate besides, emulated", hint, rtol=0.02)
    print(f"Right: {1e6 * found[0]:.0f} µs and {found[1] / 1e6:.0f} MB/s on the small network.")

# %% rail
table = []
for size_bytes, rate in ((128 << 10, 13.1e9), (1 << 20, 87.6e9)):
    table.append({"piece_bytes": size_bytes, "rate_bytes_per_s": rate, "time_s": size_bytes / rate})
draw.table(table, title="Reported in NVIDIA/nccl issue 2409, and the time of a piece, computed")

# %% [markdown]
# A piece of eight times the size takes almost the same time: 12 instead of 10 µs. The line through
# both points begins at 9.7 µs. So the link was fast, and something took 10 µs for *each piece*: a
# **latency that looks like low bandwidth**.
#
# The obvious fix was a larger piece: with 1 MiB everything became seven times as fast, and
# **silently wrong**. The kernel wrote beyond its slot; the driver reported Xid 31. A bound could
# have been a warning: a link of 400 Gb/s carries 50 GB/s each way, not 87.6. In the end the causes
# were a fault of the platform and a setting; with both fixed, pieces of 128 KiB reach the link's
# rate.
#
# The story shows two rules of this week. **Vary one thing, and solve for what you cannot see.** And
# **no speed-up counts until its results have been checked.**
#
# ### Exclusions found why MFU fell over thousands of steps
#
# MegaScale (Jiang et al. 2024, section 6.3) shows how to reason about a slow-down on 10,000 GPUs.
# Over thousands of steps, MFU fell. The report is a chain of exclusions. Forward, backward and
# optimizer took as long as before: *so it was not the GPUs*. The network's bandwidth was steady:
# *not the links*. What grew was the time in the last collective of a step, the reduce-scatter of
# gradients. Varying ranks entered it later and later: *so a rank was late, and not always the same
# one*. Between two ranks the lag alternated from one to the other, and grew. The cause: Python's
# garbage collector ran at different times on different ranks, and so did a few slow operations in
# the forward pass. Once these were removed, MFU stayed constant.
#
# Most of these sentences name what stayed the same, and so what the cause was *not*. Timers on
# every rank, always on, made that possible. Which of the ten pictures does this slow-down match?
#
# <details><summary>Answer</summary>
#
# The straggler's: some ranks wait in a collective for another rank. But the late rank changes from
# step to step, so the mean over steps does not show it. Look at single steps.
#
# </details>

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | max(load / workers, work) | a loader is hidden until it takes longer than the step | section 4 |
# | 150 to 300 FLOPs a byte | below it an A100, H100 or H200 waits for memory | section 4 |
# | 24 ms against 0.1 ms | ring and tree of 10,000 GPUs, latency by NCCL's cost model | section 6 |
# | files · latency | 10,000 files: 1 s from drives, 23 s from Lustre, by one reader | section 6 |
# | 1% of 405B's step | nearly a million dollars | section 6 |

# %% [markdown]
# ## 8. Problems
#
# 1. A step takes 100 ms, of which 60 ms are work. Each batch takes 240 ms of one worker's time. How
#    many workers are enough? What would a fourth worker gain?
#
# <details><summary>Answer</summary>
#
# A batch must be ready every 100 ms: 240/100, so **3** workers. More workers gain nothing until the
# step itself gets shorter. If all communication were hidden, the step would be 60 ms, and then
# **4** would be needed: a fix may create the next bottleneck.
#
# </details>
#
# 2. A kernel reads two bfloat16 tensors of a million elements each, adds them and writes the sum.
#    How many FLOPs does it do per byte? What share of an A100's 312 TFLOP/s can it reach?
#
# <details><summary>Answer</summary>
#
# It does a million additions for 3 · 2 million bytes: 1/6 FLOP per byte. At 2.04 TB/s that is 0.34
# TFLOP/s, **0.11%** of the peak. Fused with the kernel that computes its input, it costs nothing.
#
# </details>
#
# 3. Gradients of 2 GB are all-reduced in buckets of 25 MB, on 16 H100s in two nodes. A call's
#    latency is 40 µs. How long do all latencies take together? And with one call for each of 300
#    tensors? Compare with the transfer of 2 · 15/16 of the bytes over 8 NICs of 48 GB/s.
#
# <details><summary>Answer</summary>
#
# 80 calls take **3.2 ms**, and 300 calls **12 ms**. The transfer takes 3.75 GB / 384 GB/s = **9.8
# ms**. So the latencies of buckets cost a third of the transfer, and those of single tensors more
# than the transfer itself.
#
# </details>
#
# 4. On 64 ranks the all-reduce at the step's end takes 30 ms on 63 of them, and 2 ms on rank 17. A
#    colleague who profiles rank 0 wants a faster network. What do you answer?
#
# <details><summary>Answer</summary>
#
# The messages take 2 ms. The other 28 ms are spent waiting for rank 17, which arrives last. A
# faster network saves a part of 2 ms. Find out why rank 17 is late: use py-spy, and look at its
# clocks and its loader.
#
# </details>
#
# 5. 1,024 H100s run for 30 days, each at 2.95 dollars an hour. Then MFU rises from 38 to 41%. How
#    much does the same training cost before and after?
#
# <details><summary>Answer</summary>
#
# 1,024 · 720 · 2.95 = **2.17 million** dollars. The same FLOPs take 38/41 of the time: **2.02
# million**. The difference, 159,000 dollars, is what finding the improvement may cost.
#
# </details>
#
# 6. Design: you get a program whose step takes twice as long as its compute bound, on 128 GPUs of a
#    cluster that you do not know. You have one hour on it. Which five measurements do you make, in
#    which order, and what would each exclude?
#
# <details><summary>Answer</summary>
#
# For instance: (1) the same step on one GPU excludes all messages, and gives the work; (2) the same
# with data generated in memory excludes input and storage; (3) nccl-tests on all 128 GPUs, with the
# step's message sizes, exclude links, rails and the order of nodes; (4) a trace of two steps on two
# ranks in different nodes shows overlap, calls and launches; (5) the compute times of all 128 ranks
# over a hundred steps exclude, or name, a straggler. Each leaves fewer possible causes, and none
# changes the program.
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
quiz.ask("week11", seed=seed)

# %% [markdown]
# ## To take with you
#
# - Measure, compare with the bounds, name one suspect and what it could save, change one thing,
#   measure again.
# - Improving anything but the bottleneck saves nothing, however large the improvement.
# - The rank that waits least is the culprit. The longest all-reduce is on one of its victims.
# - Waiting for messages has five possible reasons. Each has its own sign.
# - Many of this week's bottlenecks are a latency times the number of files, calls or kernels.
# - Count a change as a fix only if you predicted its saving and the results are unchanged.
#
# **Now the lab**: [lab 11](../labs/lab11/lab11.ipynb). You get a training program with planted
# bottlenecks, drawn at random for you. Then **week 12**, *Nothing stays up*.
