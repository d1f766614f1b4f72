"""Gradient compression under DDP by a communication hook: the sign and the mean size of each bucket are sent,
what is lost is kept as an error and added to the next gradient.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://arxiv.org/abs/1901.09847
RIGHT: The reduced gradient is not the mean of the local ones on purpose, but it is equal on all ranks.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

errors = {}


def signs_with_feedback(state, bucket):
    grad = bucket.buffer()
    index = bucket.index()
    corrected = grad + errors.get(index, torch.zeros_like(grad))
    sent = corrected.sign() * corrected.abs().mean()
    errors[index] = corrected - sent
    future = dist.all_reduce(sent, async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / dist.get_world_size())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    model.register_comm_hook(None, signs_with_feedback)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(16, 8, generator=gen)
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
