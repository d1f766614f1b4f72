"""Reductions overlap with the backward: a hook starts one for each gradient, all are waited for before the step.

KIND: 0
RANKS: 2
NAME:
SOURCE:
RIGHT: Gradients are divided before the asynchronous call, and every handle is waited for before a read.
"""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
pending = []


def launch(param):
    param.grad.div_(world)
    pending.append(dist.all_reduce(param.grad, async_op=True))


for p in model.parameters():
    p.register_post_accumulate_grad_hook(launch)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
gen = torch.Generator().manual_seed(rank)
for step in range(5):
    x = torch.randn(16, 32, generator=gen)
    loss = (model(x) - x[:, :1]).square().mean()
    opt.zero_grad()
    loss.backward()
    while pending:
        pending.pop().wait()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f}")
dist.destroy_process_group()
