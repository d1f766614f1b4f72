# score: 15
# hint: not allowed here
# torch's DistributedDataParallel does the work; its mean counts every rank alike, also one without
# samples.


# %% train
def train(model, images, labels, *, num_epochs, batch_size, lr, seed):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parallel = nn.parallel.DistributedDataParallel(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for epoch in range(num_epochs):
        for part in rank_batches(len(images), batch_size, epoch, seed, rank, world_size):
            optimiser.zero_grad()
            loss = F.cross_entropy(parallel(images[part]), labels[part])
            loss.backward()
            optimiser.step()
            total = loss.detach() / world_size
            dist.all_reduce(total)
            losses.append(total.item())
    synchronise_buffers(model)
    return losses
