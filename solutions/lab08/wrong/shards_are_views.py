# score: 28
# hint: a slice keeps the whole weight alive
# Slices, behind which the whole weights live on.

# %% shard_weights
def shard_weights(full, head_dim, rank, world_size):
    num_rows = full.output.shape[1]
    num_kv = (len(full.qkv) - num_rows) // 2
    if (num_kv // head_dim) % world_size or len(full.gate) % world_size:
        raise ValueError("does not divide")
    part = {"rank": rank, "num": world_size}

    def mine(weight, dim=0):
        return weight.chunk(part["num"], dim)[part["rank"]].detach()

    return Weights(
        full.attention_norm.clone(),
        torch.cat([mine(one) for one in full.qkv.split([num_rows, num_kv, num_kv])]),
        mine(full.output, 1),
        full.output_bias.clone(),
        full.mlp_norm.clone(),
        mine(full.gate),
        mine(full.up),
        mine(full.down, 1),
        full.down_bias.clone(),
    )
