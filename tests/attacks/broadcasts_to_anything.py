# outcome: wrong
# Returns one number that broadcasting would compare with every element.

# %% total
import torch


def total(tensor):
    return torch.zeros(1, 1, 3).expand(2, 1, 3)
