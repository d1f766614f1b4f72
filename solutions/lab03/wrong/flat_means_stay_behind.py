# score: 27
# hint: never came back into
# The means stay in the flat tensor, and every rank keeps its own gradients.


# %% average_flat
def average_flat(module: nn.Module) -> None:
    of_dtypes = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            of_dtypes.setdefault(parameter.dtype, []).append(parameter)
    for parameters in of_dtypes.values():
        flat = flatten_gradients(parameters)
        dist.all_reduce(flat)
        flat /= dist.get_world_size()


def flatten_gradients(parameters, out=None):
    with_zeros = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([gradient.flatten() for gradient in with_zeros], out=out)


def unflatten_gradients(flat, parameters):
    pieces = flat.split([one.numel() for one in parameters])
    for parameter, total in zip(parameters, pieces, strict=True):
        parameter.grad = total.view_as(parameter) / dist.get_world_size()
