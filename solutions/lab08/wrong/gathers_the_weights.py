# score: 27
# hint: enter once with x
# Each rank gathers the whole MLP: right results, and all weights on the wire and in memory.

# %% parallel_mlp
def parallel_mlp(x, shard, enter, leave):
    whole = [Gathered.apply(one.t() if one is shard.down else one) for one in shard[5:8]]
    hidden = F.silu(F.linear(x, whole[0])) * F.linear(x, whole[1])
    return F.linear(hidden, whole[2].t(), shard.down_bias)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.num = len(x)
        parts = [torch.empty_like(x.contiguous()) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        return gradient[dist.get_rank() * ctx.num :][: ctx.num]
