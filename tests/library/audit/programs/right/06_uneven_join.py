"""Ranks with unequal numbers of batches under DDP: join() lets the early ranks shadow the others,
and divides by the number of ranks that still have data.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://docs.pytorch.org/tutorials/advanced/generic_join.html
RIGHT: Rank 1 takes part in the collectives of the others after its last batch and gets the same weights.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
gen = torch.Generator().manual_seed(rank)
batches = 5 if rank == 0 else 3
with Join([model], divide_by_initial_world_size=False):
    for step in range(batches):
        x = torch.randn(8, 8, generator=gen)
        loss = (model(x) - x[:, :1]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
