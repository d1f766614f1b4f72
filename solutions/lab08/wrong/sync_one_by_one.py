# score: 28
# hint: all-reduce once
# An all-reduce for each norm and bias.

# %% sync_replicated
def sync_replicated(shard, is_sequence_parallel):
    if is_sequence_parallel:
        for name in REPLICATED:
            gradient = shard._asdict()[name].grad
            if gradient is not None:
                dist.all_reduce(gradient)
