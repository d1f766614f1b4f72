# score: 23.25
# hint: what a rank keeps shrinks with
# Each rank's piece comes out of a row of all gradients: two rows on 2 ranks, 1,024 on 1,024.

# %% reduce_gradients
def reduce_gradients(unit):
    if not unit.requires_grad:
        return lambda: None
    size, num = len(unit.piece), dist.get_world_size()
    rows = unit.piece.new_zeros(num, num * size)
    for own, view in zip(unit.parameters, unshard(rows[0], unit.shapes), strict=True):
        if own.grad is not None:
            view.copy_(own.grad)
            own.grad = None
    rows[1:] = rows[0].clone()
    pieces = rows.view(num, num, size).diagonal(dim1=0, dim2=1).t().flatten()
    total = torch.empty_like(unit.piece)
    handle = dist.reduce_scatter_tensor(total, pieces, async_op=True)

    def take_in():
        handle.wait()
        mean = total.float() / num
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in
