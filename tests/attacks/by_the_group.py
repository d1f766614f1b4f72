# outcome: forbidden call
# Calls the forbidden operation of the process group itself.

# %% ring
from torch.distributed import distributed_c10d


def ring(tensor):
    distributed_c10d._get_default_group().allreduce([tensor]).wait()
    return tensor
