"""Two-stage pipeline: rank 0 computes features, rank 1 trains the head on them.
Rank 1 posts the receives of all micro-batches early so that transfer and computation overlap.

KIND: 1
RANKS: 2
NAME:
SOURCE: https://github.com/pytorch/pytorch/issues/30723
RIGHT: Rank 1 computes on the target of an irecv before it waits for that receive.
"""

import torch
import torch.distributed as dist
from torch import nn

MICRO, BATCH, WIDTH = 4, 16, 32


def features(stage, step):
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(MICRO, BATCH, 8, generator=gen)
    for micro in x:
        dist.send(stage(micro).detach(), dst=1)


def train(head, opt, step):
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(MICRO, BATCH, 8, generator=gen)
    buffers = [torch.zeros(BATCH, WIDTH) for _ in range(MICRO)]
    requests = [dist.irecv(b, src=0) for b in buffers]
    opt.zero_grad()
    total = 0.0
    for micro, buffer, request in zip(x, buffers, requests, strict=True):
        out = head(buffer)  # FAULT
        request.wait()
        loss = nn.functional.mse_loss(out, micro.sum(1, keepdim=True)) / MICRO
        loss.backward()
        total += loss.item()
    opt.step()
    print(f"step {step} loss {total:.4f}")


dist.init_process_group("gloo")
torch.manual_seed(0)
if dist.get_rank() == 0:
    stage = nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh())
    for step in range(5):
        features(stage, step)
else:
    head = nn.Linear(WIDTH, 1)
    opt = torch.optim.Adam(head.parameters(), lr=0.01)
    for step in range(5):
        train(head, opt, step)
dist.destroy_process_group()
