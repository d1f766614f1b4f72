# score: 20.5
# hint: has returned
# A rank without samples returns at once, and the others wait for it in the collective.


# %% average_gradients
def average_gradients(model, num_local_samples):
    if num_local_samples == 0:
        return
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad *= num_local_samples / num_samples.item()
            dist.all_reduce(parameter.grad)
