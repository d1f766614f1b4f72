"""Hidden checks of project 1: the process that feeds the program, or the wire, has seen it all."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from autograder.checks import (
    described,
    disturbed,
    expect_losses,
    expect_resumed,
    expect_same_way,
    expect_undisturbed_weights,
    expect_weights,
    expect_whole,
    grade_speed,
    points,
)
from worldsize import bench, operators
from worldsize.bench import CLASSROOM, Disturbance, RestartPolicy, Task, TrainingSpec, Trial
from worldsize.bench.machine import matrix_flops_per_s
from worldsize.check import CheckFailed
from worldsize.emulate.launcher.exchanges import Exchange

NAME = "train.py"
TASK = Task()
WARMUP = 4
MOST = 24  # timings of each program: other work on the machine only makes times longer;
ENOUGH_TIMINGS = 14  # of one that seems slow; before that it is timed again
STANDS = 4  # timings that bring no better best of either, at which they end;
BETTER = 0.97  # of the best so far
# of the reference's speed: no points, full points. Virtual time has no noise; without overlap a
# program has 68%
MEASURED, EMULATED = (0.25, 0.75), (0.7, 0.9)
FLOOR_SHARE = 3.0  # how much faster than the fastest matrix product no convolution runs
NUM_TIMED = 12
NUM_EMULATED = 6  # steps that are timed in virtual time, which has no noise
LOSS_BYTES = 16  # of a collective that carries no gradients
# the largest numbers of a gradient that are looked for on the wire, the share of them that must be
# there, how closely, and how many larger ones, such as a loss, may travel with them
NUM_LARGEST, FOUND_SHARE, GRADIENT_TOLERANCE, NUM_OTHERS = 500, 0.95, 1e-4, 8
LOST_S_SHARE = 0.9  # of the arithmetic of a rank's samples that its timeline must hold
LINE = '{"step": 0, "loss": 2.31, "sent_bytes": 309736}'
EVERY = 5  # steps between checkpoints
TIMEOUT_S = 6.0


# trials of this submission that more than one check looks at; every submission has a judge of its
# own
seen = {}


def seed_of(rng):
    return int(torch.randint(1 << 40, (1,), generator=rng))


def between(rng, low, high):
    """A whole number from `low` to `high`, both included."""
    return int(torch.randint(low, high + 1, (1,), generator=rng))


def task_with(rng, **changes):
    return TASK.model_copy(update={"seed": between(rng, 1, 1 << 20), **changes})


AVERAGES = (
    "Is the gradient the average over all samples of the global batch, on every rank, before every"
    " step? Skipped exchanges, sums in place of means, and the mean over ranks of means over"
    " unequal shares all end here."
)


def expect_shares(trial: Trial, task: Task, world_size: int, what: str) -> None:
    """Raise CheckFailed unless every rank, a process of its own, took an equal share of samples."""
    fewest, most = task.batch_size // world_size, -(-task.batch_size // world_size)
    for step in range(task.num_steps):
        takes = {(one.process, one.start, one.stop) for one in trial.record.takes if one.step == step}
        sizes: dict[int, int] = {}
        for process, first, stop in takes:
            sizes[process] = sizes.get(process, 0) + stop - first
        if len(sizes) != world_size or sum(sizes.values()) != task.batch_size or not fits(sizes, fewest, most):
            took = ", ".join(map(str, sorted(sizes.values())))
            raise CheckFailed(
                f"each of {world_size} ranks takes its own {fewest}{f' or {most}' * (most > fewest)} samples of a step",
                f"{what}: {len(sizes)} of them took {took} of the {task.batch_size} samples of step {step}",
                "`my_samples` gives every rank another part of the batch, and every rank asks for that part itself.",
            )


def fits(sizes: dict[int, int], fewest: int, most: int) -> bool:
    return all(fewest <= size <= most for size in sizes.values())


@points(3, cell="check_my_samples")
def check_shares(student, rng):
    """On 3 ranks, with a batch that 3 does not divide, every rank takes its own part, all about equal."""
    task = task_with(rng, num_steps=2, batch_size=3 * between(rng, 15, 20) + 1)
    trial = bench.attempt(student.program(NAME), TrainingSpec(task, 3), seed_of(rng))
    what = f"2 steps on 3 ranks with {task.batch_size} samples"
    expect_whole(trial, task, what)
    expect_shares(trial, task, 3, what)


@points(2, cell="check_replica")
def check_alone(student, rng):
    """One rank trains as one process does."""
    task = task_with(rng, num_steps=10, batch_size=64)
    trial = bench.attempt(student.program(NAME), TrainingSpec(task, 1), seed_of(rng))
    expect_weights(
        trial,
        task,
        "10 steps on 1 rank",
        "SGD with the momentum that the flags name, from the seed's weights",
    )


@points(2, cell="check_replica")
def check_gradients_travel(student, rng):
    """On 2 ranks, each computes the gradient of its own samples in every step, and sends it."""
    expect_gradients_sent(emulated_steps(student.program(NAME), rng, 2, batch_size=64))


@points(2, cell="check_replica")
def check_gradient(student, rng):
    """After one step on 2 ranks the weights are those of one process."""
    task = task_with(rng, num_steps=1)
    trial = bench.attempt(student.program(NAME), TrainingSpec(task, 2), seed_of(rng))
    expect_weights(trial, task, "one step on 2 ranks", AVERAGES)


@points(4, cell="check_replica")
def check_uneven(student, rng):
    """The same on 3 ranks with unequal shares: every sample counts alike."""
    task = task_with(rng, num_steps=1, batch_size=3 * between(rng, 5, 10) + 1)
    trial = bench.attempt(student.program(NAME), TrainingSpec(task, 3), seed_of(rng))
    expect_weights(trial, task, f"one step on 3 ranks with {task.batch_size} samples", AVERAGES)


@points(4, cell="check_main")
def check_training(student, rng):
    """After 20 steps on 2 ranks the weights are those of one process."""
    trial, task = trained(student, rng)
    expect_weights(trial, task, "20 steps on 2 ranks", AVERAGES)


@points(3, cell="check_main")
def check_losses(student, rng):
    """Rank 0 prints a line for every step, with the loss of the whole global batch before that
    step.
    """
    trial, task = trained(student, rng)
    expect_losses(trial, task, "20 steps on 2 ranks", LINE)
    seen["losses"] = True


def trained(student, rng) -> tuple[Trial, Task]:
    """A training of 20 steps on 2 ranks, for two checks."""
    if "training" not in seen:
        task = task_with(rng, num_steps=20, batch_size=64)
        seen["training"] = (
            bench.attempt(student.program(NAME), TrainingSpec(task, 2), seed_of(rng)),
            task,
        )
    return seen["training"]


# the wire, as the conductor of the emulated cluster saw it


@dataclass
class EmulatedSteps:
    """Two trainings on the same batches and emulated ranks, the second longer by some steps: those steps."""

    task: Task  # of the longer one
    short: Trial
    long: Trial
    num_ranks: int
    num_steps: int  # by which it is longer
    collectives: list[Exchange]  # of the longer one, in the order of virtual time
    num_a_step: int
    tail: int = 0  # collectives after the last step

    @property
    def step_s(self) -> float:
        """Seconds of a step, in virtual time."""
        return (self.long.result.timeline.end_s - self.short.result.timeline.end_s) / self.num_steps

    def of_step(self, number: int) -> list[Exchange]:
        """The collectives of one of the steps, 0 for the first of those by which the trainings differ."""
        stop = len(self.collectives) - self.tail - (self.num_steps - 1 - number) * self.num_a_step
        return self.collectives[stop - self.num_a_step : stop]


def emulated_steps(program, rng, world_size: int, **changes) -> EmulatedSteps:
    """The steps by which the longer of two trainings in the classroom is longer; where they begin is drawn.

    Raises:
        CheckFailed: they do not all have as many collectives.
    """
    num_before = WARMUP + between(rng, 0, 2)
    long_task = task_with(rng, num_steps=num_before + NUM_EMULATED, **changes)
    short_task, seed = long_task.model_copy(update={"num_steps": num_before}), seed_of(rng)
    specs = [TrainingSpec(task, world_size, CLASSROOM, keeps_exchanges=True) for task in (long_task, short_task)]
    long, short = (bench.attempt(program, spec, seed) for spec in specs)
    for trial, spec in ((long, specs[0]), (short, specs[1])):
        expect_whole(trial, spec.task, f"{spec.task.num_steps} steps on {world_size} emulated ranks")
    before, collectives = (gradient_collectives(one.result.exchanges) for one in (short, long))
    num_a_step, rest = divmod(len(collectives) - len(before), NUM_EMULATED)
    if rest or not num_a_step:
        raise CheckFailed(
            "gradients that go by collectives of torch.distributed, in the same way in every step",
            f"{len(before)} collectives in {num_before} steps, {len(collectives)} in {long_task.num_steps}",
            "Average the gradients in every step, by all_reduce, or reduce_scatter and all_gather.",
        )
    return EmulatedSteps(long_task, short, long, world_size, NUM_EMULATED, collectives, num_a_step)


def gradient_collectives(exchanges) -> list[Exchange]:
    """Those that may carry gradients: a loss is smaller, and a broadcast adds nothing up."""
    return [
        one
        for one in exchanges
        if one.op not in ("broadcast", "barrier", "send") and max(map(len, one.bodies.values())) > LOSS_BYTES
    ]


def expect_gradients_sent(steps: EmulatedSteps) -> None:
    """Raise CheckFailed unless each rank puts the gradient of its samples into the collectives of a step.

    Which of the last collectives belong to no step is found on the way, and kept as `steps.tail`.
    """
    gradients = first_gradients(steps)
    culprit = None
    for tail in range(steps.num_a_step):
        steps.tail = tail
        collectives = steps.of_step(0)
        others = [rank for rank, gradient in gradients.items() if not carries(numbers_of(collectives, rank), gradient)]
        if not others:
            return
        culprit = others[0] if culprit is None else culprit
    raise CheckFailed(
        "every rank puts the gradient of its own samples into the collectives of a step, in float32",
        f"{len(gradients)} emulated ranks: in step {steps.short.record.takes[-1].step + 1} rank {culprit} sent"
        " other numbers",
        "Compute the gradient of this rank's samples first; average it by collectives, and use what arrives.",
    )


def first_gradients(steps: EmulatedSteps) -> dict[int, torch.Tensor]:
    """The gradient of each rank's samples in the first of the steps, summed over them.

    It starts from the weights that the shorter training has handed in, so that a program with another mean than it
    should have is judged by its own.
    """
    number, model = steps.task.num_steps - steps.num_steps, steps.task.model()
    torch.nn.utils.vector_to_parameters(steps.short.record.weights, model.parameters())
    images, labels = steps.long.batches.batch(number)
    gradients = {}
    for rank in range(steps.num_ranks):
        parts = [one for one in steps.long.record.takes if (one.rank, one.step) == (rank, number)]
        mine = torch.cat([torch.arange(0), *(torch.arange(one.start, one.stop) for one in parts)])
        model.zero_grad()
        functional.cross_entropy(model(images[mine]), labels[mine], reduction="sum").backward()
        gradients[rank] = torch.cat([one.grad.flatten() for one in model.parameters()])
    return gradients


def numbers_of(collectives, rank: int) -> torch.Tensor:
    """All float32 that a rank puts into these collectives, in ascending order."""
    mine = [one.tensor(rank) for one in collectives if rank in one.bodies and one.dtype == "float32"]
    return torch.cat([torch.empty(0), *mine]).sort().values


def carries(sent: torch.Tensor, gradient: torch.Tensor) -> bool:
    """True if the largest numbers of the gradient, all times one factor, are the largest of these, in any order.

    The factor may be that of a mean. A few larger ones, such as a loss, may travel with them, and those of a sum.
    """
    if len(sent) < len(gradient) or not sent.isfinite().all():
        return False
    wanted = gradient[gradient.abs().topk(NUM_LARGEST).indices]
    for largest in sent.abs().topk(NUM_OTHERS).values:
        scaled = wanted * (largest / wanted.abs().max())
        places = torch.searchsorted(sent, scaled).clamp(1, len(sent) - 1)
        off = torch.minimum((sent[places] - scaled).abs(), (sent[places - 1] - scaled).abs())
        found = (off <= GRADIENT_TOLERANCE * scaled.abs()).float().mean()
        num_as_large = int((sent.abs() >= scaled.abs().min()).sum())  # many lie close to any number
        if found >= FOUND_SHARE and num_as_large <= 2 * NUM_LARGEST:
            return True
    return False


def expect_waits(steps: EmulatedSteps, least_s: float) -> None:
    """Raise CheckFailed unless a rank's last collective of a step comes a step's work after those of the step before.

    The new weights need the whole sum of the step before, and the last gradient the whole forward and backward pass.
    """
    for number in range(1, steps.num_steps):
        before, after = steps.of_step(number - 1), steps.of_step(number)
        for rank in range(steps.num_ranks):
            came_s = max(one.done_s[rank] for one in before)
            between_s = max(one.posted_s[rank] for one in after) - came_s
            if between_s < least_s:
                raise CheckFailed(
                    "every rank waits for the sums of a step, then computes the whole next one",
                    f"rank {rank} sent its last gradients {1e3 * between_s:.3g} ms after those of the step before had"
                    f" come; the arithmetic alone takes {1e3 * least_s:.3g} ms",
                    "Call wait() on every collective before the optimizer's step.",
                )


# speed


# a time that was measured moves with whatever else the machine does, and so decides the lesser part
@points(5, cell="check_fast", needs=["check_training"])
def check_speed_at_2(student, rng):
    """On 2 ranks, each with its own half, the program is as fast as the reference, timed in turns:
    full points from 75%.
    """
    reference, program = student.reference(NAME), student.program(NAME)
    if num_real() < 2:
        grade_emulated_speed(student, rng, 2)
        return
    ours, theirs = [], []
    while len(ours) < MOST and not (stands(ours) and stands(theirs) and is_clear(ours, theirs)):
        ours.append(step_s(reference, rng, is_theirs=False))
        theirs.append(step_s(program, rng, is_theirs=True))
    refuse_impossible(min(theirs))
    grade_speed(min(ours) / min(theirs), min(theirs), "on 2 real ranks", MEASURED)


@points(20, cell="check_fast", needs=["check_gradients_travel"])
def check_speed_at_4(student, rng):
    """On four emulated machines with Gigabit Ethernet the program is as fast as the reference: full
    points from 90%.
    """
    grade_emulated_speed(student, rng, 4)


def grade_emulated_speed(student, rng, world_size: int) -> None:
    theirs = emulated_steps(student.program(NAME), rng, world_size)
    what = f"{theirs.task.num_steps} steps on {world_size} emulated ranks"
    expect_shares(theirs.long, theirs.task, world_size, what)
    expect_same_way(theirs.long, theirs.task, what, AVERAGES)
    rate = operators.flops_per_s("matmul", "float32", CLASSROOM.gpu)
    least_s = LOST_S_SHARE * flops_of_a_step(TASK) / world_size / rate
    expect_work(theirs, world_size, least_s)
    expect_gradients_sent(theirs)
    expect_waits(theirs, least_s)
    ours = emulated_steps(student.reference(NAME), rng, world_size)
    grade_speed(ours.step_s / theirs.step_s, theirs.step_s, f"on {world_size} emulated ranks", EMULATED)


def expect_work(steps: EmulatedSteps, world_size: int, least_s: float) -> None:
    """Raise CheckFailed unless every rank reports the work that its samples need."""
    for rank in range(world_size):
        work = [one for one in steps.long.result.timeline.of(rank) if one.stream == "compute"]
        worked_s = sum(one.duration_s for one in work) / steps.task.num_steps
        if worked_s < least_s:
            raise CheckFailed(
                f"at least {1e3 * least_s:.3g} ms a step, which the arithmetic of a rank's samples takes",
                f"rank {rank}: {1e3 * worked_s:.3g} ms a step on {world_size} emulated ranks",
                "Every rank computes the whole forward and backward pass of its samples, in its own process.",
            )


def stands(times_s: list[float]) -> bool:
    """True if the last few of these times are no better than the best before them."""
    return len(times_s) > STANDS and min(times_s) > BETTER * min(times_s[:-STANDS])


def is_clear(ours: list[float], theirs: list[float]) -> bool:
    """True if the student's program is fast enough, or has had enough timings to show it."""
    return min(ours) / min(theirs) >= MEASURED[1] or len(theirs) >= ENOUGH_TIMINGS


