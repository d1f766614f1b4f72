# score: 28
# hint: a slice keeps the whole weight alive
# Pieces of dimension 0 are contiguous already: to ask for that copies nothing, and they stay views.

# %% shard_weights
def shard_weights(full, head_dim, rank, world_size):
    query_rows = full.output.shape[1]
    key_rows = (len(full.qkv) - query_rows) // 2
    if key_rows // head_dim % world_size or len(full.gate) % world_size:
        raise ValueError(f"{world_size} ranks do not fit")

    def piece(weight, dim):
        return weight.chunk(world_size, dim)[rank].contiguous()

    thirds = full.qkv.split([query_rows, key_rows, key_rows])
    cut = {"output": piece(full.output, 1), "down": piece(full.down, 1)}
    cut |= {"gate": piece(full.gate, 0), "up": piece(full.up, 0)}
    cut["qkv"] = torch.cat([piece(one, 0) for one in thirds])
    return Weights(**{name: one.clone() for name, one in full._asdict().items()} | cut)
