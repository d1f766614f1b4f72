# score: 60
# hint: from the beginning
# There are no checkpoints at all.


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, replica: "Replica") -> None:
    pass
