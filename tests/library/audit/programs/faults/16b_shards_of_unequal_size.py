"""Full-batch gradient descent on a data set that three hospitals hold in parts of unequal size.
The gradient is meant to be the one of the mean over all records.

KIND: 16
RANKS: 3
NAME:
SOURCE:
RIGHT: The ranks hold 40, 12 and 5 records, but their mean gradients are averaged with equal weight.
"""

import torch
import torch.distributed as dist
from torch import nn

SIZES = (40, 12, 5)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    gen = torch.Generator().manual_seed(rank)
    x = torch.randn(SIZES[rank], 7, generator=gen) + 0.3 * rank
    y = (x.sum(1, keepdim=True) > 0.5).float()
    torch.manual_seed(0)
    model = nn.Linear(7, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(6):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world  # FAULT
        opt.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
