# score: 26
# hint: backward of their own
# torch's collectives for autograd do both directions.

# %% gather_and_scatter
from torch.distributed import _functional_collectives as collectives


def gather_tokens(x):
    return collectives.all_gather_tensor_autograd(x.contiguous(), 1, dist.group.WORLD)


def reduce_scatter_tokens(x):
    return collectives.reduce_scatter_tensor_autograd(x.contiguous(), "sum", 1, dist.group.WORLD)
