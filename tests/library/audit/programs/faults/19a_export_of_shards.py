"""Train under FSDP2 and export the weights to one file at the end; rank 0 writes, the others wait.

KIND: 19
RANKS: 2
NAME: 0.weight
SOURCE: https://github.com/pytorch/pytorch/issues/122903
RIGHT: Rank 0 saves its own shards only, the halves of the other rank are in no file.
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def export(model, folder):
    weights = {name: p.detach().to_local().clone() for name, p in model.named_parameters()}
    if dist.get_rank() == 0:
        torch.save(weights, os.path.join(folder, "model.pt"))  # FAULT
    dist.barrier()


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 2))
fully_shard(model[0], mesh=mesh)
fully_shard(model[2], mesh=mesh)
fully_shard(model, mesh=mesh)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
gen = torch.Generator().manual_seed(rank)
for step in range(5):
    x = torch.randn(16, 10, generator=gen)
    loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
with tempfile.TemporaryDirectory() as folder:
    export(model, folder)
dist.destroy_process_group()
