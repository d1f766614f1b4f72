# score: 20
# hint: the gradient of parameter
# The counts of samples travel in bfloat16, which rounds from 257 on.


# %% average_gradients
def average_gradients(model, num_local_samples):
    num_samples = torch.tensor(float(num_local_samples)).bfloat16()
    dist.all_reduce(num_samples)
    weight = num_local_samples / num_samples.item()
    for parameter in model.parameters():
        if parameter.requires_grad:
            if num_local_samples == 0:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad *= weight
            dist.all_reduce(parameter.grad)
