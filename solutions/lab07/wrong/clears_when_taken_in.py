# score: 23.5
# hint: Set .grad to None before you return
# The whole gradients are let go when the piece is taken in, not when `reduce_gradients` returns.
# Until then backward works on the next block beside them.


# %% reduce_gradients
def reduce_gradients(unit):
    if not unit.requires_grad:
        return lambda: None
    flat = torch.zeros_like(unit.piece).repeat(dist.get_world_size())
    for own, view in zip(unit.parameters, unshard(flat, unit.shapes), strict=True):
        if own.grad is not None:
            view.copy_(own.grad)
    total = torch.empty_like(unit.piece)
    handle = dist.reduce_scatter_tensor(total, flat, async_op=True)

    def take_in():
        handle.wait()
        for own in unit.parameters:
            own.grad = None
        mean = total.float() / dist.get_world_size()
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in
