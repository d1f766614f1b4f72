# score: 26.75
# hint: whole already
# Also without cut tokens, where gradients are whole already.

# %% sync_replicated
def sync_replicated(shard, is_sequence_parallel):
    weights = [shard._asdict()[name] for name in REPLICATED]
    there = [weight.grad for weight in weights if weight.grad is not None]
    if not there:
        return
    flat = torch.cat(there)
    dist.all_reduce(flat)
    start = 0
    for one in there:
        one.copy_(flat[start : start + len(one)])
        start += len(one)
