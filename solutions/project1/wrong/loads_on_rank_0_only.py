# score: 60
# hint: differ
# Only rank 0 loads the checkpoint; DDP sends its weights round, and nobody sends round the momentum
# or the step.


# %% load_checkpoint
def load_checkpoint(folder: Path, replica: "Replica") -> int:
    for path in sorted(folder.glob("*.pt"), reverse=True):
        try:
            state = torch.load(path, weights_only=True, map_location=replica.device)
        except Exception:
            continue
        if replica.rank == 0:
            replica.model.load_state_dict(state["model"])
            replica.optimizer.load_state_dict(state["optimizer"])
        return state["step"]
    return 0
