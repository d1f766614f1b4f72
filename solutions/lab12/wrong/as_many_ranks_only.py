# score: 17
# hint: did not recover
# Each rank loads the file that it saved.

# %% load_checkpoint
def load_checkpoint(folder: str, step: int, rank: int, world_size: int) -> dict[str, Tensor]:
    """A rank's slices of a whole checkpoint, which any number of ranks may have saved.

    They are those of `slice_of`, with the keys, numbers and types that were saved.
    """
    names = json.loads(Path(folder, f"{step:08d}.json").read_bytes())  # in the order of the ranks
    own = f"{step:08d}-{rank}-of-{world_size}.pt"
    return torch.load(Path(folder, own if own in names else list(names)[rank]))
