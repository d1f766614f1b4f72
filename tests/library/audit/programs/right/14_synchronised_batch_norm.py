"""Batch normalisation over the global batch on the CPU, where nn.SyncBatchNorm does not run:
mean and variance come from all ranks, with a differentiable reduction.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
RIGHT: Statistics and their gradients are reduced over the ranks, so buffers stay equal without a broadcast.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class GlobalBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        parts = torch.cat([x.sum(0), x.square().sum(0), x.new_tensor([len(x)])])
        parts = SumOverRanks.apply(parts)
        count = parts[-1].detach()
        mean, square = parts[:-1].view(2, -1) / count
        var = square - mean.square()
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(var * count / (count - 1), 0.1)
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 12), GlobalBatchNorm(12), nn.ReLU(), nn.Linear(12, 1))
model = DDP(net, broadcast_buffers=False)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
gen = torch.Generator().manual_seed(rank)
for step in range(5):
    x = torch.randn(16, 6, generator=gen) * (1 + rank)
    loss = (model(x) - x[:, :1].abs()).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
