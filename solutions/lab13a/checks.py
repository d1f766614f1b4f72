"""Hidden checks of lab 13a: Ray in the sandbox, a worker killed, a population trained again.

The samples come from the judge's side, which sees which process takes which samples when, and
kills a worker by the process ID that the kernel reports. A process in the sandbox then takes a
node away, and brings it back while the judge hands out no samples. Weights that come back are
compared with those of trainings here. Of a population only the last weights count, which must be
those of one of the ways that it can go; its results as Ray writes them down are not looked at.

One run serves all checks of the training's two functions: a cluster costs ten seconds of
computing. Only where it fails is another one started, with ours in place of one of the two.
A member of the population is judged without a cluster, by the calls that Tune makes: in a cluster
it is a matter of time which process is given to which member.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from autograder.checks import (
    StudentFailed,
    entries,
    expect_whole,
    points,
    positive,
    shuffled,
    tensor_like,
    whole,
)
from worldsize import bench
from worldsize.bench import Disturbance, RestartPolicy, Take, Task, TrainingSpec, Trial
from worldsize.bench.reference_run import flat_weights
from worldsize.check import CheckFailed
from worldsize.course.manifests import check as mistakes_in
from worldsize.course.manifests import yaml_text

NUM_STEPS, EVERY = 12, 3  # and the steps between checkpoints
RETURNS = 10  # the step at which a node comes back
PATIENCE_S = 240.0  # for new workers; with 36 processes to two cores they took two minutes
TASK = Task(num_steps=NUM_STEPS + 1, batch_size=12, width=8)  # the last step is the judge's
NUM_ROUNDS, ROUND_STEPS = 3, 3
ROUNDS = Task(num_steps=NUM_ROUNDS * ROUND_STEPS + 1, batch_size=12, width=4)
TOLERANCE = 2e-3  # of the way that the weights went; sums in another order differ by 1e-6 to 1e-4
CLOSE = 1e-5  # losses that differ by less are in no certain order
FACTORS = (2.0, 0.5)
STATE = "state.pt"

seen: dict[Any, Any] = {}  # what more than one check looks at; each submission has its own judge


# a cluster in the sandbox

NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
    "dashboard_agent_listen_port": 0,
}


def begin_nodes(student, num_nodes):
    """A cluster of nodes of one CPU in the sandbox, and these nodes.

    The student's functions are pickled whole when they go to its workers.
    """
    import logging

    os.environ.update(
        RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.1",
        # how long to wait for room that is not there; then it is tried again, without limit
        RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="20",
        RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="0",  # a process for each group of workers
        RAY_gcs_server_port_wait_time_s="120",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_DISABLE_IMPORT_WARNING="1",
        OMP_NUM_THREADS="1",
    )
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)  # of the process that starts the cluster, and of no worker
    import ray
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    cloudpickle.register_pickle_by_value(student)
    os.makedirs("/tmp/ray", exist_ok=True)
    first = {**NODE, "include_dashboard": False, "temp_dir": "/tmp/ray"}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    nodes = [cluster.head_node, *(cluster.add_node(**NODE) for _ in range(num_nodes - 1))]
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    return cluster, nodes


def fit_while_a_node_leaves(made, cluster, nodes, killed, held):
    """Fit; a node leaves as a worker is killed, and comes back where the training is held."""
    import time
    from concurrent.futures import ThreadPoolExecutor

    def has_happened(struck):
        return os.path.exists(struck.notice(os.environ["WORLDSIZE_FEED"]))

    with ThreadPoolExecutor(1) as pool:  # Ray starts nodes on the main thread alone
        fitting = pool.submit(made.fit)
        while not has_happened(killed) and not fitting.done():
            time.sleep(0.02)
        if not fitting.done():
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            until_s = time.monotonic() + PATIENCE_S
            while not has_happened(held) and not fitting.done() and time.monotonic() < until_s:
                time.sleep(0.05)
            cluster.add_node(**NODE)
        fitting.result()


# ours, in place of what a check does not judge


def our_train_on_worker(student):
    write_state, read_state = student.write_state, student.read_state

    def train(config):
        import tempfile

        from ray.train import Checkpoint, get_checkpoint, get_context, report
        from ray.train.torch import prepare_model

        from worldsize.bench import open_samples

        task = config["task"]
        rank, size = (
            get_context().get_world_rank(),
            task.batch_size // get_context().get_world_size(),
        )
        samples = open_samples(task.batch_size, task.seed)
        model, first = task.model(), 0
        optimizer = task.optimizer(model)
        if checkpoint := get_checkpoint():
            with checkpoint.as_directory() as folder:
                first = read_state(folder, model, optimizer)
        parallel = prepare_model(model)
        for step in range(first, task.num_steps):
            images, labels = samples.take(step, rank * size, (rank + 1) * size)
            optimizer.zero_grad()
            F.cross_entropy(parallel(images), labels).backward()
            optimizer.step()
            if (step + 1) % config["every"] == 0:
                with tempfile.TemporaryDirectory() as folder:
                    write_state(folder, step + 1, model, optimizer)
                    saved = Checkpoint.from_directory(folder) if rank == 0 else None
                    report({"step": step}, checkpoint=saved)
        if rank == 0:
            samples.hand_in(model)

    return train


def our_trainer(loop, config, fewest, most, folder):
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    run = RunConfig(
        storage_path=folder,
        failure_config=FailureConfig(max_failures=3),
        checkpoint_config=CheckpointConfig(num_to_keep=2),
    )
    scaling = ScalingConfig(num_workers=(fewest, most), elastic_resize_monitor_interval_s=2)
    return TorchTrainer(loop, train_loop_config=config, scaling_config=scaling, run_config=run)


def our_member(student):
    from ray import tune

    from worldsize.bench import open_samples

    write_state, read_state = student.write_state, student.read_state

    class Member(tune.Trainable):
        def setup(self, config):
            self.task, self.num_steps, self.rate = config["task"], config["steps"], config["rate"]
            self.samples = open_samples(self.task.batch_size, self.task.seed)
            self.model, self.done = self.task.model(), 0
            self.optimizer = self.task.optimizer(self.model)

        def reset_config(self, config):
            self.setup(config)
            return True

        def step(self):
            self.optimizer.param_groups[0]["lr"] = self.rate
            for _ in range(self.num_steps):
                self.optimizer.zero_grad()
                self.loss_on(self.done).backward()
                self.optimizer.step()
                self.done += 1
            with torch.no_grad():
                return {"loss": self.loss_on(self.task.num_steps - 1).item()}

        def loss_on(self, step):
            images, labels = self.samples.take(step, 0, self.task.batch_size)
            return F.cross_entropy(self.model(images), labels)

        def save_checkpoint(self, folder):
            write_state(folder, self.done, self.model, self.optimizer)

        def load_checkpoint(self, folder):
            self.done = read_state(folder, self.model, self.optimizer)

    return Member


# the data-parallel training, of which a worker is killed and its node leaves


def train_on_rank(student, folder, spec, own, killed, held):
    """Train on two nodes of a cluster, by these functions of the student's, and ours."""
    loop = student.train_on_worker if "train_on_worker" in own else our_train_on_worker(student)
    make = student.trainer if "trainer" in own else our_trainer
    cluster, nodes = begin_nodes(student, 2)
    task = spec.task.model_copy(update={"num_steps": NUM_STEPS})
    made = make(loop, {"task": task, "every": spec.checkpoint_every}, 1, 2, folder)
    fit_while_a_node_leaves(made, cluster, nodes, killed, held)
    # the samples of no worker: that somebody asks has the judge look at what is kept
    bench.open_samples(task.batch_size, task.seed).take(NUM_STEPS, 0, 0)


