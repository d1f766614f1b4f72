"""A feed-forward block in tensor parallelism by hand, after Megatron: the first matrix is split by rows,
the second by columns, the partial outputs are summed. It is meant to compute what one rank would.

KIND: 20
RANKS: 2
NAME: bias
SOURCE: https://github.com/pytorch/torchtitan/issues/4332
RIGHT: The bias is added to the partial output before the sum, so it counts once for each rank.
"""

import torch
import torch.distributed as dist
from torch import nn


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial):
        total = partial.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad


class FeedForward(nn.Module):
    def __init__(self, width=6, hidden=24):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        gen = torch.Generator().manual_seed(0)
        up = torch.randn(hidden, width, generator=gen) * 0.3
        down = torch.randn(width, hidden, generator=gen) * 0.3
        self.up = nn.Parameter(up.chunk(world, 0)[rank].contiguous())
        self.down = nn.Parameter(down.chunk(world, 1)[rank].contiguous())
        self.bias = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x):
        hidden = torch.relu(nn.functional.linear(x, self.up))
        out = nn.functional.linear(hidden, self.down, self.bias)  # FAULT
        return SumOverRanks.apply(out)


dist.init_process_group("gloo")
model = FeedForward()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
gen = torch.Generator().manual_seed(1)
for step in range(5):
    x = torch.randn(16, 6, generator=gen)
    loss = (model(x) - x.roll(1, 1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
