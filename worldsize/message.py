"""Typed messages between processes: on the wire, the class's name is the kind and JSON holds the fields.

A rank's messages may be forged or malformed: `read` and `parse` enforce the types and bounds with which a class's
fields are annotated. An honest sender truncates its texts to those bounds.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, Union, cast

import msgspec
from msgspec import Meta

from worldsize import framing

MAX_WORD, MAX_NAME = 80, 200
Word = Annotated[str, Meta(max_length=MAX_WORD)]
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0, le=1e300)]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]


class Message(msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower):
    """A message without fields."""


AnyMessage = TypeVar("AnyMessage", bound=Message)
Parsed = TypeVar("Parsed")


def pack(message: Message, body: bytes = b"") -> bytes:
    """Encode a message and its body."""
    return framing.pack(body=body, **to_fields(message))


def pack_and_send(sock: socket.socket, message: Message, body: bytes = b"", fds: Sequence[int] = ()) -> None:
    """Send a message, with its body and open files if it has any."""
    framing.send(sock, body=body, fds=list(fds), **to_fields(message))


def read(header: bytes, *expected: type[AnyMessage]) -> AnyMessage:
    """Read a message of one of the `expected` classes from its header.

    Raises:
        ValueError: it is a different message, or malformed.
    """
    union: Any = Union[expected]  # noqa: UP007  # `|` takes no tuple
    return parse(framing.read_fields(header), union)


def to_fields(value: Any) -> Any:
    """Convert a message, or a part of one, to JSON values."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def parse(fields: Any, kind: type[Parsed]) -> Parsed:
    """Make a value of this class from its `to_fields`.

    Raises:
        ValueError: the fields are invalid.
    """
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _plain(value: Any) -> Any:
    """Convert an instance of a subclass of text or number, or a mapping, to the plain type."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(cast(Mapping[str, Any], value))
    raise TypeError(f"a {type(value).__name__} cannot be sent in a message")
