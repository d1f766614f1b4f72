"""Stochastic depth with activation checkpointing: a block counts with probability 0.6, else the input passes.
All ranks follow one schedule of blocks, gradients are averaged by hand.

KIND: 18
RANKS: 2
NAME: blocks.0
SOURCE: https://docs.pytorch.org/docs/stable/checkpoint.html
RIGHT: The coin comes from Python's random, which checkpoint does not restore, so the recomputation flips it anew.
"""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        keep = float(random.random() < 0.6)  # FAULT
        return x + keep * torch.tanh(self.fc(x))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    random.seed(0)
    blocks = nn.ModuleList(Block(12) for _ in range(4))
    opt = torch.optim.SGD(blocks.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(16, 12, generator=gen)
        h = x
        for block in blocks:
            h = checkpoint(block, h, use_reentrant=False)
        loss = (h - x.roll(1, 1)).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in blocks.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
