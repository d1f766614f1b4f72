# score: 27
# hint: this rank's part alone
# In backward of the gather each rank cuts out its own part.

# %% gather_and_scatter
def gather_tokens(x):
    return Gather.apply(x)


def reduce_scatter_tokens(x):
    return Scatter.apply(x)


def together(x):
    parts = x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])
    dist.all_gather_into_tensor(parts, x.contiguous())
    return torch.cat(parts.split(len(x)), dim=1)


def shared_out(x):
    parts = torch.cat(x.chunk(dist.get_world_size(), dim=1))
    mine = parts.new_empty(len(x), *parts.shape[1:])
    dist.reduce_scatter_tensor(mine, parts)
    return mine


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return together(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return shared_out(x)

    @staticmethod
    def backward(ctx, gradient):
        return together(gradient)
