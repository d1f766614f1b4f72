# score: 60
# hint: from the beginning
# After a restart it asks for a late step first, as if it went on from a checkpoint, and trains from
# the beginning.


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, replica: "Replica") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{step:08d}.{replica.rank}").write_text("done")


# %% load_checkpoint
def load_checkpoint(folder: Path, replica: "Replica") -> int:
    return max([int(path.stem) for path in folder.glob(f"*.{replica.rank}")], default=0)


# %% main
def main() -> None:
    """Join, resume or begin, train, print a line a step, hand in the weights."""
    flags = read_flags()
    torch.manual_seed(flags.seed)
    dist.init_process_group(timeout=timedelta(seconds=flags.timeout))
    samples = bench.open_samples(flags.batch, flags.seed)
    replica = Replica(flags)
    first = load_checkpoint(flags.checkpoints, replica) if flags.resume else 0
    share = my_samples(flags.batch, dist.get_rank(), dist.get_world_size())
    if first:
        samples.take(first, *share)
    for step in range(flags.steps):
        loss = replica.step(*samples.take(step, *share))
        if replica.rank == 0:
            print(
                json.dumps({"step": step, "loss": loss, "sent_bytes": replica.sent_bytes}),
                flush=True,
            )
        if flags.checkpoint_every and (step + 1) % flags.checkpoint_every == 0:
            save_checkpoint(flags.checkpoints, step + 1, replica)
    if replica.rank == 0:
        samples.hand_in(replica.model)


if __name__ == "__main__":
    main()
