# The largest of the flags decides, in float64; layers are chosen from the last to the first.


# %% scaled_step
def scaled_step(state, loss, halves, masters, optimizer):
    torch.mul(loss, state.scale).sum().backward()
    flag = torch.zeros((), dtype=torch.float64)
    if not unscale(halves, masters, state.scale):
        flag += 1
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    is_done = not flag
    if is_done:
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master.to(half.dtype))
    for parameter in halves + masters:
        parameter.grad = None
    update(state, is_done)
    return is_done


# %% unscale
def unscale(halves, masters, scale):
    worst = 0.0
    for half, master in zip(halves, masters, strict=True):
        if half.grad is None:
            master.grad = None
            continue
        wide = half.grad.double() / scale
        master.grad = wide.float()
        worst += float((half.grad.float() * 0).abs().sum())
    return worst == 0.0


# %% choose_checkpoints
from functools import cache


def choose_checkpoints(activation_bytes, input_bytes, recompute_s, budget_bytes):
    @cache
    def best(layer, held):
        if layer == len(recompute_s):
            return 0.0, ()
        found = []
        if held + activation_bytes[layer] <= budget_bytes:
            rest = best(layer + 1, held + activation_bytes[layer])
            found += [rest] if rest else []
        if held + input_bytes[layer] + activation_bytes[layer] <= budget_bytes:
            rest = best(layer + 1, held + input_bytes[layer])
            found += [(rest[0] + recompute_s[layer], (layer, *rest[1]))] if rest else []
        return min(found, default=None)

    answer = best(0, 0)
    if answer is None:
        raise ValueError("it does not fit")
    return list(answer[1])
