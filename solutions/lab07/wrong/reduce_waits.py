# score: 23.5
# hint: use async_op=true
# The reduce-scatter is waited for where it starts.

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
    handle = dist.reduce_scatter_tensor(total, flat, async_op=True)
    handle.wait()

    def take_in():
        handle.wait()
        mean = total.float() / dist.get_world_size()
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in
