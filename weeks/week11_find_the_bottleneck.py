# %% [markdown]
# # Week 11. Find the bottleneck

# %% parameters tags=["parameters"]
seed = 0

# %% setup
import contextlib
import dataclasses
import json
import math
import os
import statistics

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import worldsize as ws
from worldsize import check, draw, emulate, hardware, ledger, quiz, units
from worldsize.check import CheckFailed
from worldsize.explore import explore
from worldsize.faults import SlowLink, SlowRank
from worldsize.models import Transformer, shape
from worldsize.pricing import price
from worldsize.timeline import Timeline

torch.set_num_threads(1)  # as the ranks do: they share the cores
predictions = ledger.Predictions("week11")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

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
SMALL_NETWORK = dataclasses.replace(
    hardware.ETHERNET_10G, name="a small network", latency_s=80e-6, bandwidth_bytes_per_s=0.5e9
)
SMALL_NODES = dataclasses.replace(
    hardware.cluster("pcie-box-10gbe"), name="two small nodes", gpu=SMALL_GPU, gpus_per_node=2
)
SMALL_NODES = dataclasses.replace(SMALL_NODES, inter=SMALL_NETWORK)


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


# %% load
def load(job):
    """Read a micro-batch and make tensors of it, in virtual time."""
    with ws.span("read", kind="data"):
        for _ in range(job.num_files):
            emulate.transfer(400_000 // job.num_files, job.store)
    with ws.span("decode", kind="data"):
        emulate.spend(job.decode_s)


def batches(job, place):
    """The step's micro-batches, each loaded while the one before is at work, or only when asked for."""
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
    """The rank's model under DDP along dp, cut along tp as in week 8; and the rank's place on dp."""
    axes = dict(job.axes)
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    model = Transformer(SIZES, seed=seed)
    if axes["tp"] > 1:
        plan = dict.fromkeys(ENTERING, ColwiseParallel()) | dict.fromkeys(LEAVING, RowwiseParallel())
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
def measured(job, faults=()):
    """A run of the program on the two small nodes, and the timeline of its step."""
    where = {"world_size": 4, "cluster": SMALL_NODES, "echo": False, "timeout_s": 240}
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


# %% symptoms
HEALTHY, TWO_AXES = Job(), Job(axes=(("dp", 2), ("tp", 2)))
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


# %% calls
def calls_of(timeline):
    """Each collective of the step once: its event on the rank that called last, so nobody is waited for."""
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
    """Of the time in which a rank only waits for messages, what each suspect could save at most."""
    calls = [event for event in calls_of(timeline) if rank in event.peers]
    gradients = [event for event in calls if event.axis != "tp"]
    alone = Timeline([event for event in timeline.events if event.axis != "tp"])
    waits_s, times_sent = alone.exposed_communication_s(rank), num_times(gradients)
    hidden_s = alone.time_s(rank, "communication") - waits_s
    last_backward_s = timeline.time_s(rank, "backward") / job.num_batches
    latency_s = sum(priced_s(event, size_bytes=4) for event in gradients[1:])
    found = {
        "buckets": latency_s / times_sent,
        "overlap": last_backward_s - hidden_s,
        "accumulation": waits_s * (1 - 1 / times_sent),
        "link": sum(event.duration_s - priced_s(event) for event in calls),
    }
    found = {name: max(0.0, min(waits_s, saved_s)) for name, saved_s in found.items()}
    moved_s = sum(priced_s(event) - priced_s(event, other_order(event.peers)) for event in calls)
    return found | {"axis": max(0.0, moved_s)}


def num_times(gradients):
    """How often the step sends the gradients: their bytes over those of one rank's parameters."""
    return max(1.0, sum(e.size_bytes for e in gradients) / (4 * SIZES.num_parameters))


# %% suspects
def work_s(timeline, rank):
    """Seconds in which a rank computes."""
    return sum(timeline.time_s(rank, kind) for kind in ("forward", "backward", "update", "compute"))


def suspects(job, run, timeline):
    """For each suspect the seconds of the step that could be saved at most if it were put right."""
    works_s = [work_s(timeline, rank) for rank in range(4)]
    last = works_s.index(max(works_s))  # nobody waits less for the others than the slowest rank
    data_s = length_s(timeline) - works_s[last] - timeline.exposed_communication_s(last)
    reads, decodes = (
        sum(event.duration_s for event in timeline.of(last) if event.name == name)
        for name in ("read", "decode")
    )
    tokens = job.num_batches * job.num_sequences * SIZES.context_length
    rates = SMALL_GPU.peak_flops_per_s
    flops = SIZES.flops(tokens, SIZES.context_length) / dict(job.axes)["tp"]
    found = {
        "input": data_s * decodes / (reads + decodes),
        "storage": data_s * reads / (reads + decodes),
        "launch": run.values[last][2] * SMALL_GPU.launch_s,
        "precision": flops / rates[job.dtype] - flops / rates["bfloat16"],
        "straggler": works_s[last] - statistics.median(works_s),
    }
    return found | of_the_wire(job, timeline, last)
