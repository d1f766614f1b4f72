"""Value network of a reinforcement learner: observations are normalised by running statistics, kept in
buffers of the module; the gradient is averaged over the ranks by hand.

KIND: 17
RANKS: 2
NAME: mean
SOURCE:
RIGHT: Each rank updates the running mean and variance from its own observations and nobody synchronises them.
"""

import torch
import torch.distributed as dist
from torch import nn


class Value(nn.Module):
    mean: torch.Tensor
    var: torch.Tensor

    def __init__(self, width=5):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.net = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, obs):
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(obs.mean(0), 0.1)  # FAULT
                self.var.lerp_(obs.var(0), 0.1)
        return self.net((obs - self.mean) / (self.var + 1e-5).sqrt())


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
value = Value()
opt = torch.optim.Adam(value.parameters(), lr=0.01)
gen = torch.Generator().manual_seed(70 + rank)
for step in range(6):
    obs = torch.randn(32, 5, generator=gen) * 2 + 3 * rank
    target = obs.sum(1, keepdim=True).tanh()
    loss = (value(obs) - target).square().mean()
    opt.zero_grad()
    loss.backward()
    for p in value.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
