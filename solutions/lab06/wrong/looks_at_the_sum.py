# score: 26
# A sum over the gradients decides, which overflows although every element is finite.


# %% unscale
def unscale(halves, masters, scale: float) -> bool:
    is_finite = True
    for half, master in zip(halves, masters, strict=True):
        if half.grad is None:
            master.grad = None
        else:
            master.grad = half.grad.float() / scale
            is_finite = is_finite and bool(half.grad.sum().isfinite())
    return is_finite
