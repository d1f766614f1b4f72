# score: 21.5
# hint: Leave out parameters whose requires_grad is False
# Every missing gradient is filled with zeros, also that of a frozen parameter.


# %% average_gradients
def average_gradients(model, num_local_samples):
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if parameter.grad is None or num_local_samples == 0:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= num_local_samples / num_samples.item()
        dist.all_reduce(parameter.grad)
