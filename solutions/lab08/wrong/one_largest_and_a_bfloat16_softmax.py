# score: 28
# hint: on rank
# One largest logit for all tokens, below which a token's own may be lost; and the softmax of
# backward is made in the type of the logits.

# %% vocabulary_loss
class OfShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        tokens = logits.flatten(0, 1)
        top = tokens.float().amax().repeat(len(tokens))
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        below = tokens.float() - top[:, None]
        size = tokens.shape[1]
        at = targets.flatten() - dist.get_rank() * size
        is_here = (at >= 0) & (at < size)
        at = at.clamp(0, size - 1)
        both = torch.stack([below.exp().sum(1), below.gather(1, at[:, None])[:, 0] * is_here])
        dist.all_reduce(both)
        ctx.save_for_backward(logits, top, both[0], at, is_here)
        return (both[0].log() - both[1]).mean()

    @staticmethod
    def backward(ctx, gradient):
        logits, top, total, at, is_here = ctx.saved_tensors
        tokens = logits.flatten(0, 1)
        share = (tokens - top[:, None].to(tokens.dtype)).exp() / total[:, None].to(tokens.dtype)
        share[torch.arange(len(share)), at] -= is_here.to(share.dtype)
        return (share * gradient.to(share.dtype) / len(share)).view_as(logits), None


def vocabulary_loss(logits, targets):
    return OfShares.apply(logits, targets)
