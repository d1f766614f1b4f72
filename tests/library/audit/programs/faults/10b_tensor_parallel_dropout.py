"""Megatron-style MLP by hand on two ranks: column-parallel, row-parallel, then dropout on the whole output.
All ranks hold the same input and the same output; shards are cut from one common matrix.

KIND: 10
RANKS: 2
NAME:
SOURCE: https://github.com/awslabs/slapo/issues/21
RIGHT: The seed differs by rank, so dropout on the replicated output draws a different mask on each rank.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce


class ParallelMLP(nn.Module):
    def __init__(self, width=8, hidden=32):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        gen = torch.Generator().manual_seed(0)
        up = torch.randn(hidden, width, generator=gen) / width**0.5
        down = torch.randn(width, hidden, generator=gen) / hidden**0.5
        self.up = nn.Parameter(up.chunk(world, 0)[rank].clone())
        self.down = nn.Parameter(down.chunk(world, 1)[rank].clone())
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        partial = torch.relu(x @ self.up.t()) @ self.down.t()
        return self.drop(all_reduce(partial))


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1 + rank)  # FAULT
model = ParallelMLP()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(5)
for step in range(6):
    x = torch.randn(16, 8, generator=data)
    loss = (model(x) - x.flip(1)).square().mean()
    opt.zero_grad()
    (loss / world).backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
