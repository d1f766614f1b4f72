"""A program that was handed in, in its sandbox: it trains and is fed, dies and comes back, and reaches nothing else."""

import subprocess

import pytest
from needs import give_up
from repository import ROOT

from autograder.authoring import programs
from autograder.judging.checks.check import StudentFailed
from autograder.judging.judge.student import SandboxedStudent
from autograder.judging.report import Outcome
from autograder.judging.request import CodeUnderTest
from autograder.sandbox import probe
from worldsize import bench
from worldsize.bench import CLASSROOM, Disturbance, Incomplete, RestartPolicy, Task, TrainingSpec

REFERENCE = programs.solved(ROOT / "solutions/project1/train.py")
TASK = Task(num_steps=8, batch_size=16, width=4)


@pytest.fixture(autouse=True)
def walls() -> None:
    if not probe().is_trusted:
        give_up("sandbox", "this machine gives no jail of namespaces")


@pytest.fixture
def student():
    made = []

    def make(source: str, **limits) -> SandboxedStudent:
        limits = {"call_s": 60.0, "total_s": 200.0} | limits
        made.append(
            SandboxedStudent(
                CodeUnderTest(
                    cells=[],
                    preload=["worldsize.bench"],
                    **limits,
                    programs={"train.py": source},
                    references={"train.py": REFERENCE},
                )
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_it_trains_real_and_emulated_to_the_weights_of_one_process(student) -> None:
    program = student(REFERENCE).program("train.py")
    for cluster in (None, CLASSROOM):
        trial = bench.attempt(program, TrainingSpec(TASK, 2, cluster), seed=3)
        assert bench.weights_error(trial, TASK) < 1e-4
        assert [line.step for line in trial.result.lines] == list(range(TASK.num_steps))
    assert trial.result.timeline.bytes_sent(0) > TASK.num_steps * TASK.gradient_bytes


def compiled_on_rank(student, source):
    parts = {}
    exec(compile(source, "train.py", "exec"), parts)
    return parts["divide"](0)


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("def divide(count):\n    return 1 / count\n", "train.py, line 2, in divide\n    return 1 / count"),
        ("def divide(count)\n    return 1 / count\n", "train.py, line 1\n    def divide(count)"),
    ],
)
def test_an_error_in_a_program_that_a_check_compiles_is_shown_with_its_line(student, source, place) -> None:
    with pytest.raises(StudentFailed) as failed:
        student(source).run(compiled_on_rank, source, world_size=1)
    assert place in str(failed.value)


@pytest.mark.parametrize(
    ("restart_policy", "first"),
    [(RestartPolicy(max_restarts=1), 3), (RestartPolicy(max_restarts=0, is_begun_anew=True), 0)],
)
def test_it_comes_back_from_its_checkpoints(student, restart_policy, first) -> None:
    struck = Disturbance("kill", step=5, rank=0)
    spec = TrainingSpec(TASK, 2, checkpoint_every=3, timeout_s=20)
    trial = bench.attempt(student(REFERENCE).program("train.py"), spec, 4, restart_policy, struck)
    assert struck.time_s is not None and trial.result.restarts == 1
    again = [take.step for take in trial.record.takes if take.time_s > struck.time_s and take.rank == 0]
    assert again[0] == first  # where the only checkpoint was cut in half, the beginning
    assert bench.weights_error(trial, TASK) < 1e-4


def test_what_it_raises_is_told_with_its_own_line(student) -> None:
    broken = REFERENCE.replace("flags = read_flags()\n", 'flags = read_flags()\n    raise KeyError("no such flag")\n')
    with pytest.raises(StudentFailed) as caught:
        bench.attempt(student(broken).program("train.py"), TrainingSpec(TASK, 2), seed=3)
    assert caught.value.outcome is Outcome.CRASHED
    assert "KeyError" in str(caught.value) and "train.py, line" in str(caught.value)
    with pytest.raises(StudentFailed, match=r"KeyError[^$]*train\.py, line"):
        bench.attempt(student(broken).program("train.py"), TrainingSpec(TASK, 2), 3, RestartPolicy(max_restarts=0))


def test_a_program_that_never_ends_is_ended(student) -> None:
    with pytest.raises(StudentFailed) as caught:
        bench.attempt(student("while True:\n    pass\n", call_s=4.0).program("train.py"), TrainingSpec(TASK, 2), seed=3)
    assert caught.value.outcome is Outcome.TIME_LIMIT


def test_a_program_that_hands_nothing_in_is_told_so(student) -> None:
    trial = bench.attempt(student("print('done')\n").program("train.py"), TrainingSpec(TASK, 2), seed=3)
    assert trial.result.lines == [] and trial.record.missed(TASK) == list(range(TASK.num_steps))
    with pytest.raises(Incomplete, match="hand_in"):
        bench.weights_error(trial, TASK)


def test_it_sees_the_feed_and_nothing_else_of_outside(student, tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    looks = f"""
import os, socket
address = os.environ["WORLDSIZE_FEED"]
assert os.path.exists(address)
for path in ({str(secret)!r}, {str(ROOT / "solutions")!r}):
    assert not os.path.exists(path), path
try:
    open(os.path.join(os.path.dirname(address), "mine"), "w")
except OSError:
    pass
else:
    raise SystemExit("could write beside the socket")
"""
    bench.attempt(student(looks).program("train.py"), TrainingSpec(TASK, 1), seed=3)


def test_nothing_of_one_run_is_there_in_the_next(student) -> None:
    source = """
import os, pathlib, subprocess
left = [str(path) for place in ("/tmp", "/dev/shm") for path in pathlib.Path(place).rglob("left*")]
assert not left, left
pathlib.Path("/tmp/left").write_text("x")
subprocess.Popen(["sleep", "1000"], start_new_session=True)
running = subprocess.run(["ps", "-e"], capture_output=True, text=True).stdout
assert running.count("sleep") <= 1, running
"""
    program = student(source).program("train.py")
    for _ in range(2):
        bench.attempt(program, TrainingSpec(TASK, 1), seed=3)
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 1000" not in found


LINGERS = """
import os, subprocess
running = subprocess.run(["ps", "-e", "-o", "args"], capture_output=True, text=True).stdout
assert "sleep 2000" not in running, "something of the job before lives on"
subprocess.Popen(["sleep", "2000"], start_new_session=True)
"""


def test_nothing_of_a_job_lives_on_when_it_is_begun_anew(student) -> None:
    struck = Disturbance("kill", step=5, rank=0)
    spec = TrainingSpec(TASK, 1, checkpoint_every=2, timeout_s=20)
    lingering = REFERENCE.replace("import argparse\n", "import argparse\n" + LINGERS, 1)
    restart_policy = RestartPolicy(max_restarts=0, is_begun_anew=True)
    trial = bench.attempt(student(lingering).program("train.py"), spec, 4, restart_policy, struck)
    assert bench.weights_error(trial, TASK) < 1e-4
