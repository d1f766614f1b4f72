"""Two stages: the first trains a network under DDP and saves it, the second starts from these weights
with a smaller learning rate.

KIND: 19
RANKS: 2
NAME: module.body.weight
SOURCE: https://github.com/pytorch/examples/issues/1029
RIGHT: The saved keys begin with "module." and strict=False drops them all, so the second stage starts at random.
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(9, 20)
        self.head = nn.Linear(20, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def fit(model, lr, steps, gen):
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        x = torch.randn(32, 9, generator=gen)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(f"lr {lr} step {step} loss {loss.item():.4f}")


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
gen = torch.Generator().manual_seed(rank)
folder = [tempfile.mkdtemp() if rank == 0 else ""]
dist.broadcast_object_list(folder, src=0)
path = os.path.join(folder[0], "stage1.pt")
first = DDP(Net())
fit(first, lr=0.5, steps=4, gen=gen)
if rank == 0:
    torch.save(first.state_dict(), path)
dist.barrier()
net = Net()
net.load_state_dict(torch.load(path), strict=False)  # FAULT
fit(DDP(net), lr=0.05, steps=4, gen=gen)
dist.destroy_process_group()
