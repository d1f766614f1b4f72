# score: 29
# hint: only frozen parameters have
# average_flat makes a call for each dtype, also for one that only frozen parameters have.


# %% average_flat
def average_flat(module):
    for dtype in dict.fromkeys(one.dtype for one in module.parameters()):
        parameters = [
            one for one in module.parameters() if one.dtype == dtype and one.requires_grad
        ]
        flat = flatten_gradients(parameters) if parameters else torch.empty(0, dtype=dtype)
        dist.all_reduce(flat)
        unflatten_gradients(flat, parameters)


def flatten_gradients(parameters, out=None):
    with_zeros = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([gradient.flatten() for gradient in with_zeros], out=out)


def unflatten_gradients(flat, parameters):
    for parameter, total in zip(
        parameters,
        flat.split([one.numel() for one in parameters]) if parameters else [],
        strict=True,
    ):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        torch.div(total.view_as(parameter), dist.get_world_size(), out=parameter.grad)
