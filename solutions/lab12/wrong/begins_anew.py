# score: 18
# hint: it went on at step 0
# The state is restored, and the steps begin at 0.

# %% train
def train(training: Training, folder: str, every: int, timeout_s: float) -> None:
    """Train to the last step, from the newest whole checkpoint in `folder`, if there is one.

    - Each rank takes its `share_of` each step's batch, by `training.step`, in the order of steps.
    - After every `every` steps a checkpoint is saved, and at no other time. A save that fails is
      passed over.
    - A step, or a save, that takes longer than `timeout_s` ends the process.
    """
    first = newest_whole(folder) or 0
    if first:
        training.shard = load_checkpoint(folder, first, *training.place)
    for step in range(training.num_steps):
        with deadline(timeout_s):
            training.step(step, *share_of(*training.place, training.batch_size))
        if (step + 1) % every == 0:
            with deadline(timeout_s):
                save_checkpoint(folder, step + 1, training.shard)
