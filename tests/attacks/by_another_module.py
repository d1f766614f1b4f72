# outcome: forbidden call
# Calls the forbidden operation where torch defines it, unwrapped.

# %% ring
import inspect

from torch.distributed import distributed_c10d


def ring(tensor):
    inspect.unwrap(distributed_c10d.all_reduce)(tensor, group=distributed_c10d._get_default_group())
    return tensor
