# score: 21.5
# hint: torch's global generator to be left as it is
# The global generator is seeded in every epoch, the same on all ranks, and with it everything else
# that draws from it.

# %% rank_batches
def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    torch.manual_seed(seed + epoch)
    order = torch.randperm(num_samples)
    return [batch.tensor_split(world_size)[rank] for batch in order.split(batch_size)]
