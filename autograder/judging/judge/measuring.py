"""Measure a submitted program in its sandbox, in a process that is forked for this alone."""

from __future__ import annotations

import hashlib
import os
import select
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from autograder.judging.checks.check import StudentFailed
from autograder.judging.judge.main import refuse_weak_walls
from autograder.judging.report import Outcome
from autograder.judging.request import CodeUnderTest, environment
from autograder.sandbox import gpus, zygote
from worldsize.bench import Program, Result, Task, Timing, TrainingResult, TrainingSpec, measure
from worldsize.bench.program import RestartPolicy
from worldsize.cores import num_cores

PROGRAM = "train.py"
_MAX_FAILURES = 3  # failed timings after which a program is given up
_SPARE_S = 600  # for this side's own work: the same trainings in one process
_GIVEN_UP = f"Not tried: {_MAX_FAILURES} timings before this one failed."


class Settings(BaseModel):
    """How every program of a class is measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: Task = Task()
    world_sizes: tuple[int, ...] = (1, 2, 4)
    num_repeats: int = 3
    num_warmup_steps: int = 4


class Measurement(BaseModel):
    """One measurement: the program's source, how it is measured, and what it may use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    program: str
    settings: Settings
    preload: tuple[str, ...]
    call_s: float
    total_s: float
    allow_untrusted: bool

    @property
    def program_sha256(self) -> str:
        """The program's fingerprint."""
        return hashlib.sha256(self.program.encode()).hexdigest()


class MeasurementRequest(BaseModel):
    """A request to the process that measures: a job, where timings are kept, and the GPUs that are granted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: Measurement
    journal: Path
    granted: list[str]


class Progress(BaseModel):
    """One more timing, the `done`-th of `total`."""

    done: int
    total: int


class Measured(BaseModel):
    """A finished measurement, and the tier of the sandbox in which the program ran."""

    tier: str
    result: Result


def measured(job: Measurement, journal: Path, granted: Sequence[str] = ()) -> Iterator[Progress | Measured]:
    """Measure a program in a fork of this process's zygote; yield the progress after each timing, then the measurement.

    Timings are kept in `journal`, and those already in it are not taken again.

    Raises:
        RuntimeError: the harness itself broke; nothing is known about the program.
    """
    with tempfile.TemporaryDirectory(prefix="measure-", dir=zygote.shared(job.preload).scratch) as folder:
        path, outcome = Path(folder, "request.json"), Path(folder, "outcome.json")
        path.write_text(
            MeasurementRequest(job=job, journal=journal.absolute(), granted=list(granted)).model_dump_json()
        )
        said: list[str] = []
        for line in _lines_of(job, path, outcome, granted):
            if line.startswith('{"done"'):
                yield Progress.model_validate_json(line)
            else:
                said.append(line)
        if not outcome.exists():
            raise RuntimeError(f"the harness broke before it was done: {' '.join(said)[-2000:] or 'it was killed'}")
        yield Measured.model_validate_json(outcome.read_text())


def _lines_of(job: Measurement, request: Path, outcome: Path, granted: Sequence[str]) -> Iterator[str]:
    """Yield the lines that the measuring process prints, until it ends."""
    ours, theirs = os.pipe()
    try:
        words = [str(request), str(outcome)]
        call = zygote.shared(job.preload).call
        process = call("autograder.judging.judge.measuring:main", words, environment(granted), theirs)
    finally:
        os.close(theirs)
    limit_s = job.total_s + _SPARE_S
    deadline_s, kept = time.monotonic() + limit_s, b""
    try:
        while select.select([ours], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            chunk = os.read(ours, 1 << 16)
            if not chunk:
                break
            *lines, kept = (kept + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if kept:
            yield kept.decode(errors="replace")
        elif time.monotonic() >= deadline_s:
            yield f"it was not done after {limit_s:g} s; what was timed is kept: give the command again"
    finally:
        os.close(ours)
        process.kill()
        process.close()


def main(request_path: str, outcome_path: str) -> None:
    """Measure the program that the request names; print a line for each timing and write the outcome."""
    from autograder.judging.judge.student import SandboxedStudent

    request = MeasurementRequest.model_validate_json(Path(request_path).read_bytes())
    job, settings, devices = request.job, request.job.settings, gpus.devices_of(request.granted)
    student = SandboxedStudent(
        CodeUnderTest(
            programs={PROGRAM: job.program},
            preload=job.preload,
            call_s=job.call_s,
            total_s=job.total_s,
            devices=devices,
        )
    )
    try:
        refuse_weak_walls(student.tier, job.allow_untrusted)
        if (num_seen := student.num_gpus) != len(request.granted):
            raise RuntimeError(
                f"{len(request.granted)} GPUs were granted, but the sandbox sees only {num_seen} of them"
            )
        result = measure(
            _WithFailureLimit(student.program(PROGRAM)),
            job.program_sha256,
            settings.task,
            settings.world_sizes,
            num_repeats=settings.num_repeats,
            num_warmup_steps=settings.num_warmup_steps,
            max_real_ranks=num_seen or num_cores(),
            journal=request.journal,
            on_timing=lambda _, done, total: print(Progress(done=done, total=total).model_dump_json(), flush=True),
        )
    finally:
        student.close()
    Path(outcome_path).write_text(Measured(tier=str(student.tier), result=result).model_dump_json())


class _WithFailureLimit:
    """A program that is given up once it has failed too often."""

    def __init__(self, program: Program) -> None:
        self._program, self._num_failures = program, 0
        self.socket_folder, self.errors = program.socket_folder, program.errors

    def play(self, spec: TrainingSpec, address: str) -> TrainingResult:
        return self._tried(lambda: self._program.play(spec, address))

    def torchrun(self, spec: TrainingSpec, address: str, restart_policy: RestartPolicy) -> TrainingResult:
        return self._tried(lambda: self._program.torchrun(spec, address, restart_policy))

    def _tried(self, training: Callable[[], TrainingResult]) -> TrainingResult:
        if self._num_failures >= _MAX_FAILURES:
            raise StudentFailed(Outcome.SKIPPED, _GIVEN_UP)
        try:
            return training()
        except self._program.errors:
            self._num_failures += 1
            raise


def first_failure(timings: Sequence[Timing]) -> str:
    """Return the message of the first timing that failed, in one line; empty if none did."""
    failed = next((one for one in timings if one.failure), None)
    if failed is None:
        return ""
    said = " ".join(failed.failure.split())
    return f"{failed.world_size} {failed.kind} rank{'s' * (failed.world_size > 1)}: {said}"
