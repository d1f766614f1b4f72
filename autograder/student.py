"""The student's code as hidden checks see it: a function to run on ranks in the sandbox, and what it gave back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import cloudpickle

from autograder.sandbox import Sandbox
from autograder.verdict import Outcome
from worldsize.launch import RankFailed, RunTimeout, run
from worldsize.launch.diagnosis import Standing
from worldsize.launch.report import tell_hang
from worldsize.launch.source import Line, is_cell, quote

_AFTER_A_HANG_S = 5.0  # what a call may take once one has hung: the code is known not to end by itself
_MAX_VALUE_BYTES = 64 << 20  # of each rank; the judge holds it three times while it decodes


class StudentFailed(Exception):
    """The student's code did not come back with values; `outcome` says how, the text says why."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class Student:
    """One submission in a sandbox of its own. Only data comes out of it, and whatever comes may be forged."""

    def __init__(self, cells: Sequence[tuple[str, str]], preload: Sequence[str], call_s: float, total_s: float) -> None:
        self._cells, self._preload = list(cells), preload
        self._call_s, self._left_s = call_s, total_s
        self._sandbox = Sandbox(preload=preload)
        self.tier = self._sandbox.tier

    def run(
        self, on_rank: Callable[..., Any], *args: Any, world_size: int, each: Sequence[Sequence[Any]] | None = None
    ) -> list[Any]:
        """What `on_rank(student, *args, *each[rank])` returned on every rank; `student` there is the student's module.

        Raises:
            StudentFailed: a rank raised, died or hung, or time is used up.
        """
        if self._left_s <= 0:
            raise StudentFailed(Outcome.OUT_OF_TIME, Outcome.OUT_OF_TIME.sentence)
        cloudpickle.register_pickle_by_value(sys.modules[on_rank.__module__])
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self._reopen_if_dead()
        start_s, limit_s = time.monotonic(), min(self._call_s, self._left_s)
        try:
            return run(
                _call_on_rank,
                self._cells,
                on_rank,
                *args,
                world_size=world_size,
                each=each,
                backend="gloo",
                timeout_s=limit_s,
                echo=False,
                nursery=self._sandbox.nursery,
                max_value_bytes=_MAX_VALUE_BYTES,
            ).values
        except RankFailed as error:
            raise StudentFailed(Outcome.CRASHED, _explain(error)) from None
        except RunTimeout as error:
            self._call_s = min(self._call_s, _AFTER_A_HANG_S)
            raise StudentFailed(Outcome.HUNG, _explain_hang(error, limit_s)) from None
        finally:
            self._left_s -= time.monotonic() - start_s
            self._clean_up()

    def close(self) -> None:
        """Ends the sandbox and everything in it."""
        self._sandbox.close()

    def _clean_up(self) -> None:
        if self.tier.is_trusted and self._sandbox.nursery.is_alive:
            try:
                self._sandbox.nursery.sweep()
            except OSError:  # it has just died, or is kept too busy to answer
                self._sandbox.close()

    def _reopen_if_dead(self) -> None:
        if not self._sandbox.nursery.is_alive:
            self._sandbox.close()
            self._sandbox = Sandbox(preload=self._preload)
        self._sandbox.nursery.wait_until_warm()


def _explain(error: RankFailed) -> str:
    """The culprit's words and its lines in the student's own cells; never a line of the checks."""
    culprit = error.failures[0]
    return "\n".join([f"Rank {culprit.rank}: {culprit.headline}", *quote(_in_cells(culprit.lines))])


def _explain_hang(error: RunTimeout, limit_s: float) -> str:
    """Who waits for whom, and where each rank stood in the student's own cells."""
    return tell_hang([_in_cells_only(one) for one in error.standings], f"The ranks were not done after {limit_s:g} s.")


def _in_cells_only(standing: Standing) -> Standing:
    calls = [
        replace(call, line=call.line if call.line and is_cell(call.line.filename) else None) for call in standing.calls
    ]
    return replace(standing, lines=_in_cells(standing.lines), calls=calls)


def _in_cells(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if is_cell(line.filename)]


class _StudentModule(ModuleType):
    """The names that the student's cells define; a cell that did not run says so when its name is asked for."""

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
    """Runs inside the sandbox, on a rank."""
    import sys

    from worldsize.launch.source import remember_sources

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
