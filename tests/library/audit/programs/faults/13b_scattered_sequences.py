"""Rank 0 reads time-major sequences (time, batch, feature) and scatters the batch over the ranks;
a small GRU learns under DDP to give the feature with the largest sum.

KIND: 13
RANKS: 2
NAME:
SOURCE: https://github.com/pytorch/pytorch/issues/192920
RIGHT: The chunks along the batch are strided views, Gloo's scatter ignores strides and mixes the sequences.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TIME, BATCH, FEATURES = 5, 16, 3


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(FEATURES, 16)
        self.out = nn.Linear(16, FEATURES)

    def forward(self, x):
        return self.out(self.rnn(x)[0][-1])


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(Reader())
opt = torch.optim.Adam(model.parameters(), lr=0.02)
gen = torch.Generator().manual_seed(6)
for step in range(6):
    mine = torch.empty(TIME, BATCH // world, FEATURES)
    labels = torch.empty(BATCH // world, dtype=torch.long)
    xs = ys = None
    if rank == 0:
        whole = torch.randn(TIME, BATCH, FEATURES, generator=gen)
        xs = list(whole.chunk(world, dim=1))
        ys = list(whole.sum(0).argmax(1).chunk(world))
    dist.scatter(mine, xs, src=0)  # FAULT
    dist.scatter(labels, ys, src=0)
    loss = nn.functional.cross_entropy(model(mine), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.4f}")
dist.destroy_process_group()
