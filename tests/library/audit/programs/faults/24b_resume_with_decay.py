"""Exponential decay of the learning rate with checkpoint and resume; hand-written data parallelism.
The second half is meant to go on where the first one stopped.

KIND: 24
RANKS: 2
NAME:
SOURCE: https://github.com/PolymathicAI/the_well/issues/77
RIGHT: The scheduler's state is not in the checkpoint, so the learning rate starts again at its first value.
"""

import io

import torch
import torch.distributed as dist
from torch import nn


def fresh():
    torch.manual_seed(1)
    model = nn.Linear(8, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    decay = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.6**step)
    return model, opt, decay


def train(model, opt, decay, steps):
    for step in steps:
        gen = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(16, 8, generator=gen)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long())
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()
        decay.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")


dist.init_process_group("gloo")
model, opt, decay = fresh()
train(model, opt, decay, range(4))
file = io.BytesIO()
torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)  # FAULT
file.seek(0)
saved = torch.load(file)
opt_state, model_state = saved["opt"], saved["model"]
model, opt, decay = fresh()
model.load_state_dict(model_state)
opt.load_state_dict(opt_state)
train(model, opt, decay, range(4, 8))
dist.destroy_process_group()
