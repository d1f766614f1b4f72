"""Read, compare and word the values that ranks return, which may be anything, without an error of our own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from worldsize.check import expect_close

if TYPE_CHECKING:
    import torch

_MAX_SHOWN, _MAX_DIGITS, _MAX_DEPTH, _MAX_CHARS = 12, 9, 3, 160


def entry(value: Any, *places: int | str) -> Any:
    """Return the entry at this path in nested lists, tuples and dicts; None if there is none.

    A number is an index into a list or tuple, or a key of a dict.
    """
    for place in places:
        if isinstance(value, dict):
            value = value.get(place)
        elif isinstance(value, list | tuple) and type(place) is int and 0 <= place < len(value):
            value = value[place]
        else:
            return None
    return value


def entries(value: Any, num: int) -> list[Any]:
    """Return the first `num` entries of a list or tuple, with None for missing ones."""
    return [entry(value, place) for place in range(num)]


def tensor_like(value: Any, wanted: torch.Tensor) -> torch.Tensor | None:
    """Return the value if it is a tensor of the shape and type of `wanted`; None otherwise."""
    import torch

    is_tensor = isinstance(value, torch.Tensor)
    return value if is_tensor and value.shape == wanted.shape and value.dtype == wanted.dtype else None


def expect_like(
    value: Any,
    wanted: torch.Tensor,
    what: str,
    hint: str = "",
    mistakes: Iterable[tuple[torch.Tensor, str]] = (),
    rtol: float = 1e-4,
    atol: float = 1e-6,
) -> None:
    """Raise CheckFailed unless the value is this tensor; a known mistake's own hint replaces the general one."""
    import torch

    same = tensor_like(value, wanted)
    for like, why in mistakes:
        if same is not None and torch.allclose(same.double(), like.double(), rtol, atol):
            hint = why
            break
    expect_close(value, wanted, what, hint, rtol, atol)


def integer(value: Any) -> int | None:
    """Return the value if it is a whole number of at most 64 bits; None otherwise."""
    return value if type(value) is int and abs(value) < 1 << 63 else None


def is_same(one: Any, other: Any) -> bool:
    """Whether two values have the same structure and bitwise the same numbers; nan equals nothing."""
    import torch

    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other


def shown(value: Any) -> str:
    """Word a value for a message: numbers, and lists of them, cut short; of anything else only its type.

    A string or a key may carry what has to stay hidden.
    """
    text = _shown(value, 0)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]} ..."


def _shown(value: Any, depth: int) -> str:
    import torch

    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_MAX_DIGITS else "a huge number"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        parts = [_shown(one, depth + 1) for one in value[:_MAX_SHOWN]]
        return f"[{', '.join(parts)}{', ...' if len(value) > _MAX_SHOWN else ''}]"
    return f"a {type(value).__name__}"
