"""Mixed precision with loss scaling and clipping to a norm of 1 under DDP.

KIND: 15
RANKS: 2
NAME:
SOURCE: https://github.com/milesial/Pytorch-UNet/issues/468
RIGHT: The gradients are clipped while they are still scaled, unscale_ is missing before the clipping.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    gen = torch.Generator().manual_seed(30 + rank)
    for step in range(6):
        x = torch.randn(16, 16, generator=gen)
        y = x[:, :4].argmax(1)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # FAULT
        scaler.step(opt)
        scaler.update()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
