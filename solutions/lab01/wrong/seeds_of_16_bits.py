# score: 21.5
# hint: another order for another seed
# Seeds that are 65,536 apart give one order.


# %% rank_batches
def rank_batches(num_samples, batch_size, epoch, seed, rank, world_size):
    generator = torch.Generator().manual_seed((seed + 17 * epoch) % 65536 + 1000003 * (epoch % 5))
    order = torch.randperm(num_samples, generator=generator)
    return [batch.tensor_split(world_size)[rank] for batch in order.split(batch_size)]
