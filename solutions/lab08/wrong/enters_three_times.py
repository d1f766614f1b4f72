# score: 26.75
# hint: enter once, leave once
# Queries, keys and values each enter by themselves.

# %% parallel_attention
def parallel_attention(x, shard, head_dim, enter, leave):
    num_rows = shard.output.shape[1]
    num_kv = (len(shard.qkv) - num_rows) // 2
    weights = shard.qkv.split([num_rows, num_kv, num_kv])
    query, key, value = (F.linear(enter(x), weight) for weight in weights)
    return leave(F.linear(attend(query, key, value, head_dim), shard.output)) + shard.output_bias
