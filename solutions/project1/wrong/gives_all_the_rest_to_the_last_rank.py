# score: 85
# hint: its own
# The last rank takes what is left over, which can be many.


# %% my_samples
def my_samples(batch: int, rank: int, world_size: int) -> tuple[int, int]:
    size = -(-batch // world_size) + 1 if batch % world_size else batch // world_size
    return rank * size, batch if rank == world_size - 1 else (rank + 1) * size
