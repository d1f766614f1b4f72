# score: 26.5
# Gradients are cleared only if the step is done.


# %% scaled_step
def scaled_step(state: ScalerState, loss: torch.Tensor, halves, masters, optimizer) -> bool:
    (loss * state.scale).backward()
    has_overflow = torch.tensor([0.0 if unscale(halves, masters, state.scale) else 1.0])
    dist.all_reduce(has_overflow)
    is_finite = has_overflow.item() == 0
    if is_finite:
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)
    if is_finite:
        for parameter in (*halves, *masters):
            parameter.grad = None
    update(state, is_finite)
    return is_finite
