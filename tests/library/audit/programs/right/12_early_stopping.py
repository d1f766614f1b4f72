"""Early stopping under DDP: validation losses of all ranks are summed, and all ranks decide by the sum.

KIND: 0
RANKS: 2
NAME:
SOURCE:
RIGHT: The decision to stop uses a value that is equal on all ranks.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def validate(net, x):
    net.eval()
    with torch.no_grad():
        total = (net(x) - x.mean(1, keepdim=True)).square().sum()
    net.train()
    dist.all_reduce(total)
    return total.item()


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Linear(6, 1)
model = DDP(net)
opt = torch.optim.SGD(model.parameters(), lr=0.3)
gen = torch.Generator().manual_seed(rank)
val = torch.randn(20, 6, generator=torch.Generator().manual_seed(5))[rank::world]
best, patience = float("inf"), 1
for epoch in range(8):
    x = torch.randn(8, 6, generator=gen)
    noisy = x.mean(1, keepdim=True) + torch.randn(8, 1, generator=gen)
    loss = (model(x) - noisy).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    value = validate(net, val)
    if value < best:
        best, patience = value, 1
    elif patience == 0:
        print(f"rank {rank} stops after epoch {epoch}")
        break
    else:
        patience -= 1
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} val {value:.4f}")
dist.destroy_process_group()
