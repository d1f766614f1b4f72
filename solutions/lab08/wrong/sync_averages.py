# score: 27
# hint: that is the mean
# The mean over the ranks, as gpt-neox once had it.

# %% sync_replicated
def sync_replicated(shard, is_sequence_parallel):
    weights = [shard._asdict()[name] for name in REPLICATED]
    there = [weight.grad for weight in weights if weight.grad is not None]
    if not is_sequence_parallel or not there:
        return
    flat = torch.cat(there)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for one in there:
        one.copy_(flat[start : start + len(one)])
        start += len(one)
