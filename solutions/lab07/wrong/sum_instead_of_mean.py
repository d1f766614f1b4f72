# score: 23
# hint: divide by their number
# Gradients are added up and never divided.

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

    def take_in():
        handle.wait()
        mean = total.float()
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in
