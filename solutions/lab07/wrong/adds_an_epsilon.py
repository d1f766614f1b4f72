# score: 23.5
# hint: add nothing to the norm
# The norm is made larger by 1e-6 before max_norm is divided by it, as in torch: small gradients are
# clipped to less than max_norm.


# %% clip_gradients
def clip_gradients(units, max_norm):
    gradients = [unit.gradient for unit in units if unit.gradient is not None]
    total = sum((one.square().sum() for one in gradients), torch.zeros(())).reshape(1)
    dist.all_reduce(total)
    norm = total.sqrt().item()
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / (norm + 1e-6))
    return norm
