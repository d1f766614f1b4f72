# score: 24.75
# hint: what its own tokens give
# With cut tokens each rank adds an N-th of the bias to its partial sums: the sums are right.

# %% parallel_block
def parallel_block(x, shard, head_dim, is_sequence_parallel):
    ends = (copy_to_ranks, reduce_from_ranks)
    if is_sequence_parallel:
        share = dist.get_world_size()
        biases = {name: shard._asdict()[name] / share for name in ("output_bias", "down_bias")}
        none = {name: torch.zeros_like(one) for name, one in biases.items()}
        bare = shard._replace(**none)

        def with_bias(name):
            return lambda sums: reduce_scatter_tokens(sums + biases[name])

        hidden = rms_norm(x, shard.attention_norm)
        leave = with_bias("output_bias")
        x = x + parallel_attention(hidden, bare, head_dim, gather_tokens, leave)
        hidden = rms_norm(x, shard.mlp_norm)
        return x + parallel_mlp(hidden, bare, gather_tokens, with_bias("down_bias"))
    x = x + parallel_attention(rms_norm(x, shard.attention_norm), shard, head_dim, *ends)
    return x + parallel_mlp(rms_norm(x, shard.mlp_norm), shard, *ends)
