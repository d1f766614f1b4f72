"""Data parallelism by hand: the average gradient of four ranks, reduced in the background.
The reductions run in order, and the optimizer steps when they are finished.

KIND: 2
RANKS: 4
NAME:
SOURCE: https://docs.pytorch.org/docs/stable/distributed.html#synchronous-and-asynchronous-collective-operations
RIGHT: Only the last of the asynchronous handles is waited for, the others are overwritten in the loop.
"""

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(32, 256)
        self.mid = nn.Linear(256, 256)
        self.out = nn.Linear(256, 4)

    def forward(self, x):
        return self.out(torch.relu(self.mid(torch.relu(self.inp(x)))))


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.manual_seed(7)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(dist.get_rank())
    for step in range(4):
        x = torch.randn(16, 32, generator=gen)
        target = x[:, :4].argmax(1)
        loss = nn.functional.cross_entropy(net(x), target)
        opt.zero_grad()
        (loss / world).backward()
        for p in net.parameters():
            work = dist.all_reduce(p.grad, async_op=True)  # FAULT
        work.wait()
        opt.step()
        if dist.get_rank() == 0:
            print(step, round(loss.item(), 4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
