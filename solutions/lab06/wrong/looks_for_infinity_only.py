# score: 26
# A nan is not seen.


# %% unscale
def unscale(halves, masters, scale: float) -> bool:
    is_finite = True
    for half, master in zip(halves, masters, strict=True):
        if half.grad is None:
            master.grad = None
        else:
            master.grad = half.grad.float() / scale
            is_finite = is_finite and not half.grad.isinf().any().item()
    return is_finite
