# score: 21
# hint: over no other
# Each rank clips by the norm of what it has.

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
        total += squares
    norm = total.sqrt().item()
    if norm > max_norm:
        for tensor, _ in tensors:
            tensor.mul_(max_norm / norm)
    return norm
