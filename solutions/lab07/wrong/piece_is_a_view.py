# score: 23
# hint: copy it, as by clone()
# A piece is a slice: the whole vector stays in memory behind it.

# %% shard
def shard(tensors, rank, world_size):
    flat = torch.cat([one.flatten() for one in tensors])
    size = -(-len(flat) // world_size)
    flat = nn.functional.pad(flat, (0, size * world_size - len(flat)))
    return flat[rank * size : (rank + 1) * size]


def unshard(flat, shapes):
    sizes = [shape.numel() for shape in shapes]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
