"""Mixture of experts with one expert on each rank: tokens go to their expert by all_to_all and come back.
The router is replicated and its gradient averaged, an expert belongs to its rank alone.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://arxiv.org/abs/2006.16668
RIGHT: The experts have the same name and shape but different weights on purpose, they are never reduced.
DIFFERS: yes
"""

import torch
import torch.distributed as dist
from torch import nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, receive):
        ctx.sizes = send, receive
        out = x.new_empty(sum(receive), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.sizes
        out = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), send, receive)
        return out, None, None


def moe(router, expert, x):
    scores = torch.softmax(router(x), dim=1)
    gate, choice = scores.max(1)
    order = choice.argsort(stable=True)
    send = torch.bincount(choice, minlength=dist.get_world_size())
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send)
    arrived = Exchange.apply(x[order], send.tolist(), receive.tolist())
    back = Exchange.apply(expert(arrived), receive.tolist(), send.tolist())
    return gate[:, None] * back[order.argsort()]


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
router = nn.Linear(8, world)
torch.manual_seed(100 + rank)
expert = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
opt = torch.optim.SGD([*router.parameters(), *expert.parameters()], lr=0.1)
for step in range(5):
    x = torch.randn(16, 8)
    loss = (moe(router, expert, x) - x.flip(1)).square().mean() / world
    opt.zero_grad()
    loss.backward()
    for p in router.parameters():
        dist.all_reduce(p.grad)
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item() * world:.4f}")
dist.destroy_process_group()
