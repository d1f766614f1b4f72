# outcome: crashed
# Sends twice under one number, so that the record keeps only one of the two.

# %% ring
import torch
import torch.distributed as dist


def ring(tensor):
    from worldsize.emulate.worker import backend

    rank, client = dist.get_rank(), backend.client()
    for _ in range(2):
        client._num_posts = 0
        dist.isend(tensor, (rank + 1) % 4)
    dist.recv(torch.empty_like(tensor), (rank - 1) % 4)
    return tensor
