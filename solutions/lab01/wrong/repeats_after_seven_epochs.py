# score: 21
# hint: Seed the generator from seed and epoch
# The order has a period of seven epochs.


# %% rank_batches
def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    generator = torch.Generator().manual_seed(1000 * seed + epoch % 7)
    order = torch.randperm(num_samples, generator=generator)
    return [batch.tensor_split(world_size)[rank] for batch in order.split(batch_size)]
