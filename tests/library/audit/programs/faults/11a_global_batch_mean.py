"""Variance regularisation over the global batch: the mean feature is taken over all ranks,
and the loss pushes samples away from it.

KIND: 11
RANKS: 2
NAME:
SOURCE: https://github.com/pytorch/pytorch/issues/58005
RIGHT: dist.all_reduce is not seen by autograd, so the gradient through the mean of all ranks is wrong.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
gen = torch.Generator().manual_seed(rank)

for step in range(5):
    x = torch.randn(8, 6, generator=gen) + rank
    z = model(x)
    centre = z.mean(0) / world
    dist.all_reduce(centre)  # FAULT
    spread = (z - centre).square().mean()
    anchor = (centre - 1.0).square().sum()
    loss = anchor + (spread - 1.0).square()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f} spread {spread.item():.4f}")
dist.destroy_process_group()
