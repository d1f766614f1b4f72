# score: 26.5
# hint: Every rank takes part in the one all-reduce
# A rank without tokens returns at once, and takes no part in the all-reduce for which others wait.


# %% accumulate
def accumulate(sum_of_losses, micro_batches):
    own = [int((targets != IGNORED).sum()) for _, targets in micro_batches]
    if not sum(own):
        return 0
    count = torch.tensor([float(sum(own))], dtype=torch.float64)
    dist.all_reduce(count)
    num_tokens = int(count.item())
    for num, (inputs, targets) in zip(own, micro_batches, strict=True):
        if num:
            (sum_of_losses(inputs, targets) / num_tokens).backward()
    return num_tokens
