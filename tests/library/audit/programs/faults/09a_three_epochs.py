"""Three epochs over a small data set under DDP, shuffled and split over the ranks by DistributedSampler.

KIND: 9
RANKS: 2
NAME:
SOURCE: https://github.com/NVIDIA/tacotron2/issues/241
RIGHT: set_epoch is never called, so each epoch has the same order and the same split.
"""

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    gen = torch.Generator().manual_seed(8)
    x = torch.randn(32, 10, generator=gen)
    data = TensorDataset(x, x[:, :2].sum(1, keepdim=True))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.Linear(10, 1))
    opt = optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        running = 0.0
        for inputs, target in loader:  # FAULT
            loss = nn.functional.mse_loss(model(inputs), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: mean loss {running / len(loader):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