def num_real() -> int:
    return torch.cuda.device_count() or len(os.sched_getaffinity(0))


def step_s(program, rng, is_theirs: bool) -> float:
    """Seconds of a step on 2 ranks after the warm-up; the student's weights are compared, too."""
    task = task_with(rng, num_steps=WARMUP + NUM_TIMED)
    trial = bench.attempt(program, TrainingSpec(task, 2), seed_of(rng))
    if is_theirs:
        what = f"{task.num_steps} steps on 2 real ranks"
        expect_weights(trial, task, what, AVERAGES)
        expect_shares(trial, task, 2, what)
    return trial.record.window_s(WARMUP) / NUM_TIMED


def flops_of_a_step(task: Task) -> float:
    model = task.model()
    images, labels = bench.Batches(0, task.batch_size).batch(0)
    with FlopCounterMode(display=False) as counter:
        functional.cross_entropy(model(images), labels).backward()
    return counter.get_total_flops()


def refuse_impossible(step_s: float) -> None:
    """Raise CheckFailed for a time that is shorter than the step's arithmetic can take."""
    if torch.cuda.is_available():
        return  # the rate of a GPU is not measured by this process, which must not touch one
    floor_s = flops_of_a_step(TASK) / (matrix_flops_per_s(1) * FLOOR_SHARE * num_real())
    if step_s < floor_s:
        raise CheckFailed(
            f"at least {1e3 * floor_s:.2g} ms a step, which its arithmetic takes at this machine's best rate",
            f"{1e3 * step_s:.2g} ms a step",
            "A step does the whole forward and backward pass of its batch.",
        )


