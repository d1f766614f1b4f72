# score: 14
# hint: What a rank received has to go into its gradients
# The average is taken of a copy, which never goes back into the gradient.


# %% average_gradients
def average_gradients(model, num_local_samples):
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if parameter.requires_grad:
            if num_local_samples == 0:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad * (num_local_samples / num_samples.item())
            dist.all_reduce(gradient)
