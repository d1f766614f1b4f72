# score: 25.5
# hint: log of the ranks
# A target of another rank counts as the nearest own one.

# %% vocabulary_loss
def vocabulary_loss(logits, targets):
    tokens = logits.flatten(0, 1).float()
    top = tokens.detach().max(dim=1).values
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    tokens = tokens - top[:, None]
    size = tokens.shape[1]
    where = targets.flatten() - dist.get_rank() * size
    picked = tokens.gather(1, where.clamp(0, size - 1)[:, None])[:, 0]
    both = reduce_from_ranks(torch.stack([tokens.exp().sum(dim=1), picked]))
    return (both[0].log() - both[1]).mean()
