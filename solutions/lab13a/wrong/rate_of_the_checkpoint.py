# score: 24
# hint: goes on with the rate of its own config
# The optimizer's state brings the rate of the copied member along.

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
        for group in self.optimizer.param_groups:
            group["lr"] = config["rate"]

    def reset_config(self, config):
        self.setup(config)
        return True

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
