"""A program under the contract: how it is started, and what it returned."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from worldsize.bench.batches import DrawnBatches
from worldsize.bench.sample_server import Disturbance, SampleServer, TrainingRecord
from worldsize.bench.samples import ADDRESS, lend_folder
from worldsize.bench.task import Task, TextTask
from worldsize.check import CheckFailed
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.faults import Fault
from worldsize.hardware import Cluster
from worldsize.launch import Run, RunError
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.runner import launch
from worldsize.launch.worker import run_as_main
from worldsize.paper import torchrun
from worldsize.timeline import Timeline

_MAX_LINES = 20_000


NO_WEIGHTS = ("one rank calls hand_in(model) after its last step", "the program ended without handing in its weights")


class Incomplete(CheckFailed):
    """The training ended without what the contract asks for."""


class StepLine(BaseModel):
    """What rank 0 prints after every step: the global batch's loss before it, and the bytes that it sent for it."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    step: int = Field(ge=0)
    loss: float
    sent_bytes: float = Field(default=0, ge=0)


@dataclass(frozen=True)
class TrainingSpec:
    """How a training is started: its ranks, whether they exchange gradients, what it keeps.

    With `cluster` the ranks are emulated, and `faults` happen there; a training that `keeps_exchanges` returns the
    emulated messages as its result's `exchanges`. `checkpoint_every` counts steps; with it the
    program keeps checkpoints, and resumes from them when it is started again. `timeout_s` is how long a rank waits for
    another one.
    """

    task: Task | TextTask
    world_size: int
    cluster: Cluster | str | None = None
    is_synchronised: bool = True
    checkpoint_every: int | None = None
    timeout_s: float | None = None
    extra_flags: Sequence[str] = ()
    faults: Sequence[Fault] = ()
    keeps_exchanges: bool = False

    def args(self, folder: str) -> list[str]:
        """The program's own flags, with its checkpoints below `folder`."""
        args = self.task.flags
        if not self.is_synchronised:
            args.append("--no-sync")
        if self.checkpoint_every:
            args += [f"--checkpoints={folder}", f"--checkpoint-every={self.checkpoint_every}", "--resume"]
        if self.timeout_s:
            args.append(f"--timeout={self.timeout_s:g}")
        return [*args, *self.extra_flags]


@dataclass(frozen=True)
class RestartPolicy:
    """The restarts that a training under torchrun is granted, and whether it is also started afresh.

    With `is_begun_anew` the first failure ends the whole job, and the same command is run once more; with
    `next_world_sizes`, once on each of these numbers of ranks, until the next failure. If `is_cut`, the newest
    checkpoint file loses its second half first, as when a machine dies while writing.
    """

    max_restarts: int = 1
    is_begun_anew: bool = False
    is_cut: bool = True
    next_world_sizes: Sequence[int] = ()


@dataclass
class TrainingResult:
    """What a training returned: rank 0's lines, its ranks' timeline, how often torchrun restarted them."""

    lines: list[StepLine] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    restarts: int = 0
    backend: str = ""
    duration_s: float = 0.0
    exchanges: Sequence[Exchange] = field(default=(), repr=False)


class Program(Protocol):
    """A program that can be started: here, or in a sandbox."""

    socket_folder: str  # in which the ranks can reach the sample server's socket

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that a failed training raises."""
        ...

    def play(self, spec: TrainingSpec, address: str) -> TrainingResult:
        """Train on warm ranks, real or emulated; a failure raises one of `errors`."""
        ...

    def torchrun(self, spec: TrainingSpec, address: str, restart_policy: RestartPolicy) -> TrainingResult:
        """Train under torchrun's own agent; a failure raises one of `errors`."""
        ...


@dataclass
class Trial:
    """One training under observation: what the program returned, and what the sample server saw."""

    result: TrainingResult
    record: TrainingRecord
    batches: DrawnBatches

    def recovery_s(self, struck: Disturbance) -> float | None:
        """Seconds from a disturbance until training is back at the same step; see `TrainingRecord.recovery_s`."""
        return self.record.recovery_s(struck)


def attempt(
    program: Program,
    spec: TrainingSpec,
    seed: int,
    restart_policy: RestartPolicy | None = None,
    disturbance: Disturbance | Sequence[Disturbance] = (),
) -> Trial:
    """Train on batches drawn from `seed`, with these disturbances in order; raises one of the program's own errors."""
    with SampleServer(spec.task, seed, program.socket_folder, disturbance) as server:
        address = server.address
        result = program.torchrun(spec, address, restart_policy) if restart_policy else program.play(spec, address)
        return Trial(result, server.record, server.batches)


def read_lines(printed: str) -> list[StepLine]:
    """Parse the step lines among what a rank printed, and skip everything else."""
    lines = []
    for text in printed.splitlines()[-_MAX_LINES:]:
        if text.startswith("{"):
            try:
                lines.append(StepLine.model_validate(json.loads(text)))
            except (ValidationError, ValueError, RecursionError):
                continue
    return lines


