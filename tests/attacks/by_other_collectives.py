# outcome: forbidden call
# Builds the forbidden operation from others that are as forbidden.

# %% ring
import torch
import torch.distributed as dist


def ring(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return sum(parts)
