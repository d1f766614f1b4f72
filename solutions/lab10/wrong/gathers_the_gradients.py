# score: 21
# hint: 128 bytes
# All sharded gradients are gathered on every rank for the norm.

# %% clip
def clip(tensors, max_norm, groups):
    total = 0.0
    for tensor, axes in tensors:
        flat = torch.zeros(64)
        flat[: tensor.numel()] = tensor.float().flatten()[:64]
        rest = tensor.float().flatten()[64:].square().sum()
        squares = flat.square()
        squares[0] += rest
        for axis in axes:
            parts = [torch.empty_like(squares) for _ in range(dist.get_world_size(groups[axis]))]
            dist.all_gather(parts, squares, group=groups[axis])
            squares = torch.stack(parts).sum(dim=0)
        total += squares.sum().item()
    norm = total**0.5
    if norm > max_norm:
        for tensor, _ in tensors:
            tensor.mul_(max_norm / norm)
    return norm
