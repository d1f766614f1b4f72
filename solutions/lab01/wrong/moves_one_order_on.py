# score: 21
# hint: only moved on
# One order for all epochs, which begins one sample later in each.

# %% rank_batches
def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(num_samples, generator=generator).roll(epoch)
    return [batch.tensor_split(world_size)[rank] for batch in order.split(batch_size)]
