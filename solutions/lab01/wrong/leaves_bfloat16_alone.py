# score: 21
# hint: made as those in float32
# Gradients in bfloat16 are sent, and what comes is thrown away.


# %% average_gradients
def average_gradients(model, num_local_samples):
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    weight = num_local_samples / num_samples.item()
    for parameter in model.parameters():
        if parameter.requires_grad:
            if num_local_samples == 0:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad * weight
            dist.all_reduce(gradient)
            if parameter.dtype != torch.bfloat16:
                parameter.grad = gradient
