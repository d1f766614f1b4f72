# score: 18.5
# hint: draw from a torch.Generator of your own
# Each rank draws from its own global random state, so that the ranks do not agree on an order.


# %% rank_batches
def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    order = torch.randperm(num_samples)
    return [batch.tensor_split(world_size)[rank] for batch in order.split(batch_size)]
