# outcome: output limit
# Returns more than the judge would take.

# %% total
import torch


def total(tensor):
    return torch.zeros(80 << 20, dtype=torch.uint8)
