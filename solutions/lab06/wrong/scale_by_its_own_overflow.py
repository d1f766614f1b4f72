# score: 25
# All ranks skip together, but each changes the scale by its own gradients.


# %% scaled_step
def scaled_step(state: ScalerState, loss: torch.Tensor, halves, masters, optimizer) -> bool:
    (loss * state.scale).backward()
    own = unscale(halves, masters, state.scale)
    has_overflow = torch.tensor([0.0 if own else 1.0])
    dist.all_reduce(has_overflow)
    is_finite = has_overflow.item() == 0
    if is_finite:
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)
    for parameter in (*halves, *masters):
        parameter.grad = None
    update(state, own)
    return is_finite
