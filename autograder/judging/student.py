"""The student's code as hidden checks see it: a function to run on ranks in the sandbox, and what it returned."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import cloudpickle

from autograder.judging import failures
from autograder.judging.failures import StudentFailed, describe
from autograder.judging.program_under_test import SubmittedProgram
from autograder.judging.report import Outcome
from autograder.sandbox import Sandbox, zygote
from worldsize.faults import Fault
from worldsize.hardware import Cluster
from worldsize.launch import RankFailed, Run, RunTimeout
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.protocol.quota import Quota
from worldsize.launch.runner import launch

_AFTER_A_HANG_S = 5.0  # the limit of a call once one has hung: the code is known not to end by itself
_QUOTA = Quota(value_bytes=64 << 20, printed_bytes=64 << 20)  # of each rank; the judge holds a value three times
_AGENT_ENDS = 0.2  # of the limit: what torchrun's agent may take to end its ranks, within it
_PICKLED_BY_VALUE = (__name__, "autograder.judging.program_under_test", "autograder.judging.failures")
_USED_UP = "The time for this submission was used up by the checks before this one."


class Student:
    """One submission in a sandbox of its own. Only data comes out of it, all of which may be forged."""

    def __init__(
        self,
        cells: Sequence[tuple[str, str]],
        preload: Sequence[str],
        call_s: float,
        total_s: float,
        programs: Mapping[str, str] | None = None,
        references: Mapping[str, str] | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self._devices = devices
        self._cells, self._preload = list(cells), preload
        self._call_s, self._left_s = call_s, total_s
        self._programs, self._references = programs or {}, references or {}
        self._shown = tempfile.mkdtemp(prefix="shown-", dir=zygote.shared(preload).scratch) if programs else ""
        if self._shown:
            os.chmod(self._shown, 0o711)  # a jail has a user of its own
        self._sandbox = self._open()
        self.tier = self._sandbox.tier
        if programs and self.tier.is_jail and not self.tier.namespaces:  # Landlock alone lets no rank use its socket
            self.close()
            raise RuntimeError(
                f"this sandbox ({self.tier}) keeps samples from reaching a program: grade projects on a machine with "
                "user namespaces, or as root"
            )

    def run(
        self, on_rank: Callable[..., Any], *args: Any, world_size: int, each: Sequence[Sequence[Any]] | None = None
    ) -> list[Any]:
        """What `on_rank(student, *args, *each[rank])` returned on every rank; `student` there is the student's module.

        Raises:
            StudentFailed: a rank raised, died or hung, or time is used up.
        """
        return self._on_ranks(on_rank, *args, world_size=world_size, each=each, backend="gloo").values

    def torchrun(
        self, on_rank: Callable[..., Any], *args: Any, world_size: int, each: Sequence[Sequence[Any]] | None = None
    ) -> list[Any]:
        """The same under torch's own elastic agent, also in the sandbox; some seconds slower.

        Raises:
            StudentFailed: as for `run`.
        """
        limit_s = self._limit_s() * (1 - _AGENT_ENDS)
        _pickle_by_value(on_rank)
        (returned,) = self._launch(
            _under_agent, self._cells, on_rank, args, each, world_size, limit_s, world_size=1
        ).values
        returned = returned if isinstance(returned, dict) else {}  # all of it may be forged
        if "hang" in returned:
            self._call_s = min(self._call_s, _AFTER_A_HANG_S)
        failures.raise_described(returned)
        return list(returned["values"])

    def emulated(
        self,
        on_rank: Callable[..., Any],
        *args: Any,
        world_size: int,
        each: Sequence[Sequence[Any]] | None = None,
        cluster: Cluster | str = "dgx-h100",
        allow: Collection[str] | None = None,
        compute: str = "none",
        faults: Sequence[Fault] = (),
    ) -> Run:
        """The same on an emulated cluster: the `values`, and the `timeline` of what went over the wire.

        The conductor itself sees operations, their bytes, peers and order, and carries out only operations in `allow`.
        When a rank worked, and what it waited for, is what the rank itself reports. What ranks pass to each other off
        the wire is not on the timeline: compare `timeline.bytes_sent(rank)` with what the algorithm must send, and add
        a run with a `SilentError` of `worldsize.faults`, which shows in the result where the data went over the wire.

        Raises:
            StudentFailed: a rank raised, died or hung, used another operation, or time is used up.
        """
        options = {"cluster": cluster, "allow": allow, "compute": compute, "faults": faults}
        return self._on_ranks(on_rank, *args, world_size=world_size, each=each, **options)

    @property
    def num_gpus(self) -> int:
        """The number of GPUs visible inside."""
        self._sandbox.forkserver.wait_until_warm()
        return self._sandbox.forkserver.num_gpus

    def program(self, name: str) -> SubmittedProgram:
        """The submitted program of that name."""
        return SubmittedProgram(self._programs[name], self._shown, self._launch, self._limit_s)

    def reference(self, name: str) -> SubmittedProgram:
        """Our own solution to it, which runs in the same sandbox: what it takes there is what the task takes."""
        return SubmittedProgram(self._references[name], self._shown, self._launch, self._limit_s)

    def _on_ranks(self, on_rank: Callable[..., Any], *args: Any, **options: Any) -> Run:
        _pickle_by_value(on_rank)
        return self._launch(_call_on_rank, self._cells, on_rank, *args, **options)

    def _limit_s(self, taken_s: float = 0.0) -> float:
        left_s = self._left_s - taken_s
        if left_s <= 0:
            raise StudentFailed(Outcome.TIME_LIMIT, _USED_UP)
        return min(self._call_s, left_s)

    def _launch(self, function: Callable[..., Any], *args: Any, **options: Any) -> Run:
        limit_s, start_s = self._limit_s(), time.monotonic()
        _pickle_by_value(function)
        try:
            self._reopen_if_dead()  # in the time of the student, whose code has ended the last one
            limit_s = self._limit_s(time.monotonic() - start_s)
            server = self._sandbox.forkserver
            return launch(
                Spec(function, args, timeout_s=limit_s, echo=False, forkserver=server, quota=_QUOTA, **options)
            )
        except RankFailed as error:
            raise failures.of_failure(error) from None
        except RunTimeout as error:
            self._call_s = min(self._call_s, _AFTER_A_HANG_S)
            self._sandbox.close()  # code that hangs may also survive a sweep
            raise failures.of_timeout(error) from None
        finally:
            self._left_s -= time.monotonic() - start_s
            self._sandbox.sweep()

    def close(self) -> None:
        """End the sandbox and everything in it."""
        self._sandbox.close()
        if self._shown:
            shutil.rmtree(self._shown, ignore_errors=True)

    def _open(self) -> Sandbox:
        return Sandbox(preload=self._preload, shown=[self._shown] if self._shown else (), devices=self._devices)

    def _reopen_if_dead(self) -> None:
        if not self._sandbox.forkserver.is_alive:
            self._sandbox.close()
            self._sandbox = self._open()
        self._sandbox.forkserver.wait_until_warm()


def _pickle_by_value(function: Callable[..., Any]) -> None:
    """Have functions of a lab's checks, and of these files, pickled by value: the sandbox has none of the files."""
    for name in (function.__module__, *_PICKLED_BY_VALUE):
        cloudpickle.register_pickle_by_value(sys.modules[name])