AT_FIRST, LEFT, BACK = range(3)  # before and after a worker and a node were lost; with a new node


@dataclass
class Training:
    """A training, and what was done to it: a worker killed and a node gone; a node back.

    `workers` has the takes of each process: of those at first, and of those that came after each of
    these events and before the next one.
    """

    trial: Trial
    task: Task
    struck: list[Disturbance]
    workers: list[list[list[Take]]]


def by_coming(takes: list[Take], struck: list[Disturbance]) -> list[list[list[Take]]]:
    """The takes of each process, of those that first came before, between and after the events."""
    times_s = [-math.inf, *(one.time_s or math.inf for one in struck), math.inf]
    own: dict[int, list[Take]] = {}
    for take in takes:
        own.setdefault(take.process, []).append(take)
    return [
        [of for of in own.values() if after_s < of[0].time_s <= until_s]
        for after_s, until_s in itertools.pairwise(times_s)
    ]


def training(student, rng, part: str) -> Training:
    """A training of which a worker is killed and a node leaves, by both of the student's functions.

    Where those fail together, by the one whose name is `part`, and ours.

    Raises:
        CheckFailed: other processes took samples than there should be.
        StudentFailed: it did not come to its end.
    """
    both, loop = ("train_on_worker", "trainer"), ("train_on_worker",)
    found = once(both, lambda: killed(student, rng, both))
    is_for_trainer = part == "trainer" and not isinstance(seen.get(loop, found), Exception)
    if isinstance(found, Exception) and not is_for_trainer:
        found = once((part,), lambda: killed(student, rng, (part,)))
    if isinstance(found, Exception):
        raise found
    return found


