# outcome: wrong
# Returns nan, which no comparison with > finds too large.

# %% total
import torch


def total(tensor):
    return torch.full_like(tensor, float("nan"))
