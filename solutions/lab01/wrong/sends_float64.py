# score: 21
# hint: Each gradient goes through one all-reduce
# The gradients travel in double precision, so that nothing is lost: right, and twice the bytes.


# %% average_gradients
def average_gradients(model, num_local_samples):
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if parameter.requires_grad:
            own = parameter.grad if num_local_samples else torch.zeros_like(parameter)
            summed = own.double() * num_local_samples
            dist.all_reduce(summed)
            parameter.grad = (summed / num_samples).to(parameter.dtype)
