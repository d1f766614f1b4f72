# %% [markdown]
# ## A ring on the wire
#
# Four ranks sum a megabyte by `send` and `recv`. They are real processes with real data; the GPUs
# are only described, and every message is priced as it passes. Press *play*: each rank hands a
# quarter to its neighbour, and after six steps all hold the sum. Each has sent 1.5 MB, and no
# algorithm can do with less.

# %% ring
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import draw


def ring_all_reduce(size_bytes):
    """Sum a tensor over all ranks, a chunk at a time round a ring; True when the sum is right."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((size_bytes // 4,), float(rank))
    chunks, inbox = tensor.chunk(size), torch.empty(size_bytes // 4 // size)
    for step in range(2 * (size - 1)):
        take = (rank - step - 1) % size
        sent = dist.isend(chunks[(take + 1) % size], (rank + 1) % size)
        dist.irecv(inbox, (rank - 1) % size).wait()
        sent.wait()
        chunks[take].copy_(inbox + chunks[take] if step < size - 1 else inbox)
    return bool((tensor == sum(range(size))).all())


run = ws.run(
    ring_all_reduce, 1_000_000, world_size=4, cluster="dgx-h100", compute="none", echo=False
)
assert all(run.values) and {run.timeline.bytes_sent(rank) for rank in range(4)} == {1_500_000}
draw.messages(run.timeline, title="A ring all-reduce of 1 MB, emulated on dgx-h100")

# %% [markdown]
# ## A program on 16,384 GPUs, on paper
#
# A training step of Llama 3 8B in ordinary torch, its weights sharded by torch's own `fully_shard`.
# It was recorded on this machine, without data and without a GPU, and priced for 16,384 H100s.
# **MFU** is the share of their peak that trains the model. Sharded over all GPUs it is 11%, and
# links four times as fast change nothing: a ring of 16,384 waits for its many hops. Sharded over
# groups of 64 it is 52%.

# %% paper
import dataclasses

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

from worldsize import hardware
from worldsize.models import shape
from worldsize.models.transformer import Transformer

NUM_GPUS, SIZES = 16_384, shape("llama-3-8b")


def train(num_layers, group_size):
    """Two steps of a Llama 3 8B with so many layers: a sequence a GPU, the weights over a group."""
    grid = (NUM_GPUS // group_size, group_size)
    mesh = init_device_mesh("cpu", grid, mesh_dim_names=("copies", "shards"))
    if group_size == NUM_GPUS:
        mesh = mesh["shards"]
    model = Transformer(dataclasses.replace(SIZES, num_layers=num_layers))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in [*model.layers.values(), model]:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, SIZES.vocab_size, (1, SIZES.context_length))
    for _ in range(2):
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def on_paper(group_size):
    """The step on 2,048 nodes, from what 3 and 4 layers take."""
    where = {"world_size": NUM_GPUS, "cluster": CLUSTER, "echo": False}
    return ws.paper(train, SIZES.num_layers, group_size, depths=(3, 4), **where)


def four_times(link):
    """The link with four times the bandwidth, and the same latency."""
    rate = 4 * link.bandwidth_bytes_per_s
    return dataclasses.replace(link, bandwidth_bytes_per_s=rate, peak_bytes_per_s=rate)


CLUSTER = hardware.cluster("h100-pods-x2048")
FASTER = dataclasses.replace(
    CLUSTER, intra=four_times(CLUSTER.intra), inter=four_times(CLUSTER.inter)
)
whole, groups = on_paper(NUM_GPUS), on_paper(64)
rows = [
    {
        "shards on": shards,
        "bandwidth of links": bandwidth,
        "step_s": run.step_s,
        "MFU": f"{run.mfu_fraction:.0%}",
        "memory of a GPU_bytes": run.peak_bytes,
    }
    for shards, bandwidth, run in (
        ("all 16,384 GPUs", "as built", whole),
        ("all 16,384 GPUs", "four times", whole.on(FASTER)),
        ("groups of 64", "as built", groups),
    )
]
assert [row["MFU"] for row in rows] == ["11%", "11%", "52%"]  # as the text above says
draw.table(rows, title="Llama 3 8B on 16,384 H100, on paper")
