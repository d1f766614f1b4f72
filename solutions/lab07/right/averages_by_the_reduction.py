# The reduction divides, and Adam's state is kept in tensors that never move.

# %% reduce_gradients
def reduce_gradients(unit):
    if not unit.requires_grad:
        return lambda: None
    flat = torch.zeros_like(unit.piece).repeat(dist.get_world_size())
    for parameter, view in zip(unit.parameters, unshard(flat, unit.shapes), strict=True):
        if parameter.grad is not None:
            view.copy_(parameter.grad)
            parameter.grad = None
    total = torch.empty_like(unit.piece)
    handle = dist.reduce_scatter_tensor(total, flat, op=dist.ReduceOp.AVG, async_op=True)

    def take_in():
        handle.wait()
        mean = total.float()
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in


# %% adam_step
def adam_step(unit, learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    gradient = unit.gradient
    unit.gradient = None
    if gradient is None:
        return
    if unit.master is None:
        unit.master = torch.empty(len(unit.piece)).copy_(unit.piece)
    for name in ("exp_avg", "exp_avg_sq"):
        if getattr(unit, name) is None:
            setattr(unit, name, torch.zeros(len(unit.piece)))
    unit.num_steps = unit.num_steps + 1
    one, two = betas
    unit.exp_avg = one * unit.exp_avg + (1 - one) * gradient
    unit.exp_avg_sq = two * unit.exp_avg_sq + (1 - two) * gradient**2
    mean = unit.exp_avg / (1 - one**unit.num_steps)
    square = unit.exp_avg_sq / (1 - two**unit.num_steps)
    decayed = unit.master - learning_rate * weight_decay * unit.master
    unit.master = decayed - learning_rate * mean / (square.sqrt() + eps)
    unit.piece[:] = unit.master.to(unit.piece.dtype)
