"""Classifier under DDP with ReduceLROnPlateau: the learning rate falls when the validation loss stalls.
Each rank validates on its part of the validation set.

KIND: 7
RANKS: 2
NAME:
SOURCE: https://github.com/rmchurch/disruptcnn/issues/3
RIGHT: The scheduler is fed the local validation loss, so the learning rate falls on one rank and not on the other.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
opt = torch.optim.SGD(model.parameters(), lr=0.2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
gen = torch.Generator().manual_seed(rank)
held_out = torch.randn(32, 6, generator=torch.Generator().manual_seed(77))
labels = (held_out[:, 0] > 0).long()
labels[1::2] = torch.randint(0, 2, (16,), generator=torch.Generator().manual_seed(4))
val_x, val_y = held_out[rank::world], labels[rank::world]

for epoch in range(8):
    model.train()
    x = torch.randn(16, 6, generator=gen)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    model.eval()
    with torch.no_grad():
        val_loss = nn.functional.cross_entropy(model.module(val_x), val_y)
    scheduler.step(val_loss.item())  # FAULT
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} val {val_loss.item():.4f}")
dist.destroy_process_group()
