# score: 23
# hint: views of the flat vector
# The tensors that come back are copies.

# %% shard
def shard(tensors, rank, world_size):
    flat = torch.cat([one.flatten() for one in tensors])
    piece = flat.new_zeros(-(-len(flat) // world_size))
    mine = flat[rank * len(piece) : (rank + 1) * len(piece)]
    piece[: len(mine)] = mine
    return piece


def unshard(flat, shapes):
    sizes = [shape.numel() for shape in shapes]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.clone().view(shape) for part, shape in zip(parts, shapes, strict=True)]
