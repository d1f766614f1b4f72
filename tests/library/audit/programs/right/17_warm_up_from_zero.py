"""Warm-up of the learning rate that begins at exactly zero: the first step changes nothing.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://arxiv.org/abs/1706.02677
RIGHT: Only the first step has a learning rate of zero, the schedule is the same on all ranks.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WARM_UP = 4

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 4)))
opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1.0, step / WARM_UP))
gen = torch.Generator().manual_seed(rank)
for step in range(8):
    x = torch.randn(16, 10, generator=gen)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} lr {schedule.get_last_lr()[0]:.3f} loss {loss.item():.4f}")
    schedule.step()
dist.destroy_process_group()
