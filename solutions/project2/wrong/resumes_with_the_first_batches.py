# score: 71
# hint: it went on at step
# After a restart, the batches are taken from the first one again.


# %% main
def main() -> None:
    """Run the whole program on one of the ranks that torchrun started.

    - Join the group, with `--timeout` as its timeout: a rank that waits longer for another one ends
      with an error.
    - Take sequences from `samples = bench.open_text(flags.batch, flags.length, flags.seed)`:
      `samples.take(step, start, stop)` returns tokens and targets. A rank takes its own sequences,
      step by step.
    - After each step rank 0 prints one line of JSON, `{"step": 0, "loss": 5.56}`, flushed: the loss
      of the whole global batch before the step.
    - After every `--checkpoint-every` steps, save a checkpoint in `--checkpoints`. With `--resume`,
      training goes on from the newest whole one, so that the final weights are those of an
      undisturbed run.
    - At the end rank 0 calls `samples.hand_in(trainer.whole_model())`, and every rank leaves the
      group.
    """
    flags = read_flags()
    dist.init_process_group(timeout=timedelta(seconds=flags.timeout))
    samples = bench.open_text(flags.batch, flags.length, flags.seed)
    trainer = Trainer(flags)
    first = load_checkpoint(flags.checkpoints, trainer) if flags.resume else 0
    for step in range(first, flags.steps):
        loss = trainer.step(*samples.take(step - first, *trainer.sequences))
        if dist.get_rank() == 0:
            print(json.dumps({"step": step, "loss": loss}), flush=True)
        if flags.checkpoint_every and (step + 1) % flags.checkpoint_every == 0:
            save_checkpoint(flags.checkpoints, step + 1, trainer)
    model = trainer.whole_model()
    if dist.get_rank() == 0:
        samples.hand_in(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
