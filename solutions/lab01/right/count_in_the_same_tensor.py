# Python's own random numbers, the longer parts on the last ranks; a tree of messages; the count
# travels in one tensor with the gradients; no optimiser.

# %% rank_batches
import random


def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    order = random.Random(f"{seed}/{epoch}").sample(range(num_samples), num_samples)
    parts = []
    for start in range(0, num_samples, batch_size):
        batch = order[start : start + batch_size]
        low, high = len(batch) * rank // world_size, len(batch) * (rank + 1) // world_size
        parts.append(torch.tensor(batch[low:high], dtype=torch.int64))
    return parts


# %% broadcast_model
def broadcast_model(model):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for tensor in [*model.parameters(), *model.buffers()]:
        whole = tensor.detach().clone().contiguous()
        reach = 1
        while reach < world_size:
            if rank < reach and rank + reach < world_size:
                dist.send(whole, rank + reach)
            elif reach <= rank < 2 * reach:
                dist.recv(whole, rank - reach)
            reach *= 2
        with torch.no_grad():
            tensor.copy_(whole)


# %% average_gradients
def average_gradients(model, num_local_samples):
    groups = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups.setdefault(parameter.dtype, []).append(parameter)
    for dtype, parameters in groups.items():
        flat = torch.zeros(1 + sum(one.numel() for one in parameters), dtype=dtype)
        flat[0] = num_local_samples
        views = flat[1:].split([one.numel() for one in parameters])
        if num_local_samples:
            for view, one in zip(views, parameters, strict=True):
                torch.mul(one.grad.flatten(), num_local_samples, out=view)
        dist.all_reduce(flat)
        for view, one in zip(views, parameters, strict=True):
            one.grad = (view / flat[0]).view_as(one)


# %% synchronise_buffers
def synchronise_buffers(model):
    for buffer in model.buffers():
        if dist.get_rank():
            buffer.zero_()
        dist.all_reduce(buffer)


# %% train
def train(model, images, labels, *, num_epochs, batch_size, lr, seed):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    broadcast_model(model)
    losses = []
    trained = [one for one in model.parameters() if one.requires_grad]
    for epoch in range(num_epochs):
        for part in rank_batches(len(images), batch_size, epoch, seed, rank, world_size):
            summed = torch.zeros(2, dtype=torch.float64)
            if len(part):
                scores = F.log_softmax(model(images[part]), dim=1)
                loss = -scores[torch.arange(len(part)), labels[part]].mean()
                for one, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                    one.grad = gradient
                counted = [float(loss.detach()) * len(part), len(part)]
                summed = torch.tensor(counted, dtype=torch.float64)
            average_gradients(model, len(part))
            with torch.no_grad():
                for one in trained:
                    one -= lr * one.grad
                    one.grad = None
            synchronise_buffers(model)
            dist.reduce(summed, 0)
            dist.broadcast(summed, 0)
            losses.append(float(summed[0] / summed[1]))
    return losses
