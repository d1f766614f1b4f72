"""A function and its arguments as the bytes that its ranks unpickle."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any


def carry(
    fn: Callable[..., Any], args: tuple[Any, ...], each: Sequence[Sequence[Any]] | None, world_size: int
) -> list[bytes]:
    """Each rank's bytes: two pickles for one unpickler, of what all ranks share and of the rank's own arguments.

    Raises:
        ValueError: they cannot be carried.
    """
    import cloudpickle

    if not callable(fn):
        raise ValueError(f"run takes a function; got a {type(fn).__name__}")
    file = io.BytesIO()
    pickler = cloudpickle.Pickler(file)
    try:
        pickler.dump((fn, args))  # once: a function of a module that goes by value takes most of the time
        known, size_bytes = pickler.memo.copy(), file.tell()
        payloads = []
        for own in each or [()] * world_size:
            pickler.memo = known  # what the two share stays one object on the rank
            file.truncate(file.seek(size_bytes))
            pickler.dump(tuple(own))
            payloads.append(file.getvalue())
        return payloads
    except Exception as error:
        name = getattr(fn, "__name__", repr(fn))
        raise ValueError(
            f"{name} and its arguments cannot be carried to another process: {error}. "
            "Open files, locks and running generators must be made inside the function."
        ) from error
