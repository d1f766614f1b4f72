# outcome: wrong
# Returns infinities, whose differences are nan.

# %% total
import torch


def total(tensor):
    return torch.full_like(tensor, float("inf"))
