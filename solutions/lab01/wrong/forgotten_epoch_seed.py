# score: 21
# hint: a new order in every epoch
# The generator is seeded from the seed alone, so that every epoch has the same order.


# %% rank_batches
def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed))
    return [batch.tensor_split(world_size)[rank] for batch in order.split(batch_size)]
