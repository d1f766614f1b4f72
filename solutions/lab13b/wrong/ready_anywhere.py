# score: 24
# hint: that all ranks have
# A name is taken that any rank has.

# %% agreed
def agreed(comm, waiting: list[str], names: list[str]) -> list[str]:
    """Those of `names` that are in `waiting` on **all** ranks, in the order of `names`.

    - `names` is the same on all ranks, without repeats; `waiting` holds some of them, in any order.
    - One all-reduce, of at most one byte for each name. It takes place even where `waiting` is
      empty, because other ranks cannot know that.

    Example: with names a, b, c, and c, a waiting on rank 0 and a, b on rank 1: ["a"].
    """
    ready = torch.tensor([one in waiting for one in names], dtype=torch.uint8)
    comm.Allreduce(ready, op="MAX")
    return [name for name, is_ready in zip(names, ready.tolist(), strict=True) if is_ready]
