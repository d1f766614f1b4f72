# score: 21
# hint: the loss
# What comes back is odd.

# %% sync_replicated
def sync_replicated(shard, is_sequence_parallel):
    for name in REPLICATED:
        shard._asdict()[name].grad = None


# %% vocabulary_loss
def vocabulary_loss(logits, targets):
    return logits.sum() * float("nan")
