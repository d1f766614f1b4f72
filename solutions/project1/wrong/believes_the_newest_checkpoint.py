# score: 79
# hint: did not recover
# Loads the newest checkpoint without a thought that it may be damaged.


# %% load_checkpoint
def load_checkpoint(folder: Path, replica: "Replica") -> int:
    paths = sorted(folder.glob("*.pt"))
    if not paths:
        return 0
    state = torch.load(paths[-1], weights_only=True, map_location=replica.device)
    replica.model.load_state_dict(state["model"])
    replica.optimizer.load_state_dict(state["optimizer"])
    return state["step"]
