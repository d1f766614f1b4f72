# score: 23
# hint: the whole is cut and padded
# Each tensor is cut and padded by itself.

# %% shard
def shard(tensors, rank, world_size):
    pieces = []
    for one in tensors:
        size = -(-one.numel() // world_size)
        flat = nn.functional.pad(one.flatten(), (0, size * world_size - one.numel()))
        pieces.append(flat[rank * size : (rank + 1) * size])
    return torch.cat(pieces)


def unshard(flat, shapes):
    sizes = [shape.numel() for shape in shapes]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
