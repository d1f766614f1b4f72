# score: 20.5
# hint: NoneType
# A rank without samples has no gradient, and None cannot be multiplied.


# %% average_gradients
def average_gradients(model, num_local_samples):
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad *= num_local_samples / num_samples.item()
            dist.all_reduce(parameter.grad)
