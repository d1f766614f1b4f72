# score: 20
# hint: the same data everywhere
# Every rank gets the whole global batch: the right gradients, and no work saved.


# %% rank_batches
def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    generator = torch.Generator().manual_seed(seed + epoch)
    return list(torch.randperm(num_samples, generator=generator).split(batch_size))
