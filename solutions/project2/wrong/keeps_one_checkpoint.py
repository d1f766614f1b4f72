# score: 84
# hint: from the beginning
# Only the newest checkpoint is kept.


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
    unfinished = folder / "unfinished"
    state_dict_saver.save({"model": model, "optimizer": optimizer}, checkpoint_id=unfinished)
    if dist.get_rank() == 0:
        shutil.rmtree(folder / f"{step:08d}", ignore_errors=True)  # one that was cut off, and passed over
        os.rename(unfinished, folder / f"{step:08d}")
        for old in sorted(folder.glob("0*"))[:-1]:
            shutil.rmtree(old)
    dist.barrier()
