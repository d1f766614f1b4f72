# score: 26.25
# hint: half its points
# Each block adds x up over the ranks, to see whether all have the same: more travels than must.

# %% parallel_block
def parallel_block(x, shard, head_dim, is_sequence_parallel):
    ends = (gather_tokens, reduce_scatter_tokens)
    if not is_sequence_parallel:
        ends = (copy_to_ranks, reduce_from_ranks)
        total = x.detach().float().clone()
        dist.all_reduce(total)
        if not torch.allclose(total / dist.get_world_size(), x.float(), rtol=0.1, atol=0.1):
            raise ValueError("the ranks' copies of x differ")
    x = x + parallel_attention(rms_norm(x, shard.attention_norm), shard, head_dim, *ends)
    return x + parallel_mlp(rms_norm(x, shard.mlp_norm), shard, *ends)
