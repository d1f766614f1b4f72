"""Where the submissions of a class are judged: on this machine, or on a cluster that the instructor names."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from autograder.judging.report import Report
from autograder.judging.request import JudgeRequest, judge
from autograder.sandbox import zygote
from worldsize.cores import num_cores

if TYPE_CHECKING:
    from autograder.judging.judge.measuring import Measured, Measurement, Progress


class Engine(Protocol):
    """Where submissions are judged; at most `jobs` at a time, each requested by its own thread."""

    jobs: int

    def judge(self, request: JudgeRequest) -> Report:
        """Have a request judged; raises like `autograder.judging.request.judge`."""
        ...

    def measure(self, job: Measurement, journal: Path) -> Iterator[Progress | Measured]:
        """Measure a program, like `autograder.judging.judge.measuring.measured`."""
        ...

    def stop(self) -> None:
        """Abandon running judgements where possible; nothing may be requested afterwards."""
        ...

    def abort(self) -> None:
        """End at once what is being judged or measured; callers that wait for it get an error."""
        ...


class LocalPool:
    """This machine. Each submission gets `num_gpus` GPUs while it is judged, or shares one when that is below 1.

    Raises:
        ValueError: the machine has too few GPUs, or `num_gpus` is above 1 and not whole.
    """

    def __init__(self, jobs: int | None = None, num_gpus: float = 0) -> None:
        self.jobs = jobs or num_cores()
        if num_gpus:
            self.jobs = min(self.jobs, _num_fitting(num_gpus))
        self._is_aborted = False
        self._free: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._num_gpus = num_gpus
        names = gpu_names() if num_gpus else []
        for number in range(self.jobs if num_gpus else 0):
            if num_gpus < 1:
                self._free.put([names[number // _num_sharing(num_gpus)]])
            else:
                self._free.put(names[number * int(num_gpus) : (number + 1) * int(num_gpus)])

    def judge(self, request: JudgeRequest) -> Report:
        """Have a request judged by a process that is forked for it."""
        with self._granted() as granted:
            return judge(request, granted)

    @contextmanager
    def _granted(self) -> Iterator[list[str]]:
        granted = self._free.get() if self._num_gpus else []
        try:
            if self._is_aborted:
                raise RuntimeError("the engine was stopped before this submission was judged")
            yield granted
        finally:
            if self._num_gpus:
                self._free.put(granted)

    def measure(self, job: Measurement, journal: Path) -> Iterator[Progress | Measured]:
        """Measure a program on this machine."""
        from autograder.judging.judge.measuring import measured  # imports torch, which grading labs does not need here

        with self._granted() as granted:
            yield from measured(job, journal, granted)

    def stop(self) -> None:
        """Do nothing: every submission here ends at its own limit."""

    def abort(self) -> None:
        """End every jail and judge of this process."""
        self._is_aborted = True
        zygote.end_all()


def open_engine(
    name: Literal["local", "ray"], jobs: int | None = None, num_gpus: float = 0, is_alone: bool = False
) -> Engine:
    """Open an engine. Each submission takes `num_gpus` GPUs, and as many submissions are judged at once as fit.

    With `is_alone` two submissions never share the cores of a machine, unless each has its own GPUs.

    Raises:
        ValueError: this engine is not available here, or has no room for a single judging.
    """
    if name == "local":
        return LocalPool(1 if is_alone and not num_gpus else jobs, num_gpus)
    from autograder.grading.ray_engine import RayCluster

    return RayCluster(jobs, num_gpus, is_alone and not num_gpus)


def gpu_names() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    num_visible = torch.cuda.device_count()
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return [name.strip() for name in visible.split(",")][:num_visible]
    return [str(number) for number in range(num_visible)]


def _num_fitting(num_gpus: float) -> int:
    import torch

    num_visible = torch.cuda.device_count()
    if num_visible < num_gpus:
        raise ValueError(
            f"Judging takes {num_gpus:g} GPUs (c.Grade.num_gpus) but this machine has {num_visible}. "
            "Grade on one that has them, or on a cluster: --engine ray."
        )
    if num_gpus < 1:
        return num_visible * _num_sharing(num_gpus)
    if num_gpus % 1:
        raise ValueError(
            f"Judging takes {num_gpus:g} GPUs (c.Grade.num_gpus), so two submissions would share one: give a whole "
            "number, or a fraction below 1."
        )
    return num_visible // int(num_gpus)


def _num_sharing(num_gpus: float) -> int:
    """Return how many submissions share a GPU if each takes this fraction of it."""
    return int(1 / num_gpus + 1e-9)  # rounding may leave the quotient just below a whole number
