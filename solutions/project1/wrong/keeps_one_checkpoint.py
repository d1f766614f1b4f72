# score: 79
# hint: from the beginning
# One file, written over in place: cut in half, nothing is left to go on from.


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, replica: "Replica") -> None:
    if replica.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "step": step,
            "model": replica.model.state_dict(),
            "optimizer": replica.optimizer.state_dict(),
        }
        torch.save(state, folder / "last.pt")
