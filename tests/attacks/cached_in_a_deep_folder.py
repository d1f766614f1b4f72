# outcome: passed
# Answers honestly, and hides a note so deep, and closed so well, that no tidying finds it.

# %% total
import os
import sys

import torch.distributed as dist


def total(tensor):
    dist.all_reduce(tensor)
    rank, here = dist.get_rank(), os.getcwd()
    if hasattr(sys, "has_hidden"):
        return tensor
    sys.has_hidden = True
    if os.path.exists(f"/tmp/shut{rank}") or os.path.exists(f"/tmp/deep{rank}"):
        raise SystemExit("LEAKED a note of an earlier run")
    os.makedirs(f"/tmp/shut{rank}/inner")
    os.chmod(f"/tmp/shut{rank}", 0)
    os.chdir("/tmp")
    for _ in range(1500):
        os.mkdir(f"deep{rank}")
        os.chdir(f"deep{rank}")
    os.chdir(here)
    return tensor
