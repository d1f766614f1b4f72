# score: 22.22 to 22.3
# hint: Use torch.autocast
# Products in float32.

# %% accumulate
def accumulate(parallel, rows: torch.Tensor, most: int) -> float:
    """Set the gradients of the mean loss over all ranks' rows; return the loss of this rank's."""
    total, parts = 0.0, rows.split(most)
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        with contextlib.nullcontext() if is_last else parallel.no_sync():
            loss = loss_of(parallel, part) * (len(part) / len(rows))
            loss.backward()
        total += loss.item()
    return total
