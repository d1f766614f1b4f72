"""ZeRO stage 1 by hand: gradients are averaged on every rank, each rank steps the parameters it owns,
and the owners broadcast what they updated.

KIND: 3
RANKS: 3
NAME: head.bias
SOURCE:
RIGHT: The broadcast leaves out the last parameter, so only its owner has the updated value.
"""

import torch
import torch.distributed as dist
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens):
        return self.head(torch.tanh(self.body(self.embed(tokens))))


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
model = Tagger()
params = list(model.parameters())
owner = {i: i % world for i in range(len(params))}
opt = torch.optim.Adam([p for i, p in enumerate(params) if owner[i] == rank], lr=0.02)
gen = torch.Generator().manual_seed(40 + rank)

for step in range(6):
    tokens = torch.randint(0, 50, (4, 10), generator=gen)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), (tokens % 5).flatten())
    model.zero_grad()
    loss.backward()
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= world
    opt.step()
    with torch.no_grad():
        for i in range(len(params) - 1):  # FAULT
            dist.broadcast(params[i], src=owner[i])
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