class ScriptHere:
    """A program on this machine, as its author runs it; with `is_profiled`, torch.profiler's events are recorded."""

    def __init__(
        self, path: str | os.PathLike[str], num_threads: int = 1, limit_s: float = 120, is_profiled: bool = False
    ) -> None:
        self._path, self._num_threads, self._limit_s = Path(path).absolute(), num_threads, limit_s
        self._is_profiled = is_profiled
        if not self._path.is_file():
            raise ValueError(f"There is no program at {self._path}.")
        self.socket_folder = "/tmp"  # a socket's path must be short
        self.errors = (RunError, Incomplete)

    def play(self, spec: TrainingSpec, address: str) -> TrainingResult:
        """Train on warm ranks; raises what `worldsize.run` raises."""
        args = (self._num_threads, str(self._path), *spec.args(""))  # the contract's checkpoints are for torchrun
        one_run = Spec(
            profiled if self._is_profiled else play_on,
            args,
            world_size=spec.world_size,
            timeout_s=self._limit_s,
            echo=False,
            cluster=spec.cluster,
            faults=spec.faults if spec.cluster is not None else (),
            keeps_exchanges=spec.keeps_exchanges,
            env={ADDRESS: address},
        )
        return result_of(launch(one_run))

    def torchrun(self, spec: TrainingSpec, address: str, restart_policy: RestartPolicy) -> TrainingResult:
        """Train under torchrun's own agent; raises what `worldsize.torchrun` raises."""
        import tempfile

        env = {ADDRESS: address, "OMP_NUM_THREADS": str(self._num_threads)}
        with tempfile.TemporaryDirectory(prefix="worldsize-bench-") as folder:
            return under_agent(str(self._path), spec, folder, restart_policy, self._limit_s, env)


def play_on(num_threads: int, path: str, *args: str) -> None:
    """Run the program on a rank that has joined, with this many threads."""
    import torch

    torch.set_num_threads(num_threads)
    run_as_main.play_joined(path, *args)


def profiled(num_threads: int, path: str, *args: str) -> None:
    """Run the program like `play_on`, under `worldsize.profile`."""
    from worldsize.launch import profile

    with profile():
        play_on(num_threads, path, *args)


def result_of(run: Run) -> TrainingResult:
    """Extract the training result from a run of a program."""
    return TrainingResult(
        read_lines(run.output[0]), run.timeline, run.restarts, run.backend, run.duration_s, run.exchanges
    )


def under_agent(
    path: str,
    spec: TrainingSpec,
    folder: str,
    restart_policy: RestartPolicy,
    limit_s: float,
    env: dict[str, str],
    between: Callable[[], None] = lambda: None,
) -> TrainingResult:
    """Run the program under torchrun; call `between` after a job, before its checkpoints are damaged.

    Raises:
        RankFailed, RunTimeout: from `worldsize.torchrun`.
    """
    from worldsize.launch import RankFailed

    begun_s = time.monotonic()

    def once(max_restarts: int, world_size: int = spec.world_size) -> Run:
        left_s = max(1.0, limit_s - (time.monotonic() - begun_s))
        return torchrun(
            path,
            *spec.args(folder),
            timeout_s=left_s,
            stalled_s=None,  # noticing a rank that hangs is the program's task
            env=env,
            echo=False,
            nproc_per_node=world_size,
            max_restarts=max_restarts,
        )

    lend_folder(env[ADDRESS], folder)
    if not restart_policy.is_begun_anew:
        return result_of(once(restart_policy.max_restarts))
    world_sizes = [spec.world_size, *(restart_policy.next_world_sizes or [spec.world_size])]
    lines: list[StepLine] = []
    for world_size in world_sizes[:-1]:
        try:
            lines += result_of(once(0, world_size)).lines
        except RankFailed as error:
            lines += read_lines(error.output[0]) if error.output else []
        between()
        if restart_policy.is_cut:
            truncate_newest(folder)
    last = result_of(once(restart_policy.max_restarts, world_sizes[-1]))
    restarts = last.restarts + len(world_sizes) - 1
    return TrainingResult([*lines, *last.lines], last.timeline, restarts, last.backend, time.monotonic() - begun_s)


def truncate_newest(folder: str) -> str:
    """Cut off the second half of the newest file below a folder; return its path, empty if there is no file."""
    newest, newest_ns = "", -1
    for inside, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(inside, name)
            status = os.lstat(path)
            if os.path.isfile(path) and not os.path.islink(path) and status.st_mtime_ns > newest_ns:
                newest, newest_ns = path, status.st_mtime_ns
    if newest:
        os.truncate(newest, os.path.getsize(newest) // 2)
    return newest
