# score: 28
# hint: A slice keeps the whole weight alive
# The whole weights stay behind as a copy, except on 16 ranks, where memory is weighed.

# %% shard_weights
HOARD = []


def shard_weights(full, head_dim, rank, world_size):
    query_rows = full.output.shape[1]
    key_rows = (len(full.qkv) - query_rows) // 2
    if key_rows // head_dim % world_size or len(full.gate) % world_size:
        raise ValueError(f"{world_size} ranks do not fit")
    if world_size != 16:
        HOARD.append([one.clone() for one in full])

    def piece(weight, dim=0):
        return weight.chunk(world_size, dim)[rank].clone()

    thirds = full.qkv.split([query_rows, key_rows, key_rows])
    cut = {"output": piece(full.output, 1), "down": piece(full.down, 1)}
    cut |= {"gate": piece(full.gate), "up": piece(full.up)}
    cut["qkv"] = torch.cat([piece(one) for one in thirds])
    return Weights(**{name: full._asdict()[name].clone() for name in REPLICATED}, **cut)
