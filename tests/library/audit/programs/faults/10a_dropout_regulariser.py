"""A regularised classifier under DDP: dropout on the hidden layer, an independent mask for each sample.

KIND: 10
RANKS: 2
NAME:
SOURCE: https://github.com/tenstorrent/tt-metal/issues/55947
RIGHT: All ranks keep the generator seeded for the initialisation, so dropout draws the same masks on each rank.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(14, 40)
        self.drop = nn.Dropout(0.4)
        self.out = nn.Linear(40, 3)

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.hidden(x))))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2024)  # FAULT
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(16, 14, generator=gen)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
