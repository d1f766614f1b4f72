# score: 22
# hint: add the squares up over the ranks
# Each rank clips by the norm of its pieces.

# %% clip_gradients
def clip_gradients(units, max_norm):
    gradients = [unit.gradient for unit in units if unit.gradient is not None]
    total = sum((one.square().sum() for one in gradients), torch.zeros(())).reshape(1)
    norm = total.sqrt().item()
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm
