# outcome: forbidden call
# Calls the forbidden operation as a functional collective.

# %% ring
import torch.distributed as dist


def ring(tensor):
    import torch.distributed._functional_collectives as functional

    return functional.all_reduce(tensor, "sum", dist.group.WORLD).clone()
