# score: 24
# hint: log of the ranks' sums
# Every rank subtracts its own largest logit, and sums of different powers are added.

# %% vocabulary_loss
def vocabulary_loss(logits, targets):
    tokens = logits.flatten(0, 1).float()
    top = tokens.detach().max(dim=1).values
    tokens = tokens - top[:, None]
    size = tokens.shape[1]
    where = targets.flatten() - dist.get_rank() * size
    mine = (where >= 0) & (where < size)
    picked = tokens.gather(1, where.clamp(0, size - 1)[:, None])[:, 0] * mine
    both = reduce_from_ranks(torch.stack([tokens.exp().sum(dim=1), picked]))
    return (both[0].log() - both[1]).mean()
