"""Gradient accumulation over four micro-batches under DDP: the first three inside no_sync, the last outside.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
RIGHT: The last forward and backward are outside no_sync, so the whole sum is reduced.
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 4

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
gen = torch.Generator().manual_seed(rank)
for step in range(4):
    opt.zero_grad()
    total = 0.0
    for micro in range(ACCUMULATE):
        x = torch.randn(4, 8, generator=gen)
        last = micro == ACCUMULATE - 1
        with nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()) / ACCUMULATE
            loss.backward()
        total += loss.item()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {total:.4f}")
dist.destroy_process_group()
