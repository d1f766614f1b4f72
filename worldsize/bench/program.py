"""A program under the contract: how it is started, and what came of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from worldsize.bench.batches import Batches
from worldsize.bench.sample_server import Disturbance, Feed, Record
from worldsize.bench.samples import ADDRESS
from worldsize.bench.task import Task
from worldsize.check import CheckFailed
from worldsize.faults import Fault
from worldsize.hardware import Cluster
from worldsize.launch import Run, RunError, run, torchrun
from worldsize.launch.worker import run_as_main
from worldsize.timeline import Timeline

_MAX_LINES = 20_000


NO_WEIGHTS = ("one rank calls hand_in(model) after its last step", "the program ended without handing in its weights")


class Incomplete(CheckFailed):
    """A training that ended without what the contract asks for."""


class StepLine(BaseModel):
    """What rank 0 prints after every step: the global batch's loss before it, and the bytes that it sent for it."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    step: int = Field(ge=0)
    loss: float
    sent_bytes: float = Field(ge=0)


@dataclass(frozen=True)
class Start:
    """How a training is started: its ranks, whether they exchange gradients, and what of it lasts.

    With `cluster` the ranks are emulated, and `faults` go wrong there. `checkpoint_every` counts steps; with it the
    program keeps checkpoints, and goes on from them when it is started again. `timeout_s` is how long a rank waits for
    another one.
    """

    task: Task
    world_size: int
    cluster: Cluster | str | None = None
    is_synchronised: bool = True
    checkpoint_every: int | None = None
    timeout_s: float | None = None
    extra_flags: Sequence[str] = ()
    faults: Sequence[Fault] = ()

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
class Elastic:
    """A training under torchrun: the restarts it is granted, and whether it is also begun anew.

    With `is_begun_anew` the whole job dies of the first failure, the newest file among its checkpoints loses its second
    half, as when a machine dies while it writes, and the same command is given once more.
    """

    max_restarts: int = 1
    is_begun_anew: bool = False


@dataclass
class Ended:
    """What a training gave: rank 0's lines, the timeline of its ranks, how often torchrun started them again."""

    lines: list[StepLine] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    restarts: int = 0
    backend: str = ""
    duration_s: float = 0.0


class Program(Protocol):
    """A program that can be started: here, or in a sandbox."""

    feed_folder: str  # in which the ranks can reach a feed's socket

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """By which a training ends that does not end well."""
        ...

    def play(self, start: Start, address: str) -> Ended:
        """The training on warm ranks, real or emulated; an exception when it did not end well."""
        ...

    def torchrun(self, start: Start, address: str, elastic: Elastic) -> Ended:
        """The training under torchrun's own agent; an exception when it did not end well."""
        ...


@dataclass
class Trial:
    """One training that was watched: what the program gave, and what the feed saw."""

    ended: Ended
    record: Record
    batches: Batches


def attempt(
    program: Program, start: Start, seed: int, elastic: Elastic | None = None, disturbance: Disturbance | None = None
) -> Trial:
    """One training on batches of `seed`; what it raises is the program's own."""
    with Feed(start.task, seed, program.feed_folder, disturbance) as feed:
        address = feed.address
        ended = program.torchrun(start, address, elastic) if elastic else program.play(start, address)
        return Trial(ended, feed.record, feed.batches)


def read_lines(printed: str) -> list[StepLine]:
    """The lines of steps among what a rank printed; whatever else it printed is passed over."""
    lines = []
    for text in printed.splitlines()[-_MAX_LINES:]:
        if text.startswith("{"):
            try:
                lines.append(StepLine.model_validate(json.loads(text)))
            except (ValidationError, ValueError, RecursionError):
                continue
    return lines


class ScriptHere:
    """A program on this machine, as its author runs it; with `is_profiled`, what torch.profiler sees is recorded."""

    def __init__(
        self, path: str | os.PathLike[str], num_threads: int = 1, limit_s: float = 120, is_profiled: bool = False
    ) -> None:
        self._path, self._num_threads, self._limit_s = Path(path).absolute(), num_threads, limit_s
        self._is_profiled = is_profiled
        if not self._path.is_file():
            raise ValueError(f"There is no program {self._path}.")
        self.feed_folder = "/tmp"  # a socket's path must be short
        self.errors = (RunError, Incomplete)

    def play(self, start: Start, address: str) -> Ended:
        """As of `Program`; raises what `worldsize.run` raises."""
        env = {ADDRESS: address}
        options: dict[str, Any] = {"world_size": start.world_size, "timeout_s": self._limit_s, "env": env}
        if start.cluster is not None:
            options |= {"cluster": start.cluster, "faults": start.faults}
        # the contract's checkpoints are for torchrun
        with_args = [str(self._path), *start.args("")]
        start_on = profiled if self._is_profiled else play_on
        return ended(run(start_on, self._num_threads, *with_args, echo=False, **options))

    def torchrun(self, start: Start, address: str, elastic: Elastic) -> Ended:
        """As of `Program`; raises what `worldsize.torchrun` raises."""
        import tempfile

        env = {ADDRESS: address, "OMP_NUM_THREADS": str(self._num_threads)}
        with tempfile.TemporaryDirectory(prefix="worldsize-bench-") as folder:
            return under_agent(str(self._path), start, folder, elastic, self._limit_s, env)


def play_on(num_threads: int, path: str, *args: str) -> None:
    """Runs on a rank that has joined: the program, with so many threads."""
    import torch

    torch.set_num_threads(num_threads)
    run_as_main.play_joined(path, *args)


def profiled(num_threads: int, path: str, *args: str) -> None:
    """As `play_on`, under `worldsize.profile`."""
    from worldsize.launch import profile

    with profile():
        play_on(num_threads, path, *args)


def ended(run: Run) -> Ended:
    """What a run of a program gave."""
    return Ended(read_lines(run.output[0]), run.timeline, run.restarts, run.backend, run.duration_s)


def under_agent(
    path: str,
    start: Start,
    folder: str,
    elastic: Elastic,
    limit_s: float,
    env: dict[str, str],
    between: Callable[[], None] = lambda: None,
) -> Ended:
    """The program under torchrun; `between` is called after a job's first end, before its checkpoints are spoilt.

    Raises:
        RankFailed, RunTimeout: of `worldsize.torchrun`.
    """
    from worldsize.launch import RankFailed

    begun_s = time.monotonic()

    def once(max_restarts: int) -> Run:
        left_s = max(1.0, limit_s - (time.monotonic() - begun_s))
        return torchrun(
            path,
            *start.args(folder),
            timeout_s=left_s,
            stalled_s=None,  # whoever hangs is the program's to find
            env=env,
            echo=False,
            nproc_per_node=start.world_size,
            max_restarts=max_restarts,
        )

    if not elastic.is_begun_anew:
        return ended(once(elastic.max_restarts))
    first: list[StepLine] = []
    try:
        first = ended(once(0)).lines
    except RankFailed as error:
        first = read_lines(error.output[0]) if error.output else []
    between()
    truncate_newest(folder)
    second = ended(once(elastic.max_restarts))
    return Ended(
        [*first, *second.lines], second.timeline, second.restarts + 1, second.backend, time.monotonic() - begun_s
    )


def truncate_newest(folder: str) -> str:
    """The newest file below a folder, which has then lost its second half; empty when there is none."""
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
