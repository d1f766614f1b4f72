"""Gradual unfreezing: two steps train the new head alone, then the backbone trains as well.

KIND: 4
RANKS: 2
NAME: module.backbone.0.weight
SOURCE: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
RIGHT: The backbone is unfrozen after DDP was made, DDP does not know its parameters and never reduces them.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
net = Classifier()
net.backbone.requires_grad_(False)
model = DDP(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
gen = torch.Generator().manual_seed(rank)
for step in range(6):
    if step == 2:
        net.backbone.requires_grad_(True)  # FAULT
    x = torch.randn(16, 10, generator=gen)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
