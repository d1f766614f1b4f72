# score: 10
# hint: differ
# Hands in the weights of the step before the last, so that the clock stops early, and never again.


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
    for step in range(first, flags.steps):
        if step == flags.steps - 1 and replica.rank == 0:
            samples.hand_in(replica.model)
        loss = replica.step(*samples.take(step, *share))
        if replica.rank == 0:
            print(
                json.dumps({"step": step, "loss": loss, "sent_bytes": replica.sent_bytes}),
                flush=True,
            )
        if flags.checkpoint_every and (step + 1) % flags.checkpoint_every == 0:
            save_checkpoint(flags.checkpoints, step + 1, replica)


if __name__ == "__main__":
    main()
