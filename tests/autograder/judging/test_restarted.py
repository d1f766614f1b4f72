"""A function as a training program: started again on what it has saved, and on nothing else that it has left."""

import pytest
from needs import give_up

from autograder.judging.checks.check import StudentFailed
from autograder.judging.judge.student import SandboxedStudent
from autograder.judging.request import CodeUnderTest
from autograder.sandbox import probe
from worldsize import bench
from worldsize.bench import Disturbance, RestartPolicy, Task, TrainingSpec

TASK = Task(num_steps=5, batch_size=4, width=4)


@pytest.fixture
def student():
    if not probe().is_trusted:
        give_up("sandbox", "this machine gives no jail of namespaces")
    opened = SandboxedStudent(CodeUnderTest(cells=[], preload=["worldsize.bench"], call_s=30.0, total_s=90.0))
    yield opened
    opened.close()


def take_on_rank(student, folder, spec):
    """Take the samples of all steps that have no file yet; refuse where an earlier process has left something."""
    import os

    import torch.distributed as dist

    from worldsize.bench import open_samples

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    elsewhere = f"/tmp/elsewhere{rank}"
    if os.path.exists(elsewhere):
        raise RuntimeError("a file of an earlier process is there")
    first, samples = len(os.listdir(folder)), open_samples(spec.task.batch_size, 0)
    dist.barrier()  # no step is saved before every rank has counted those that are
    open(elsewhere, "w").close()
    for step in range(first, spec.task.num_steps):
        samples.take(step, rank * 4 // size, (rank + 1) * 4 // size)
        if rank == 0:
            open(f"{folder}/{step}", "w").close()
    if rank == 0:
        samples.hand_in(spec.task.model())


def test_only_what_it_has_saved_is_there_after_a_restart(student) -> None:
    struck = Disturbance("kill", 3, 0)
    program = student.restarted(take_on_rank)
    trial = bench.attempt(program, TrainingSpec(TASK, 1), 5, RestartPolicy(1), struck)
    assert [take.step for take in trial.record.takes] == [0, 1, 2, 3, 3, 4]
    assert trial.result.restarts == 1 and trial.record.weights is not None
    assert trial.record.saved_before == [1, 2, 3, 4]


def test_a_job_finds_nothing_of_the_job_before(student) -> None:
    program = student.restarted(take_on_rank)
    for seed in (5, 6):
        trial = bench.attempt(program, TrainingSpec(TASK, 1), seed)
        assert [take.step for take in trial.record.takes] == [0, 1, 2, 3, 4]


def test_it_is_started_on_other_numbers_of_ranks_while_there_are_some(student) -> None:
    policy = RestartPolicy(next_world_sizes=[2])
    program, spec = student.restarted(take_on_rank), TrainingSpec(TASK, 1)
    trial = bench.attempt(program, spec, 5, policy, Disturbance("kill", 2, 0))
    assert {(take.step, take.start, take.stop) for take in trial.record.takes} >= {(1, 0, 4), (2, 0, 2), (4, 2, 4)}
    with pytest.raises(StudentFailed, match="SIGKILL"):
        bench.attempt(program, spec, 5, RestartPolicy(0), Disturbance("kill", 2, 0))
