"""Replacing functions of torch while a run is observed, and never letting an observer's own error reach the program."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

failures: list[str] = []  # tracebacks of observers that raised; the program has not noticed


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Do what needs torch unseen by the program's dispatch modes; what raises is in `failures`."""
    from torch._subclasses.fake_tensor import DataDependentOutputException
    from torch.utils._python_dispatch import _disable_current_modes

    try:
        with _disable_current_modes():
            yield
    except DataDependentOutputException:  # a fake tensor has no content to note
        pass
    except Exception:
        failures.append(traceback.format_exc(limit=-2))


def replace(stack: contextlib.ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute by what `make` makes of it, until the stack is closed."""
    old = getattr(owner, name, None)
    if old is None:  # in a different version of torch
        return
    raw = vars(owner).get(name, old)
    new = functools.wraps(old)(make(old))
    setattr(owner, name, staticmethod(new) if isinstance(raw, staticmethod) else new)
    stack.callback(setattr, owner, name, raw)
