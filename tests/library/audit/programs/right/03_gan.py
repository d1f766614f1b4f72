"""A GAN under DDP with two networks and two optimizers; the critic trains on detached samples.

KIND: 0
RANKS: 2
NAME:
SOURCE:
RIGHT: Each network is frozen while the other one trains, and noise differs by rank on purpose.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
maker = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
critic = DDP(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
opt_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
torch.manual_seed(1000 + rank)
for step in range(5):
    real = torch.randn(16, 2) * 0.5 + 2
    fake = maker(torch.randn(16, 4))
    both = critic(torch.cat([real, fake.detach()]))
    labels = torch.cat([torch.ones(16, 1), torch.zeros(16, 1)])
    loss_critic = bce(both, labels)
    opt_critic.zero_grad()
    loss_critic.backward()
    opt_critic.step()

    critic.requires_grad_(False)
    loss_maker = bce(critic.module(fake), torch.ones(16, 1))
    opt_maker.zero_grad()
    loss_maker.backward()
    opt_maker.step()
    critic.requires_grad_(True)
    if rank == 0:
        print(f"step {step} critic {loss_critic.item():.4f} maker {loss_maker.item():.4f}")
dist.destroy_process_group()
