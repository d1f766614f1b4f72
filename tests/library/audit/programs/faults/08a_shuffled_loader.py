"""Image-like classification under DDP with a shuffled DataLoader, reproducible by its seed.

KIND: 8
RANKS: 2
NAME:
SOURCE: https://github.com/xg-chu/CrowdDet/issues/36
RIGHT: The loader has no DistributedSampler and every rank shuffles with the same seed, so all train on one batch.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def dataset():
    gen = torch.Generator().manual_seed(123)
    x = torch.rand(64, 1, 8, 8, generator=gen)
    y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()
    return TensorDataset(x, y)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(42)
    model = DDP(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)))
    loader = DataLoader(dataset(), batch_size=16, shuffle=True)  # FAULT
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
