# score: 21
# The norms of the kinds are added up, not their squares.

# %% clip
def clip(
    tensors: list[tuple[torch.Tensor, tuple[str, ...]]],
    max_norm: float,
    groups: dict[str, dist.ProcessGroup],
) -> float:
    total = torch.zeros(())
    for kind in sorted({axes for _, axes in tensors}):
        squares = torch.zeros(())
        for tensor, axes in tensors:
            if axes == kind:
                squares += tensor.float().square().sum()
        for axis in kind:
            dist.all_reduce(squares, group=groups[axis])
        total += squares.sqrt()
    norm = total.item()
    if norm > max_norm:
        for tensor, _ in tensors:
            tensor.mul_(max_norm / norm)
    return norm
