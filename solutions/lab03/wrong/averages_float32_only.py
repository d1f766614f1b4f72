# score: 27.5
# hint: Is that the sum
# Gradients in other dtypes travel, and stay sums, or lose their digits, or never come back.


# %% average_one_by_one
def average_one_by_one(module):
    for parameter in module.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            if parameter.dtype == torch.float32:
                parameter.grad /= dist.get_world_size()


# %% average_flat
def flatten_gradients(parameters, out=None):
    with_zeros = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([gradient.flatten() for gradient in with_zeros], out=out)


def unflatten_gradients(flat, parameters):
    flat /= dist.get_world_size()
    sizes = [one.numel() for one in parameters]
    for parameter, mean in zip(parameters, flat.split(sizes), strict=True):
        parameter.grad = mean.view_as(parameter).clone()


def average_flat(module):
    by_dtype = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for dtype, parameters in by_dtype.items():
        flat = flatten_gradients(parameters)
        dist.all_reduce(flat)
        if dtype != torch.bfloat16:
            unflatten_gradients(flat, parameters)
