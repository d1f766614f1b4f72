# score: 22
# hint: CheckpointConfig how many are kept
# Nothing is ever deleted.

# %% trainer
def trainer(loop, config: dict, num_workers: int, folder: str) -> ray.train.torch.TorchTrainer:
    """A trainer that runs `loop(config)` on so many workers, and keeps its run below `folder`.

    It starts again after each of up to 2 failures, from the newest checkpoint, and keeps the two
    newest checkpoints.
    """
    return ray.train.torch.TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=num_workers),
        run_config=ray.train.RunConfig(
            storage_path=folder,
            failure_config=ray.train.FailureConfig(max_failures=2),
        ),
    )
