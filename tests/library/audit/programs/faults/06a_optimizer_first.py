"""Train a block stack under FSDP2: each block is a unit of its own, the root holds the rest.

KIND: 6
RANKS: 2
NAME: blocks.0.weight
SOURCE: https://github.com/pytorch/pytorch/issues/149205
RIGHT: The optimizer is made before fully_shard and holds the old parameters, so no weight ever changes.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Stack(nn.Module):
    def __init__(self, width=16, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.out(x)


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = Stack()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)  # FAULT
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
gen = torch.Generator().manual_seed(rank)
for step in range(5):
    x = torch.randn(8, 16, generator=gen)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
