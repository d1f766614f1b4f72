# score: 28
# hint: clone what you give
# The all-reduce writes into what it gets.

# %% copy_and_reduce
def copy_to_ranks(x):
    return Copy.apply(x)


def reduce_from_ranks(x):
    return Reduce.apply(x)


def added(x):
    x = x.contiguous()
    dist.all_reduce(x)
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
