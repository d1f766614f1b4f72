# score: 80
# hint: began anew on 2 ranks
# Each rank saves its own part, which only the same mesh can read.


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, trainer: Trainer) -> None:
    state = {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
    rank = dist.get_rank()
    torch.save(state, folder / f"unfinished-{rank}")
    os.replace(folder / f"unfinished-{rank}", folder / f"{step:08d}-{rank}.pt")
    dist.barrier()


# %% load_checkpoint
def load_checkpoint(folder: Path, trainer: Trainer) -> int:
    rank, found = dist.get_rank(), 0
    for path in sorted(folder.glob(f"*-{rank}.pt"), reverse=True):
        try:
            torch.load(path, weights_only=False)
        except Exception:
            continue
        found = int(path.name.split("-")[0])
        break
    newest = torch.tensor(found)
    dist.all_reduce(newest, op=dist.ReduceOp.MIN)
    if newest:
        state = torch.load(folder / f"{int(newest):08d}-{rank}.pt", weights_only=False)
        trainer.model.load_state_dict(state["model"])
        trainer.optimizer.load_state_dict(state["optimizer"])
    return int(newest)
