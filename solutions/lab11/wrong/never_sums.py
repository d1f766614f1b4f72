# score: 20
# hint: inside no_sync()
# All passes are inside no_sync().

# %% accumulate
def accumulate(parallel, rows: torch.Tensor, most: int) -> float:
    """Set the gradients of the mean loss over all ranks' rows; return the loss of this rank's."""
    total, parts = 0.0, rows.split(most)
    for part in parts:
        with parallel.no_sync():
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(parallel, part) * (len(part) / len(rows))
            loss.backward()
        total += loss.item()
    return total
