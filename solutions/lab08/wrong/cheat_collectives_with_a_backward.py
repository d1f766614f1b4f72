# score: 26
# hint: have their own backward
# torch's functional collectives do both directions.

# %% gather_and_scatter
from torch.distributed import _functional_collectives as collectives


def gather_tokens(x):
    return collectives.all_gather_tensor(x.contiguous(), 1, dist.group.WORLD)


def reduce_scatter_tokens(x):
    return collectives.reduce_scatter_tensor(x.contiguous(), "sum", 1, dist.group.WORLD)
