# score: 25
# hint: mean of the micro-batches' means
# Every micro-batch is averaged over its own tokens, and then the means are.


# %% accumulate
def accumulate(sum_of_losses, micro_batches):
    own = [int((targets != IGNORED).sum()) for _, targets in micro_batches]
    for num, (inputs, targets) in zip(own, micro_batches, strict=True):
        if num:
            (sum_of_losses(inputs, targets) / num / len(micro_batches)).backward()
    return sum(own)
