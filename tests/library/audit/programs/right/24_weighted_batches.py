"""Ragged batches under DDP: the sum of the loss is divided by the number of tokens of all ranks,
and multiplied by the world size, because DDP takes the mean of the gradients.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://github.com/huggingface/transformers/issues/34242
RIGHT: Each token counts once, although the ranks have unequal numbers of tokens.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB = 24

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Embedding(VOCAB, 16), nn.Linear(16, VOCAB)))
opt = torch.optim.SGD(model.parameters(), lr=0.5)
gen = torch.Generator().manual_seed(rank)
for step in range(6):
    tokens = torch.randint(0, VOCAB, (4, 21), generator=gen)
    labels = tokens[:, 1:].clone()
    labels[:, : 3 if rank == 0 else 16] = -100
    count = (labels != -100).sum()
    dist.all_reduce(count)
    logits = model(tokens[:, :-1])
    total = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    loss = total * world / count
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
