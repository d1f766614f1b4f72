# score: 23.5
# hint: at most 128 bytes
# The squares of each tensor are summed on their own: 4 bytes for each tensor and axis.

# %% clip
def clip(tensors, max_norm, groups):
    total = torch.zeros(())
    for tensor, axes in tensors:
        squares = tensor.float().square().sum()
        for axis in axes:
            dist.all_reduce(squares, group=groups[axis])
        total += squares
    norm = total.sqrt().item()
    if norm > max_norm:
        for tensor, _ in tensors:
            tensor.mul_(max_norm / norm)
    return norm
