# score: 24
# hint: takes part
# A rank with an overflow returns before the all-reduce, and the others wait for it.


# %% scaled_step
def scaled_step(state, loss, halves, masters, optimizer):
    (loss * state.scale).backward()
    is_finite = unscale(halves, masters, state.scale)
    if is_finite:
        flag = torch.zeros(1)
        dist.all_reduce(flag)
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)
    for parameter in (*halves, *masters):
        parameter.grad = None
    update(state, is_finite)
    return is_finite
