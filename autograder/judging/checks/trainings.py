"""Checks of a training by a submitted program: complete, right, as fast as ours, and resumed after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autograder.judging.checks.check import PartlyHeld, StudentFailed
from worldsize.check import CheckFailed

if TYPE_CHECKING:
    from worldsize.bench import Disturbance, Program, RestartPolicy, Task, TextTask, TrainingSpec, Trial

# of the distance that the weights moved; a sum in another order differs by 1e-6 to 1e-4, a lost sample by 5e-3
_TOLERANCE = 2e-3
_LOSS_TOLERANCE = 2e-3
_SAME_WAY = 0.5  # the least cosine between the directions in which the weights moved


def expect_whole(trial: Trial, task: Task | TextTask, what: str) -> None:
    """Raise CheckFailed unless every sample of every step was handed out and weights came back."""
    if missed := trial.record.missed(task):
        raise CheckFailed(
            f"every sample of all {task.num_steps} global batches is taken by exactly one rank",
            f"{what}: samples of step {missed[0]} were never asked for",
            "The shares of all ranks together are the whole batch; look at what the last rank takes.",
        )
    if trial.record.weights is None:
        raise CheckFailed(
            "one rank calls samples.hand_in(model) after the last step",
            f"{what}: the program ended without handing in its weights",
            "`main` ends by handing in the model, on rank 0.",
        )


def expect_in_order(trial: Trial, what: str) -> None:
    """Raise CheckFailed unless each process took one step after the other, and a share of each.

    Otherwise a process that is started again could ask for the due step first, and train the earlier ones after it.
    """
    taken: dict[int, int] = {}
    for take in trial.record.takes:
        if not take.process:  # the system does not say who asked
            continue
        due = taken.get(take.process, take.step - 1) + 1
        if take.start == take.stop or take.step not in (due, due - 1):
            raise CheckFailed(
                "each process takes its share of one step after the other",
                f"{what}: one took samples {take.start} to {take.stop} of step {take.step} where step {due} was due",
                "A process that is started again loads the newest checkpoint, and takes no step before that.",
            )
        taken[take.process] = take.step


def expect_weights(trial: Trial, task: Task | TextTask, what: str, hint: str) -> None:
    """Raise CheckFailed unless the weights are those of one process that trains on the whole batches."""
    import torch

    from worldsize import bench
    from worldsize.bench.reference_run import flat_weights

    expect_whole(trial, task, what)
    error = bench.weights_error(trial, task)
    assert trial.record.weights is not None
    if torch.equal(trial.record.weights, flat_weights(task.model())):
        hint = "They are as they were at first: does the optimizer hold the parameters that the program trains?"
    if not error <= _TOLERANCE:
        raise CheckFailed(
            "the weights of one process that trains on the whole batches, to rounding",
            f"{what}: they differ by {error:.2g} of the way that training went (rounding: 0.000001)",
            hint,
        )


def is_right(trial: Trial, task: Task | TextTask, world_size: int) -> bool:
    """Whether all ranks took samples, and the weights are those of one process that trains on the whole batches."""
    from worldsize import bench

    record = trial.record
    are_all = len({one.process for one in record.takes}) >= world_size and not record.missed(task)
    return are_all and record.weights is not None and bench.weights_error(trial, task) <= _TOLERANCE


def expect_same_way(trial: Trial, task: Task | TextTask, what: str, hint: str) -> None:
    """Raise CheckFailed unless the weights moved in about the direction of one process; gradients may have a factor."""
    import torch

    from worldsize import bench

    assert trial.record.weights is not None
    alone = bench.train_alone(task, trial.batches)
    way = trial.record.weights - alone.initial
    cosine = float(torch.cosine_similarity(way, alone.weights - alone.initial, dim=0))
    if not cosine >= _SAME_WAY:
        raise CheckFailed(
            "weights that move in the same direction as those of one process that trains on the whole batches",
            f"{what}: they moved in a different direction (a cosine of {cosine:.2f})",
            hint,
        )


def expect_losses(
    trial: Trial, task: Task | TextTask, what: str, example: str, num_compared: int | None = None
) -> None:
    """Raise CheckFailed unless there is a line for every step, and its loss is that of one process; steps may repeat.

    With `num_compared`, only the first steps' losses are compared.
    """
    from worldsize import bench

    lines = trial.result.lines
    if missing := sorted(set(range(task.num_steps)) - {line.step for line in lines}):
        raise CheckFailed(
            f"a line such as {example} from rank 0 for each of the steps",
            f"{what}: no line for step {missing[0]}",
            "`print(json.dumps(...), flush=True)` once per step; lines that are not JSON objects are passed over.",
        )
    losses = bench.train_alone(task, trial.batches).losses
    worst = max(
        (line for line in lines if line.step < (num_compared or task.num_steps)),
        key=lambda line: abs(line.loss - losses[line.step]),
    )
    if abs(worst.loss - losses[worst.step]) > _LOSS_TOLERANCE * max(1, losses[worst.step]):
        raise CheckFailed(
            f"the loss of the whole batch before step {worst.step}, {losses[worst.step]:.4f}",
            f"{what}: the line says {worst.loss:.4f}",
            "Average over all samples of the global batch, not only over this rank's; and print what was computed.",
        )


def expect_resumed(trial: Trial, task: Task | TextTask, struck: Disturbance, allowed_loss: int, what: str) -> int:
    """Return the step at which processes resumed after a failure; they must take all steps from there."""
    assert struck.time_s is not None
    after = [take for take in trial.record.takes if take.time_s > struck.time_s]
    before = {take.process for take in trial.record.takes if take.time_s <= struck.time_s}
    again = {take.step for take in after if take.process not in before}
    if not again or not trial.result.restarts:
        raise CheckFailed(
            "torchrun starts the ranks again, and they take the samples of the steps that are left",
            f"{what}, and no rank that was started after that asked for samples",
            "Let the error end the process; torchrun starts all ranks again, with --resume as before.",
        )
    earliest = struck.step - allowed_loss
    resumed = min(take.step for take in after)
    if not earliest <= resumed <= struck.step:
        raise CheckFailed(
            f"training goes on from a checkpoint, at step {earliest} to {struck.step}",
            f"{what}, and it went on at step {resumed}",
            (
                "Resume from the newest checkpoint that can be read, and take the steps after it, in order."
                if resumed
                else ("That is from the beginning: look for a checkpoint first, and pass over one that cannot be read.")
            ),
        )
    if missing := sorted(set(range(min(again), task.num_steps)) - again):
        raise CheckFailed(
            "the ranks that were started again take all steps that are left",
            f"{what}, they went on at step {min(again)} and did not take step {missing[0]}",
            "Go on with the first step that the checkpoint does not hold, and do every step after it.",
        )
    return min(again)


def disturbed(program: Program, spec: TrainingSpec, seed: int, policy: RestartPolicy, struck: Disturbance) -> Trial:
    """Train under torchrun while a rank is killed or stopped.

    Raises:
        CheckFailed: no rank got that far, or the others waited for a rank that is silent.
        StudentFailed: the job did not recover.
    """
    from worldsize import bench

    what = described(struck, policy)
    try:
        trial = bench.attempt(program, spec, seed, policy, struck)
    except StudentFailed as error:
        if struck.time_s is None:
            raise
        raise StudentFailed(error.outcome, f"When {what}, the job did not recover. {error}") from None
    if struck.time_s is None:
        raise CheckFailed("every rank asks for its samples", f"no rank asked for those of step {struck.step}")
    if struck.kind == "stall" and not struck.is_given_up:
        raise CheckFailed(
            f"the other ranks give up on one that is silent for {spec.timeout_s:g} s (--timeout)",
            f"{what}, and {struck.patience_s:g} s later they still waited",
            "`init_process_group` takes a timeout; with Gloo a collective that waits longer raises.",
        )
    return trial


def described(struck: Disturbance, policy: RestartPolicy) -> str:
    """Say what happens to a training."""
    what = f"rank {struck.rank} was {'killed' if struck.kind == 'kill' else 'stopped'} at step {struck.step}"
    if policy.is_begun_anew and policy.is_cut:
        what += " and the newest file of the checkpoints lost its second half"
    for world_size in policy.next_world_sizes:
        what += f" and the job began anew on {world_size} ranks"
    return what


def expect_undisturbed_weights(
    program: Program,
    trial: Trial,
    spec: TrainingSpec,
    seed: int,
    what: str,
    hints: tuple[str, str],
    tolerance: float | None = None,
) -> None:
    """Raise CheckFailed unless the weights are those of the same program without the disturbance.

    A mistake in the gradient has cost its points already. The hints are for different weights, and for a different
    direction. The tolerance, by default that of rounding, is a fraction of the distance that the weights moved.
    """
    import torch

    from worldsize import bench
    from worldsize.bench.reference_run import flat_weights

    task = spec.task
    expect_whole(trial, task, what)
    undisturbed = bench.attempt(program, bench.TrainingSpec(task, spec.world_size), seed)
    without = f"{task.num_steps} steps on {spec.world_size} ranks"
    expect_whole(undisturbed, task, without)
    expect_same_way(undisturbed, task, without, hints[1])
    if len({one.process for one in undisturbed.record.takes}) < spec.world_size:
        raise CheckFailed("every rank takes samples in every step", f"{without}: fewer ranks took all of them")
    assert undisturbed.record.weights is not None and trial.record.weights is not None
    way = torch.linalg.vector_norm(undisturbed.record.weights - flat_weights(task.model()))
    error = float(torch.linalg.vector_norm(trial.record.weights - undisturbed.record.weights) / way)
    if not error <= (tolerance or _TOLERANCE):
        raise CheckFailed(
            "the weights of an undisturbed run, to rounding",
            f"{what}: they differ by {error:.2g} of the way that training went (rounding: 0.000001)",
            hints[0],
        )


def grade_speed(ratio: float, step_s: float, what: str, limits: tuple[float, float]) -> None:
    """Raise CheckFailed or PartlyHeld unless this share of the reference's speed is enough for full points.

    `limits` are the shares of the speed that earn no points, and full points.
    """
    none, full = limits
    if ratio >= full:
        return
    expected = f"{what}, at least {full:.0%} of the speed of the reference"
    actual = f"{ratio:.0%} of it: {1e3 * step_s:.3g} ms a step"
    hint = (
        "Look at a step's timeline. Is every gradient sent on its own, or all of them only after the backward pass?"
        " Does every rank compute only its own samples?"
    )
    share = round((ratio - none) / (full - none), 1)
    if share <= 0:
        raise CheckFailed(expected, actual, hint)
    raise PartlyHeld(min(share, 0.9), expected, actual, hint)
