# score: 27
# hint: add up over the ranks
# The sum is used before it is there.

# %% copy_and_reduce
def copy_to_ranks(x):
    return Copy.apply(x)


def reduce_from_ranks(x):
    return Reduce.apply(x)


def added(x):
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, async_op=True)
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
