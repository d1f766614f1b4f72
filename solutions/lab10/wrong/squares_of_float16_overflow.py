# score: 23
# hint: the norm
# Squares of float16 overflow: bfloat16 alone goes through float32.

# %% clip
def clip(tensors, max_norm, groups):
    total = torch.zeros(())
    for kind in sorted({axes for _, axes in tensors}):
        squares = torch.zeros(())
        for tensor, axes in tensors:
            if axes == kind:
                wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
                squares += wide.square().sum().float()
        for axis in kind:
            dist.all_reduce(squares, group=groups[axis])
        total += squares
    norm = total.sqrt().item()
    if norm > max_norm:
        for tensor, _ in tensors:
            tensor.mul_(max_norm / norm)
    return norm
