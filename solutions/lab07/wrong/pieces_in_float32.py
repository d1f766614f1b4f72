# score: 23
# hint: type torch.bfloat16
# Whatever the tensors' dtype, pieces are float32.

# %% shard
def shard(tensors, rank, world_size):
    flat = torch.cat([one.flatten() for one in tensors]).float()
    piece = flat.new_zeros(-(-len(flat) // world_size))
    mine = flat[rank * len(piece) : (rank + 1) * len(piece)]
    piece[: len(mine)] = mine
    return piece


def unshard(flat, shapes):
    sizes = [shape.numel() for shape in shapes]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
