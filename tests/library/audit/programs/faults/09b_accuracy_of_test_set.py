"""Train for one epoch under DDP, then report the accuracy on the test set, computed by all ranks together.

KIND: 9
RANKS: 4
NAME:
SOURCE: https://github.com/pytorch/pytorch/issues/25162
RIGHT: The sampler pads 10 test samples to 12, so two samples count twice in the accuracy.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def blobs(n, seed):
    gen = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=gen)
    return TensorDataset(torch.randn(n, 4, generator=gen) + y[:, None].float(), y)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(4, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.2)
train, test = blobs(64, 1), blobs(10, 2)
train_sampler = DistributedSampler(train, drop_last=True)
train_sampler.set_epoch(0)
for x, y in DataLoader(train, batch_size=4, sampler=train_sampler):
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()

model.eval()
right = torch.zeros(2)
test_sampler = DistributedSampler(test, shuffle=False)  # FAULT
with torch.no_grad():
    for x, y in DataLoader(test, batch_size=2, sampler=test_sampler):
        hits = model.module(x).argmax(1) == y
        right += torch.tensor([hits.sum().item(), hits.numel()])
dist.all_reduce(right)
if rank == 0:
    print(f"loss {loss.item():.4f} accuracy {(right[0] / right[1]).item():.4f}")
dist.destroy_process_group()
