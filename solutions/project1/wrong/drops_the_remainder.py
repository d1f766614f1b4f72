# score: 81
# hint: never asked for
# Whole division: the last samples of a batch are nobody's.


# %% my_samples
def my_samples(batch: int, rank: int, world_size: int) -> tuple[int, int]:
    return rank * (batch // world_size), (rank + 1) * (batch // world_size)
