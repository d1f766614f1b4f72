"""Masked reconstruction: the loss is the mean over masked positions, gradients are averaged by DDP.

KIND: 14
RANKS: 2
NAME:
SOURCE:
RIGHT: On rank 1 a batch has no masked position, the mean is 0/0, and the NaN reaches all ranks by the reduction.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def masked_mse(prediction, target, mask):
    error = (prediction - target).square() * mask
    return error.sum() / mask.sum()  # FAULT


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(4, 10, generator=gen)
        share = 0.0 if rank == 1 and step == 3 else 0.3
        mask = (torch.rand(4, 10, generator=gen) < share).float()
        loss = masked_mse(model(x * (1 - mask)), x, mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
