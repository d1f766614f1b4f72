# score: 26.5
# hint: before the forward pass of the next one
# The losses are added up, and backward runs once, at the end.


# %% accumulate
def accumulate(sum_of_losses, micro_batches):
    own = [int((targets != IGNORED).sum()) for _, targets in micro_batches]
    count = torch.tensor([sum(own)])
    dist.all_reduce(count)
    losses = [sum_of_losses(*one) for one, num in zip(micro_batches, own, strict=True) if num]
    if losses:
        (sum(losses) / count.item()).backward()
    return int(count)
