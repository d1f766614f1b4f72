"""Training with model selection under DDP: keep the weights of the best epoch, go back to them at the end
and fine-tune with a smaller learning rate.

KIND: 21
RANKS: 2
NAME: module.0.weight
SOURCE: https://github.com/Lightning-AI/pytorch-lightning/issues/4319
RIGHT: Each rank picks the best epoch by its own validation loss, so the ranks go back to different weights.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train_step(model, opt, x):
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] * x[:, 1] > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
opt = torch.optim.SGD(model.parameters(), lr=1.0)
gen = torch.Generator().manual_seed(rank)
val_x = torch.randn(12, 4, generator=torch.Generator().manual_seed(50 + rank))
val_y = (val_x[:, 0] * val_x[:, 1] > 0).long()
best, kept = float("inf"), None
for epoch in range(6):
    loss = train_step(model, opt, torch.randn(8, 4, generator=gen))
    with torch.no_grad():
        val = nn.functional.cross_entropy(model.module(val_x), val_y).item()
    if val < best:  # FAULT
        best, kept = val, copy.deepcopy(model.module.state_dict())
    if rank == 0:
        print(f"epoch {epoch} loss {loss:.4f} val {val:.4f}")
model.module.load_state_dict(kept)
opt.param_groups[0]["lr"] = 0.1
for _ in range(2):
    train_step(model, opt, torch.randn(8, 4, generator=gen))
dist.destroy_process_group()
