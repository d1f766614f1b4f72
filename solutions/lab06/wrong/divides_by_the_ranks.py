# score: 26
# hint: parts are added
# The parts are divided by the number of ranks, as DDP would.


# %% accumulate
def accumulate(sum_of_losses, micro_batches) -> int:
    own = [int((targets != IGNORED).sum()) for _, targets in micro_batches]
    count = torch.tensor([float(sum(own))], dtype=torch.float64)
    dist.all_reduce(count)
    num_tokens = int(count.item())
    for num, (inputs, targets) in zip(own, micro_batches, strict=True):
        if num:
            (sum_of_losses(inputs, targets) / num_tokens / dist.get_world_size()).backward()
    return num_tokens
