# The optimizer clears the masters' gradients, asked with torch's own argument.

# %% scaled_step
def scaled_step(state, loss, halves, masters, optimizer):
    (loss * state.scale).backward()
    has_overflow = torch.tensor([0.0 if unscale(halves, masters, state.scale) else 1.0])
    dist.all_reduce(has_overflow, op=dist.ReduceOp.MAX)
    is_finite = has_overflow.item() == 0
    if is_finite:
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)
    optimizer.zero_grad(set_to_none=True)
    for half in halves:
        half.grad = None
    for master in masters:
        master.grad = None
    update(state, is_finite)
    return is_finite