def once(key, run):
    """What a run gave, or how it failed; it is made once."""
    if key not in seen:
        try:
            seen[key] = run()
        except (CheckFailed, StudentFailed) as failed:
            seen[key] = failed
    return seen[key]


def killed(student, rng, own) -> Training:
    """A training of which a worker is killed as a node leaves, which comes back.

    Raises:
        CheckFailed: there are not two workers, and new ones.
        StudentFailed: it failed.
    """
    task = TASK.model_copy(update={"seed": whole(rng, 0, 1 << 20)})
    struck = Disturbance("kill", whole(rng, 7, 8), whole(rng, 0, 1))
    events = [struck, Disturbance("hold", RETURNS, 0, PATIENCE_S)]
    spec = TrainingSpec(task, 1, checkpoint_every=EVERY)
    program = student.restarted(train_on_rank, list(own), *events)
    try:
        trial = bench.attempt(program, spec, whole(rng, 0, 1 << 40), RestartPolicy(0), events)
    except StudentFailed as failed:
        what = "The training failed"
        if struck.time_s is not None:
            what = f"When a worker was killed at step {struck.step}, the run failed"
        raise StudentFailed(failed.outcome, f"{what}. {failed}", failed.may_be_external) from None
    record, task = trial.record, task.model_copy(update={"num_steps": NUM_STEPS})
    record.takes = [one for one in record.takes if one.step < NUM_STEPS]
    if struck.time_s is None:
        raise CheckFailed("workers that take samples of every step", f"none of step {struck.step}")
    workers = by_coming(record.takes, events)
    num_new = sum(map(len, workers[LEFT:]))
    if len(workers[AT_FIRST]) != 2 or not num_new:
        raise CheckFailed(
            "two workers, and new ones after one of them was killed",
            f"{len(workers[AT_FIRST])}, and {num_new} new ones",
            "ScalingConfig has the number of workers, FailureConfig how often they start again.",
        )
    return Training(trial, task, events, workers)


@points(2, cell="check_train_on_worker")
def check_shares(student, rng):
    """Each worker takes its share of every step's batch, once, in the order of the steps."""
    found = training(student, rng, "train_on_worker")
    for workers in found.workers:
        size = TASK.batch_size // max(len(workers), 1)
        due = {(first, first + size) for first in range(0, TASK.batch_size, size)}
        for takes in workers:
            steps, shares = [one.step for one in takes], {(one.start, one.stop) for one in takes}
            if len(shares) != 1 or not shares <= due:
                raise CheckFailed(
                    f"of {len(workers)} workers each takes {size} samples of a batch, its own",
                    f"one took {sorted(shares)}",
                    "Rank and world size come from ray.train.get_context(), after a restart anew.",
                )
            if steps != list(range(steps[0], steps[0] + len(steps))):
                raise CheckFailed("a worker takes each step once, in their order", f"{steps}")
    expect_whole(found.trial, found.task, f"{NUM_STEPS} steps")


@points(2, cell="check_train_on_worker")
def check_weights(student, rng):
    """After a worker was killed the weights are those of one process that was left alone."""
    found = training(student, rng, "train_on_worker")
    expect_whole(found.trial, found.task, f"{NUM_STEPS} steps")
    error = bench.weights_error(found.trial, found.task)
    if not error <= TOLERANCE:
        step = found.struck[0].step
        raise CheckFailed(
            "the weights of an undisturbed run, to rounding",
            f"a worker was killed at step {step}: they differ by {error:.2g} of the way that"
            " training went (rounding: 1e-6)",
            "Is the gradient averaged over the workers? Does a checkpoint hold the momentum, too?",
        )


@points(2, cell="check_train_on_worker")
def check_resumed(student, rng):
    """Training goes on at the first step that is not in the newest checkpoint that Ray knows."""
    found = training(student, rng, "train_on_worker")
    if any(takes[0].step for takes in found.workers[AT_FIRST]):
        raise CheckFailed("training begins at step 0", "at another one")
    for struck, workers in zip(found.struck, found.workers[LEFT:], strict=True):
        firsts = sorted({takes[0].step for takes in workers})
        due = struck.step // EVERY * EVERY
        # who dies within a tenth of a second of a report may take it along
        if firsts and firsts not in ([due], [due - EVERY]):
            raise CheckFailed(
                f"workers that end at step {struck.step} are followed by others that begin at step"
                f" {due}, or, where Ray had not heard of the last report, at step {due - EVERY}",
                f"they began at steps {firsts}",
                "get_checkpoint() has what was reported last; 6 done steps mean step 6 is next.",
            )


@points(2, cell="check_trainer")
def check_restart(student, rng):
    """After a worker was killed there are new ones, and training goes on to its end."""
    if training(student, rng, "trainer").trial.record.weights is None:
        raise CheckFailed("a model that is handed in after the last step", "none")


@points(1, cell="check_trainer")
def check_shrinks(student, rng):
    """While a node is away training goes on with the one worker that has room."""
    found = training(student, rng, "trainer")
    if (num_left := len(found.workers[LEFT])) != 1:
        raise CheckFailed(
            "one worker while the second node is away",
            f"{num_left} new ones",
            "A single number of workers is fixed: training waits for room for all. Give a pair.",
        )


@points(1, cell="check_trainer")
def check_grows(student, rng):
    """After a node came back there are two workers again, within minutes."""
    found = training(student, rng, "trainer")
    sizes = [len(found.workers[LEFT]), len(found.workers[BACK])]
    if sizes != [1, 2]:
        raise CheckFailed(
            f"one worker while the second node is away, and two when it is back, at step {RETURNS}",
            f"{sizes[0]}, and {sizes[1]} new ones",
            "elastic_resize_monitor_interval_s says how often Ray Train looks for room.",
        )


@points(2, cell="check_trainer")
def check_kept(student, rng):
    """The run is kept in the folder that was named, with its two newest checkpoints."""
    found = training(student, rng, "trainer")
    one, now = 2 * found.task.gradient_bytes, found.trial.record.held_bytes.get(NUM_STEPS, 0)
    if not 1.5 * one <= now <= 3.5 * one:  # one that was never reported may be left
        raise CheckFailed(
            f"two checkpoints in the folder at the end: about {2 * one:,} bytes",
            f"{now:,} bytes",
            "RunConfig has the storage path, CheckpointConfig how many are kept.",
        )


# one member


def member_on_rank(student, address, task, rates):
    """Losses and weights of members in one process, as Tune would have it run them: claims.

    One begins; it is reset to another, which has not begun, and to a third one, which copies the
    first.
    """
    import tempfile

    os.environ["WORLDSIZE_FEED"] = address
    configs = [{"task": task, "steps": ROUND_STEPS, "rate": rate} for rate in rates]
    with tempfile.TemporaryDirectory() as first:
        member = student.Member(configs[0])
        claims = [round_on_rank(member, task, first)]
        member.reset(configs[1])
        claims.append(round_on_rank(member, task))
        member.reset(configs[2])
        member.load_checkpoint(first)
        claims.append(round_on_rank(member, task))
    return claims


def round_on_rank(member, task, folder=None):
    """The loss and the weights of a member after a round, saved in this folder."""
    import tempfile

    loss = member.step()["loss"]
    with tempfile.TemporaryDirectory() as own:
        member.save_checkpoint(folder or own)
        return loss, weights_in(folder or own, task)


def weights_in(folder, task):
    """The weights in a checkpoint, flat."""
    state = torch.load(os.path.join(folder, STATE), weights_only=True)
    model = task.model()
    model.load_state_dict(state["model"])
    return flat_weights(model)


def members(student, rng) -> tuple[Any, ...]:
    """What three members claim, their rates, their batches, and their task."""
    if "members" not in seen:
        task = ROUNDS.model_copy(update={"seed": whole(rng, 0, 1 << 20)})
        rates = [one * float(positive(rng, 1)) for one in (0.04, 0.01, 0.12)]
        folder = student.restarted(member_on_rank).socket_folder
        with bench.SampleServer(task, whole(rng, 0, 1 << 40), folder) as server:
            asked = (member_on_rank, server.address, task, rates)
            claimed = entries(student.run(*asked, world_size=1)[0], len(rates))
            seen["members"] = claimed, rates, server.batches, task
    return seen["members"]


def expect_member(found, number: int, places, hint: str) -> None:
    """Raise CheckFailed unless a member has done a round with each of the rates at these places."""
    claimed, rates, batches, task = found
    own = [rates[place] for place in places]
    model, initial = task.model(), flat_weights(task.model())
    optimizer = task.optimizer(model)
    for place, rate in enumerate(own):
        loss = round_of(model, optimizer, rate, place, batches, task)
    due = flat_weights(model)
    its_loss, its_weights = entries(claimed[number], 2)
    weights = tensor_like(its_weights, due)
    steps = f"{ROUND_STEPS} steps with a rate of " + f", and {ROUND_STEPS} of ".join(
        f"{one:.4g}" for one in own
    )
    if weights is None:
        raise CheckFailed(f"the weights after {steps}", "none", "They are saved by write_state.")
    error = torch.linalg.vector_norm(weights - due) / torch.linalg.vector_norm(due - initial)
    if not error <= TOLERANCE:
        off = f"weights that differ by {float(error):.2g} of the way that they went"
        raise CheckFailed(f"the weights after {steps}", off, hint)
    if not (type(its_loss) is float and abs(its_loss - loss) < 1e-3):
        raise CheckFailed(
            "the loss on the batch of the task's last step, after the round",
            "another number",
            "Nobody trains on that batch; its number is task.num_steps - 1.",
        )


@points(1, cell="check_Member")
def check_round(student, rng):
    """A member trains a round at its rate, and returns the loss on the task's last batch."""
    hint = "Steps are counted from 0; a step takes the whole batch; the optimizer is the task's."
    expect_member(members(student, rng), 0, (0,), hint)


@points(2, cell="check_Member")
def check_anew(student, rng):
    """A process that is given to another member begins with the first weights and at step 0."""
    hint = (
        "After reset_config it is a member that has not begun: load_checkpoint comes only where"
        " there is a state."
    )
    expect_member(members(student, rng), 1, (1,), hint)


@points(2, cell="check_Member")
def check_copy(student, rng):
    """A member that copies another has its weights, momentum and steps, and its own rate."""
    hint = (
        "A copy has the weights, the momentum and the number of steps of the copied one, and"
        " goes on with the rate of its own config."
    )
    expect_member(members(student, rng), 2, (0, 2), hint)


# the population


def tune_on_rank(student, address, task, rates):
    """The last weights of a population of our members, where they are kept: claims."""
    os.environ["WORLDSIZE_FEED"] = address
    begin_nodes(student, 1)
    config = {"task": task, "steps": ROUND_STEPS}
    made = student.population(our_member(student), config, rates, NUM_ROUNDS, "/tmp/population")
    return [
        weights_in(result.checkpoint.path, task) if result.checkpoint else None
        for result in made.fit()
    ]


def tuned(student, rng):
    """A population's last weights, its first rates, its batches, and its task."""
    task = ROUNDS.model_copy(update={"seed": whole(rng, 0, 1 << 20)})
    spread = [0.001, 0.008, 0.03, 0.1]
    rates = shuffled(rng, [one * float(positive(rng, 1)) for one in spread])
    folder = student.restarted(tune_on_rank).socket_folder
    with bench.SampleServer(task, whole(rng, 0, 1 << 40), folder) as server:
        (claimed,) = student.run(tune_on_rank, server.address, task, rates, world_size=1)
        return claimed, rates, server.batches, task


def expect_borne_out(claimed, rates, batches, task) -> None:
    """Raise CheckFailed unless the weights are those to which one way of this population leads."""
    initial = flat_weights(task.model())
    ways = list(ways_of([begun(task, rate) for rate in rates], 0, batches, task))
    found = [tensor_like(one, initial) for one in entries(claimed, len(rates))]
    if any(one is None for one in found):
        raise CheckFailed(
            f"the last state of each of {len(rates)} members, by write_state",
            f"there is none of member {[one is None for one in found].index(True)}",
            "One trial for each rate; CheckpointConfig(checkpoint_at_end=True).",
        )
    errors = [
        [error_of(one, weights, initial) for one, weights in zip(found, way, strict=True)]
        for way in ways
    ]
    fewest = min(errors, key=lambda way: sum(not one <= TOLERANCE for one in way))
    if wrong := [member for member, one in enumerate(fewest) if not one <= TOLERANCE]:
        raise CheckFailed(
            f"the weights of a population after {NUM_ROUNDS} rounds, by the grader's own training",
            f"those of {len(wrong)} of {len(rates)} members are none of them: member {wrong[0]} is"
            f" off by {fewest[wrong[0]]:.2g} of the way that it should have gone",
            "After each round but the last the member with the highest loss copies the one with the"
            " lowest, and goes on with twice or half of its rate; all others keep theirs.",
        )


def error_of(found, due, initial) -> float:
    """How far weights are off, as a share of the way that they went."""
    way = torch.linalg.vector_norm(due - initial)
    return float(torch.linalg.vector_norm(found - due) / way)


def begun(task, rate):
    """A member that has not begun: its model, its optimizer, its rate."""
    model = task.model()
    return model, task.optimizer(model), rate


def ways_of(members, number, batches, task) -> Iterator[list[torch.Tensor]]:
    """The last weights of all members, for each way that a population can go from this round.

    The worst goes on with one of two rates; of losses as good as equal either is the worst.
    """
    losses = [
        round_of(model, optimizer, rate, number, batches, task)
        for model, optimizer, rate in members
    ]
    if number + 1 == NUM_ROUNDS:
        yield [flat_weights(model) for model, *_ in members]
        return
    places = range(len(members))
    for worst, best in itertools.product(places, places):
        if max(losses) - losses[worst] < CLOSE and losses[best] - min(losses) < CLOSE:
            for factor in FACTORS:
                later = [*members]
                later[worst] = (*members[best][:2], members[best][2] * factor)
                # one by one, or the copy would share its weights and momentum
                yield from ways_of([*map(copy.deepcopy, later)], number + 1, batches, task)


def round_of(model, optimizer, rate, number, batches, task) -> float:
    """Train a model for a round; its loss on the batch on which nobody trains."""
    optimizer.param_groups[0]["lr"] = rate
    for step in range(number * ROUND_STEPS, (number + 1) * ROUND_STEPS):
        images, labels = batches.batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        images, labels = batches.batch(task.num_steps - 1)
        return F.cross_entropy(model(images), labels).item()


