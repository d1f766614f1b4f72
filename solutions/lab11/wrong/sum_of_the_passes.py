# score: 20.5
# hint: Each row counts the same
# The means of all passes are added up.

# %% accumulate
def accumulate(parallel, rows: torch.Tensor, most: int) -> float:
    """Set the gradients of the mean loss over all ranks' rows; return the loss of this rank's."""
    total, parts = 0.0, rows.split(most)
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        with contextlib.nullcontext() if is_last else parallel.no_sync():
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(parallel, part)
            loss.backward()
        total += loss.item()
    return total
