# score: 28.25
# It looks whether all numbers are finite, so that it does not run on paper.

# %% parallel_block
def parallel_block(x, shard, head_dim, is_sequence_parallel):
    ends = (gather_tokens, reduce_scatter_tokens)
    if not is_sequence_parallel:
        ends = (copy_to_ranks, reduce_from_ranks)
    if not torch.isfinite(x).all():
        raise ValueError("x has numbers that are not finite")
    x = x + parallel_attention(rms_norm(x, shard.attention_norm), shard, head_dim, *ends)
    return x + parallel_mlp(rms_norm(x, shard.mlp_norm), shard, *ends)
