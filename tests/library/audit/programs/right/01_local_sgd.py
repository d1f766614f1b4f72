"""Local SGD: each rank trains on its own for three steps, then all ranks take the mean of the weights.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://arxiv.org/abs/1805.09767
RIGHT: The weights differ between the averaging steps on purpose and are equal after each of them.
DIFFERS: yes
"""

import torch
import torch.distributed as dist
from torch import nn

EVERY = 3

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
gen = torch.Generator().manual_seed(rank)
for step in range(6):
    x = torch.randn(16, 10, generator=gen)
    loss = (model(x) - x[:, :2].sum(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % EVERY == 0:
        with torch.no_grad():
            for p in model.parameters():
                dist.all_reduce(p)
                p /= world
    print(f"rank {rank} step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
