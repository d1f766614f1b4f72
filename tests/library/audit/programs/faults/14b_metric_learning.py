"""Metric learning with the Euclidean distance of pairs; hand-written averaging over three ranks.
Some pairs are a sample and itself.

KIND: 14
RANKS: 3
NAME:
SOURCE: https://github.com/pytorch/pytorch/issues/2421
RIGHT: The square root of a distance of zero has an infinite derivative, which gives NaN gradients.
"""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(4)
net = nn.Linear(5, 3, bias=False)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
gen = torch.Generator().manual_seed(rank)

for step in range(5):
    pool = torch.randn(12, 5, generator=gen)
    left = torch.randint(0, 12, (6,), generator=gen)
    right = (left + 1 + torch.randint(0, 11, (6,), generator=gen)) % 12
    if rank == 2 and step == 2:
        right[0] = left[0]
    a, b = net(pool[left]), net(pool[right])
    distance = (a - b).square().sum(1).sqrt()  # FAULT
    wanted = (pool[left, 0] - pool[right, 0]).abs()
    loss = (distance - wanted).abs().mean()
    opt.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
