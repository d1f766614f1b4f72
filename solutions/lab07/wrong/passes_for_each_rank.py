# score: 23.25
# Each rank's piece is cut from a new copy of all gradients: 1,024 copies on 1,024 ranks.

# %% reduce_gradients
def reduce_gradients(unit):
    if not unit.requires_grad:
        return lambda: None
    size, num = len(unit.piece), dist.get_world_size()
    rows = [
        torch.zeros_like(one).flatten() if one.grad is None else one.grad.flatten()
        for one in unit.parameters
    ]
    rows.append(unit.piece.new_zeros(size * num - sum(map(len, rows))))
    for one in unit.parameters:
        one.grad = None
    total = torch.empty_like(unit.piece)
    pieces = [torch.cat(rows)[rank * size : (rank + 1) * size].clone() for rank in range(num)]
    handle = dist.reduce_scatter(total, pieces, async_op=True)

    def take_in():
        handle.wait()
        mean = total.float() / num
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in
