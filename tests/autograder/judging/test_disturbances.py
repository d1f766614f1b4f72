"""What a harness does to a program's checkpoints: each disturbance finds a prepared program, and one that is not."""

import pytest
from needs import give_up

from autograder.judging.checks.check import StudentFailed
from autograder.judging.judge.student import SandboxedStudent
from autograder.judging.request import CodeUnderTest
from autograder.sandbox import probe
from worldsize import bench
from worldsize.bench import Disturbance, RestartPolicy, Task, TrainingSpec, Trial

TASK = Task(num_steps=16, batch_size=16, width=16)  # its weights have 310 kB
EVERY = 4
HEAD = """
import argparse, glob, hashlib, io, os
import torch
from torch.nn import functional
from worldsize import bench, models

parser = argparse.ArgumentParser()
for name, kind in {"steps": int, "batch": int, "width": int, "seed": int, "lr": float, "momentum": float}.items():
    parser.add_argument(f"--{name}", type=kind)
for name in ("images", "checkpoints", "checkpoint-every", "timeout"):
    parser.add_argument(f"--{name}")
parser.add_argument("--resume", action="store_true")
flags = parser.parse_args()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
MAIN = """
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = models.small_resnet(flags.width, seed=flags.seed)
optimizer = torch.optim.SGD(model.parameters(), lr=flags.lr, momentum=flags.momentum)
samples = bench.open_samples(flags.batch, flags.seed)
first = 0
if (state := load()) is not None:
    first = state["step"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
share = rank * flags.batch // size, (rank + 1) * flags.batch // size
for step in range(first, flags.steps):
    images, labels = samples.take(step, *share)
    optimizer.zero_grad()
    (functional.cross_entropy(model(images), labels, reduction="sum") / flags.batch).backward()
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
    optimizer.step()
    if rank == 0 and (step + 1) % int(flags.checkpoint_every) == 0:
        save(step + 1, {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
if rank == 0:
    samples.hand_in(model)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
PREPARED = """
def save(step, state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getvalue()
    partial = os.path.join(flags.checkpoints, "partial")
    try:
        with open(partial, "wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
        os.replace(partial, os.path.join(flags.checkpoints, f"{step:04d}.pt"))
    except OSError:
        os.unlink(partial)
    for old in sorted(glob.glob(os.path.join(flags.checkpoints, "*.pt")))[:-2]:
        os.unlink(old)

def load():
    for path in sorted(glob.glob(os.path.join(flags.checkpoints, "*.pt")), reverse=True):
        digest, body = (data := open(path, "rb").read())[:32], data[32:]
        if hashlib.sha256(body).digest() == digest:
            return torch.load(io.BytesIO(body), weights_only=True)
"""
BY_RENAMING = """
def save(step, state):
    torch.save(state, os.path.join(flags.checkpoints, "partial"))
    os.replace(os.path.join(flags.checkpoints, "partial"), os.path.join(flags.checkpoints, f"{step:04d}.pt"))

def load():
    for path in sorted(glob.glob(os.path.join(flags.checkpoints, "*.pt")), reverse=True):
        try:
            return torch.load(path, weights_only=True)
        except Exception:
            continue
"""
IN_PLACE = """
def save(step, state):
    torch.save(state, os.path.join(flags.checkpoints, "last.pt"))

def load():
    path = os.path.join(flags.checkpoints, "last.pt")
    if os.path.exists(path):
        try:
            return torch.load(path, weights_only=True)
        except Exception:
            return None
"""
NEWEST_ONLY = BY_RENAMING.replace("return torch.load(path, weights_only=True)", "pass").replace(
    "reverse=True):", "reverse=True)[:1]:\n        return torch.load(path, weights_only=True)"
)
NO_OPTIMIZER = PREPARED.replace("def save(step, state):\n", 'def save(step, state):\n    state.pop("optimizer")\n')


@pytest.fixture(autouse=True)
def walls() -> None:
    if not probe().is_trusted:
        give_up("sandbox", "this machine gives no jail of namespaces")


def trained(store: str, *struck: Disturbance, policy: RestartPolicy | None = None, num_ranks: int = 1) -> Trial:
    source = HEAD + store + MAIN
    student = SandboxedStudent(
        CodeUnderTest(cells=[], preload=["worldsize.bench"], call_s=60.0, total_s=200.0, programs={"train.py": source})
    )
    try:
        spec = TrainingSpec(TASK, num_ranks, checkpoint_every=EVERY, timeout_s=20)
        return bench.attempt(student.program("train.py"), spec, 5, policy or RestartPolicy(2), struck)
    finally:
        student.close()


def resumed_at(trial: Trial, struck: Disturbance) -> int:
    assert struck.time_s is not None
    before = {take.process for take in trial.record.takes if take.time_s <= struck.time_s}
    return min(take.step for take in trial.record.takes if take.process not in before)


def test_a_save_that_is_cut_short_leaves_the_checkpoint_before() -> None:
    for store, first in ((PREPARED, 4), (BY_RENAMING, 4), (IN_PLACE, 0)):
        struck = Disturbance("mid_save", step=7, rank=0)
        trial = trained(store, struck)
        assert trial.result.restarts == 1 and resumed_at(trial, struck) == first
        assert bench.weights_error(trial, TASK) < 1e-4


def test_flipped_bits_are_found_by_who_looks_for_them() -> None:
    struck = Disturbance("corrupt", step=9, rank=0)
    trial = trained(PREPARED, struck)
    assert resumed_at(trial, struck) == 4 and bench.weights_error(trial, TASK) < 1e-4
    struck = Disturbance("corrupt", step=9, rank=0)
    trial = trained(BY_RENAMING, struck)
    assert resumed_at(trial, struck) == 8 and not bench.weights_error(trial, TASK) < 1e-4


def test_a_checkpoint_cut_in_half_is_passed_over() -> None:
    struck = Disturbance("truncate", step=9, rank=0)
    trial = trained(BY_RENAMING, struck)
    assert resumed_at(trial, struck) == 4 and bench.weights_error(trial, TASK) < 1e-4
    with pytest.raises(StudentFailed, match=r"torch\.load"):
        trained(NEWEST_ONLY, Disturbance("truncate", step=9, rank=0))


def test_a_full_disk_costs_a_checkpoint_and_no_step() -> None:
    struck = [Disturbance("full_disk", 6, 0, free_step=10), Disturbance("kill", 10, 0), Disturbance("kill", 13, 0)]
    trial = trained(PREPARED, *struck)
    assert resumed_at(trial, struck[1]) == 4 and bench.weights_error(trial, TASK) < 1e-4
    assert resumed_at(trial, struck[2]) == 12 and trial.result.restarts == 2
    struck = [Disturbance("full_disk", 6, 0, free_step=10)]
    with pytest.raises(StudentFailed, match=r"torch\.save"):  # each time anew: the disk is still full
        trained(BY_RENAMING, *struck)


def test_the_world_shrinks_and_grows() -> None:
    policy = RestartPolicy(0, is_begun_anew=True, is_cut=False, next_world_sizes=[1, 2])
    for store, is_same in ((PREPARED, True), (NO_OPTIMIZER, False)):
        struck = [Disturbance("kill", 6, 1), Disturbance("kill", 10, 0)]
        if not is_same:
            with pytest.raises(StudentFailed, match="optimizer"):
                trained(store, *struck, policy=policy, num_ranks=2)
            continue
        trial = trained(store, *struck, policy=policy, num_ranks=2)
        sizes = {(take.step, take.stop - take.start) for take in trial.record.takes}
        assert {(5, 8), (6, 16), (9, 16), (12, 8), (15, 8)} <= sizes and trial.result.restarts == 2
        assert bench.weights_error(trial, TASK) < 1e-4


def test_saves_are_counted_and_the_time_to_recover_is_taken() -> None:
    struck = Disturbance("kill", step=10, rank=0)
    trial = trained(PREPARED, struck)
    assert trial.record.saved_before == [4, 8, 12]
    again = [take for take in trial.record.takes if take.step == 10]
    assert struck.time_s and trial.recovery_s(struck) == pytest.approx(again[1].time_s - struck.time_s)
    assert bench.TrainingRecord().recovery_s(struck) is None
