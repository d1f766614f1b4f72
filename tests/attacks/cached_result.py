# outcome: wrong
# Computes its first answer and gives it for ever after.

# %% total
import torch.distributed as dist

KEPT = []


def total(tensor):
    if not KEPT:
        dist.all_reduce(tensor)
        KEPT.append(tensor)
    return KEPT[0]
