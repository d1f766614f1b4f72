# score: 21
# hint: The last batch is shorter than the others, and it is kept
# Only whole batches are used, and the samples of the last one are lost.


# %% rank_batches
def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch))
    batches = order[: num_samples // batch_size * batch_size].split(batch_size)
    return [batch.tensor_split(world_size)[rank] for batch in batches]
