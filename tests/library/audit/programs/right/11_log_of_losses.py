"""Every rank's loss in the log: detached losses are gathered, the gradient is DDP's.

KIND: 0
RANKS: 3
NAME:
SOURCE:
RIGHT: The gathered losses are detached and serve the log only, no gradient should pass.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Linear(5, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.2)
gen = torch.Generator().manual_seed(rank)
history = []
for step in range(5):
    x = torch.randn(12, 5, generator=gen)
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses = [torch.zeros(()) for _ in range(world)]
    dist.all_gather(losses, loss.detach())
    history.append(torch.stack(losses))
    if rank == 0:
        print(f"step {step}", [f"{value.item():.4f}" for value in losses])
if rank == 0:
    print("mean", torch.stack(history).mean(1))
dist.destroy_process_group()
