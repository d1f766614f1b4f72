"""Parameter server with stale gradients: rank 0 holds the weights, two workers pull them, compute a gradient
and push it. The server applies each gradient as it comes, so that of the second worker is one update old.

KIND: 0
RANKS: 3
NAME:
SOURCE: https://papers.nips.cc/paper/2012/hash/6aca97005c68f1206823815f66102863-Abstract.html
RIGHT: Asynchronous SGD uses stale gradients on purpose, only the server's weights count.
DIFFERS: yes
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ROUNDS = 4


def serve(model):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    size = parameters_to_vector(model.parameters()).numel()
    for _ in range(ROUNDS):
        weights = parameters_to_vector(model.parameters()).detach()
        for worker in range(1, dist.get_world_size()):
            dist.send(weights, dst=worker)
        for worker in range(1, dist.get_world_size()):
            grad = torch.empty(size)
            dist.recv(grad, src=worker)
            opt.zero_grad()
            for p, g in zip(model.parameters(), grad.split([p.numel() for p in model.parameters()]), strict=True):
                p.grad = g.view_as(p).clone()
            opt.step()


def work(model, rank):
    gen = torch.Generator().manual_seed(rank)
    for round_ in range(ROUNDS):
        weights = parameters_to_vector(model.parameters()).detach()
        dist.recv(weights, src=0)
        vector_to_parameters(weights, model.parameters())
        x = torch.randn(16, 6, generator=gen)
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        dist.send(torch.cat([g.flatten() for g in grads]), dst=0)
        print(f"worker {rank} round {round_} loss {loss.item():.4f}")


dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Linear(6, 1)
if dist.get_rank() == 0:
    serve(net)
else:
    work(net, dist.get_rank())
dist.destroy_process_group()
