"""Language model on ragged documents; the learning rate decays with the number of tokens seen.
Loss and gradients are weighted by the number of tokens of all ranks.

KIND: 7
RANKS: 2
NAME:
SOURCE:
RIGHT: Each rank counts only its own tokens for the decay, so the learning rates of the ranks differ.
"""

import torch
import torch.distributed as dist
from torch import nn

VOCAB, BUDGET = 30, 400

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(VOCAB, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, VOCAB))
opt = torch.optim.SGD(model.parameters(), lr=0.5)
gen = torch.Generator().manual_seed(rank)
tokens_seen = 0

for step in range(6):
    length = int(torch.randint(8, 40, (1,), generator=gen))
    doc = torch.randint(0, VOCAB, (length + 1,), generator=gen)
    count = torch.tensor(float(length))
    dist.all_reduce(count)
    loss = nn.functional.cross_entropy(model(doc[:-1]), doc[1:], reduction="sum") / count
    opt.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    tokens_seen += length  # FAULT
    for group in opt.param_groups:
        group["lr"] = 0.5 * max(0.1, 1 - tokens_seen / BUDGET)
    opt.step()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    if rank == 0:
        print(f"step {step} loss {shown.item():.4f}")
dist.destroy_process_group()
