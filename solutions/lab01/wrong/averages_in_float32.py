# score: 20.5
# hint: float64 gradients went through float32
# All gradients go through float32: float64 ones lose digits, bfloat16 ones take twice the bytes.


# %% average_gradients
def average_gradients(model, num_local_samples):
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if num_local_samples == 0:
            parameter.grad = torch.zeros_like(parameter)
        mine = parameter.grad.float() * (num_local_samples / num_samples.item())
        dist.all_reduce(mine)
        parameter.grad = mine.to(parameter.dtype)
