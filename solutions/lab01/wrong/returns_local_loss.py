# score: 21
# hint: this is the loss of the rank's own part
# Every rank reports the mean loss of its own part of the batch.


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
            losses.append(loss.item())
    return losses
