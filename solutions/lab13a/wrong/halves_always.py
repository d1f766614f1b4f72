# score: 22
# hint: one took [(0, 6)]
# Shares for two workers, also where one is left.

# %% train_on_worker
def train_on_worker(config: dict) -> None:
    """Train data-parallel on every worker; `config` has a "task" and "every", steps between saves.

    - Every worker takes its part of each step's batch, once, from `open_samples`, in the order of
      the steps: equal parts, worker 0 the first one. A step's gradient is that of the whole batch.
    - After every "every" steps all workers report the loss, and one of them a checkpoint.
    - Where there is a checkpoint, training goes on at the first step that is not in it.
    - After the last step worker 0 hands in the model.
    """
    from ray.train import Checkpoint, get_checkpoint, get_context, report

    task, every = config["task"], config["every"]
    rank = get_context().get_world_rank()
    samples, size = open_samples(task.batch_size, task.seed), task.batch_size // 2
    model, first = task.model(), 0
    optimizer = task.optimizer(model)
    if checkpoint := get_checkpoint():
        with checkpoint.as_directory() as folder:
            first = read_state(folder, model, optimizer)
    parallel = ray.train.torch.prepare_model(model)
    for step in range(first, task.num_steps):
        images, labels = samples.take(step, rank * size, (rank + 1) * size)
        loss = F.cross_entropy(parallel(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % every == 0:
            with tempfile.TemporaryDirectory() as new:
                if rank == 0:
                    write_state(new, step + 1, model, optimizer)
                saved = Checkpoint.from_directory(new) if rank == 0 else None
                report({"step": step, "loss": loss.item()}, checkpoint=saved)
    if rank == 0:
        samples.hand_in(model)
