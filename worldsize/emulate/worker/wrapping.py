"""Wrapping of methods on an emulated rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def around(owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Replace a method with `call(before, self, ...)`, where `before` is the original method."""
    before = getattr(owner, name)

    @wraps(before)
    def stand_in(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(before, self, *args, **kwargs)

    setattr(owner, name, stand_in)
