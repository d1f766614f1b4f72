# score: 19
# hint: evenly
# The last rank takes what is left.

# %% share_of
def share_of(rank: int, world_size: int, batch_size: int) -> tuple[int, int]:
    size = batch_size // world_size
    return rank * size, batch_size if rank == world_size - 1 else (rank + 1) * size
