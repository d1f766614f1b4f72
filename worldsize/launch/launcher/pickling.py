"""Pickling of a function and its arguments for its ranks."""

from __future__ import annotations

import io
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle


@dataclass(frozen=True)
class Carried:
    """Each rank's pickle, and the names of the files that define the functions pickled by value.

    The bytes are two pickles for one unpickler: what all ranks share, then the rank's own arguments.
    """

    payloads: list[bytes]
    filenames: frozenset[str]


class _Pickler(cloudpickle.Pickler):
    """A pickler that records the file of every function that it pickles by value."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.filenames: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        """Reduce an object as cloudpickle does, recording the file of a code object."""
        if isinstance(obj, types.CodeType):
            self.filenames.add(obj.co_filename)
        return super().reducer_override(obj)


def carry(
    fn: Callable[..., Any], args: tuple[Any, ...], each: Sequence[Sequence[Any]] | None, world_size: int
) -> Carried:
    """Pickle the function and its arguments for every rank.

    Raises:
        ValueError: they cannot be pickled.
    """
    if not callable(fn):
        raise ValueError(f"run takes a function; got a {type(fn).__name__}")
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump((fn, args))  # once: pickling a module's function by value takes most of the time
        known, size_bytes = pickler.memo.copy(), file.tell()
        payloads: list[bytes] = []
        for own in each or [()] * world_size:
            pickler.memo = known  # an object in both pickles is one object on the rank
            file.truncate(file.seek(size_bytes))
            pickler.dump(tuple(own))
            payloads.append(file.getvalue())
        return Carried(payloads, frozenset(pickler.filenames))
    except Exception as error:
        name = getattr(fn, "__name__", repr(fn))
        raise ValueError(
            f"{name} and its arguments cannot be carried to another process: {error}. "
            "Open files, locks and running generators must be made inside the function."
        ) from error
