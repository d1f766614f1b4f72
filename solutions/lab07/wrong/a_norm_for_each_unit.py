# score: 23.5
# hint: as one float32 number
# There is an all-reduce for each unit.

# %% clip_gradients
def clip_gradients(units, max_norm):
    gradients = [unit.gradient for unit in units if unit.gradient is not None]
    total = torch.zeros(1)
    for unit in units:
        own = torch.zeros(1) if unit.gradient is None else unit.gradient.square().sum().reshape(1)
        dist.all_reduce(own)
        total += own
    norm = total.sqrt().item()
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm
