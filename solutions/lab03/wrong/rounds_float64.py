# score: 29
# hint: went through float32
# Means in float64 go through float32 on their way back.


# %% average_flat
def flatten_gradients(parameters, out=None):
    with_zeros = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([gradient.flatten() for gradient in with_zeros], out=out)


def unflatten_gradients(flat, parameters):
    flat /= dist.get_world_size()
    sizes = [one.numel() for one in parameters]
    for parameter, mean in zip(parameters, flat.split(sizes), strict=True):
        parameter.grad = mean.float().view_as(parameter).to(parameter.dtype)


def average_flat(module):
    by_dtype = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for parameters in by_dtype.values():
        flat = flatten_gradients(parameters)
        dist.all_reduce(flat)
        unflatten_gradients(flat, parameters)
