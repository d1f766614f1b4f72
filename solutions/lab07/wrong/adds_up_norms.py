# score: 22.5
# hint: their squares do
# Norms of ranks are added up.

# %% clip_gradients
def clip_gradients(units, max_norm):
    gradients = [unit.gradient for unit in units if unit.gradient is not None]
    total = sum((one.square().sum() for one in gradients), torch.zeros(())).reshape(1)
    total = total.sqrt()
    dist.all_reduce(total)
    norm = total.item()
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm
