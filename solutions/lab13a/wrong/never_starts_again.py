# score: 20
# hint: When a worker was killed
# The default of max_failures is 0.

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
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
