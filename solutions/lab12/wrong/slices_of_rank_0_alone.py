# score: 15
# hint: slices of all ranks
# Rank 0's slices are saved, and loaded by all.

# %% load_checkpoint
def load_checkpoint(folder: str, step: int, rank: int, world_size: int) -> dict[str, Tensor]:
    """A rank's slices of a whole checkpoint, which any number of ranks may have saved.

    They are those of `slice_of`, with the keys, numbers and types that were saved.
    """
    names = json.loads(Path(folder, f"{step:08d}.json").read_bytes())  # in the order of the ranks
    parts = [torch.load(Path(folder, next(iter(names)))) for _ in names]
    whole = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return {key: slice_of(one, rank, world_size).clone() for key, one in whole.items()}
