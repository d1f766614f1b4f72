# outcome: crashed
# Returns a tensor of terabytes that takes four bytes to make.

# %% total
import torch


def total(tensor):
    return torch.zeros(1).expand(1 << 40)
