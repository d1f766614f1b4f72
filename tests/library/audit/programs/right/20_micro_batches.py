"""A pipeline of two stages with four micro-batches: all forwards, then all backwards, then one update.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://arxiv.org/abs/1811.06965
RIGHT: Each stage has its own parameters and its own optimizer, every send is waited for.
DIFFERS: yes
"""

import torch
import torch.distributed as dist
from torch import nn

MICRO, BATCH, WIDTH = 4, 8, 16


def first(stage, batches):
    outs, requests = [], []
    for x in batches:
        out = stage(x)
        outs.append(out)
        requests.append(dist.isend(out.detach(), dst=1))
    for request in requests:
        request.wait()
    for out in outs:
        grad = torch.empty(BATCH, WIDTH)
        dist.recv(grad, src=1)
        out.backward(grad)


def second(stage, batches):
    inputs, losses = [], []
    for x in batches:
        h = torch.empty(BATCH, WIDTH)
        dist.recv(h, src=0)
        h.requires_grad_()
        inputs.append(h)
        losses.append((stage(h) - x.sum(1, keepdim=True)).square().mean() / MICRO)
    for h, loss in zip(inputs, losses, strict=True):
        loss.backward()
        dist.send(h.grad, dst=0)
    return sum(loss.item() for loss in losses)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
stage = nn.Sequential(nn.Linear(6, WIDTH), nn.Tanh()) if rank == 0 else nn.Linear(WIDTH, 1)
opt = torch.optim.SGD(stage.parameters(), lr=0.05)
gen = torch.Generator().manual_seed(7)
for step in range(5):
    batches = torch.randn(MICRO, BATCH, 6, generator=gen)
    opt.zero_grad()
    if rank == 0:
        first(stage, batches)
    else:
        print(f"step {step} loss {second(stage, batches):.4f}")
    opt.step()
dist.destroy_process_group()
