"""Instruction tuning under DDP: prompt tokens are ignored (-100), and the loss is meant to be
the mean over all answer tokens of the global batch.

KIND: 16
RANKS: 2
NAME:
SOURCE: https://github.com/huggingface/transformers/issues/34242
RIGHT: Each rank divides by its own number of answer tokens and DDP averages the means with equal weight.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, LENGTH = 24, 20


def batch(rank, step):
    gen = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(0, VOCAB, (4, LENGTH + 1), generator=gen)
    labels = tokens[:, 1:].clone()
    prompt = 4 if rank == 0 else 17
    labels[:, :prompt] = -100
    return tokens[:, :-1], labels


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Embedding(VOCAB, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, VOCAB)))
opt = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(6):
    tokens, labels = batch(rank, step)
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())  # FAULT
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
