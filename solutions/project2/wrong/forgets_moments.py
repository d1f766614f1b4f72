# score: 71
# hint: both moments
# Weights are restored, and the optimizer begins anew.


# %% load_checkpoint
def load_checkpoint(folder: Path, trainer: Trainer) -> int:
    """Restore the newest whole checkpoint in `folder`, and return its number of steps; without one, 0.

    It may have been saved by another number of ranks, on another mesh. A file that was cut off is
    skipped, and on every rank alike. Every rank calls this together.
    """
    import copy

    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException  # it derives from BaseException
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    for path in sorted(folder.glob("0*"), reverse=True):
        model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
        fresh = copy.deepcopy(optimizer)
        try:
            state_dict_loader.load({"model": model, "optimizer": optimizer}, checkpoint_id=path)
        except (Exception, CheckpointException):  # cut off; torch raises on all ranks where one of them cannot read
            continue
        set_state_dict(trainer.model, trainer.optimizer, model_state_dict=model, optim_state_dict=fresh)
        return int(path.name)
    return 0
