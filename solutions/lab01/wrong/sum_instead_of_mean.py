# score: 17
# hint: a sum, not a mean
# The gradients of the ranks are added and never divided.


# %% average_gradients
def average_gradients(model, num_local_samples):
    for parameter in model.parameters():
        if parameter.requires_grad:
            if num_local_samples == 0:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
