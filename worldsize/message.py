"""Typed messages between processes: on the wire, the class's name is the kind and JSON holds the fields.

What comes from a rank may be forged or malformed: `read` and `parse` take it strictly, by the types and bounds that the
fields of a class are annotated with. So an honest sender cuts its texts to those bounds.
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
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]


class Message(msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower):
    """A message without fields."""


AnyMessage = TypeVar("AnyMessage", bound=Message)
Parsed = TypeVar("Parsed")


def pack(message: Message, body: bytes = b"") -> bytes:
    """The bytes of a message and its body."""
    return framing.pack(body=body, **to_fields(message))


def pack_and_send(sock: socket.socket, message: Message, body: bytes = b"", fds: Sequence[int] = ()) -> None:
    """Send a message, with a body and open files if there are any."""
    framing.send(sock, body=body, fds=list(fds), **to_fields(message))


def read(header: bytes, *expected: type[AnyMessage]) -> AnyMessage:
    """The message of a header, which is of one of the `expected` classes.

    Raises:
        ValueError: it is not, or is malformed.
    """
    union: Any = Union[expected]  # noqa: UP007  # `|` takes no tuple
    return parse(framing.read_fields(header), union)


def to_fields(value: Any) -> Any:
    """A message, or what it is made of, as JSON takes it."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def parse(fields: Any, kind: type[Parsed]) -> Parsed:
    """The value of this class whose `to_fields` these are.

    Raises:
        ValueError: they are not such a value's.
    """
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _plain(value: Any) -> Any:
    """The text, number or dict that an instance of a subclass or another mapping stands for."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(cast(Mapping[str, Any], value))
    raise TypeError(f"a {type(value).__name__} cannot travel in a message")
