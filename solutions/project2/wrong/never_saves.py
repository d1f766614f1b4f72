# score: 71
# hint: from the beginning
# There are no checkpoints at all.


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, trainer: Trainer) -> None:
    pass
