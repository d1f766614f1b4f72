# score: 17
# hint: divided by those of rank 0 alone
# The sum over all samples is divided by the rank's own number of samples.


# %% average_gradients
def average_gradients(model, num_local_samples):
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if num_local_samples == 0:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.mul_(num_local_samples)
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(num_local_samples)
