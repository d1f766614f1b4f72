# score: 18.5
# hint: unweighted mean
# Every rank counts the same, however many samples it has.


# %% average_gradients
def average_gradients(model, num_local_samples):
    for parameter in model.parameters():
        if parameter.requires_grad:
            if num_local_samples == 0:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
