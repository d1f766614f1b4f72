"""FSDP2 with a clipping function of its own, which returns the norm for the log.

KIND: 15
RANKS: 2
NAME:
SOURCE: https://github.com/pytorch/pytorch/issues/170862
RIGHT: The norm is that of the local shards only, so each rank clips by a norm of its own and too large a factor.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def clip(params, limit):
    shards = [p.grad.to_local() for p in params]
    norm = torch.stack([g.norm() for g in shards]).norm()  # FAULT
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for g in shards:
        g.mul_(factor)
    return norm


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 4))
fully_shard(model[0], mesh=mesh)
fully_shard(model[2], mesh=mesh)
fully_shard(model, mesh=mesh)
opt = torch.optim.SGD(model.parameters(), lr=0.5)
gen = torch.Generator().manual_seed(rank)
for step in range(5):
    x = torch.randn(16, 12, generator=gen)
    loss = (model(x) - 3 * x[:, :4]).square().mean()
    opt.zero_grad()
    loss.backward()
    norm = clip(list(model.parameters()), limit=0.5)
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f}")
dist.destroy_process_group()
