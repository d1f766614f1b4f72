# outcome: forbidden call
# Calls the forbidden operation through torch's table of operators.

# %% ring
import torch
import torch.distributed as dist


def ring(tensor):
    name = dist.distributed_c10d._get_default_group().group_name
    out = torch.ops._c10d_functional.all_reduce(tensor, "sum", name)
    return torch.ops._c10d_functional.wait_tensor(out)
