# score: 23
# hint: on their way before the lowest layer
# All passes are inside no_sync(), and one all-reduce follows.

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
    grads = [one.grad for one in parallel.parameters()]
    flat = torch.cat([one.flatten() for one in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, mean in zip(grads, flat.split([one.numel() for one in grads]), strict=True):
        grad.copy_(mean.view_as(grad))
    return total
