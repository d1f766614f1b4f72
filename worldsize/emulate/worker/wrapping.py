"""Methods that are wrapped on an emulated rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def around(owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Have `call(before, self, ...)` stand in for a method, `before` being what it was."""
    before = getattr(owner, name)

    @wraps(before)
    def stand_in(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(before, self, *args, **kwargs)

    setattr(owner, name, stand_in)
