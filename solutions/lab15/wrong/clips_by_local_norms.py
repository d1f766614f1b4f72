# score: 23
# hint: squares of the shards
# Each rank clips by the norm of its own shards.


# %% clip_shards
def clip_shards(shards: list, replicated: list, max_norm: float) -> float:
    """Clip gradients in place so that their norm over all ranks is at most `max_norm`; return it.

    - The norm is of the gradients before they are clipped: those of `shards`, parameters of which
      each rank holds its own part, over all ranks, and those of `replicated`, which are the same on
      every rank and count once.
    - All gradients are multiplied by `max_norm` / norm if the norm is larger than `max_norm`.
      Otherwise no bit of them changes.
    - Parameters without a gradient are left out. A rank may hold no shard at all.
    - Each rank sends one number: one all-reduce of at most 8 bytes.
    """

    both = [*shards, *replicated]
    return torch.nn.utils.clip_grad_norm_(both, max_norm).item()
