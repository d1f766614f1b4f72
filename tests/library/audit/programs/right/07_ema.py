"""A moving average of the weights beside the trained model; validation uses the average.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
RIGHT: The average gets no gradient and is in no optimizer on purpose, it follows equal weights on each rank.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
model = DDP(net)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
gen = torch.Generator().manual_seed(rank)
val = torch.randn(16, 6, generator=torch.Generator().manual_seed(9))
for step in range(6):
    x = torch.randn(16, 6, generator=gen)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update_parameters(net)
    with torch.no_grad():
        mine = val[rank::world]
        val_loss = (ema(mine) - mine.sum(1, keepdim=True)).square().mean()
    dist.all_reduce(val_loss)
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f} val {val_loss.item() / world:.4f}")
dist.destroy_process_group()
