"""Messages between processes as dataclasses: on the wire, the class's name is the kind and JSON holds the fields."""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from worldsize import framing
from worldsize.fields import Fields

_MAX_WORD = 80


class Message:
    """A message without fields."""

    def to_fields(self) -> dict[str, Any]:
        """The message as JSON fields."""
        return dict(vars(self))

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message whose `to_fields` these are.

        Raises:
            ValueError: the fields are not such a message's.
        """
        return cls()


AnyMessage = TypeVar("AnyMessage", bound=Message)


@functools.cache  # asked for at every message
def kind_of(message: type[Message]) -> str:
    """The word for this class of messages on the wire."""
    return message.__name__.lower()


def pack(message: Message, body: bytes = b"") -> bytes:
    """The bytes of a message and its body."""
    return framing.pack(kind_of(type(message)), body, **message.to_fields())


def pack_header(message: Message, body_bytes: int) -> bytes:
    """The bytes of a message before its body, which has this many."""
    return framing.pack_header(kind_of(type(message)), body_bytes, **message.to_fields())


def pack_and_send(sock: socket.socket, message: Message, body: bytes = b"", fds: Sequence[int] = ()) -> None:
    """Send a message, with a body and open files if there are any."""
    framing.send(sock, kind_of(type(message)), body, list(fds), **message.to_fields())


def read(header: Fields, *expected: type[AnyMessage]) -> AnyMessage:
    """The message of a header, which is one of the `expected` classes.

    Raises:
        ValueError: the message is another one, or malformed.
    """
    for one in expected:
        if header.get("kind") == kind_of(one):
            return one.parse(header)
    raise ValueError(f"a message of the kind {str(header.get('kind'))[:_MAX_WORD]!r} was not expected")
