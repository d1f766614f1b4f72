# outcome: forbidden call
# Calls the forbidden operation in a second process group, for which it names Gloo.

# %% ring
import torch.distributed as dist


def ring(tensor):
    group = dist.new_group(backend="gloo")
    dist.all_reduce(tensor, group=group)
    return tensor
