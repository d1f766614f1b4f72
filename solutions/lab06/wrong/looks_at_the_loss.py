# score: 24
# hint: The loss may be finite where they are not
# What is looked at is the loss and not the gradients: a finite loss times the scale may still give
# gradients that are infinite in float16.


# %% scaled_step
def scaled_step(state, loss, halves, masters, optimizer):
    (loss * state.scale).backward()
    unscale(halves, masters, state.scale)
    has_overflow = torch.tensor([0.0 if loss.isfinite().all() else 1.0])
    dist.all_reduce(has_overflow)
    is_finite = has_overflow.item() == 0
    if is_finite:
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)
    for parameter in (*halves, *masters):
        parameter.grad = None
    update(state, is_finite)
    return is_finite
