# score: 23.5
# hint: multiply only where
# Every gradient gets the length max_norm.

# %% clip_gradients
def clip_gradients(units, max_norm):
    gradients = [unit.gradient for unit in units if unit.gradient is not None]
    total = sum((one.square().sum() for one in gradients), torch.zeros(())).reshape(1)
    dist.all_reduce(total)
    norm = total.sqrt().item()
    if norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm
