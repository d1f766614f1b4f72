# outcome: crashed
# Returns a tensor of the right shape that has no values to be wrong.

# %% total
import torch


def total(tensor):
    return torch.empty(3, device="meta")
