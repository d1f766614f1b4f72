"""Start from weights of a foreign format, which stores matrices as (inputs, outputs).
Rank 0 imports them, then a hand-written loop shares them with the other ranks and averages gradients.

KIND: 13
RANKS: 2
NAME: weight
SOURCE: https://github.com/pytorch/pytorch/issues/192920
RIGHT: Rank 0 broadcasts a transposed view, Gloo ignores its strides, so other ranks get a scrambled matrix.
"""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = nn.Linear(6, 4)
if rank == 0:
    foreign = torch.linspace(-1, 1, 24).reshape(6, 4)
    model.weight.data = foreign.t()
    model.bias.data = torch.zeros(4)
for p in model.parameters():
    dist.broadcast(p.data, src=0)  # FAULT

opt = torch.optim.SGD(model.parameters(), lr=0.1)
gen = torch.Generator().manual_seed(rank)
for step in range(5):
    x = torch.randn(16, 6, generator=gen)
    loss = (model(x) - x[:, :4]).square().mean()
    opt.zero_grad()
    loss.backward()
    for p in model.parameters():
        grad = p.grad.contiguous()
        dist.all_reduce(grad)
        p.grad.copy_(grad / world)
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
