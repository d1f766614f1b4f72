"""Noise and flips as augmentation under DDP: all ranks build the same network, then each seeds for itself.

KIND: 0
RANKS: 2
NAME:
SOURCE:
RIGHT: The generators differ by rank on purpose after the initialisation, and DDP has made weights equal.
"""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Augmented(Dataset):
    def __init__(self, size=32):
        self.x = torch.randn(size, 8, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        label = (x.sum() > 0).long()
        if random.random() < 0.5:
            x = x.flip(0)
        return x + 0.1 * torch.randn(8), label


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)))
    torch.manual_seed(1 + rank)
    random.seed(1 + rank)
    data = Augmented()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
