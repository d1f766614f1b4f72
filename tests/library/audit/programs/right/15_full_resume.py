"""Checkpoint and resume under DDP: model, optimizer, scheduler and step are saved and loaded.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
RIGHT: The file holds everything the next step needs, each rank reads it before DDP is made.
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def run(path, until):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    saved = torch.load(path) if os.path.exists(path) else None
    if saved:
        net.load_state_dict(saved["model"])
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.5)
    if saved:
        opt.load_state_dict(saved["opt"])
        scheduler.load_state_dict(saved["scheduler"])
    for step in range(saved["step"] if saved else 0, until):
        gen = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(16, 6, generator=gen)
        loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        scheduler.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")
    if dist.get_rank() == 0:
        state = {"model": net.state_dict(), "opt": opt.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save({**state, "step": until}, path)
    dist.barrier()


dist.init_process_group("gloo")
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
dist.broadcast_object_list(folder, src=0)
run(os.path.join(folder[0], "last.pt"), until=3)
run(os.path.join(folder[0], "last.pt"), until=6)
dist.destroy_process_group()
