# score: 18.5
# hint: unweighted mean
# The number of samples travels, and the mean takes no account of it.


# %% average_gradients
def average_gradients(model, num_local_samples):
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if parameter.requires_grad:
            if num_local_samples == 0:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
