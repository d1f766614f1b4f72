"""Loss scaling under DDP with a scale that is too large at first: the scaler skips the first step.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://docs.pytorch.org/docs/stable/notes/amp_examples.html
RIGHT: Infinite scaled gradients are found on all ranks after the reduction, and all skip the same step.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-40)
    gen = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(16, 8, generator=gen) * 3
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        if rank == 0:
            note = "skipped" if scaler.get_scale() < before else ""
            print(f"step {step} loss {loss.item():.4f} {note}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
