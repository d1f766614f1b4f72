"""Fine-tune a pretrained network under DDP.
Rank 0 owns the file with the pretrained weights, so only rank 0 reads it.

KIND: 3
RANKS: 2
NAME: module.0.weight
SOURCE: https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design
RIGHT: Rank 0 loads weights after DDP was made, and DDP broadcasts weights only when it is made.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build():
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))


def pretrained():
    torch.manual_seed(99)
    return build().state_dict()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(build())
if rank == 0:
    model.module.load_state_dict(pretrained())  # FAULT
dist.barrier()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
gen = torch.Generator().manual_seed(rank)
for step in range(6):
    x = torch.randn(8, 12, generator=gen)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
