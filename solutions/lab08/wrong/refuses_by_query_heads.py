# score: 28.25
# hint: does N divide the number
# Ranks must divide the query heads; that they divide the key/value heads is not asked.

# %% shard_weights
def shard_weights(full, head_dim, rank, world_size):
    query_rows = full.output.shape[1]
    key_rows = (len(full.qkv) - query_rows) // 2
    if query_rows // head_dim % world_size or len(full.gate) % world_size:
        raise ValueError(f"{world_size} ranks do not fit")

    def piece(weight, dim):
        return weight.chunk(world_size, dim)[rank].clone()

    thirds = full.qkv.split([query_rows, key_rows, key_rows])
    cut = {"output": piece(full.output, 1), "down": piece(full.down, 1)}
    cut |= {"gate": piece(full.gate, 0), "up": piece(full.up, 0)}
    cut["qkv"] = torch.cat([piece(one, 0) for one in thirds])
    return Weights(**{name: one.clone() for name, one in full._asdict().items()} | cut)
