# score: 25.75
# hint: half its points
# All logits on every rank, and torch's cross-entropy.

# %% vocabulary_loss
def vocabulary_loss(logits, targets):
    whole = AllLogits.apply(logits.float())
    return F.cross_entropy(whole.flatten(0, 1), targets.flatten())


class AllLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(dist.get_world_size(), -1)[dist.get_rank()]
