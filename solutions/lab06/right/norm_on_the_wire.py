# Ranks send the sum of their gradients' squares, which is infinite or nan after an overflow.


# %% scaled_step
def scaled_step(state, loss, halves, masters, optimizer):
    (state.scale * loss).backward()
    is_finite = unscale(halves, masters, state.scale)
    squares = sum((m.grad.double() ** 2).sum() for m in masters if m.grad is not None)
    total = torch.as_tensor(squares if is_finite else float("nan"), dtype=torch.float64).reshape(1)
    dist.all_reduce(total)
    is_done = math.isfinite(total.item())
    if is_done:
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(list(halves), list(masters))
    for parameter in [*halves, *masters]:
        parameter.grad = None
    update(state, is_done)
    return is_done


# %% accumulate
def accumulate(sum_of_losses, micro_batches):
    batches = [one for one in micro_batches if (one[1] != IGNORED).any()]
    num = torch.zeros((), dtype=torch.int64)
    for _, targets in batches:
        num += (targets != IGNORED).sum()
    dist.all_reduce(num)
    weight = 1 / max(1, num.item())
    for batch in batches:
        loss = sum_of_losses(*batch)
        loss.backward(torch.full_like(loss, weight))
    return int(num)
