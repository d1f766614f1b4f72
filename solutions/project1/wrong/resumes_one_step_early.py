# score: 60
# hint: done twice
# The number of the last step is kept, and done once more.


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, replica: "Replica") -> None:
    """Save everything that training needs to go on after `step` steps, whenever it dies."""
    if replica.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "step": step - 1,
            "model": replica.model.state_dict(),
            "optimizer": replica.optimizer.state_dict(),
        }
        unfinished = folder / "unfinished"
        torch.save(state, unfinished)
        os.replace(unfinished, folder / f"{step:08d}.pt")
        for old in sorted(folder.glob("*.pt"))[:-2]:
            old.unlink()
