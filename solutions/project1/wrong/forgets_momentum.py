# score: 60
# hint: weights, momentum, step
# The optimizer's state is not in the checkpoint: momentum begins at 0 again.


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, replica: "Replica") -> None:
    """Save everything that training needs to go on after `step` steps, whenever it dies."""
    if replica.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        state = {"step": step, "model": replica.model.state_dict()}
        unfinished = folder / "unfinished"
        torch.save(state, unfinished)
        os.replace(unfinished, folder / f"{step:08d}.pt")
        for old in sorted(folder.glob("*.pt"))[:-2]:
            old.unlink()


# %% load_checkpoint
def load_checkpoint(folder: Path, replica: "Replica") -> int:
    """Restore the newest whole checkpoint, the same on every rank; its steps, or 0."""
    for path in sorted(folder.glob("*.pt"), reverse=True):
        try:
            state = torch.load(path, weights_only=True, map_location=replica.device)
        except Exception:  # cut off while it was written, or since
            continue
        replica.model.load_state_dict(state["model"])
        return state["step"]
    return 0
