# Ranks gather everything and add it up themselves; the gathered loss is a pair of Python numbers.

# %% broadcast_model
def broadcast_model(model):
    tensors = [*model.parameters(), *model.buffers()]
    message = [[tensor.detach() for tensor in tensors]]
    dist.broadcast_object_list(message, src=0)
    with torch.no_grad():
        for tensor, received in zip(tensors, message[0], strict=True):
            tensor.copy_(received)


# %% average_gradients
def average_gradients(model, num_local_samples):
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    own = {name: p.grad for name, p in trained.items()} if num_local_samples else {}
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (num_local_samples, own))
    num_samples = sum(count for count, _ in gathered)
    for name, parameter in trained.items():
        parameter.grad = sum(count / num_samples * grads[name] for count, grads in gathered if count)


# %% train
def train(model, images, labels, *, num_epochs, batch_size, lr, seed):
    world_size = dist.get_world_size()
    broadcast_model(model)
    losses = []
    for epoch in range(num_epochs):
        for batch in rank_batches(len(images), batch_size, epoch, seed, dist.get_rank(), world_size):
            for parameter in model.parameters():
                parameter.grad = None
            loss_sum = F.cross_entropy(model(images[batch]), labels[batch], reduction="sum")
            (loss_sum / max(1, len(batch))).backward()
            average_gradients(model, len(batch))
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter -= lr * parameter.grad
            pairs = [None] * world_size
            dist.all_gather_object(pairs, (loss_sum.item(), len(batch)))
            losses.append(sum(pair[0] for pair in pairs) / sum(pair[1] for pair in pairs))
    synchronise_buffers(model)
    return losses
