# outcome: crashed or hung
# Sends without end what nobody receives, until the conductor's memory is full.

# %% ring
import torch
import torch.distributed as dist


def ring(tensor):
    large = torch.zeros(15 << 20)
    while dist.get_rank() == 0:
        dist.isend(large, 1)
    dist.recv(tensor, 3 - dist.get_rank() // 3)
    return tensor