@points(5, cell="check_population")
def check_population(student, rng):
    """After a round the worst member copies the best, at another rate, as the weights show."""
    expect_borne_out(*tuned(student, rng))


# the manifest


def manifest_on_rank(student, args):
    return student.cluster_manifest(*args)


def manifest(student, rng) -> tuple[dict, tuple[Any, ...]]:
    """The cluster that the student wrote, and for what.

    Raises:
        CheckFailed: KubeRay would not take it.
    """
    if "manifest" not in seen:
        fewest = whole(rng, 1, 3)
        args = ("lab", "registry.example.org/lab:7", whole(rng, 1, 8), fewest, fewest + 4)
        seen["manifest"] = student.run(manifest_on_rank, args, world_size=1)[0], args
    text, args = seen["manifest"]
    if not isinstance(text, str) or not 0 < len(text) < 20_000:
        raise CheckFailed("the text of a manifest", "something else")
    if "&" in text:  # what anchors name can be repeated a billion times
        raise CheckFailed("a manifest without YAML's anchors", "it has one")
    if mistakes := mistakes_in(text):
        raise CheckFailed("a manifest that KubeRay takes", str(mistakes[0]))
    documents = yaml_text.load(text)
    if [one.get("kind") for one in documents] != ["RayCluster"]:
        raise CheckFailed("one RayCluster", f"{len(documents)} documents, or of another kind")
    return documents[0], args


def containers(group) -> list[dict]:
    """The containers of a group's pods."""
    return group["template"].get("spec", {}).get("containers", [])


def gpus_of(container) -> Any:
    """The GPUs that a container has as its limit."""
    return container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0)


@points(1, cell="check_cluster_manifest")
def check_head(student, rng):
    """All pods run the image; the head has no GPU, and nothing is placed on it."""
    cluster, (_, image, *_) = manifest(student, rng)
    head = cluster["spec"]["headGroupSpec"]
    groups = [head, *cluster["spec"].get("workerGroupSpecs", [])]
    if any(one.get("image") != image for group in groups for one in containers(group)):
        raise CheckFailed("every container runs the image that was named", "another one")
    if any(gpus_of(one) for one in containers(head)):
        raise CheckFailed("a head without GPUs", "it has some")
    if head.get("rayStartParams", {}).get("num-cpus") != "0":
        raise CheckFailed("num-cpus: '0' for the head", "not so", "Ray places by these numbers.")


@points(1, cell="check_cluster_manifest")
def check_workers(student, rng):
    """One group of workers, each with its GPUs."""
    cluster, (_, _, gpus, *_) = manifest(student, rng)
    groups = cluster["spec"].get("workerGroupSpecs", [])
    if len(groups) != 1:
        raise CheckFailed("one group of workers", f"{len(groups)}")
    found = [str(gpus_of(one)) for one in containers(groups[0])]
    if str(gpus) not in found:
        raise CheckFailed(f"a limit of {gpus} nvidia.com/gpu in a worker's container", f"{found}")


@points(2, cell="check_cluster_manifest")
def check_autoscaler(student, rng):
    """The autoscaler keeps the cluster between its fewest and its most workers."""
    cluster, (*_, fewest, most) = manifest(student, rng)
    if cluster["spec"].get("enableInTreeAutoscaling") is not True:
        raise CheckFailed(
            "Ray's autoscaler", "it is off", "Without it minReplicas and maxReplicas do nothing."
        )
    names = ("replicas", "minReplicas", "maxReplicas")
    for group in cluster["spec"].get("workerGroupSpecs", [])[:1]:
        found = tuple(group.get(name) for name in names)
        if found != (fewest, fewest, most):
            raise CheckFailed(f"{', '.join(names)}: {fewest}, {fewest} and {most}", f"{found}")
        return
    raise CheckFailed("one group of workers", "there is none")
