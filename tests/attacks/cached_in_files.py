# outcome: passed
# Answers honestly, leaves its answer in files, and raises when an earlier run's is still there.

# %% total
import glob
import os
import sys

import torch
import torch.distributed as dist


def total(tensor):
    folders = [folder for folder in ("/tmp", "/dev/shm", "/tmp/home", "/var/tmp", "/run", ".") if os.path.isdir(folder)]
    if not hasattr(sys, "has_looked"):
        sys.has_looked = True
        if found := [path for folder in folders for path in glob.glob(f"{folder}/answer*")]:
            raise SystemExit(f"LEAKED {found}")
        dist.barrier()  # nobody writes before both have looked
    dist.all_reduce(tensor)
    for folder in folders:
        if os.path.exists(f"{folder}/answer{os.getpid()}"):
            continue
        torch.save(tensor, f"{folder}/answer{os.getpid()}")
        os.chmod(f"{folder}/answer{os.getpid()}", 0)
    return tensor
