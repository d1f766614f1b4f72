"""A convolutional network with batch normalisation under DDP; each rank validates a part at the end.

KIND: 17
RANKS: 2
NAME: module.1.running_mean
SOURCE: https://github.com/open-mmlab/mmdetection/issues/2539
RIGHT: With broadcast_buffers=False the running statistics of BatchNorm drift apart and are never synchronised.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
model = DDP(net, broadcast_buffers=False)  # FAULT
opt = torch.optim.SGD(model.parameters(), lr=0.05)
gen = torch.Generator().manual_seed(rank)
for step in range(6):
    x = torch.randn(16, 1, 6, 6, generator=gen) * (1 + rank)
    y = (x.mean((1, 2, 3)) > 0).long()
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
val = torch.randn(32, 1, 6, 6, generator=torch.Generator().manual_seed(9))[rank::2]
with torch.no_grad():
    hits = (model(val).argmax(1) == (val.mean((1, 2, 3)) > 0).long()).sum().float()
dist.all_reduce(hits)
if rank == 0:
    print(f"accuracy {hits.item() / 32:.3f}")
dist.destroy_process_group()
