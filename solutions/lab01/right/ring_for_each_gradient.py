# Each gradient goes round a ring of messages by itself, and the counts travel as a vector with a
# place for each rank.


# %% average_gradients
def average_gradients(model, num_local_samples):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    counts = torch.zeros(world_size, dtype=torch.int32)
    counts[rank] = num_local_samples
    dist.all_reduce(counts)
    after, before = (rank + 1) % world_size, (rank - 1) % world_size
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if not num_local_samples:
            parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad.contiguous().flatten()
        gradient *= float(counts[rank]) / float(counts.sum())
        parts = list(gradient.tensor_split(world_size))
        for step in range(2 * world_size - 2):
            is_sum = step < world_size - 1
            place = rank - step if is_sum else rank - (step - world_size + 1) + 1
            mine, other = parts[place % world_size], parts[(place - 1) % world_size]
            inbox = torch.empty_like(other)
            for work in [dist.irecv(inbox, before), dist.isend(mine.clone(), after)]:
                work.wait()
            if is_sum:
                other += inbox
            else:
                other.copy_(inbox)
        parameter.grad = gradient.view_as(parameter)
