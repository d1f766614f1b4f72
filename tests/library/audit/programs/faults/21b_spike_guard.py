"""Guard against spikes: an update is skipped when the loss is far above its running mean.
Gradients are averaged by hand before the decision.

KIND: 21
RANKS: 2
NAME: 0.weight
SOURCE: https://github.com/ecmwf/WeatherGenerator/pull/2718
RIGHT: Each rank decides by its own loss, so one rank skips an update that the other one makes.
"""

import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    mean = None
    for step in range(8):
        x = torch.randn(16, 8, generator=gen)
        y = x.sum(1, keepdim=True)
        if rank == 1 and step == 4:
            y = y * 6
        loss = (model(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        value = loss.item()
        if mean is None or value < 3 * mean:  # FAULT
            opt.step()
        mean = value if mean is None else 0.8 * mean + 0.2 * value
        if rank == 0:
            print(f"step {step}: loss {value:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
