"""FSDP2 with clipping of the gradients; the norm for the log is made whole before it is printed.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
RIGHT: Clip_grad_norm_ gets DTensors and takes the norm over all shards, each rank clips by the same factor.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    gen = torch.Generator().manual_seed(rank)
    for step in range(5):
        x = torch.randn(16, 12, generator=gen)
        loss = (model(x) - 3 * x[:, :4]).square().mean()
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        norm = norm.full_tensor()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