class _StudentModule(ModuleType):
    """The names that the student's cells define; that of a cell that failed raises the cell's error."""

    def __init__(self) -> None:
        super().__init__("student")
        self.__dict__["broken_cells"] = {}

    def __getattr__(self, name: str) -> Any:
        broken = self.__dict__["broken_cells"]
        if name in broken:
            raise broken[name]
        first = next(iter(broken.values()), None)
        raise AttributeError(f"the notebook defines no {name}") from first


def _call_on_rank(cells: list[tuple[str, str]], on_rank: Callable[..., Any], *args: Any) -> Any:
    """Run the student's cells and then `on_rank`, on a rank inside the sandbox."""
    import sys

    from worldsize.launch.protocol.source import remember_sources

    module = _StudentModule()
    sys.modules["student"] = module
    for name, source in cells:
        filename = f"<cell {name}>"
        remember_sources({filename: source})
        try:
            exec(compile(source, filename, "exec"), module.__dict__)
        except Exception as error:
            module.__dict__["broken_cells"][name] = error
    return on_rank(module, *args)


def _under_agent(
    cells: list[tuple[str, str]],
    on_rank: Callable[..., Any],
    args: tuple[Any, ...],
    each: Sequence[Sequence[Any]] | None,
    world_size: int,
    limit_s: float,
) -> dict[str, Any]:
    """Call torchrun inside the sandbox, and return the ranks' values, or why there are none."""
    from worldsize.launch import RunError
    from worldsize.launch.launcher.spec import Spec
    from worldsize.launch.runner import launch

    options = {"world_size": world_size, "each": each, "launcher": "torchrun", "echo": False, "timeout_s": limit_s}
    try:
        return {"values": launch(Spec(_call_on_rank, (cells, on_rank, *args), **options)).values}
    except RunError as error:
        return describe(error)
