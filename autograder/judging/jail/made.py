"""What check authors set up on a rank: hidden inputs that student code cannot reach, and limits of the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Made:
    """Something that a rank makes with `function(*args)` before student code runs; `on_rank` gets it last.

    The arguments are gone by then: no frame and no object that student code can reach holds them.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._parts = [function, args]

    def take(self) -> Any:
        """Make it; this works once."""
        args, function = self._parts.pop(), self._parts.pop()
        return function(*args)


def call_each(
    student: Any,
    name: str,
    calls: Sequence[Sequence[Any]],
    parts: Mapping[str, Callable[..., Any]] | None = None,
    *_: Any,
) -> list[Any]:
    """What a function of the student's returns for each call, with tuples as lists; `parts` replace other functions.

    Named tuples among the arguments, and among what `parts` return, are of the student's own classes.
    """

    def plain(value: Any) -> Any:
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    def in_own_classes(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: as_students(student, function(*args, **options))

    for part, function in (parts or {}).items():
        setattr(student, part, in_own_classes(function))
    return [plain(getattr(student, name)(*as_students(student, tuple(args)))) for args in calls]


def as_students(student: Any, value: Any) -> Any:
    """The value, in which named tuples are of the classes of their names in the student's notebook.

    Student code may then ask for its own class, as by `isinstance` or `match`. Lists and tuples are looked into.
    """
    if hasattr(value, "_fields"):
        return getattr(student, type(value).__name__, type(value))(*value)
    return type(value)(as_students(student, item) for item in value) if type(value) in (list, tuple) else value


def return_freed_memory() -> None:
    """Make this process return large freed memory to the system at once, so that the kernel counts what is held."""
    import ctypes

    import torch

    torch.set_num_threads(1)  # each thread has an arena
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: a MiB


def limit_computing(limit_s: int) -> None:
    """Make the kernel end this process after `limit_s` of CPU time, and refuse it new ones: for good."""
    import resource

    import torch

    torch.set_num_threads(1)  # more threads than there are now are refused as well
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))  # SIGXCPU, and then SIGKILL
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # the limit of a child would count anew
