# score: 23
# hint: only where the norm is larger
# Gradients below max_norm are made as long as that.

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
        total += squares
    norm = total.sqrt().item()
    for tensor, _ in tensors:
        tensor.mul_(max_norm / norm)
    return norm
