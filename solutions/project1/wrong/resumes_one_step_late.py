# score: 60
# hint: left out
# Counts the checkpoint's steps from 1: the step after it is never done.


# %% load_checkpoint
def load_checkpoint(folder: Path, replica: "Replica") -> int:
    """Restore the newest whole checkpoint, the same on every rank; its steps, or 0."""
    for path in sorted(folder.glob("*.pt"), reverse=True):
        try:
            state = torch.load(path, weights_only=True, map_location=replica.device)
        except Exception:  # cut off while it was written, or since
            continue
        replica.model.load_state_dict(state["model"])
        replica.optimizer.load_state_dict(state["optimizer"])
        return state["step"] + 1
    return 0
