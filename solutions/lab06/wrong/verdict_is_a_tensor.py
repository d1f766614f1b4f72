# score: 26
# The result is a tensor and not a bool.


# %% unscale
def unscale(halves, masters, scale: float) -> bool:
    is_finite = True
    for half, master in zip(halves, masters, strict=True):
        if half.grad is None:
            master.grad = None
        else:
            master.grad = half.grad.float() / scale
            is_finite = is_finite and bool(half.grad.isfinite().all())
    return torch.tensor(is_finite)
