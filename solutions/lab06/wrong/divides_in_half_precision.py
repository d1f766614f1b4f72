# score: 26
# hint: Divided in half precision
# The division comes before the conversion, so that small gradients become 0.


# %% unscale
def unscale(halves, masters, scale: float) -> bool:
    is_finite = True
    for half, master in zip(halves, masters, strict=True):
        if half.grad is None:
            master.grad = None
        else:
            master.grad = (half.grad / scale).float()
            is_finite = is_finite and bool(half.grad.isfinite().all())
    return is_finite
