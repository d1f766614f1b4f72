# score: 15
# hint: not allowed here
# Torch's FSDP, with nothing sharded, averages the gradients of losses that are weighted for it.


# %% train
def train(model, images, labels, *, num_epochs, batch_size, lr, seed):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    rank, world_size = dist.get_rank(), dist.get_world_size()
    broadcast_model(model)
    parallel = FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy.NO_SHARD,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for epoch in range(num_epochs):
        for part in rank_batches(len(images), batch_size, epoch, seed, rank, world_size):
            optimiser.zero_grad()
            counts = torch.tensor([float(len(part))])
            dist.all_reduce(counts)
            summed = F.cross_entropy(parallel(images[part]), labels[part], reduction="sum")
            (summed * world_size / counts.item()).backward()
            optimiser.step()
            synchronise_buffers(model)
            total = summed.detach().reshape(1)
            dist.all_reduce(total)
            losses.append((total / counts).item())
    return losses
