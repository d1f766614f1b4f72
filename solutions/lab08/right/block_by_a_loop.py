# Both halves in a loop; gradients of norms and biases over views of one vector.

# %% parallel_block
def parallel_block(x, shard, head_dim, is_sequence_parallel):
    ends = (gather_tokens, reduce_scatter_tokens)
    if not is_sequence_parallel:
        ends = (copy_to_ranks, reduce_from_ranks)
    halves = (
        (shard.attention_norm, lambda y: parallel_attention(y, shard, head_dim, *ends)),
        (shard.mlp_norm, lambda y: parallel_mlp(y, shard, *ends)),
    )
    for norm, half in halves:
        x = half(rms_norm(x, norm)) + x
    return x


# %% sync_replicated
def sync_replicated(shard, is_sequence_parallel):
    found = [one for name, one in shard._asdict().items() if name in REPLICATED]
    found = [one for one in found if one.grad is not None]
    if not (is_sequence_parallel and found):
        return
    flat = found[0].grad.new_empty(sum(one.numel() for one in found))
    views = flat.split([one.numel() for one in found])
    for view, one in zip(views, found, strict=True):
        view.copy_(one.grad)
    dist.all_reduce(flat)
    for view, one in zip(views, found, strict=True):
        one.grad = view.clone()
