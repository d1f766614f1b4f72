"""A job that can be restarted: rank 0 writes a checkpoint every three steps, and a restart goes on from
the last one as if nothing had happened. This run restarts once.

KIND: 24
RANKS: 2
NAME:
SOURCE:
RIGHT: The checkpoint holds no optimizer state, so Adam starts with empty moments after the restart.
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build():
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 18), nn.Tanh(), nn.Linear(18, 1)))
    return model, torch.optim.Adam(model.parameters(), lr=0.03)


def run(path, until):
    model, opt = build()
    start = 0
    if os.path.exists(path):
        saved = torch.load(path)
        model.module.load_state_dict(saved["model"])
        start = saved["step"]
    for step in range(start, until):
        gen = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        x = torch.randn(16, 6, generator=gen)
        loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "step": until}, path)  # FAULT
    dist.barrier()


dist.init_process_group("gloo")
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
dist.broadcast_object_list(folder, src=0)
run(os.path.join(folder[0], "last.pt"), until=3)
run(os.path.join(folder[0], "last.pt"), until=6)
dist.destroy_process_group()
