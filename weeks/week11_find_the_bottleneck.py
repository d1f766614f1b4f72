# %% [markdown]
# # Week 11. Find the bottleneck
#
# | | |
# |---|---|
# | Reading | about 90 minutes, with four short exercises in place |
# | Running | about a minute on two CPU cores; no GPU is needed |
# | You need | weeks 2 to 4, 6 and 10: prices of collectives, DDP, stragglers, bfloat16, meshes |
# | You do not need | a GPU, Nsight Systems, InfiniBand |
# | Afterwards | lab 11: a training program with bottlenecks that nobody has told you about |
#
# The weeks before built things that should be fast. This week somebody hands you a program that is
# not, and you have to say why. There is no list of tricks to try: each trick helps one illness, and
# a program has seldom more than one at a time that counts. What there is instead is a **method**.

# %% [markdown]
# ## 1. The question
#
# > Of everything that a training step could wait for, which one does it wait for now, and how much
# > would be gained if that were put right?
#
# Afterwards you can take a step apart into six bounds, read the pictures of ten illnesses and the
# logs of NCCL, predict what a fix will save before you make it, follow a byte through a node and a
# network, and say what a step costs in money and energy.

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
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
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
from worldsize.explore import explore
from worldsize.faults import SlowLink, SlowRank
from worldsize.hardware import FatTree, Level
from worldsize.models import Transformer, shape
from worldsize.pricing import price
from worldsize.timeline import Timeline

torch.set_num_threads(1)  # as the ranks do: they share the cores
predictions = ledger.Predictions("week11")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# Four numbers: two symptoms, one law, one bill.

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
# ### One program, and a small machine for it
#
# All week there is **one program**: data-parallel training of a small transformer on four ranks in
# two nodes. So that it runs in seconds on two cores, the transformer is tiny, and the GPUs are as
# tiny: an A100 with a 4,000th of its arithmetic and a 40th of its memory's rate, behind a slow
# network. What matters in this week are ratios, and these are those of real programs: a step
# of some milliseconds, of which computing takes most.

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
# A step has micro-batches whose gradients add up. Each is read from storage and decoded by a CPU,
# normally while the one before is at work; it goes through the model; the gradients are averaged
# once. Everything that can go wrong below is **one field** of `Job`, or a fault of the machine.


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
# `emulate.lane("loader")` is a loader's own thread. `emulate.transfer` and `emulate.spend` take the
# virtual time of a read and of a CPU's work.


# %% load
BATCH_BYTES = 400_000


