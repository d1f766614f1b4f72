"""The harness: it times a program on several numbers of ranks in turn, using the clock of the process that feeds it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch
from pydantic import ValidationError

from worldsize.bench.clusters import CLASSROOM
from worldsize.bench.machine import busy_cores, describe, processor
from worldsize.bench.program import NO_WEIGHTS, Incomplete, Program, StepLine, TrainingSpec, Trial, attempt
from worldsize.bench.reference_run import train_alone
from worldsize.bench.result_file import Kind, Result, Scaling, Timing, points
from worldsize.bench.task import Task, TextTask
from worldsize.cores import num_cores
from worldsize.hardware import Cluster

NUM_WARMUP_STEPS = 4  # allocations, first connections, compilation
NUM_REPEATS = 3


@dataclass(frozen=True)
class Planned:
    """One training to be timed."""

    scaling: Scaling
    world_size: int
    kind: Kind
    is_synchronised: bool
    repeat: int


def measure(
    program: Program,
    program_sha256: str,
    task: Task,
    world_sizes: Sequence[int] = (1, 2, 4),
    *,
    num_repeats: int = NUM_REPEATS,
    num_warmup_steps: int = NUM_WARMUP_STEPS,
    num_threads: int = 1,
    max_real_ranks: int | None = None,
    cluster: Cluster = CLASSROOM,
    journal: Path | None = None,
    on_timing: Callable[[Timing, int, int], None] = lambda timing, done, total: None,
) -> Result:
    """Measure a program's strong and weak scaling, with and without exchanging gradients.

    World sizes take turns, forwards and backwards, so that a machine that warms up or slows down affects all of them.
    Up to as many ranks as there are GPUs, or cores without GPUs, are real; larger numbers are emulated on `cluster` and
    labelled so. `on_timing` is called with every timing, the number done and the number planned. With `journal`, a
    file, each timing is saved as it ends, and an interrupted measurement of the same program, task and cluster, on the
    same machine with the same versions, resumes where it stopped.

    Raises:
        ValueError: the warm-up leaves no step to time.
    """
    task = Task.model_validate(task)
    if num_warmup_steps >= task.num_steps:
        raise ValueError(
            f"num_warmup_steps is {num_warmup_steps}; it must be below the {task.num_steps} steps of the task"
        )
    num_real = max_real_ranks or _num_real()
    plan = list(planned(world_sizes, num_real, num_repeats))
    measured = (program_sha256, task, num_warmup_steps, num_threads, asdict(cluster))
    kept = _Journal(journal, repr((*measured, *_surroundings())))
    timings = []
    for number, training in enumerate(plan, start=1):
        timing = kept.find(training)
        if timing is None:
            timing = time_one(program, task, training, num_warmup_steps, cluster)
            kept.add(training, timing)
        timings.append(timing)
        on_timing(timing, number, len(plan))
    return Result(
        program_sha256=program_sha256,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe(),
        task=task,
        num_warmup_steps=num_warmup_steps,
        num_threads=num_threads,
        cluster=cluster.name,
        timings=timings,
        points=points(timings),
    )


def planned(world_sizes: Sequence[int], num_real: int, num_repeats: int) -> Iterator[Planned]:
    """The trainings to be timed, in order; emulated time has no noise, so one repeat is enough."""
    sizes = sorted({1, *world_sizes})  # one rank is the base of efficiency
    cases: list[tuple[Scaling, int, bool]] = []
    for size in sizes:
        cases.append(("strong", size, True))
        if size > 1:
            cases.append(("weak", size, True))
            cases.append(("strong", size, False))
    for repeat in range(num_repeats):
        for scaling, size, sync in cases if repeat % 2 == 0 else cases[::-1]:
            if size <= num_real:
                yield Planned(scaling, size, "real", sync, repeat)
    if sizes[-1] > num_real:
        for scaling, size, sync in cases:
            yield Planned(scaling, size, "emulated", sync, 0)


def time_one(program: Program, task: Task, training: Planned, num_warmup_steps: int, cluster: Cluster) -> Timing:
    """Time one training; if the program fails, the timing holds the reason."""
    grown = task.batch_size * (training.world_size if training.scaling == "weak" else 1)
    task = task.model_copy(update={"batch_size": grown})
    spec = TrainingSpec(
        task,
        training.world_size,
        cluster if training.kind == "emulated" else None,
        is_synchronised=training.is_synchronised,
    )
    timing = Timing(
        **vars(training), backend="", batch_size=grown, num_timed_steps=task.num_steps - num_warmup_steps, window_s=0.0
    )
    if training.kind == "real":  # emulated time has no noise
        timing.busy_cores = busy_cores()
    try:
        trial = attempt(program, spec, secrets.randbits(48))
        timing.backend = trial.result.backend
        if training.kind == "real":
            timing.window_s = _real_window_s(trial, num_warmup_steps)
            timing.step_times_s = trial.record.step_times_s()
        else:
            short = replace(spec, task=task.model_copy(update={"num_steps": num_warmup_steps}))
            before = attempt(program, short, secrets.randbits(48)).result.timeline
            after = trial.result.timeline
            timing.window_s = after.end_s - before.end_s
            timing.wire_bytes_per_step = (after.bytes_sent(0) - before.bytes_sent(0)) / timing.num_timed_steps
        timing.claimed_bytes_per_step = claimed_bytes_per_step(trial.result.lines)
        if training.is_synchronised:
            timing.weights_error = weights_error(trial, task)
    except program.errors as error:
        timing.failure = str(error)[:2000]
    return timing


def _real_window_s(trial: Trial, num_warmup_steps: int) -> float:
    window_s = trial.record.window_s(num_warmup_steps)
    if window_s is None:
        raise Incomplete(*NO_WEIGHTS)
    return window_s


def claimed_bytes_per_step(lines: Sequence[StepLine]) -> float | None:
    """Average the bytes that rank 0 reported sending per step; None if it reported none."""
    return sum(line.sent_bytes for line in lines) / len(lines) if lines else None


def weights_error(trial: Trial, task: Task | TextTask) -> float:
    """Return the distance from the weights of one process on the same batches, relative to how far those moved.

    Raises:
        Incomplete: the program returned no weights.
    """
    if trial.record.weights is None:
        raise Incomplete(*NO_WEIGHTS)
    alone = train_alone(task, trial.batches)
    distance = torch.linalg.vector_norm(trial.record.weights - alone.weights)
    return float(distance / torch.linalg.vector_norm(alone.weights - alone.initial))


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The fingerprint of a program's file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _num_real() -> int:
    from worldsize.launch.launcher import forkserver

    return forkserver.shared().num_gpus or num_cores()


def _surroundings() -> tuple[str | None, ...]:
    """Return the machine, the GPUs that this process may use, and the versions of the measuring software."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    return platform.node(), processor(), gpus, torch.__version__, metadata.version("worldsize")


class _Journal:
    """The timings of one measurement in a file, one per line."""

    def __init__(self, path: Path | None, basis: str) -> None:
        self._path, self._basis = path, hashlib.sha256(basis.encode()).hexdigest()
        self._kept = dict(self._read()) if path and path.exists() else {}

    def find(self, training: Planned) -> Timing | None:
        return self._kept.get(self._key(training))

    def add(self, training: Planned, timing: Timing) -> None:
        if self._path is None or timing.failure:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"key": self._key(training), "timing": timing.model_dump()})
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")  # the remains of an interrupted write stay on their own line
            file.flush()
            os.fsync(file.fileno())

    def _key(self, training: Planned) -> str:
        return hashlib.sha256(f"{self._basis} {training}".encode()).hexdigest()

    def _read(self) -> Iterator[tuple[str, Timing]]:
        assert self._path
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                fields = json.loads(line)
                yield fields["key"], Timing.model_validate(fields["timing"])
            except (ValueError, KeyError, TypeError, ValidationError):
                continue  # cut off while it was written
