# score: 21.75
# hint: reduce_scatter_tensor, once for a unit
# Every rank gets the whole mean, and keeps its piece.

# %% reduce_gradients
def reduce_gradients(unit):
    if not unit.requires_grad:
        return lambda: None
    flat = torch.zeros_like(unit.piece).repeat(dist.get_world_size())
    for parameter, view in zip(unit.parameters, unshard(flat, unit.shapes), strict=True):
        if parameter.grad is not None:
            view.copy_(parameter.grad)
            parameter.grad = None
    handle = dist.all_reduce(flat, async_op=True)
    start = dist.get_rank() * len(unit.piece)

    def take_in():
        handle.wait()
        mean = flat[start : start + len(unit.piece)].float() / dist.get_world_size()
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in
