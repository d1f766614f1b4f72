# The loss by a function with a backward of its own, and sums rescaled after each rank's own.

# %% vocabulary_loss
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        wide = logits.float()
        own_top = wide.amax(-1)
        top = own_top.clone()
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        powers = (wide - own_top[..., None]).exp() * (own_top - top).exp()[..., None]
        first = dist.get_rank() * logits.shape[-1]
        hits = torch.arange(first, first + logits.shape[-1]) == targets[..., None]
        sums, hit = powers.sum(-1), ((wide - top[..., None]) * hits).sum(-1)
        handles = [dist.all_reduce(one, async_op=True) for one in (sums, hit)]
        for handle in handles:
            handle.wait()
        ctx.save_for_backward(powers / sums[..., None] - hits.float())
        ctx.dtype = logits.dtype
        return (sums.log() - hit).mean()

    @staticmethod
    def backward(ctx, factor):
        (shares,) = ctx.saved_tensors
        return (factor * shares / shares[..., 0].numel()).to(ctx.dtype), None


def vocabulary_loss(logits, targets):
    return Loss.apply(logits, targets)
