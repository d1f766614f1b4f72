"""Tensor parallelism with sequence parallelism by DTensor: norms run on parts of the sequence,
the two matrices are split by columns and by rows.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html
RIGHT: All ranks hold the same batch on purpose, and DTensor sums the gradients of the replicated norm.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Block(nn.Module):
    def __init__(self, width=8, hidden=16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
block = Block()
plan = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
}
block = parallelize_module(block, mesh, plan)
block = parallelize_module(block, mesh, PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)))
block = parallelize_module(
    block, mesh, PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())
)
opt = torch.optim.SGD(block.parameters(), lr=0.05)
gen = torch.Generator().manual_seed(4)
for step in range(5):
    x = torch.randn(4, 6, 8, generator=gen)
    loss = (block(x) - x.roll(1, 1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
