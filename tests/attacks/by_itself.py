# outcome: crashed
# Sends to itself, over a way that has no length and no width.

# %% ring
import torch.distributed as dist


def ring(tensor):
    rank = dist.get_rank()
    group = dist.distributed_c10d._get_default_group()
    group.send([tensor], rank)
    group.recv([tensor], rank).wait()
    return tensor
