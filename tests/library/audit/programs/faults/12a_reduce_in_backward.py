"""Reduce gradients as soon as they are ready: a hook on each parameter averages it during the backward.
The gate of the network decides which of its two branches runs first.

KIND: 12
RANKS: 2
NAME: left.weight
SOURCE: https://github.com/pytorch/pytorch/issues/64629
RIGHT: The hooks run in another order on each rank, so one branch's gradient is averaged with the other's.
"""

import torch
import torch.distributed as dist
from torch import nn


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(8, 8, bias=False)
        self.right = nn.Linear(8, 8, bias=False)
        self.out = nn.Linear(8, 1, bias=False)

    def forward(self, x):
        order = [self.left, self.right] if x.mean() > 0 else [self.right, self.left]
        hidden = {id(branch): branch(x) for branch in order}
        return self.out(torch.relu(hidden[id(self.left)]) - torch.relu(hidden[id(self.right)]))


def average(param):
    dist.all_reduce(param.grad)  # FAULT
    param.grad /= dist.get_world_size()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = Gated()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(average)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
gen = torch.Generator().manual_seed(rank)
for step in range(6):
    x = torch.randn(16, 8, generator=gen)
    loss = (model(x) - x[:, :1]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
