"""Linear warm-up of the learning rate over 20 steps, then constant; hand-written data parallelism.

KIND: 22
RANKS: 2
NAME:
SOURCE:
RIGHT: The warm-up factor uses integer division and is 0 for the whole warm-up, so no weight changes.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

WARM_UP = 20


def factor(step):
    return min(1, (step + 1) // WARM_UP)  # FAULT


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(16, 8), nn.Flatten(), nn.Linear(32, 16))
opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
scheduler = LambdaLR(opt, factor)
gen = torch.Generator().manual_seed(rank)
for step in range(8):
    tokens = torch.randint(0, 16, (16, 5), generator=gen)
    loss = nn.functional.cross_entropy(model(tokens[:, :4]), tokens[:, 3])
    opt.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= world
    opt.step()
    scheduler.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
