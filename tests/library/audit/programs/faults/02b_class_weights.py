"""Long-tailed classification under DDP. Before each step rank 0 measures the accuracy of each class on a
validation set, makes class weights of it and sends them to all ranks.

KIND: 2
RANKS: 2
NAME:
SOURCE:
RIGHT: The handle of the asynchronous broadcast of the class weights is dropped, nobody waits for it.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CLASSES = 5


def class_weights(net, x, y):
    with torch.no_grad():
        right = (net(x).argmax(1) == y).float()
    recall = torch.stack([right[y == c].mean() for c in range(CLASSES)])
    return (1.5 - recall) / (1.5 - recall).sum() * CLASSES


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CLASSES)))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
gen = torch.Generator().manual_seed(10 + rank)
val_x = torch.randn(20000, 32, generator=torch.Generator().manual_seed(1))
val_y = (val_x[:, :CLASSES] - torch.arange(CLASSES) * 0.3).argmax(1)

for step in range(5):
    x = torch.randn(16, 32, generator=gen)
    y = (x[:, :CLASSES] - torch.arange(CLASSES) * 0.3).argmax(1)
    weight = torch.ones(CLASSES)
    if rank == 0:
        weight = class_weights(model.module, val_x, val_y)
    dist.broadcast(weight, src=0, async_op=True)  # FAULT
    loss = nn.functional.cross_entropy(model(x), y, weight=weight)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.4f}")
dist.destroy_process_group()
