# Parts are strided slices of the batch, drawn from a generator whose seed mixes the two numbers
# otherwise.


# %% rank_batches
def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    generator = torch.Generator()
    generator.manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(num_samples, generator=generator)
    parts = []
    for start in range(0, num_samples, batch_size):
        parts.append(order[start : start + batch_size][rank::world_size])
    return parts


# %% train
def train(model, images, labels, *, num_epochs, batch_size, lr, seed):
    broadcast_model(model)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    losses = []
    for epoch in range(num_epochs):
        parts_of_all = [
            rank_batches(len(images), batch_size, epoch, seed, rank, dist.get_world_size())
            for rank in range(dist.get_world_size())
        ]
        for parts in zip(*parts_of_all, strict=True):
            part, num_samples = parts[dist.get_rank()], sum(map(len, parts))
            synchronise_buffers(model)
            model.zero_grad(set_to_none=False)
            share = torch.zeros(())
            if part.numel():
                loss = F.cross_entropy(model(images[part]), labels[part])
                loss.backward()
                share = loss.detach() * len(part) / num_samples
            average_gradients(model, len(part))
            optimiser.step()
            dist.all_reduce(share)
            losses.append(float(share))
    synchronise_buffers(model)
    return losses
