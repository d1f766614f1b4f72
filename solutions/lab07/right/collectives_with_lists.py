# The forms of the collectives that take lists, and pieces by split.

# %% shard
def shard(tensors, rank, world_size):
    num = sum(one.numel() for one in tensors)
    size = (num + world_size - 1) // world_size
    flat = tensors[0].new_zeros(size * world_size)
    start = 0
    for one in tensors:
        flat[start : start + one.numel()] = one.reshape(-1)
        start += one.numel()
    return flat.split(size)[rank].clone()


def unshard(flat, shapes):
    found, start = [], 0
    for shape in shapes:
        strides, stride = [], 1
        for size in reversed(shape):
            strides.insert(0, stride)
            stride *= size
        found.append(flat.as_strided(shape, strides, flat.storage_offset() + start))
        start += stride
    return found


# %% gather_and_free
def gather(unit):
    storage = unit.full.untyped_storage()
    storage.resize_(unit.full.numel() * unit.full.element_size())
    parts = list(unit.full.split(len(unit.piece)))
    return dist.all_gather(parts, unit.piece, async_op=True)


def free(unit):
    if unit.is_gathered:
        unit.full.untyped_storage().resize_(0)


# %% reduce_gradients
def reduce_gradients(unit):
    if not unit.requires_grad:
        return bool
    rows = []
    for parameter, shape in zip(unit.parameters, unit.shapes, strict=True):
        gradient, parameter.grad = parameter.grad, None
        rows.append(
            torch.zeros(shape.numel()).to(unit.piece) if gradient is None else gradient.flatten()
        )
    flat = torch.cat(rows)
    flat = nn.functional.pad(flat, (0, len(unit.piece) * dist.get_world_size() - len(flat)))
    flat /= dist.get_world_size()
    mine = torch.empty_like(unit.piece)
    handle = dist.reduce_scatter(mine, list(flat.split(len(mine))), async_op=True)

    def take_in():
        handle.wait()
        if unit.gradient is None:
            unit.gradient = torch.zeros(len(mine))
        unit.gradient += mine

    return take_in
