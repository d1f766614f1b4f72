# Rank 0 adds up and divides, and hands the result out; losses travel as one tensor after the last
# step.


# %% average_gradients
def average_gradients(model, num_local_samples):
    count = torch.tensor([float(num_local_samples)])
    dist.reduce(count, dst=0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            summed = (
                parameter.grad * num_local_samples
                if num_local_samples
                else torch.zeros_like(parameter)
            )
            dist.reduce(summed, dst=0)
            if dist.get_rank() == 0:
                summed /= count.item()
            dist.broadcast(summed, src=0)
            parameter.grad = summed


# %% train
def train(model, images, labels, *, num_epochs, batch_size, lr, seed):
    world_size = dist.get_world_size()
    broadcast_model(model)
    sums = []
    for epoch in range(num_epochs):
        for batch in rank_batches(
            len(images), batch_size, epoch, seed, dist.get_rank(), world_size
        ):
            for parameter in model.parameters():
                parameter.grad = None
            loss_sum = F.cross_entropy(model(images[batch]), labels[batch], reduction="sum")
            (loss_sum / max(1, len(batch))).backward()
            average_gradients(model, len(batch))
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter -= lr * parameter.grad
            synchronise_buffers(model)
            sums.append(torch.stack([loss_sum.detach(), torch.tensor(float(len(batch)))]))
    total = torch.stack(sums)
    dist.all_reduce(total)
    return (total[:, 0] / total[:, 1]).tolist()
