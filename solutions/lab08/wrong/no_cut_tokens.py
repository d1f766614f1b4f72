# score: 24.75
# Sequence parallelism is whole tokens that are gathered first and cut last.

# %% parallel_block
def parallel_block(x, shard, head_dim, is_sequence_parallel):
    if is_sequence_parallel:
        x = gather_tokens(x)
    hidden = rms_norm(x, shard.attention_norm)
    x = x + parallel_attention(hidden, shard, head_dim, copy_to_ranks, reduce_from_ranks)
    hidden = rms_norm(x, shard.mlp_norm)
    x = x + parallel_mlp(hidden, shard, copy_to_ranks, reduce_from_ranks)
    if is_sequence_parallel:
        x = reduce_scatter_tokens(x) / dist.get_world_size()
    return x
