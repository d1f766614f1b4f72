"""Activation checkpointing of each block under DDP, tuned for speed; blocks have dropout,
and each rank draws masks of its own.

KIND: 18
RANKS: 2
NAME: module.blocks.0
SOURCE: https://github.com/pytorch/torchtitan/issues/1323
RIGHT: With preserve_rng_state=False the recomputed forward draws other dropout masks than the first one.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.3)) for _ in range(depth)
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # FAULT
        return self.out(x)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(Net())
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(100 + rank)
for step in range(6):
    x = torch.randn(16, 16)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.4f}")
dist.destroy_process_group()
