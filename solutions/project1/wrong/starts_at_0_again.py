# score: 60
# hint: from the beginning
# Loads the weights, and begins with step 0 all the same.


# %% main
def main() -> None:
    """Join, resume or begin, train, print a line a step, hand in the weights."""
    flags = read_flags()
    torch.manual_seed(flags.seed)
    dist.init_process_group(timeout=timedelta(seconds=flags.timeout))
    samples = bench.open_samples(flags.batch, flags.seed)
    replica = Replica(flags)
    first = 0
    if flags.resume:
        load_checkpoint(flags.checkpoints, replica)
    share = my_samples(flags.batch, dist.get_rank(), dist.get_world_size())
    for step in range(first, flags.steps):
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
