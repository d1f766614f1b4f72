"""Train a classifier under DDP on four ranks; gradients are synchronised before the clipping.

KIND: 5
RANKS: 4
NAME:
SOURCE:
RIGHT: DDP has already averaged the gradients, the all_reduce sums them again, so they are 4 times too large.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def sync_gradients(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)  # FAULT


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(1000 + rank)
    for step in range(5):
        image = torch.rand(8, 1, 6, 6, generator=gen)
        label = (image.mean((1, 2, 3)) * 3).long().clamp(0, 2)
        loss = F.cross_entropy(model(image), label)
        opt.zero_grad()
        loss.backward()
        sync_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), 50.0)
        opt.step()
        if rank == 0:
            print(f"step {step}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
