# The rate is set where the state is read; the workers are spread over nodes where there are some.

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
        scaling_config=ray.train.ScalingConfig(
            num_workers=(fewest, most), placement_strategy="SPREAD"
        ),
        run_config=ray.train.RunConfig(
            storage_path=folder,
            failure_config=ray.train.FailureConfig(max_failures=3),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )


# %% Member
class Member(ray.tune.Trainable):
    """A training in rounds; `config` has a "task", "steps" in a round, and the learning "rate".

    - Steps are counted from 0 over all rounds; a step takes the whole batch from `open_samples`.
      The optimizer is the task's, with momentum, and its learning rate the one of the config.
    - After a round, `step` returns {"loss": ...} on the batch of the task's last step, on which
      nobody trains.
    - A checkpoint is what `write_state` writes, so that a member goes on exactly as the one that
      was saved, but with its own config's rate.
    - `reset_config` makes it a member that has not begun, with this config, and returns True.
    """

    def setup(self, config):
        self.task, self.num_steps, self.done = config["task"], config["steps"], 0
        self.samples = open_samples(self.task.batch_size, self.task.seed)
        self.model = self.task.model()
        self.optimizer = self.task.optimizer(self.model)
        self.set_rate(config["rate"])

    def reset_config(self, config):
        self.model.load_state_dict(self.task.model().state_dict())
        self.optimizer.state.clear()
        self.done = 0
        self.set_rate(config["rate"])
        return True

    def set_rate(self, rate):
        self.rate = rate
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def step(self):
        for _ in range(self.num_steps):
            self.optimizer.zero_grad()
            self.loss_on(self.done).backward()
            self.optimizer.step()
            self.done += 1
        return {"loss": self.loss_on(self.task.num_steps - 1).item()}

    def loss_on(self, step):
        images, labels = self.samples.take(step, 0, self.task.batch_size)
        return F.cross_entropy(self.model(images), labels)

    def save_checkpoint(self, folder):
        write_state(folder, self.done, self.model, self.optimizer)

    def load_checkpoint(self, folder):
        self.done = read_state(folder, self.model, self.optimizer)
        self.set_rate(self.rate)
