"""JSON fields of an untrusted process: each reader returns the type in its name, or raises ValueError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]


def fields_of(value: Any) -> Fields:
    """The value, which must be a JSON object.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"expected named fields, got a {type(value).__name__}")
    return value  # pyright: ignore[reportUnknownVariableType]


def integer(fields: Fields, name: str, default: int | None = None) -> int:
    """A whole number.

    Raises:
        ValueError: the field is something else, or missing without a default.
    """
    value = fields.get(name, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else _refuse(name, value, "a whole number")


def number(fields: Fields, name: str) -> float:
    """A finite number.

    Raises:
        ValueError: the field is something else.
    """
    return finite(fields.get(name), name)


def finite(value: Any, name: str) -> float:
    """The value as a finite number; `name` is for the message.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300:
        return float(value)
    if isinstance(value, float):
        raise ValueError(f"{name} is {value}; it must be finite, and between -1e300 and 1e300")
    return _refuse(name, value, "a number")


def text(fields: Fields, name: str, max_length: int, default: str | None = None) -> str:
    """A string, cut to its first `max_length` characters.

    Raises:
        ValueError: the field is something else, or missing without a default.
    """
    value = fields.get(name, default)
    return value[:max_length] if isinstance(value, str) else _refuse(name, value, "text")


def items(fields: Fields, name: str) -> list[Any]:
    """A list of anything.

    Raises:
        ValueError: the field is something else.
    """
    value = fields.get(name)
    return value if isinstance(value, list) else _refuse(name, value, "a list")  # pyright: ignore


def texts(fields: Fields, name: str) -> dict[str, str]:
    """Strings by name, uncut.

    Raises:
        ValueError: the field is something else.
    """
    found = fields_of(fields.get(name))
    return {key: value if isinstance(value, str) else _refuse(key, value, "text") for key, value in found.items()}


def _refuse(name: str, value: Any, wanted: str) -> Any:
    raise ValueError(f"{name} is a {type(value).__name__}; it must be {wanted}")
