"""Rank 0 evaluates the bare module while the others wait at a barrier, then training goes on.

KIND: 0
RANKS: 2
NAME:
SOURCE:
RIGHT: The forward past DDP is under no_grad and in eval mode, so nothing needs a reduction.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(7, 14), nn.BatchNorm1d(14), nn.ReLU(), nn.Linear(14, 2)))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
gen = torch.Generator().manual_seed(rank)
test = torch.randn(40, 7, generator=torch.Generator().manual_seed(8))
for epoch in range(3):
    model.train()
    for _ in range(2):
        x = torch.randn(16, 7, generator=gen)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
    if rank == 0:
        model.module.eval()
        with torch.no_grad():
            accuracy = (model.module(test).argmax(1) == (test[:, 0] > 0)).float().mean()
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy.item():.3f}")
    dist.barrier()
dist.destroy_process_group()
