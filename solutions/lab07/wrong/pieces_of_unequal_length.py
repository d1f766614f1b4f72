# score: 23
# hint: the whole is cut and padded
# The last ranks' pieces are shorter, or empty.

# %% shard
def shard(tensors, rank, world_size):
    flat = torch.cat([one.flatten() for one in tensors])
    piece = flat.new_zeros(-(-len(flat) // world_size))
    mine = flat[rank * len(piece) : (rank + 1) * len(piece)]
    return mine.clone()


def unshard(flat, shapes):
    sizes = [shape.numel() for shape in shapes]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
