# score: 21.5
# hint: The same bytes take longer when all go through one rank
# Rank 0 receives all gradients, adds them up and sends the mean to each: no byte too many, all of
# them on one link.


# %% average_gradients
def average_gradients(model, num_local_samples):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        total = (
            parameter.grad * num_local_samples if num_local_samples else torch.zeros_like(parameter)
        )
        if rank == 0:
            theirs = torch.empty_like(total)
            for other in range(1, world_size):
                dist.recv(theirs, src=other)
                total += theirs
            total /= num_samples
            for other in range(1, world_size):
                dist.send(total, dst=other)
        else:
            dist.send(total, dst=0)
            dist.recv(total, src=0)
        parameter.grad = total
