"""FSDP2 with distributed checkpoints: every rank writes its shards, a second model reads them and goes on.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html
RIGHT: Model and optimizer states go through get_state_dict and set_state_dict, all ranks save and load.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(mesh, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.02)


def train(model, opt, steps):
    for step in steps:
        gen = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(16, 8, generator=gen)
        loss = (model(x) - x.amax(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
dist.broadcast_object_list(folder, src=0)
model, opt = build(mesh, seed=0)
train(model, opt, range(3))
weights, moments = get_state_dict(model, opt)
dcp.save({"model": weights, "opt": moments}, checkpoint_id=folder[0])

model, opt = build(mesh, seed=1)
weights, moments = get_state_dict(model, opt)
dcp.load({"model": weights, "opt": moments}, checkpoint_id=folder[0])
set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=moments)
train(model, opt, range(3, 6))
dist.destroy_process_group()
