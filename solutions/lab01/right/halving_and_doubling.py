# Where the number of ranks is a power of two, halves of halves are exchanged and added, and on the
# way back doubled again; otherwise sums go along a chain and back.

# %% average_gradients
def average_gradients(model, num_local_samples):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    trained = [one for one in model.parameters() if one.requires_grad]
    zeros = [torch.zeros_like(one).flatten() for one in trained]
    own = (
        [one.grad.flatten() * num_local_samples for one in trained] if num_local_samples else zeros
    )
    flat = torch.cat([*own, torch.full((1,), num_local_samples, dtype=own[0].dtype)])
    del own, zeros
    if world_size & (world_size - 1):
        along_a_chain(flat, rank, world_size)
    else:
        by_halves(flat, rank, world_size)
    means = (flat[:-1] / flat[-1]).split([one.numel() for one in trained])
    for one, mean in zip(trained, means, strict=True):
        one.grad = mean.view_as(one)


def along_a_chain(flat, rank, world_size):
    inbox = torch.empty_like(flat)
    if rank > 0:
        dist.recv(inbox, rank - 1)
        flat += inbox
    if rank < world_size - 1:
        dist.send(flat, rank + 1)
        dist.recv(flat, rank + 1)
    if rank > 0:
        dist.send(flat, rank - 1)


def swap(mine, theirs, partner):
    works = [dist.irecv(theirs, partner), dist.isend(mine.clone(), partner)]
    for work in works:
        work.wait()


def by_halves(flat, rank, world_size):
    low, high, taken = 0, len(flat), []
    reach = world_size // 2
    while reach:
        partner, middle = rank ^ reach, (low + high) // 2
        keep, give = (low, middle), (middle, high)
        if rank & reach:
            keep, give = give, keep
        inbox = torch.empty_like(flat[slice(*keep)])
        swap(flat[slice(*give)], inbox, partner)
        flat[slice(*keep)] += inbox
        taken.append((partner, keep, give))
        (low, high), reach = keep, reach // 2
    for partner, keep, give in reversed(taken):
        inbox = torch.empty_like(flat[slice(*give)])
        swap(flat[slice(*keep)], inbox, partner)
        flat[slice(*give)] = inbox
