# score: 20
# hint: 0 * nan is nan
# The nan of an empty part is multiplied by 0, in the gradients and in the loss, which leaves a nan.


# %% average_gradients
def average_gradients(model, num_local_samples):
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad *= num_local_samples / num_samples.item()
            dist.all_reduce(parameter.grad)


# %% train
def train(model, images, labels, *, num_epochs, batch_size, lr, seed):
    broadcast_model(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for epoch in range(num_epochs):
        for part in rank_batches(
            len(images), batch_size, epoch, seed, dist.get_rank(), dist.get_world_size()
        ):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(images[part]), labels[part])
            loss.backward()
            average_gradients(model, len(part))
            optimiser.step()
            synchronise_buffers(model)
            summed = torch.tensor([loss.item() * len(part), len(part)])
            dist.all_reduce(summed)
            losses.append((summed[0] / summed[1]).item())
    return losses