def load(job):
    """Read a micro-batch and make tensors of it, in virtual time."""
    with ws.span("read", kind="data"):
        for _ in range(job.num_files):
            emulate.transfer(BATCH_BYTES // job.num_files, job.store)
    with ws.span("decode", kind="data"):
        emulate.spend(job.decode_s)


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
    """The model under DDP along dp, cut along tp as in week 8; and the rank's place on dp."""
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
    for _ in range(2):  # DDP has one bucket in its first step, and makes the others in the second
        ddp(torch.zeros(1, 1, dtype=torch.long)).sum().backward()
    ddp.zero_grad()
    return ddp, mesh.get_local_rank("dp")


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
    flat = torch.cat([one.grad.flatten() for one in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    for one, mean in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        one.grad.copy_(mean.view_as(one))


# %% [markdown]
# `num_kernels` will be needed to know what launching costs; torch shows every operator to a
# `TorchDispatchMode`, and on a GPU each that is no view is a kernel.


# %% train_step
class Kernels(TorchDispatchMode):
    """A count of operators that are kernels on a GPU: all that are no views."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


def train_step(job):
    """One step: the mean loss of this rank's tokens, the gradient's norm, the number of kernels."""
    torch.set_num_threads(1)
    (ddp, place), loss = replica(job), 0.0
    parameters = list(ddp.parameters())
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
# ### The list
#
# Now the usual way to make a slow program fast: a list of good advice, tried from the top. The
# program below is slow, we do not know why, and each row takes one piece of advice. All of them are
# good advice.


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
# Three pieces of advice do nothing, or next to nothing, among them twice the money for GPUs. One
# does everything. **What does not bind does not matter**, however much better it gets. A list is
# not wrong. But it does not say which line to start with, and after three failures people take two
# pieces of advice at once and no longer know which of them helped.


# %% [markdown]
# ## 4. Build it well
#
# ### The method
#
# 1. **Measure** one step, on all ranks, with as little disturbance as possible.
# 2. **Compare with the bounds**: how long would each resource need if it alone mattered?
# 3. **Name the suspect** whose removal would save most, and write down how much.
# 4. **Change one thing.** Nothing else, not even a better one.
# 5. **Measure again.** Did it save what you wrote down? Are the results still the same?
#
# Then from the start: the next bottleneck is another one.
#
# ### Six bounds
#
# A step cannot be shorter than any of these, and the largest is the one that **binds**:
#
# | Bound | Seconds | Needs |
# |---|---|---|
# | compute | operations / the GPU's rate in this dtype | a count (week 1) |
# | memory | bytes read and written / the memory's rate | a profiler's kernels |
# | launch | kernels · the time to launch one | a count of kernels |
# | wire | Σ price of each collective | sizes and ranks (week 2) |
# | input | the work of a loader / its workers | one loader alone |
# | storage | Σ latency + bytes / rate, for each file | a data sheet, or `fio` |
#
# A program that is bound by memory has kernels that do too few operations for each byte: under the
# GPU's **ridge**, its rate over its memory's rate.


# %% ridges
table = []
for gpu in (hardware.A100, hardware.H100, hardware.H200, hardware.B200):
    rates = {name: gpu.peak_flops_per_s[name] for name in ("bfloat16", "float32")}
    row = {"GPU": gpu.name, "bfloat16_flops_per_s": rates["bfloat16"]}
    row["memory_bytes_per_s"] = gpu.memory_bandwidth_bytes_per_s
    row["ridge, operations a byte"] = round(rates["bfloat16"] / gpu.memory_bandwidth_bytes_per_s)
    table.append({**row, "bfloat16 over float32": round(rates["bfloat16"] / rates["float32"], 1)})
draw.table(table, title="Where compute and memory meet, computed from data sheets")


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
# The healthy step's largest bound is compute. The step takes more: kernels reach four fifths of the
# peak, small ones less, and launches and a part of the messages come one after the other with them.
# The slow step is its storage bound, and little more. (Memory's bound needs every kernel's bytes.)
#
# The bounds say what *cannot* be the reason. For what is, they are too coarse: messages can be
# slow because there are many, because they are late, because they are sent too often, because a
# link is slow, or because they take the wrong way. So look at the step itself.


# %% healthy_drawn
draw.timeline(healthy, title="A healthy step, emulated")

# %% [markdown]
# Read it from left to right. The loader's lane is never the last to finish. Gradients of the last
# micro-batch leave while its backward pass is still running; only the first layers', which are
# ready last, have nothing left to hide behind. All ranks do the same at the same time.


# %% [markdown]
# ### Ten suspects, and what each could save
#
# The second half of the method: for each suspect, **the seconds that would go if it alone were put
# right**. All of them come from the timeline and from prices; none needs the program to be changed
# first. Look at the rank that works longest: it waits for nobody, so what it waits for is real.
#
# Its step is work, and waiting for messages, and the rest, which is waiting for data. The work
# hides three suspects: arithmetic in a slow dtype, launches that one larger call would save, and
# a rank that is slower than its peers.


# %% suspects
def work_s(timeline, rank):
    """Seconds in which a rank computes."""
    return sum(timeline.time_s(rank, kind) for kind in ("forward", "backward", "update", "compute"))


def suspects(job, run, timeline):
    """For each suspect the seconds of the step that would go if it alone were put right."""
    works_s = [work_s(timeline, rank) for rank in range(4)]
    last = works_s.index(max(works_s))  # nobody waits less for the others than the slowest rank
    data_s = length_s(timeline) - works_s[last] - timeline.exposed_communication_s(last)
    read_s, decode_s = (
        sum(event.duration_s for event in timeline.of(last) if event.name == name)
        for name in ("read", "decode")
    )
    rates, together = SMALL_GPU.peak_flops_per_s, job.num_together / job.num_sequences
    found = {
        "input": data_s * decode_s / (read_s + decode_s),
        "storage": data_s * read_s / (read_s + decode_s),
        "launch": run.values[last][2] * SMALL_GPU.launch_s * (1 - together),
        "precision": flops_of(job) / rates[job.dtype] - flops_of(job) / rates["bfloat16"],
        "straggler": works_s[last] - statistics.median(works_s),
    }
    found |= of_the_wire(job, timeline, last)
    return {name: max(0.0, saved_s) for name, saved_s in found.items()}


# %% [markdown]
# Waiting for messages hides five. What distinguishes them is which number disagrees with its bound:
#
# | Suspect | What disagrees |
# |---|---|
# | small buckets | the number of calls, each with its latency |
# | no overlap | backward time beside which nothing was sent |
# | accumulation | the gradients' bytes, sent more than once |
# | slow link | a call's time with the price of the link as described |
# | wrong axis | the price with that of the other order of the mesh |
#
# None of the first four can save more than what is waited for in all.


# %% calls
def calls_of(timeline):
    """Each collective of the step once: on the rank that called last, which waited for nobody."""
    by_call = {}
    for event in timeline.events:
        if event.kind == "communication":
            by_call.setdefault((event.group, event.peers, event.sequence), []).append(event)
    return [min(events, key=lambda event: event.duration_s) for events in by_call.values()]


def priced_s(event, ranks=None, size_bytes=None):
    """What a collective should take on the described links: the bound that it is compared with."""
    size_bytes = event.size_bytes if size_bytes is None else size_bytes
    return price(event.name, size_bytes, ranks or event.peers, SMALL_NODES).time_s


def other_order(ranks):
    """The ranks of the same group, if the two axes of a mesh of 2 x 2 changed places."""
    return tuple(sorted(2 * (rank % 2) + rank // 2 for rank in ranks))


# %% of_the_wire
def of_the_wire(job, timeline, rank):
    """Of the time in which a rank only waits for messages, what would go with each suspect."""
    calls = [event for event in calls_of(timeline) if rank in event.peers]
    gradients = [event for event in calls if event.axis != "tp"]
    alone = Timeline([event for event in timeline.events if event.axis != "tp"])
    waits_s = alone.exposed_communication_s(rank)
    hidden_s = alone.time_s(rank, "communication") - waits_s
    times_sent = max(1.0, sum(event.size_bytes for event in gradients) / GRADIENT_BYTES)
    ready_last_s = priced_s(gradients[-1], size_bytes=min(job.bucket_bytes, GRADIENT_BYTES))
    found = {
        "buckets": sum(priced_s(event, size_bytes=4) for event in gradients[1:]) / times_sent,
        "overlap": timeline.time_s(rank, "backward") / job.num_batches - hidden_s,
        "accumulation": waits_s * (1 - 1 / times_sent),
        "link": sum(event.duration_s - priced_s(event) for event in calls),
    }
    most_s = {name: waits_s - ready_last_s * (name == "overlap") for name in found}
    found = {name: min(most_s[name], saved_s) for name, saved_s in found.items()}
    moved_s = (priced_s(event) - priced_s(event, other_order(event.peers)) for event in calls)
    return found | {"axis": sum(moved_s)}


# %% [markdown]
# ### Ten illnesses
#
# Each is the healthy program with one thing wrong. The measured step, and what the diagnosis says
# of it, before anything has been put right:


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
ill, values, diagnoses = {}, {HEALTHY: healthy_run.values[0], TWO_AXES: axes_run.values[0]}, {}
for name, (base, changes, faults) in SYMPTOMS.items():
    job = dataclasses.replace(base, **changes)
    run, ill[name] = measured(job, faults)
    diagnoses[name], values[name] = suspects(job, run, ill[name]), run.values[0]

# %% diagnoses
table = []
for name, found in diagnoses.items():
    named = sorted(found, key=found.get, reverse=True)
    row = {"planted": name, "step_s": length_s(ill[name]), "first suspect": named[0]}
    row["could save_s"] = found[named[0]]
    saved_s = length_s(ill[name]) - length_s(reference[SYMPTOMS[name][0]])
    row |= {"the fix saved_s": saved_s, "second suspect": named[1]}
    table.append({**row, "could save _s": found[named[1]]})
slow_s, fast_s = length_s(ill["precision"]), length_s(healthy)
predictions.reveal("float32 over bfloat16, A100", slow_s / fast_s)
draw.table(table, title="Ten illnesses, what each step's own diagnosis says, and what the fix gave")

# %% [markdown]
# In every row the first suspect is what was planted. The seconds that it *could* save are computed
# from the ill step alone, and what the fix saved is near them: that is the sign that the reason is
# understood. (Larger calls save more than the launches, since each product has a start of its own.)
# The last column is the next bottleneck, and it is small.
#
# Now the pictures, beside the healthy one. Cover the text below each, and say what it is first.


# %% side_by_side
def beside(*names):
    """The healthy step, and these ones below it."""
    first = reference[SYMPTOMS[names[0]][0]]
    return draw.timelines({"healthy": first} | {name: ill[name] for name in names})


beside("input", "storage")

# %% [markdown]
# **Input**: yellow *before* each forward pass, on the ranks' own lane. The loader works when it is
# asked, and the GPU waits. Fix: load ahead (`num_workers`, `prefetch_factor`). **Storage**:
# the loader has a lane of its own and never rests, and the GPU waits all the same. Loading ahead
# cannot hide what takes longer than the work. Fix: fewer, larger files, a nearer store. The
# difference matters, because the fix of the one does nothing for the other.

# %% launch_and_precision
beside("launch", "precision")

# %% [markdown]
# Both look the same, and like a larger model: all ranks are busy, nothing waits. **Launch**: the
# sequences go through the model one by one, so there are four times as many kernels, each too
# small. The sign is that the time does not depend on the work: a batch of half the size takes as
# long. Fix: larger calls; where that is impossible, `torch.compile`, fused optimizers, CUDA graphs.
# **Precision**: kernels as many as before, each many times longer, with names like `sgemm`. Fix:
# autocast (week 6). A utilisation of 100% in `nvidia-smi` is what both show.

# %% straggler
beside("straggler")

# %% [markdown]
# **Straggler**: three ranks have long waits, one has none. **The rank that waits least is the
# culprit**; whoever looks at the longest all-reduce blames the innocent. Everything that is equal
# on all ranks is thereby no suspect.

# %% buckets_overlap_accumulation
beside("buckets", "overlap", "accumulation")

# %% [markdown]
# **Small buckets**: many thin messages in a row, each mostly latency. **No overlap**: one message,
# and nothing beside it. **Accumulation**: messages in *every* micro-batch, all but one of which are
# not needed yet. Here the micro-batches' own work hides a part of it. Without
# accumulation at all, an update follows each of them as well.

# %% link_and_axis
beside("link")

# %% [markdown]
# **Slow link**: the same messages as in the healthy step, each several times as long, on all ranks:
# a ring is as fast as its slowest link. Only the comparison with the described link gives it
# away, so know what yours should give (nccl-tests; week 2's fit).

# %% axis
beside("axis")

# %% [markdown]
# **Wrong axis**: tensor parallelism over two ranks, whose all-reduces nobody can hide, across the
# network, and data parallelism inside the nodes. The picture has many waits in forward and in
# backward, on all ranks. `draw.bytes_by_axis` says whose bytes they are (week 10).
#
# ### The results, unchanged
#
# A speed-up that changes the results is another program. So the last column of every table of
# speed is this one:

# %% unchanged
table = []
for name, (base, _, _) in SYMPTOMS.items():
    (first_loss, first_norm, _), (loss, norm, kernels) = values[base], values[name]
    row = {"program": name, "loss": f"{loss:.5f}", "norm of the gradients": f"{norm:.5f}"}
    row |= {"loss, off by": f"{abs(loss / first_loss - 1):.0e}"}
    table.append({**row, "norm, off by": f"{abs(norm / first_norm - 1):.0e}", "kernels": kernels})
draw.table(
    table, title="Loss and gradients of the ill programs, against their healthy one, emulated"
)

# %% [markdown]
# All but one give the healthy program's numbers, but for the order of sums. The exception is
# precision, by as much as bfloat16 rounds: whether that is allowed is a question for week 6, and
# it must be asked.

# %% [markdown]
# ### Your turn: a loader that keeps up
#
# 6 minutes · easy
#
# A loader with `num_workers` processes needs `load_s` of a process for each batch, and the step
# needs `compute_s`. With 0 workers the program loads by itself. How long is a step, once the first
# batches are there?
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
# A colleague's script prints the rank to send to repair: the one whose messages take longest. They
# have replaced two GPUs since, and nothing got better. Run the check, look at the picture, and
# mend the function. It gets a step's timeline.
#
# <details><summary>Hint</summary>
#
# In `beside("straggler")`, which rank has the *shortest* messages? A rank that comes early to an
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
# On one timeline everybody agrees about who is late. On a thousand real ranks the clocks differ,
# and only times *within* a rank can be compared: so compare what each rank computed, or how long
# each waited, as you have just done, and never when one started and another ended.

# %% [markdown]
# ## 5. Compare with the production oracle
#
# ### torch.profiler
#
# The timelines above are emulated. Is the real program the same program? The same function runs on
# two processes of this machine over Gloo, with **torch.profiler** switched on by `ws.profile()`.
# What must agree, whatever the machine, are the messages of a step: how many, and how large.


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
    profiled = [event for event in seen if event.stream == "communication"]
    return real, len(profiled), sum(event.size_bytes for event in profiled)


# %% profiler_beside_emulator
table = []
for name in ("healthy", "buckets", "accumulation"):
    job = dataclasses.replace(HEALTHY, **SYMPTOMS[name][1]) if name in SYMPTOMS else HEALTHY
    timeline = ill.get(name, healthy)
    sent = [event for event in timeline.of(0) if event.kind == "communication"]
    real, num_calls, num_bytes = sent_really(job)
    row = {"program": name, "calls, torch.profiler": num_calls, "calls, emulated": len(sent)}
    row["by torch.profiler_bytes"] = num_bytes
    table.append({**row, "emulated_bytes": sum(event.size_bytes for event in sent)})
draw.table(table, title="All-reduces of a step: measured here on two ranks, and emulated on four")

# %% [markdown]
# They agree to the byte. The *times* do not, and need not: one is this machine's, the other that of
# the cluster that was described. Of a program on a real cluster you would now have both: what
# the step takes, and what it should.
#
# ### Traces, and where to look at them
#
# `torch.profiler` records everything and says nothing. On GPUs a few steps of it look like this
# (`docs.pytorch.org`, torch.profiler):
#
# ```python
# schedule = torch.profiler.schedule(wait=5, warmup=2, active=3)  # of the steps, ten in all
# with torch.profiler.profile(schedule=schedule, on_trace_ready=write) as profiler:
#     for batch in loader:
#         step(batch)
#         profiler.step()
# ```
#
# where `write` calls `export_chrome_trace`. Open the file in **Perfetto** (ui.perfetto.dev): it stays
# in your browser. `Timeline.to_chrome_trace()` writes the same format:

# %% chrome_trace
folder = Path(tempfile.mkdtemp())
path = folder / "healthy_step.json"
path.write_text(healthy.to_chrome_trace())
events = json.loads(path.read_text())["traceEvents"]
kinds = Counter(event["ph"] for event in events)
print(f"{path}: {len(events)} events, of which {kinds['X']} have a duration")

# %% [markdown]
# In Perfetto, keys W and S zoom, A and D move. Mark a region: below it stand the sums by name. First
# look at the whole step, then at what is *not* there: gaps on the GPU's row. Above each gap, on the
# CPU's row, is what it did instead.
#
# **Holistic Trace Analysis** does this for the traces of all ranks (`pip install
# HolisticTraceAnalysis`; it needs traces of GPUs). Its two main figures are one-line ratios, and
# one of them is ours: overlap is the time computing *while* communicating over the time
# communicating.

# %% overlap_by_hand
communicates = healthy.time_s(0, "communication")
both_s = communicates - healthy.exposed_communication_s(0)
by_hand = both_s / communicates
print(f"overlap by HTA's definition {by_hand:.3f}, Timeline {healthy.overlap_fraction(0):.3f}")

# %% [markdown]
# **TensorBoard** shows curves of scalars over steps: loss, seconds a step, tokens a second
# (`pip install tensorboard`, then `torch.utils.tensorboard.SummaryWriter`). A step's time that creeps
# up over a day is seen there and in no trace.
#
# ### A look into a live rank
#
# When a rank does not come back, no profiler has written anything yet. **py-spy** reads the Python
# stack of a running process from outside, without stopping it for more than a moment. Here rank 0
# looks at rank 1, which is busy with something:


# %% spied
def unpacks_archives():
    """What rank 1 does all the time."""
    emulate.spend(1.5)


def look_at_rank_1():
    """py-spy's dump of rank 1, taken by rank 0 while that one works."""
    processes = [None, None]
    dist.all_gather_object(processes, os.getpid())
    if dist.get_rank() == 1:
        return unpacks_archives()
    emulate.spend(0.5)
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not (spy := shutil.which("py-spy", path=places)):
        return "py-spy is not installed: pip install py-spy"
    command = [spy, "dump", "--pid", str(processes[1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return done.stdout or f"py-spy may not look into another process here: {done.stderr}"


# %% live_rank
seen = ws.run(look_at_rank_1, world_size=2, backend="gloo", echo=False).values[0]
print("\n".join(seen.splitlines()[:9]))

# %% [markdown]
# The innermost call stands first: `spend`, called by `unpacks_archives`. So rank 1 is not in an
# all-reduce at all, which is what its partners' stacks would suggest. On a cluster: `py-spy dump
# --pid` on the rank that all others wait for; `py-spy record -o flame.svg --pid` for where time goes
# over a minute; `--native` for what is below Python. It needs root or `ptrace` rights.
#
# ### Nsight Systems
#
# Below torch is CUDA. NVIDIA's **Nsight Systems** records every kernel, copy and call of the
# driver, of all processes of a node. It is not a Python package, and needs a GPU. What it is asked
# (flags as in torch's developers' notes, gist mcarilli/376821aa, read 2026):
#
# ```sh
# nsys profile -t cuda,nvtx,osrt,cudnn,cublas --capture-range=cudaProfilerApi \
#     --capture-range-end=stop -o report -f true torchrun --nproc-per-node 8 train.py
# nsys stats report.nsys-rep
# ```
#
# with `torch.cuda.profiler.start()` and `stop()` around a few warm steps, and
# `torch.cuda.nvtx.range_push("forward")` and `range_pop()` around what should have a name. What to
# look for, in this order:
#
# | Row | Question | Suspect |
# |---|---|---|
# | CUDA HW, kernels | are there gaps? regular small ones, or a large one a step? | launch; input |
# | CUDA API, above a gap | `cudaStreamSynchronize`, `cudaMalloc`? a copy? | the program waits for the GPU |
# | NCCL kernels' stream | beside compute kernels, or alone? | overlap |
# | the same, over ranks | which rank's NCCL kernel is *short*? | straggler |
# | OS runtime | threads of the loader in `read`, `poll`? | storage |
# | kernel names | `sgemm`, or `bf16` and `tensorop`? | precision |

# %% [markdown]
# ## 6. Formula, measurement, emulation, paper
#
# ### A byte's way through a node
#
# Where a message is slow depends on the way that its bytes take. Inside a node, **NVLink** joins
# GPUs to each other, or to switches. **PCIe** joins GPUs, NICs and the host. Between nodes is the
# network: **InfiniBand**, or **RoCE**, which is the same protocol over Ethernet. Both can do
# **RDMA**: the NIC reads and writes memory by itself, and no CPU copies anything. With **GPUDirect**
# that memory is the GPU's. Here is the good way from a GPU to one of another node:

# %% node_rdma
NODES = dataclasses.replace(
    hardware.cluster(network), name="two small nodes", gpus_per_node=4, nics_per_node=4
)
draw.node(NODES, ("gpu0", "node1.gpu0"))

# %% [markdown]
# And here is the first half of the way without GPUDirect: through the host's memory, where a CPU or
# the NIC fetches it again.

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
# In pieces, the way through the hosts seems as fast as the direct one. It is so for *one* GPU. Eight
# of them share the host's memory and the uplinks of the PCIe switches, and each byte goes over them
# twice. NCCL gives the distance between a GPU and a NIC a name, from near to far (NCCL 2.30.7,
# `src/include/graph.h`): `NVL` NVLink; `PIX` one PCIe switch; `PXB` several; `PHB` through the CPU;
# `SYS` across the CPUs' own link; `NET`. `nvidia-smi topo -m` prints these for your node. A GPU
# whose NIC is `SYS` away is a bottleneck that no profiler of torch shows.
#
# ### NCCL: algorithms and protocols
#
# For each call NCCL chooses an **algorithm**: a ring, trees, or switches that add (`NVLS`). And a
# **protocol**: how the receiver learns that data has come. `LL` sends a flag with every 4 bytes, so
# half of the wire is flags, and needs no waiting. `LL128` sends 120 bytes of data in 128. `Simple`
# sends data alone, and synchronises. Small messages are all latency, and large ones all bandwidth:

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
# On such a node NCCL's own log says `RING` with `LL` up to 1 MiB, and `NVLS` with `SIMPLE` from 2 MiB
# on (stas00/ml-engineering, network/README.md, 2026). And another warning: the bus bandwidth of
# `NVLS` may be *above* the link's: nccl-tests multiplies by 2(N - 1)/N, but with switches that add
# each byte travels once. 8 H200 gave 473 GB/s over links of 450 (the same source).

# %% [markdown]
# ### Your turn: NCCL's own model of a ring
#
# 8 minutes · medium
#
# For small messages NCCL's cost model counts steps. A ring over n GPUs on N nodes takes 2(n - 1)
# steps for an all-reduce. In 2(N - 1) of them something crosses the network, and each takes
# `across_s`; the others take `inside_s`. A call takes `base_s` in any case. Write the sum. On one
# node nothing crosses.
#
# <details><summary>Hint</summary>
#
# How many steps are left for the inside? All, less those across.
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
# **24 ms, before a byte has moved**, against a tenth of a millisecond by a tree. This is why NCCL
# changes to trees at scale, and why a step must not make many small calls over all GPUs.
#
# ### NCCL's log, line by line
#
# `NCCL_DEBUG=INFO` prints what was found and chosen; `NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,TUNING` says
# of what; `NCCL_DEBUG_FILE=nccl.%h.%p` writes a file for each host and process. The lines below
# are quoted by their form in NCCL 2.30.7's source, with the file; no log was recorded for them.
#
# | Line | Read it for |
# |---|---|
# | `NET/IB : Using ...; OOB ...` (net_ib/init.cc) | every NIC that you paid for; `NET/Socket` means TCP |
# | `Using network ...` (init.cc) | the plug-in that carries messages between nodes |
# | `Channel 00/16 : 0[0] -> 1[1] via P2P/IPC` (p2p.cc) | GPU to GPU, direct |
# | `... via SHM/direct` (shm.cc) | through host memory: on an NVLink node something is wrong |
# | `... [send] via NET/IB/0/GDRDMA` (net.cc) | GPUDirect; without `GDRDMA` it is the host's copy |
# | `Ring 00 : 7 -> 0 -> 1` (init.cc) | the order of the ranks: does it cross nodes once? |
# | `16 coll channels, ... 16 nvls channels` (init.cc) | parallel rings; 0 nvls channels: no NVLS |
# | `Init timings - ... total 3.03 (kernels 1.22, ..., topo 1.10, ...)` (init.cc) | start-up; 3.03 s # on 8 H100 (NVIDIA/nccl issue 2094) |
# | `AllReduce: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}=...` (enqueue.cc) | the choice |
#
# What would the last line say for your call? `price` makes the same choice:


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
# Its variables, with their defaults in 2.30.7, and when to touch them:
#
# | Variable | Default | For |
# |---|---|---|
# | `NCCL_SOCKET_IFNAME` | any | which interface bootstraps; wrong on nodes with Docker's |
# | `NCCL_IB_HCA` | all | which NICs; leave out the one for storage |
# | `NCCL_IB_DISABLE=1`, `NCCL_P2P_DISABLE=1` | 0 | a *test*: is the fast way even in use? |
# | `NCCL_NET_GDR_LEVEL` | by topology | up to which distance GPUDirect is used |
# | `NCCL_ALGO`, `NCCL_PROTO` | chosen | a *test*; forced `LL128` is unsafe on some paths |
# | `NCCL_BUFFSIZE` | 4 MiB | 8 steps in flight of 512 KiB |
# | `NCCL_IB_TIMEOUT`, `NCCL_IB_RETRY_CNT` | 20, 7 | how long a flapping link is forgiven |
# | `NCCL_CROSS_NIC`, `NCCL_NVLS_ENABLE` | 2, 2 | 2 is "if it is worth it" |
#
# NVIDIA's guide itself says that the debugging ones do not belong into scripts. A variable that was
# set for a test and stayed is a bottleneck of its own.
