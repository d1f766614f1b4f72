# score: 22
# hint: norms stand before
# The norm stands behind the way in.

# %% parallel_block
def parallel_block(x, shard, head_dim, is_sequence_parallel):
    enter, leave = copy_to_ranks, reduce_from_ranks
    if is_sequence_parallel:
        enter, leave = gather_tokens, reduce_scatter_tokens

    def first(inner):
        return rms_norm(enter(inner), shard.attention_norm)

    def second(inner):
        return rms_norm(enter(inner), shard.mlp_norm)

    x = x + parallel_attention(x, shard, head_dim, first, leave)
    return x + parallel_mlp(x, shard, second, leave)