# accounting


@points(5, cell="check_accounting", needs=["check_gradients_travel"])
def check_bytes(student, rng):
    """The bytes that rank 0 says it sends for a step are those on the wire, on 2 ranks and on 4,
    within 2%.
    """
    for world_size in (2, 4):
        claimed, wire = bytes_per_step(student, rng, world_size)
        if not wire:
            raise CheckFailed("bytes on the wire in every step", f"none on {world_size} ranks", "Exchange gradients.")
        if claimed is None or abs(claimed - wire) > 0.02 * wire:
            raise CheckFailed(
                f"on {world_size} ranks, the {wire:,.0f} bytes that rank 0 sends for a step, within 2%",
                f"its lines say {'nothing' if claimed is None else f'{claimed:,.0f}'}",
                "A ring all-reduce of S bytes sends 2(N - 1)/N of them from every rank; a float32 has 4.",
            )


@points(3, cell="check_accounting", needs=["check_gradients_travel"])
def check_no_more_than_needed(student, rng):
    """A step sends at most 5% more than a ring all-reduce of the gradients."""
    task = task_with(rng)
    needed = 2 * 3 / 4 * task.gradient_bytes
    _, wire = bytes_per_step(student, rng, 4)
    if abs(wire - needed) > 0.05 * needed:
        raise CheckFailed(
            f"{needed:,.0f} bytes from rank 0 a step on 4 ranks, within 5%",
            f"{wire:,.0f}",
            (
                "An all-reduce of the gradients in float32 is enough; gathering everybody's, or"
                " sending weights, is more."
                if wire > needed
                else "every rank takes part in an all-reduce of all gradients, in every step"
            ),
        )


