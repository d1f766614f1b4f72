# outcome: wrong
# Returns a tensor without elements, in which no comparison finds a difference.

# %% total
import torch


def total(tensor):
    return torch.empty(0)
