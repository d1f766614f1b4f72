# score: 21
# hint: of a product with epoch 0, nothing is left of the seed
# The generator's seed is seed * epoch: in epoch 0 every seed gives one order, and seed 0 always.


# %% rank_batches
def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    generator = torch.Generator().manual_seed(seed * epoch)
    order = torch.randperm(num_samples, generator=generator)
    return [batch.tensor_split(world_size)[rank] for batch in order.split(batch_size)]
