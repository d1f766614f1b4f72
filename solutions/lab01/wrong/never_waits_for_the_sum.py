# score: 14
# hint: wait for its handle
# The all-reduces are asynchronous, and nobody waits for them.


# %% average_gradients
def average_gradients(model, num_local_samples):
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if num_local_samples == 0:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= num_local_samples / num_samples.item()
        dist.all_reduce(parameter.grad, async_op=True)
