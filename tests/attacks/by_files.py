# outcome: wrong
# Sends the data through files, and waits for them by their names.

# %% ring
import os

import torch
import torch.distributed as dist


def ring(tensor):
    rank = dist.get_rank()
    torch.save(tensor, f"/tmp/part{rank}.made")
    os.rename(f"/tmp/part{rank}.made", f"/tmp/part{rank}")
    total = torch.zeros_like(tensor)
    for other in range(4):
        while not os.path.exists(f"/tmp/part{other}"):
            os.sched_yield()
        total += torch.load(f"/tmp/part{other}")
    return total
