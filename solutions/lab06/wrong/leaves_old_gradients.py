# score: 26
# hint: earlier step is still there
# A master keeps the gradient of an earlier step where its half has none.


# %% unscale
def unscale(halves, masters, scale):
    is_finite = True
    for half, master in zip(halves, masters, strict=True):
        if half.grad is not None:
            master.grad = half.grad.float() / scale
            is_finite = is_finite and bool(half.grad.isfinite().all())
    return is_finite
