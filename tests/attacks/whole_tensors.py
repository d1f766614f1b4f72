# outcome: wrong
# Sends whole tensors round the ring, which gives the right sum.

# %% ring
import torch
import torch.distributed as dist


def ring(tensor):
    rank, total, passing = dist.get_rank(), tensor.clone(), tensor
    for _ in range(3):
        work = dist.isend(passing, (rank + 1) % 4)
        passing = torch.empty_like(tensor)
        dist.recv(passing, (rank - 1) % 4)
        work.wait()
        total += passing
    return total
