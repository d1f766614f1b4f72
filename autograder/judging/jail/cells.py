"""The student's cells on a rank: what is set up before they run, their module, and the check's function after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from autograder.judging.jail.bans import put_out_of_reach
from autograder.judging.jail.made import Made


@dataclass
class Setting:
    """How ranks are set up: what student code may not use, which ranks run it, what is made before it runs."""

    forbid: Mapping[str, str] = field(default_factory=dict)
    student_ranks: frozenset[int] | None = None
    made: Made | None = None


class StudentModule(ModuleType):
    """A module of what the student's cells define; a name whose cell failed raises that cell's error."""

    def __init__(self) -> None:
        super().__init__("student")
        self.__dict__["broken_cells"] = {}

    def __getattr__(self, name: str) -> Any:
        broken = self.__dict__["broken_cells"]
        if name in broken:
            raise broken[name]
        first = next(iter(broken.values()), None)
        raise AttributeError(f"the notebook defines no {name}") from first


def call_on_rank(cells: list[tuple[str, str]], setting: Setting, on_rank: Callable[..., Any], *args: Any) -> Any:
    """Run the student's cells where the setting says so, and then `on_rank`, on a rank inside the sandbox."""
    import os

    made = [setting.made.take()] if setting.made else []
    if setting.student_ranks is not None and int(os.environ["RANK"]) not in setting.student_ranks:
        return on_rank(None, *args, *made)
    for name, sentence in setting.forbid.items():
        put_out_of_reach(name, sentence)
    return on_rank(run_cells(cells), *args, *made)


def record_on_rank(
    cells: list[tuple[str, str]], setting: Setting, on_rank: Callable[..., Any], args: Sequence[Any], *job: Any
) -> Any:
    """Record `call_on_rank` on paper with these arguments; `job` is its size and the ranks to record."""
    from functools import partial

    from worldsize.paper import rank

    return rank.record(partial(call_on_rank, cells, setting, on_rank), args, *job)


def run_cells(cells: list[tuple[str, str]]) -> StudentModule:
    """Run the cells in the student's module, and return it."""
    import sys

    from worldsize.source import remember_sources

    module = StudentModule()
    sys.modules["student"] = module
    with no_runs():
        for name, source in cells:
            filename = f"<cell {name}>"
            remember_sources({filename: source})
            try:
                exec(compile(source, filename, "exec"), module.__dict__)
            except Exception as error:
                module.__dict__["broken_cells"][name] = error
    return module


@contextmanager
def no_runs() -> Iterator[None]:
    """Refuse to start ranks: a call left under a function would otherwise start them on every rank of every check."""
    from worldsize.launch.launcher import elastic, forked

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("a cell of this notebook starts ranks by itself; while it is graded, only functions may")

    starters = [(forked, "run_function"), (elastic, "run_function"), (elastic, "run_script")]
    before = [getattr(module, name) for module, name in starters]
    for module, name in starters:
        setattr(module, name, refuse)
    try:
        yield
    finally:
        for (module, name), start in zip(starters, before, strict=True):
            setattr(module, name, start)
