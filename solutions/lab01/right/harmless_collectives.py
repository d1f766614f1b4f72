# All ranks meet in an all-reduce of a zero before they average, and in a barrier afterwards.


# %% average_gradients
def average_gradients(model, num_local_samples):
    dist.all_reduce(torch.zeros(1))  # wait for everybody
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if num_local_samples == 0:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= num_local_samples / num_samples.item()
        dist.all_reduce(parameter.grad)
    dist.barrier()