def bytes_per_step(student, rng, world_size: int):
    """The bytes that rank 0 claims to send for a step, and those on the emulated wire."""
    if world_size not in seen:
        program, tasks = (
            student.program(NAME),
            [task_with(rng, num_steps=one, batch_size=64) for one in (2, 6)],
        )
        trials = [bench.attempt(program, TrainingSpec(task, world_size, CLASSROOM), seed_of(rng)) for task in tasks]
        expect_whole(trials[1], tasks[1], f"6 steps on {world_size} emulated ranks")
        short, long = (trial.result for trial in trials)
        lines = {line.step: line.sent_bytes for line in long.lines}
        claimed = statistics.mean(lines.values()) if lines else None
        seen[world_size] = claimed, (long.timeline.bytes_sent(0) - short.timeline.bytes_sent(0)) / 4
    return seen[world_size]


@points(3, cell="check_accounting", needs=["check_gradients_travel"])
def check_no_sync(student, rng):
    """With --no-sync a step sends nothing, so that the difference in time is the cost of
    communication.
    """
    program = student.program(NAME)
    sent = []
    for steps in (2, 6):
        task = task_with(rng, num_steps=steps, batch_size=64)
        trial = bench.attempt(program, TrainingSpec(task, 2, CLASSROOM, is_synchronised=False), seed_of(rng))
        expect_whole(trial, task, f"{steps} steps on 2 ranks with --no-sync")
        sent.append(trial.result.timeline.bytes_sent(0))
    if sent[1] - sent[0] > 4 * 64:
        raise CheckFailed(
            "no gradient and no loss goes over the wire",
            f"rank 0 sent {(sent[1] - sent[0]) / 4:,.0f} bytes a step",
            "Compute as before, and leave out every collective inside the loop.",
        )


