# score: 22
# hint: inside no_sync()
# Gradients are summed in every pass.

# %% accumulate
def accumulate(parallel, rows: torch.Tensor, most: int) -> float:
    """Set the gradients of the mean loss over all ranks' rows; return the loss of this rank's."""
    total, parts = 0.0, rows.split(most)
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        with contextlib.nullcontext(is_last):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(parallel, part) * (len(part) / len(rows))
            loss.backward()
        total += loss.item()
    return total
