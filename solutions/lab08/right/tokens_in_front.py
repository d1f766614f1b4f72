# Handles that are waited for, and tokens in front of the sequences.

# %% copy_and_reduce
def copy_to_ranks(x):
    return Copy.apply(x)


def reduce_from_ranks(x):
    return Reduce.apply(x)


def added(x):
    x = x.contiguous().clone()
    dist.all_reduce(x, async_op=True).wait()
    return x


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return added(gradient)


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return added(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


# %% gather_and_scatter
def gather_tokens(x):
    return Gather.apply(x)


def reduce_scatter_tokens(x):
    return Scatter.apply(x)


def together(x):
    parts = x.new_empty(x.shape[1] * dist.get_world_size(), len(x), x.shape[2])
    dist.all_gather_into_tensor(parts, x.transpose(0, 1).contiguous())
    return parts.transpose(0, 1)


def shared_out(x):
    x = x.transpose(0, 1).contiguous()
    mine = x.new_empty(len(x) // dist.get_world_size(), *x.shape[1:])
    dist.reduce_scatter_tensor(mine, x, async_op=True).wait()
    return mine.transpose(0, 1)


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return together(x)

    @staticmethod
    def backward(ctx, gradient):
        return shared_out(gradient)


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return shared_out(x)

    @staticmethod
    def backward(ctx, gradient):
        return together(gradient)
