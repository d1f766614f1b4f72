# score: 80
# hint: from the beginning
# A checkpoint is looked for by the number of ranks that wrote it, so another mesh finds none.


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, trainer: Trainer) -> None:
    """Save to `folder` everything that training needs to go on after `step` steps; every rank calls this together.

    Once a checkpoint has been saved, `folder` always holds a whole one, even if the program dies
    inside this function; once two have been saved, even if the newest file is cut in half
    afterwards. So write to another name and rename, and keep the previous checkpoint.
    """
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
    unfinished, rank = folder / "unfinished", dist.get_rank()
    state_dict_saver.save({"model": model, "optimizer": optimizer}, checkpoint_id=unfinished)
    if rank == 0:
        shutil.rmtree(
            folder / f"{step:08d}-{dist.get_world_size()}", ignore_errors=True
        )  # one that was cut off, and passed over
        os.rename(unfinished, folder / f"{step:08d}-{dist.get_world_size()}")
        for old in sorted(folder.glob("0*"))[:-2]:
            shutil.rmtree(old)
    dist.barrier()


# %% load_checkpoint
def load_checkpoint(folder: Path, trainer: Trainer) -> int:
    """Restore the newest whole checkpoint in `folder`, and return its number of steps; without one, 0.

    It may have been saved by another number of ranks, on another mesh. A file that was cut off is
    skipped, and on every rank alike. Every rank calls this together.
    """
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException  # it derives from BaseException
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    for path in sorted(folder.glob(f"0*-{dist.get_world_size()}"), reverse=True):
        model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
        try:
            state_dict_loader.load({"model": model, "optimizer": optimizer}, checkpoint_id=path)
        except (Exception, CheckpointException):  # cut off; torch raises on all ranks where one of them cannot read
            continue
        set_state_dict(trainer.model, trainer.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        return int(path.name.split("-")[0])
    return 0
