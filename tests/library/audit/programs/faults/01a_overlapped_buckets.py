"""Data-parallel regression with a hand-written loop.
Every gradient is reduced asynchronously in the background, then averaged and applied.

KIND: 1
RANKS: 2
NAME:
SOURCE: https://docs.pytorch.org/docs/stable/distributed.html#synchronous-and-asynchronous-collective-operations
RIGHT: The gradient is divided in place while its asynchronous all_reduce is still under way.
"""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(100 + rank)

for step in range(5):
    x = torch.randn(32, 64, generator=data)
    y = x[:, :3].sum(1, keepdim=True)
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    pending = []
    for p in model.parameters():
        pending.append(dist.all_reduce(p.grad, async_op=True))
        p.grad.div_(world)  # FAULT
    for work in pending:
        work.wait()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
