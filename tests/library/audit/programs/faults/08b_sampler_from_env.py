"""The training script of a cluster, started by srun or by torchrun: each process reads its part of the data.

KIND: 8
RANKS: 3
NAME:
SOURCE:
RIGHT: The sampler's rank comes from SLURM_PROCID, which torchrun does not set, so every rank reads part 0.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Waves(Dataset):
    def __len__(self):
        return 72

    def __getitem__(self, index):
        t = torch.linspace(0, 3, 12) * (1 + index % 9)
        return torch.sin(t), torch.tensor([(index % 9) / 9.0])


dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = Waves()
part = int(os.environ.get("SLURM_PROCID", "0"))
sampler = DistributedSampler(data, num_replicas=world, rank=part, seed=1)  # FAULT
loader = DataLoader(data, batch_size=8, sampler=sampler)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")
dist.destroy_process_group()
