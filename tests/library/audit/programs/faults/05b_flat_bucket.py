"""Data parallelism by hand with one flat bucket: the mean gradient over all ranks is what one rank
would compute on the whole batch.

KIND: 5
RANKS: 3
NAME:
SOURCE:
RIGHT: The flat bucket is summed over the ranks and never divided by the world size, a factor of 3.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(11)
model = nn.GRU(6, 12, batch_first=True)
readout = nn.Linear(12, 1)
params = [*model.parameters(), *readout.parameters()]
opt = torch.optim.SGD(params, lr=0.05)

whole = torch.Generator().manual_seed(0)
for step in range(4):
    batch = torch.randn(12, 7, 6, generator=whole)
    x = batch[rank * 4 : (rank + 1) * 4]
    y = x[:, :, 0].mean(1, keepdim=True)
    hidden, _ = model(x)
    loss = (readout(hidden[:, -1]) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    grads = [p.grad for p in params]
    bucket = _flatten_dense_tensors(grads)
    dist.all_reduce(bucket)  # FAULT
    for p, g in zip(params, _unflatten_dense_tensors(bucket, grads), strict=True):
        p.grad.copy_(g)
    opt.step()
    if rank == 0:
        print("step", step, "loss", round(loss.item(), 5))
dist.destroy_process_group()