# recovery


@points(10, cell="check_recovery", needs=["check_gradients_travel"])
def check_killed(student, rng):
    """A rank is killed at a secret step: after torchrun's restart training goes on from the newest
    checkpoint.
    """
    recover(student, rng, "kill", RestartPolicy(max_restarts=2), allowed_loss=EVERY)


@points(9, cell="check_recovery", needs=["check_gradients_travel"])
def check_stalled(student, rng):
    """A rank stops without a word: the others give up after --timeout seconds, and all go on from a
    checkpoint.
    """
    recover(student, rng, "stall", RestartPolicy(max_restarts=2), allowed_loss=EVERY)


@points(9, cell="check_recovery", needs=["check_gradients_travel"])
def check_truncated(student, rng):
    """The whole job dies and the newest checkpoint is cut in half: the same command goes on from
    the one before.
    """
    recover(
        student,
        rng,
        "kill",
        RestartPolicy(max_restarts=1, is_begun_anew=True),
        allowed_loss=2 * EVERY,
    )


def recover(student, rng, kind: str, restart_policy: RestartPolicy, allowed_loss: int) -> None:
    # two steps after a checkpoint at the least, so that one which is written beside the training is
    # there
    struck = Disturbance(
        kind,
        between(rng, 2 * EVERY + 2, 3 * EVERY - 1),
        between(rng, 0, 1),
        patience_s=4 * TIMEOUT_S,
    )
    task = task_with(rng, num_steps=20, batch_size=64)
    spec = TrainingSpec(task, 2, checkpoint_every=EVERY, timeout_s=TIMEOUT_S)
    what, seed = described(struck, restart_policy), seed_of(rng)
    trial = disturbed(student.program(NAME), spec, seed, restart_policy, struck)
    resumed = expect_resumed(trial, task, struck, allowed_loss, what)
    hint = "A checkpoint holds all that the next step needs: weights, momentum, step."
    if resumed % EVERY:
        hint = (
            f"It went on at step {resumed}; a checkpoint after {EVERY} steps is followed by step"
            f" {EVERY}, as they are counted from 0. Was a step done twice, or left out?"
        )
    expect_undisturbed_weights(student.program(NAME), trial, spec, seed, what, (hint, AVERAGES))
    if "losses" in seen:  # lines that are wrong without any failure have cost their points already
        expect_losses(trial, task, what, LINE)


# analysis


@points(4, cell="check_amdahl_fit")
def check_amdahl_fit(student, rng):
    """`amdahl_fit` finds the serial fraction behind the times, even if they are noisy."""
    for noise in (0.0, 0.01):
        serial = 0.02 + 0.4 * float(torch.rand((), generator=rng))
        sizes = [1, 2, 4, 8, 16]
        times = [
            3.7 * (serial + (1 - serial) / size) * (1 + noise * float(torch.randn((), generator=rng))) for size in sizes
        ]
        found = student.run(fit_on_rank, sizes, times, world_size=1)[0]
        if not (isinstance(found, float) and abs(found - serial) <= 0.005 + 3 * noise):  # nan is near nothing
            raise CheckFailed(
                f"the serial fraction {serial:.3f} from step times {', '.join(f'{one:.3f}' for one in times)}",
                f"{found!r:.80}",
                "T(N) = T(1) (s + (1 - s) / N); fit s by least squares over all sizes, not from one of them.",
            )


def fit_on_rank(student, sizes, times):
    return float(student.amdahl_fit(sizes, times))
