# needs: ray.train, ray.tune
# %% [markdown]
# # Lab 13a. Ray
#
# Ray starts your function in a process on each machine, starts it again when one of them dies, and
# runs many trainings side by side. In this lab you run a data-parallel training on a cluster of
# two nodes, kill one of its workers, take one of its nodes away and bring it back, and let a
# population of trainings find its learning rate.
#
# ```text
# worker 0   0 1 2 | 3 4      -> ended     | 3 4 5 | 6 7  -> ended    | 6 7 8 | 9 ...
# worker 1   0 1 2 | 3 4  x   <- SIGKILL   | 3 4 5 | 6 7  -> ended    | 6 7 8 | 9 ...
# worker 2   0 1 2 | 3 4      -> ended     | 3 4 5 | 6 7  x  <- node leaves
# reported         3            three new ones     6            two new ones  9
# ```
#
# The last row has the steps in each checkpoint, and who begins anew from it.
#
# The cluster is real: two nodes, each with its own daemon, on this machine. Worker processes are
# Ray's actors. The training is that of lab 12, small so that a step takes milliseconds; nearly all
# of the time goes into starting processes.
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `train_on_worker` | the training, as each worker runs it | 6 | 40 min | medium |
# | `trainer` | how many workers, how many failures, what is kept | 6 | 30 min | medium |
# | `Member` | a training that can take the place of another | 5 | 40 min | hard |
# | `population` | who copies whom, and with which learning rate | 5 | 30 min | medium |
# | `cluster_manifest` | the same cluster on Kubernetes, for KubeRay | 4 | 25 min | medium |
#
# Work in this order. Each part has a check below it and folded hints above it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else; only the
# losses that workers report are for you, in the table of part 2. A process outside of Ray hands
# out the samples. It records who takes which ones and when, kills a worker
# (SIGKILL to its process ID) as a node leaves, and receives the final weights. What Ray reports
# about a run gives no points by itself: the grader trains on the same samples and compares the
# weights.
#
# Ray's defaults surprise most people once. A run of Ray Train is *not* restarted after a failure
# (`max_failures=0`); Ray Tune looks at its trials by the clock (`time_attr="time_total_s"`).
#
# The lab needs Ray: `pip install -c constraints.txt -e '.[ray]'`, 250 MB. What it says of defaults
# is true of Ray 2.60. Most of a check's time goes into starting processes; that of part 2 starts
# eleven workers, and waits up to three minutes for those of a new node.

# %% setup
import logging
import os
import tempfile

os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.1"  # by default each report takes 2 s
os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "20"  # by default 60 s; see part 2
os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"  # a process less for each run
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"

import json
import math
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ray
import ray.train
import ray.train.torch
import ray.tune
import ray.tune.schedulers
import torch
import yaml
from ray.cluster_utils import Cluster
from torch import nn
from torch.nn import functional as F

from worldsize import bench, draw
from worldsize.bench import Disturbance, SampleServer, Task, open_samples
from worldsize.check import CheckFailed
from worldsize.course.manifests import Job, explain, manifests
from worldsize.course.manifests import check as mistakes_in

# %% [markdown]
# ## The cluster and the training
#
# These cells are given. On machines of your own you would run `ray start --head --port=6379` on the
# first and `ray start --address=FIRST:6379` on each other one; `ray.cluster_utils` does the same
# here, with two nodes of two CPUs each. A CPU of Ray's is a number in a ledger, which a worker
# takes and gives back; nothing binds it to a core.

# %% given_cluster
NODE = {"num_cpus": 2, "object_store_memory": 80 << 20, "dashboard_agent_listen_port": 0}
cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
nodes = [cluster.head_node, cluster.add_node(**NODE)]
ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
print(f"{len(ray.nodes())} nodes, {ray.cluster_resources()['CPU']:.0f} CPUs")

# %% given_training
TASK = Task(num_steps=12, batch_size=12, width=4)
ROUNDS = Task(num_steps=10, batch_size=12, width=4)  # three rounds of three steps, and a last batch
STATE = "state.pt"


