# score: 22.5
# hint: in their own dtype
# bfloat16 gradients travel as float32, in twice the bytes.

# %% reduce_gradients
def reduce_gradients(unit):
    if not unit.requires_grad:
        return lambda: None
    flat = torch.zeros_like(unit.piece).float().repeat(dist.get_world_size())
    for parameter, view in zip(unit.parameters, unshard(flat, unit.shapes), strict=True):
        if parameter.grad is not None:
            view.copy_(parameter.grad)
            parameter.grad = None
    total = torch.empty_like(unit.piece).float()
    handle = dist.reduce_scatter_tensor(total, flat, async_op=True)

    def take_in():
        handle.wait()
        mean = total.float() / dist.get_world_size()
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in
