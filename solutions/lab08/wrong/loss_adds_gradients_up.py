# score: 24.625
# hint: n times too much
# The ranks' sums are added up by torch's own function, whose backward adds up again.

# %% vocabulary_loss
def vocabulary_loss(logits, targets):
    tokens = logits.flatten(0, 1).float()
    top = tokens.detach().max(dim=1).values
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    tokens = tokens - top[:, None]
    size = tokens.shape[1]
    where = targets.flatten() - dist.get_rank() * size
    mine = (where >= 0) & (where < size)
    picked = tokens.gather(1, where.clamp(0, size - 1)[:, None])[:, 0] * mine
    from torch.distributed.nn.functional import all_reduce

    both = all_reduce(torch.stack([tokens.exp().sum(dim=1), picked]))
    return (both[0].log() - both[1]).mean()
