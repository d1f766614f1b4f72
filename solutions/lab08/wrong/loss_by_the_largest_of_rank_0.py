# score: 26.5
# hint: largest logit of all ranks
# All ranks subtract the largest logit of rank 0, whichever rank has the largest one.

# %% vocabulary_loss
def vocabulary_loss(logits, targets):
    tokens = logits.flatten(0, 1).float()
    top = tokens.detach().amax(dim=1)
    if dist.get_rank() > 0:
        top.fill_(float("-inf"))
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    tokens = tokens - top[:, None]
    size = tokens.shape[1]
    where = targets.flatten() - dist.get_rank() * size
    mine = (where >= 0) & (where < size)
    picked = tokens.gather(1, where.clamp(0, size - 1)[:, None])[:, 0] * mine
    both = reduce_from_ranks(torch.stack([tokens.exp().sum(dim=1), picked]))
    return (both[0].log() - both[1]).mean()
