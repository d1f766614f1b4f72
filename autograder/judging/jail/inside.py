"""What runs in the sandbox, beside student code or in its place: every function here is sent there without its file.

Nothing that comes out of it can be trusted where student code has run in the same process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from worldsize.launch import RunError, RunTimeout


class Made:
    """Something that a rank makes by `function(*args)` before student code runs there, for `on_rank` to get last.

    The arguments are gone by then: no frame and no object that student code can reach holds them.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._parts = [function, args]

    def take(self) -> Any:
        """What is made; it can be taken once."""
        args, function = self._parts.pop(), self._parts.pop()
        return function(*args)


@dataclass
class Setting:
    """How ranks are set up: what student code may not use there, on which ranks it runs, what is made before it."""

    forbid: Mapping[str, str] = field(default_factory=dict)
    student_ranks: frozenset[int] | None = None
    made: Made | None = None


class StudentModule(ModuleType):
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
    """The record on paper of `call_on_rank` with these arguments; `job` is the size of it and which ranks to record."""
    from functools import partial

    from worldsize.paper import rank

    return rank.record(partial(call_on_rank, cells, setting, on_rank), args, *job)


def run_cells(cells: list[tuple[str, str]]) -> StudentModule:
    """The student's module, once all its cells have run."""
    import sys

    from worldsize.launch.protocol.source import remember_sources

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
    """Refuse to start ranks: a call left below a function would otherwise start them on every rank of every check."""
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


def return_freed_memory() -> None:
    """Have this process give large freed memory back to the system at once, so that the kernel counts what is held."""
    import ctypes

    import torch

    torch.set_num_threads(1)  # each thread has an arena
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: a MiB


def limit_computing(limit_s: int) -> None:
    """Have the kernel end this process after so much computing, and refuse it others; nothing in it can lift that."""
    import resource

    import torch

    torch.set_num_threads(1)  # more threads than there are now are refused as well
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))  # SIGXCPU, and then SIGKILL
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # the limit of a child would count anew


def put_out_of_reach(name: str, sentence: str) -> None:
    """Refuse a class of torch's, or a module and all below it, to code that runs in this process from now on.

    A class loses its constructor: nothing else holds it, so no reference that student code can take leads to it. Of a
    module, its package has a stand-in that gives nothing, and it cannot be imported: an audit hook, which Python cannot
    take away, refuses its import and the opening of its files, compiled ones too. What stays possible in one's own
    process: to bring along a copy of what is Python source, and to rebuild a C++ object by hand through ctypes or in
    another process that is started afresh.
    """
    import importlib
    import importlib.util
    import os
    import sys

    from worldsize import emulate
    from worldsize.emulate.worker import backend

    def refuse(*_: Any, **__: Any) -> None:
        client = backend.client()
        if client is not None:
            client.note_refusal()
        raise emulate.Forbidden(sentence)

    parent, _, own = name.rpartition(".")
    owner = importlib.import_module(parent)
    if isinstance(forbidden := getattr(owner, own, None), type):
        forbidden.__init__ = refuse  # pyright: ignore[reportAttributeAccessIssue]
        return
    _let_torch_import_its_own()
    for loaded in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
        del sys.modules[loaded]
    setattr(owner, own, _stand_in(refuse))
    files = _files_of(getattr(owner, "__path__", ()), own)
    is_a, stat, text, texts = isinstance, os.stat, str, (str, bytes)  # held: student code may replace the originals

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "import" and is_a(args[0], text) and (args[0] == name or args[0].startswith(f"{name}.")):
            refuse()
        if event == "open" and is_a(args[0], texts):
            try:
                found = stat(args[0])
            except (OSError, ValueError):  # what is not there cannot be read
                return
            if (found.st_dev, found.st_ino) in files:
                refuse()

    sys.addaudithook(audit)


def _let_torch_import_its_own() -> None:
    """Have torch import `torch.distributed.tensor`, as at its first operation on any subclass of tensors.

    It keeps what it needs; later, a ban would refuse the import to code that asks for no DTensor.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    subclass = type("Subclass", (torch.Tensor,), {"__torch_dispatch__": classmethod(lambda *_, **__: None)})
    with _disable_current_modes():
        _ = torch.ones(()).as_subclass(subclass) + 1


def _stand_in(refuse: Callable[..., None]) -> Any:
    """What refuses to give any attribute, but for Python's own, which others may look for."""

    class OutOfReach:
        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__"):
                refuse()
            raise AttributeError(name)

    return OutOfReach()


def _files_of(folders: Iterable[str], own: str) -> frozenset[tuple[int, int]]:
    """The files of a module in its package's folders, compiled ones too, by device and inode, as any link has them."""
    from pathlib import Path

    found = []
    for folder in map(Path, folders):
        found += [folder / f"{own}.py", *folder.glob(f"__pycache__/{own}.*"), *folder.glob(f"{own}/**/*")]
    states = [path.stat() for path in found if path.is_file()]
    return frozenset((state.st_dev, state.st_ino) for state in states)


def call_under_agent(
    cells: list[tuple[str, str]],
    setting: Setting,
    on_rank: Callable[..., Any],
    args: tuple[Any, ...],
    each: Sequence[Sequence[Any]] | None,
    world_size: int,
    limit_s: float,
) -> dict[str, Any]:
    """Call torchrun inside the sandbox, and return the ranks' values, or why there are none."""
    from worldsize.launch.launcher.spec import Spec
    from worldsize.launch.runner import launch

    options = {"world_size": world_size, "each": each, "launcher": "torchrun", "echo": False, "timeout_s": limit_s}
    try:
        return {"values": launch(Spec(call_on_rank, (cells, setting, on_rank, *args), **options)).values}
    except RunError as error:
        return describe(error)


def describe(error: RunError) -> dict[str, Any]:
    """A run's failure as data, for runs launched inside the sandbox; `failures.raise_described` reads it."""
    standings = json.dumps([fields_of_standing(one) for one in error.standings])
    if isinstance(error, RunTimeout):
        return {"ending": error.ending.end.name, "standings": standings}
    failures = [[one.rank, one.to_fields(), one.cause.name] for one in error.failures]
    return {"failures": json.dumps(failures), "standings": standings}


def fields_of_standing(standing: Any) -> dict[str, Any]:
    """The JSON fields of where a rank was."""

    def of_call(call: Any) -> dict[str, Any] | None:
        return call and {**call.to_fields(), "number": call.number, "state": call.state}

    return {
        "rank": standing.rank,
        "state": standing.state,
        "lines": [vars(line) for line in standing.lines],
        "calls": [of_call(call) for call in standing.calls],
        "native": of_call(standing.native),
        "num_native": standing.num_native,
    }