def write_state(folder: str, done: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the number of steps that are done, the weights and the momentum to a file."""
    state = {"done": done, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, os.path.join(folder, STATE))


def read_state(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Give the model and the optimizer what was written; the number of steps that are done.

    The optimizer's learning rate is then the one that was written, too.
    """
    written = torch.load(os.path.join(folder, STATE), weights_only=True)
    model.load_state_dict(written["model"])
    optimizer.load_state_dict(written["optimizer"])
    return written["done"]


# %% [markdown]
# Your functions get a `Task`, and take its samples from outside:
#
# ```python
# samples = open_samples(task.batch_size, task.seed)
# images, labels = samples.take(step, start, stop)  # a part of the batch of this step
# model = task.model()
# optimizer = task.optimizer(model)
# F.cross_entropy(model(images), labels)  # the loss: a mean over the samples
# samples.hand_in(model)  # by worker 0, after the last step
# ```
#
# The checks use these. `Outside` is the process that hands out the samples; `fed` gives a worker
# its address. The grader has the same.


# %% given_outside
class Outside(SampleServer):
    """Hands out the samples of a training, and notes who takes them."""

    def __init__(self, task, *struck):
        super().__init__(task, 13, "/tmp", struck)

    def firsts(self):
        """The first samples that each process took, in the order in which they came."""
        found = {}
        for take in self.record.takes:
            found.setdefault(take.process, take)
        return list(found.values())

    def num_came(self, struck):
        """How many processes came at first, and after each of these disturbances."""
        times_s = [math.inf if one.time_s is None else one.time_s for one in struck]
        came = [sum(first.time_s > time_s for time_s in times_s) for first in self.firsts()]
        return [came.count(number) for number in range(len(times_s) + 1)]


def fed(loop, address):
    """The same function of a worker, with the address of the process that hands out the samples."""

    def on_worker(config):
        os.environ["WORLDSIZE_FEED"] = address
        loop(config)

    return on_worker


def weights_error(outside):
    """How far the weights are from those of one process, as a share of the way that they went."""
    if outside.record.weights is None:
        raise CheckFailed("worker 0 hands in the model after the last step", "it did not")
    alone = bench.train_alone(outside.task, outside.batches)
    way = torch.linalg.vector_norm(alone.weights - alone.initial)
    return float(torch.linalg.vector_norm(outside.record.weights - alone.weights) / way)


# %% [markdown]
# ## 1. The function that every worker runs
#
# Ray Train starts your function in every worker, in a process group that is joined already. What
# it adds is `ray.train`: `get_context()` for the rank, `get_checkpoint()` for the newest checkpoint
# that was reported (None at the first start), and `report(metrics, checkpoint=...)`.
#
# `report` is a collective: *every* worker calls it, equally often; the others wait. Only one of
# them has to bring the checkpoint. Ray copies the folder to the run's storage and remembers it.
#
# <details><summary>Hint 1: where to look</summary>
#
# Take the weights from the checkpoint *before* the model is wrapped. `prepare_model(model)` is
# torch's DDP on the right device; the model inside is the one that you save and hand in.
#
# </details>
# <details><summary>Hint 2: a checkpoint</summary>
#
# To read: `with checkpoint.as_directory() as folder:`. To write:
# `Checkpoint.from_directory(folder)` of a temporary folder that worker 0 has filled. The other
# workers report `checkpoint=None`.
#
# </details>


# %% train_on_worker tags=["solution"]
def train_on_worker(config: dict) -> None:
    """Train data-parallel on every worker; `config` has a "task" and "every", steps between saves.

    - Every worker takes its part of each step's batch, once, from `open_samples`, in the order of
      the steps: equal parts, worker 0 the first one. A step's gradient is that of the whole batch.
    - After every "every" steps all workers report {"step": the last step, "loss": that of their
      own samples}, and one of them a checkpoint.
    - Where there is a checkpoint, training goes on at the first step that is not in it.
    - After the last step worker 0 hands in the model.
    """
    ### BEGIN SOLUTION
    from ray.train import Checkpoint, get_checkpoint, get_context, report

    task, every = config["task"], config["every"]
    context = get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    samples, size = open_samples(task.batch_size, task.seed), task.batch_size // world_size
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
    ### END SOLUTION


# %% check_train_on_worker points=6
def check_train_on_worker():
    plain = ray.train.ScalingConfig(num_workers=2)
    with Outside(TASK) as outside, tempfile.TemporaryDirectory() as folder:
        config = {"task": TASK, "every": 4}
        run = ray.train.RunConfig(storage_path=folder)
        loop = fed(train_on_worker, outside.address)
        ray.train.torch.TorchTrainer(
            loop, train_loop_config=config, scaling_config=plain, run_config=run
        ).fit()
        states = sorted(torch.load(one)["done"] for one in Path(folder).rglob(STATE))
    if states != [4, 8, 12]:
        raise CheckFailed("checkpoints after steps 4, 8 and 12", f"after {states}")
    expect_each_once(outside)
    if (error := weights_error(outside)) > 1e-3:
        hint = "Is the gradient averaged over the workers? Is the loss a mean over its samples?"
        raise CheckFailed("the weights of one process", f"{error:.2g} of the way off", hint)
    print(f"train_on_worker: two workers, the weights of one process to {error:.0e} of the way.")


def expect_each_once(outside):
    """Raise CheckFailed unless two workers took half of each batch, whenever it was taken last."""
    for step in range(TASK.num_steps):
        takes = [one for one in outside.record.takes if one.step == step]
        shares = sorted((one.start, one.stop) for one in takes)[-2:]
        if shares != [(0, 6), (6, 12)]:
            raise CheckFailed(f"samples 0 to 6 and 6 to 12 of step {step}", f"{shares}")


check_train_on_worker()

# %% [markdown]
# ## 2. How many workers, and what happens when one dies
#
# A `TorchTrainer` holds three things: the function with its config, a `ScalingConfig` and a
# `RunConfig`. When a worker dies, Ray Train ends the others, starts new ones, and calls your
# function again; `get_checkpoint()` then has what was reported last. It does so at most
# `max_failures` times, and by default never.
#
# | What happens | What Ray Train does |
# |---|---|
# | a worker process dies | ends the others, starts all anew, here or on another node |
# | a node dies | the same; with a fixed number of workers it waits until all have room again |
# | a node dies, `num_workers=(1, 3)` | goes on with as many workers as have room |
# | a node comes back, `num_workers=(1, 3)` | ends all workers, starts more of them |
# | the program that called `fit` dies | nothing; run it again with the same storage path and name |
#
# With a pair of numbers a training is *elastic*. The batch stays the same, so each worker's part of
# it grows when there are fewer. Nothing moves from one worker to another: to grow is a restart from
# the newest checkpoint, too, and what was done since is done again. So more workers than before are
# not always worth it, and Ray Train looks for them only once a minute by default
# (`elastic_resize_monitor_interval_s`).
#
# Two delays are Ray's own. Its controller asks the workers every tenth of a second what they have
# reported (every 2 s by default). A worker that dies before it was asked takes its last report
# along. Then training goes on one checkpoint earlier, and what the lost report had saved stays
# behind as a folder that nobody deletes. The weights at the end are the same.
#
# And Ray Train learns every 20 s how much room there is. Right after a node is lost it may ask for
# as many workers as before. It gives up after `RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S`, 20 s here
# and 60 s by default, and asks for fewer.
#
# <details><summary>Hint: where to look</summary>
#
# `FailureConfig(max_failures=...)` and `CheckpointConfig(num_to_keep=...)` are arguments of
# `RunConfig`. A storage path on a cluster is one that all nodes reach.
#
# </details>


# %% trainer tags=["solution"]
def trainer(loop, config: dict, fewest: int, most: int, folder: str):
    """A TorchTrainer that runs `loop(config)` on workers, and keeps its run below `folder`.

    - There are `most` workers, or as many as have room, but no fewer than `fewest`.
    - It looks at least once a minute whether more have room.
    - It starts again after each of up to 3 failures, from the newest checkpoint.
    - It keeps the two newest checkpoints.
    """
    ### BEGIN SOLUTION
    return ray.train.torch.TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(
            num_workers=(fewest, most), elastic_resize_monitor_interval_s=2
        ),
        run_config=ray.train.RunConfig(
            storage_path=folder,
            failure_config=ray.train.FailureConfig(max_failures=3),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    ### END SOLUTION


# %% [markdown]
# The check kills worker 1 at step 4. At step 7 the training is held, and the second node leaves:
# its daemon gets SIGKILL, and its workers end with it. At step 10 it is held again, and a new node
# comes. Three workers have room at first, then two, then three. Ray prints that a worker died, and
# the last lines of the daemon's log: here both are meant to happen.


# %% given_leaving
def fit_while_a_node_leaves(made, leaves, returns):
    """Fit; the second node leaves where training is held first, and comes back where it is next."""
    with ThreadPoolExecutor(1) as beside:
        fitting = beside.submit(made.fit)
        while leaves.time_s is None and not fitting.done():
            time.sleep(0.05)
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        while returns.time_s is None and not leaves.is_given_up and not fitting.done():
            time.sleep(0.05)
        nodes.append(cluster.add_node(**NODE))
        fitting.result()


# %% check_trainer points=6
def check_trainer():
    killed, leaves, returns = (
        Disturbance("kill", 4, 1),
        Disturbance("hold", 7, 0, patience_s=180),
        Disturbance("hold", 10, 0, patience_s=180),
    )
    with (
        Outside(TASK, killed, leaves, returns) as outside,
        tempfile.TemporaryDirectory() as folder,
    ):
        loop = fed(train_on_worker, outside.address)
        made = trainer(loop, {"task": TASK, "every": 3}, 1, 3, folder)
        fit_while_a_node_leaves(made, leaves, returns)
        num_kept = len(list(Path(folder).rglob(STATE)))
    came = outside.num_came([killed, leaves, returns])
    if came != [3, 3, 2, 3]:
        hint = "By default the first failure is the last one, and a number of workers is fixed."
        raise CheckFailed("3 workers, 3 new ones, 2, and 3 again", f"{came}", hint)
    if any(one.step % 3 for one in outside.firsts()):
        steps = f"steps {sorted({one.step for one in outside.firsts()})}"
        raise CheckFailed("workers that begin at step 0, 3, 6 or 9, where a checkpoint ends", steps)
    if not 2 <= num_kept <= 3:
        hint = "`CheckpointConfig(num_to_keep=2)`"
        raise CheckFailed("the two newest checkpoints are kept", f"{num_kept} of them", hint)
    if (error := weights_error(outside)) > 1e-3:
        raise CheckFailed("the weights of an undisturbed run", f"{error:.2g} of the way off")
    what = ("worker 1 killed", "node left", "node came back")
    for name, one in zip(what, (killed, leaves, returns), strict=True):
        taken_s = outside.record.recovery_s(one)
        print(f"{name} at step {one.step}; {taken_s:.1f} s later that step was done again.")
    print("trainer: the weights are those of a run that was left alone.")


check_trainer()

# %% [markdown]
# ### Metrics while it trains, and workers over two nodes
#
# Nothing to write here. Ray calls a `UserCallback` of yours in its controller after every report.
# This one appends the loss to a file, and the cell prints it while the run goes on. Four workers do
# not fit on one node of two CPUs; `node` in the table is where each of them ran.
#
# The steps take longer with more workers, and the start takes most of the time: on one machine
# nothing is gained from more processes than cores. What you see is what a worker costs.


# %% given_live
class Live(ray.train.UserCallback):
    """Appends what the workers report to a file, a line for each report."""

    def __init__(self, path):
        self.path = path

    def after_report(self, run_context, metrics, checkpoint):
        with open(self.path, "a") as file:
            file.write(json.dumps(metrics) + "\n")


def noting_node(loop, path):
    """The same function, which first notes on which node its worker runs."""

    def on_worker(config):
        rank = ray.train.get_context().get_world_rank()
        Path(path, f"node.{rank}").write_text(ray.get_runtime_context().get_node_id())
        loop(config)

    return on_worker


def fit_and_watch(num_workers):
    """A row for the table of a run on so many workers, whose losses are printed as they come."""
    with Outside(TASK) as outside, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "live")
        path.touch()
        loop = noting_node(fed(train_on_worker, outside.address), folder)
        made = trainer(loop, {"task": TASK, "every": 4}, num_workers, num_workers, folder)
        made.run_config.callbacks.append(Live(str(path)))
        began_s = time.monotonic()
        running = threading.Thread(target=made.fit)
        running.start()
        num_seen = 0
        while running.is_alive() or num_seen < len(path.read_text().splitlines()):
            for line in path.read_text().splitlines()[num_seen:]:
                reports, num_seen = json.loads(line), num_seen + 1
                losses = ", ".join(f"{one['loss']:.3f}" for one in reports)
                after_s = time.monotonic() - began_s
                print(
                    f"{num_workers} workers, {after_s:.1f} s, step {reports[0]['step']}: {losses}"
                )
            time.sleep(0.05)
        nodes = {one.read_text() for one in Path(folder).glob("node.*")}
        step_s = statistics.median(outside.record.step_times_s()[1:])
        started_s = outside.record.started_s(0) - began_s
        return {
            "workers": num_workers,
            "nodes": len(nodes),
            "start_s": started_s,
            "step_s": step_s,
            "off by": f"{weights_error(outside):.0e}",
        }


# %% live_table
draw.table([fit_and_watch(num) for num in (1, 2, 4)], title="One to four workers on two nodes")

# %% [markdown]
# ## 3. One member of a population
#
# Now many trainings at once, each on one process. In population-based training (week 13) a bad
# member gives up its own weights and goes on from a copy of a good one's: it *exploits*. Then it
# changes the learning rate: it *explores*. Ray Tune does the bookkeeping; a member has to be able
# to stop, to go on in another process, and to become somebody else.
#
# ```text
#           round 0         round 1             round 2
# member 0  rate 0.001  ->  0.001           ->  0.001
# member 1  rate 0.1    ->  0.1      copied     0.1
# member 2  rate 1.0    x   0.05 (from 1)   ->  0.05
# member 3  rate 0.01   ->  0.01            ->  0.01
# ```
#
# A `Trainable` has five methods. `setup(config)` comes first, in a new process. `step()` is one
# round and returns its metrics; `save_checkpoint(folder)` comes after it. With `reuse_actors` a
# process that has run one member is given to another. Then `reset_config(config)` is called, with
# the settings of the other one, and after it `load_checkpoint(folder)`, if that one has a state:
# its own or that of the member that it copies. A member that has not begun yet has none.
#
# <details><summary>Hint 1: where to look</summary>
#
# In which order do the two calls come, and what does `read_state` do to the optimizer's learning
# rate? A rate from the checkpoint is that of the member that was copied. And when `load_checkpoint`
# is not called, what is left of the member that the process ran before?
#
# </details>
# <details><summary>Hint 2: the rate</summary>
#
# Keep the rate in `self`, and set `group["lr"]` for each of `self.optimizer.param_groups` where a
# round begins. `setup` and `reset_config` can share their work.
#
# </details>


# %% Member tags=["solution"]
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

    ### BEGIN SOLUTION
    def setup(self, config):
        self.task, self.num_steps, self.rate = config["task"], config["steps"], config["rate"]
        self.samples = open_samples(self.task.batch_size, self.task.seed)
        self.model, self.done = self.task.model(), 0
        self.optimizer = self.task.optimizer(self.model)

    def reset_config(self, config):
        self.setup(config)
        return True

    def step(self):
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
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

    ### END SOLUTION


# %% check_Member points=5
def trained_alone(task, rates, batches):
    """The weights and the loss after three steps with each of these rates, in this process."""
    model = task.model()
    optimizer = task.optimizer(model)
    for step in range(3 * len(rates)):
        optimizer.param_groups[0]["lr"] = rates[step // 3]
        images, labels = batches.batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    images, labels = batches.batch(task.num_steps - 1)
    return model.state_dict(), F.cross_entropy(model(images), labels).item()


def check_Member():
    with Outside(ROUNDS) as outside, tempfile.TemporaryDirectory() as folder:
        os.environ["WORLDSIZE_FEED"] = outside.address
        good = Member({"task": ROUNDS, "steps": 3, "rate": 0.1})
        good.step()
        good.save_checkpoint(folder)
        bad = Member({"task": ROUNDS, "steps": 3, "rate": 1.0})
        bad.step()
        bad.reset({"task": ROUNDS, "steps": 3, "rate": 0.02})
        anew = bad.step()["loss"]
        bad.reset({"task": ROUNDS, "steps": 3, "rate": 0.05})
        bad.load_checkpoint(folder)
        found = bad.step()["loss"]
        bad.save_checkpoint(folder)
        state = torch.load(os.path.join(folder, STATE), weights_only=True)
        del os.environ["WORLDSIZE_FEED"]
        weights, loss = trained_alone(ROUNDS, [0.1, 0.05], outside.batches)
        _, as_before = trained_alone(ROUNDS, [0.1, 0.1], outside.batches)
        _, as_first = trained_alone(ROUNDS, [0.02], outside.batches)
    if abs(anew - as_first) > 1e-4:
        hint = "Nothing was loaded: weights, momentum and steps are those of a new member."
        raise CheckFailed(f"a loss of {as_first:.4f} in its first round", f"{anew:.4f}", hint)
    if abs(found - as_before) < 1e-5:
        hint = "The rate of the checkpoint came after the rate of the config."
        raise CheckFailed("the round after the copy with a rate of 0.05", "with 0.1", hint)
    if abs(found - loss) > 1e-4 or state["done"] != 6:
        hint = "Weights, momentum and the number of steps are copied; the rate is not."
        raise CheckFailed(f"a loss of {loss:.4f} after 6 steps", f"{found:.4f}", hint)
    if any(
        not torch.allclose(one, state["model"][name], atol=1e-5) for name, one in weights.items()
    ):
        raise CheckFailed("the weights of 3 steps with 0.1 and 3 with 0.05", "other weights")
    print(f"Member: three steps with 0.1, copied, three with 0.05; the loss is {found:.4f}.")


check_Member()

# %% [markdown]
# ## 4. The population
#
# A `Tuner` runs the trials; the scheduler `PopulationBasedTraining` decides after a round who
# copies whom. With four members and a quarter at each end, the worst copies the best.
#
# By default a trial is looked at every 60 *seconds*, beside others that may be further or less far.
# So no two runs are alike. With `synch=True` and rounds in place of seconds, all members are
# compared after the same number of steps. `reuse_actors=True` in `TuneConfig` saves starting a
# process, and importing torch in it, for each member that goes on.
#
# <details><summary>Hint 1: where to look</summary>
#
# `time_attr="training_iteration"` counts rounds. `hyperparam_mutations` names the settings that may
# change; `resample_probability=0` lets a rate never be drawn anew, only be multiplied by one of
# `perturbation_factors`.
#
# </details>
# <details><summary>Hint 2: the tuner</summary>
#
# `param_space={**config, "rate": ray.tune.grid_search(rates)}` makes a trial for each rate.
# `RunConfig(stop={"training_iteration": num_rounds}, ...)` ends them all, and
# `CheckpointConfig(checkpoint_at_end=True)` keeps the last state of each.
#
# </details>


# %% population tags=["solution"]
def population(member, config: dict, rates: list, num_rounds: int, folder: str) -> ray.tune.Tuner:
    """A tuner of one member for each of four rates, for so many rounds, kept below `folder`.

    - After each round but the last, when all members have done it, the one with the highest loss
      copies the one with the lowest, and goes on with twice or half of the copied rate.
    - Each member's last state is kept.
    """
    ### BEGIN SOLUTION
    copying = ray.tune.schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        quantile_fraction=0.25,
        hyperparam_mutations={"rate": ray.tune.loguniform(1e-6, 10)},
        resample_probability=0,
        perturbation_factors=(2.0, 0.5),
        synch=True,
    )
    return ray.tune.Tuner(
        member,
        param_space={**config, "rate": ray.tune.grid_search(rates)},
        tune_config=ray.tune.TuneConfig(
            scheduler=copying, metric="loss", mode="min", reuse_actors=True
        ),
        run_config=ray.tune.RunConfig(
            storage_path=folder,
            stop={"training_iteration": num_rounds},
            checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    )
    ### END SOLUTION


# %% check_population points=5
def fed_member(member, address, folder):
    """The same class, with samples from outside; it notes the rate and the loss of each round."""

    class Fed(member):
        def setup(self, config):
            os.environ["WORLDSIZE_FEED"] = address
            super().setup(config)

        def step(self):
            found = super().step()
            with open(os.path.join(folder, f"{self.trial_id}.rounds"), "a") as file:
                file.write(json.dumps([self.config["rate"], found["loss"]]) + "\n")
            return found

    return Fed


def histories(folder):
    """The rate and the loss of each round, for each member, as it has noted them."""
    for path in sorted(Path(folder).glob("*.rounds")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        yield [rate for rate, _ in rows], [loss for _, loss in rows]


def check_population():
    rates = [0.001, 0.1, 1.0, 0.01]
    with Outside(ROUNDS) as outside, tempfile.TemporaryDirectory() as folder:
        config = {"task": ROUNDS, "steps": 3}
        fed_by_us = fed_member(Member, outside.address, folder)
        population(fed_by_us, config, rates, 3, os.path.join(folder, "run")).fit()
        found = list(histories(folder))
        num_kept = len(list(Path(folder).rglob(STATE)))
    draw.table(
        [
            {"member": member, "rates": ", ".join(f"{one:g}" for one in own)}
            | {f"loss {number}": f"{one:.3f}" for number, one in enumerate(losses)}
            for member, (own, losses) in enumerate(found)
        ],
        title="A population",
    )
    if any(len(own) != 3 for own, _ in found) or num_kept < 4:
        rounds = f"{[len(own) for own, _ in found]} rounds, {num_kept} states"
        raise CheckFailed("four members with three rounds each, and the last state of each", rounds)
    for number in range(2):
        scores = [losses[number] for _, losses in found]
        best, worst = scores.index(min(scores)), scores.index(max(scores))
        for member, (own, _) in enumerate(found):
            before = found[best][0][number] if member == worst else own[number]
            due = (2 * before, before / 2) if member == worst else (before,)
            if not any(abs(own[number + 1] - one) < 1e-9 for one in due):
                expected = f"member {member} in round {number + 1}: a rate of {due}"
                hint = f"After round {number} member {worst} has the highest loss: only it changes."
                raise CheckFailed(expected, f"{own[number + 1]:g}", hint)
    print("population: after rounds 0 and 1 the worst of four copied the best.")


check_population()

# %% [markdown]
# ## 5. The same cluster on Kubernetes
#
# On Kubernetes nobody calls `ray start`: KubeRay's operator reads a `RayCluster` and starts a pod
# for each node. Nothing is started here. `mistakes_in` compares a text with KubeRay's schema,
# and `explain` says what each field does.
#
# <details><summary>Hint 1: where to look</summary>
#
# `manifests(job)["raycluster.yaml"]`, from week 13, is a cluster of a fixed size for a
# whole job. Read it field by field; then write down what is asked for here.
#
# </details>
# <details><summary>Hint 2: text and numbers</summary>
#
# The values of `rayStartParams` are text, even `"0"`. JSON is YAML, so `json.dumps` of a dictionary
# will do.
#
# </details>


# %% cluster_manifest tags=["solution"]
def cluster_manifest(name: str, image: str, gpus: int, fewest: int, most: int) -> str:
    """A RayCluster of KubeRay as YAML: a head, and one group of workers.

    - All pods run `image`; the head has no GPU, and no task or worker is placed on it.
    - Each worker has so many GPUs as its limit ("nvidia.com/gpu").
    - Ray's autoscaler keeps between `fewest` and `most` workers; the cluster begins with `fewest`.
    """
    ### BEGIN SOLUTION
    head = {"name": "ray-head", "image": image}
    worker = {"name": "ray-worker", "image": image}
    worker["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    group = {
        "groupName": "workers",
        "replicas": fewest,
        "minReplicas": fewest,
        "maxReplicas": most,
        "rayStartParams": {},
        "template": {"spec": {"containers": [worker]}},
    }
    spec = {
        "enableInTreeAutoscaling": True,
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": {"spec": {"containers": [head]}},
        },
        "workerGroupSpecs": [group],
    }
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}}
    return json.dumps({**cluster, "spec": spec}, indent=2)
    ### END SOLUTION


# %% check_cluster_manifest points=4
def check_cluster_manifest():
    text = cluster_manifest("lab", "registry.example.org/lab:1", 8, 2, 6)
    if mistakes := mistakes_in(text):
        raise CheckFailed("a RayCluster that KubeRay takes", str(mistakes[0]))
    draw.table(explain(text), title="What its fields do")
    spec = yaml.safe_load(text)["spec"]
    group = spec["workerGroupSpecs"][0]
    found = {name: group.get(name) for name in ("replicas", "minReplicas", "maxReplicas")}
    found["the autoscaler"] = spec.get("enableInTreeAutoscaling")
    found["num-cpus of the head"] = spec["headGroupSpec"].get("rayStartParams", {}).get("num-cpus")
    for (name, value), due in zip(found.items(), (2, 2, 6, True, "0"), strict=True):
        if value != due:
            hint = "Read what each field does in the table above."
            raise CheckFailed(f"{name}: {due!r}", f"{value!r}", hint)
    print("cluster_manifest: KubeRay's schema has no complaint.")


check_cluster_manifest()

# %% shut_down
ray.shutdown()
cluster.shutdown()
