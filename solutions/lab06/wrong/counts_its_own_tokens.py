# score: 26
# Each rank divides by its own tokens.


# %% accumulate
def accumulate(sum_of_losses, micro_batches) -> int:
    own = [int((targets != IGNORED).sum()) for _, targets in micro_batches]
    count = torch.tensor([float(sum(own))], dtype=torch.float64)
    num_tokens = int(count.item())
    for num, (inputs, targets) in zip(own, micro_batches, strict=True):
        if num:
            (sum_of_losses(inputs, targets) / num_tokens).backward()
    return num_tokens
