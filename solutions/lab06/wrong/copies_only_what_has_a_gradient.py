# score: 26.5
# hint: weight decay changes those without a gradient, too
# A half without a gradient does not get its master's values, though the optimizer may have changed
# them, as one with weight decay does.


# %% scaled_step
def scaled_step(state, loss, halves, masters, optimizer):
    (loss * state.scale).backward()
    has_overflow = torch.tensor([0.0 if unscale(halves, masters, state.scale) else 1.0])
    dist.all_reduce(has_overflow)
    is_finite = has_overflow.item() == 0
    if is_finite:
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                if half.grad is not None:
                    half.copy_(master)
    for parameter in (*halves, *masters):
        parameter.grad = None
    update(state, is_finite)
    return is_finite
