# score: 21.5
# hint: A loss holds its whole graph until it is detached
# The losses are kept as they are and read after training; retain_graph=True was the cure for an
# error on the way.


# %% train
def train(model, images, labels, *, num_epochs, batch_size, lr, seed):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    broadcast_model(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    sums, counts = [], []
    for epoch in range(num_epochs):
        for part in rank_batches(len(images), batch_size, epoch, seed, rank, world_size):
            optimiser.zero_grad()
            loss = torch.zeros(())
            if len(part):
                loss = F.cross_entropy(model(images[part]), labels[part])
                loss.backward(retain_graph=True)
            sums.append(loss * len(part))
            counts.append(float(len(part)))
            average_gradients(model, len(part))
            optimiser.step()
            synchronise_buffers(model)
    total = torch.tensor([[float(one) for one in sums], counts])
    dist.all_reduce(total)
    return (total[0] / total[1]).tolist()
