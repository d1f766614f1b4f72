# score: 24
# hint: CheckpointConfig how many are kept
# Nothing is ever deleted.

# %% trainer
def trainer(loop, config: dict, fewest: int, most: int, folder: str):
    """A TorchTrainer that runs `loop(config)` on workers, and keeps its run below `folder`.

    - There are `most` workers, or as many as have room, but no fewer than `fewest`.
    - It looks at least once a minute whether more have room.
    - It starts again after each of up to 3 failures, from the newest checkpoint.
    - It keeps the two newest checkpoints.
    """
    return ray.train.torch.TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=(fewest, most)),
        run_config=ray.train.RunConfig(
            storage_path=folder,
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    )
