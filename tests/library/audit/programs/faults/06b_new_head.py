"""Transfer learning: keep the body of a network and give it a head for a task with other classes.

KIND: 6
RANKS: 2
NAME: module.head.weight
SOURCE:
RIGHT: The optimizer was made before the head was replaced, it holds the old head and never trains the new one.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Linear(8, 24)
        self.head = nn.Linear(24, classes)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def adapt(net, classes):
    net.head = nn.Linear(net.head.in_features, classes)
    return net


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net(classes=10)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)  # FAULT
    model = DDP(adapt(net, classes=3))
    gen = torch.Generator().manual_seed(50 + dist.get_rank())
    for step in range(6):
        x = torch.randn(16, 8, generator=gen)
        y = x[:, :3].argmax(1)
        loss = nn.functional.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
