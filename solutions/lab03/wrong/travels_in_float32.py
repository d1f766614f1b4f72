# score: 29
# hint: in the dtype of their gradient
# All gradients go into one float32 tensor, whatever they were.


# %% average_flat
def flatten_gradients(parameters, out=None):
    with_zeros = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([gradient.float().flatten() for gradient in with_zeros], out=out)


def unflatten_gradients(flat, parameters):
    flat /= dist.get_world_size()
    for parameter, mean in zip(
        parameters, flat.split([one.numel() for one in parameters]), strict=True
    ):
        parameter.grad = mean.view_as(parameter).to(parameter.dtype).clone()


def average_flat(module):
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = flatten_gradients(parameters)
    dist.all_reduce(flat)
    unflatten_gradients(flat, parameters)
