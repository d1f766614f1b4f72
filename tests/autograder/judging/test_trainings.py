"""What is said of a training whose weights are not those of one process."""

import pytest

from autograder.judging.checks.trainings import expect_in_order, expect_weights
from worldsize import bench
from worldsize.bench import Take, Task, TrainingRecord, TrainingResult, Trial
from worldsize.check import CheckFailed

TASK = Task(num_steps=1, batch_size=16)


def trained_with(factor: float) -> Trial:
    """A training in one step whose gradient is so many times the right one."""
    batches = TASK.batches(3)
    alone = bench.train_alone(TASK, batches)
    weights = alone.initial + factor * (alone.weights - alone.initial)
    record = TrainingRecord(takes=[Take(0, 0, 0, 16, 0.0)], weights=weights)
    return Trial(TrainingResult(), record, batches)


def test_right_weights_pass() -> None:
    expect_weights(trained_with(1), TASK, "one step", "Is it the mean?")


def test_only_weights_that_have_not_moved_are_said_not_to_have() -> None:
    with pytest.raises(CheckFailed, match="as they were at first"):
        expect_weights(trained_with(0), TASK, "one step", "Is it the mean?")
    with pytest.raises(CheckFailed, match="Is it the mean"):  # as far from the right ones as those that stayed
        expect_weights(trained_with(2), TASK, "one step", "Is it the mean?")


def taken(*takes: tuple[int, int, int, int]) -> Trial:
    """A trial in which these samples were taken, each by (process, step, start, stop)."""
    found = [
        Take(0, step, start, stop, float(time_s), process) for time_s, (process, step, start, stop) in enumerate(takes)
    ]
    return Trial(TrainingResult(), TrainingRecord(takes=found), [])


def test_processes_take_one_step_after_the_other() -> None:
    expect_in_order(taken((7, 0, 0, 4), (8, 0, 4, 8), (7, 1, 0, 4), (7, 1, 4, 8), (9, 6, 0, 8), (9, 7, 0, 8)), "so")
    expect_in_order(taken((0, 5, 0, 4), (0, 0, 0, 4)), "on a system that does not name processes")
    for wrong in ((9, 6, 0, 0), (9, 6, 0, 8), (9, 0, 0, 8)), ((9, 6, 0, 8), (9, 0, 0, 8)), ((9, 6, 0, 8), (9, 8, 0, 8)):
        with pytest.raises(CheckFailed, match="each process takes its share of one step after the other"):
            expect_in_order(taken(*wrong), "so")
