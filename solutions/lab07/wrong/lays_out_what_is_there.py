# score: 23.5
# hint: the others keep their places
# Missing gradients leave no gap: the others move up.

# %% reduce_gradients
def reduce_gradients(unit):
    if not unit.requires_grad:
        return lambda: None
    flat = torch.zeros_like(unit.piece).repeat(dist.get_world_size())
    start = 0
    for parameter in unit.parameters:
        if parameter.grad is not None:
            flat[start : start + parameter.numel()] = parameter.grad.flatten()
            start += parameter.numel()
            parameter.grad = None
    total = torch.empty_like(unit.piece)
    handle = dist.reduce_scatter_tensor(total, flat, async_op=True)

    def take_in():
        handle.wait()
        mean = total.float() / dist.get_world_size()
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in
