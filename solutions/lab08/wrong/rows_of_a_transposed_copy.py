# score: 28
# hint: A slice keeps the whole weight alive
# `down` is transposed and copied as a whole, and a rank's shard is a slice of that copy: nobody can
# overwrite it, but all of it lives on.

# %% shard_weights
def shard_weights(full, head_dim, rank, world_size):
    query_rows = full.output.shape[1]
    key_rows = (len(full.qkv) - query_rows) // 2
    if key_rows // head_dim % world_size or len(full.gate) % world_size:
        raise ValueError(f"{world_size} ranks do not fit")

    def piece(weight, dim=0):
        return weight.chunk(world_size, dim)[rank].clone()

    thirds = full.qkv.split([query_rows, key_rows, key_rows])
    cut = {"output": piece(full.output, 1), "gate": piece(full.gate), "up": piece(full.up)}
    transposed = full.down.t().clone(memory_format=torch.contiguous_format)
    cut["down"] = transposed.chunk(world_size)[rank].t()
    cut["qkv"] = torch.cat([piece(one) for one in thirds])
    return Weights(**{name: full._asdict()[name].clone() for name in REPLICATED}, **cut)
