"""Framing of all messages between processes on a stream socket: two lengths, a header, a body.

A header is JSON with a `kind`, written by `pack` and read by `worldsize.message`. Only between a rank of an emulated
cluster and the conductor, which exchange tens of thousands of messages, headers are binary.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct("<IQ")  # of the header and the body
_MAX_HEADER_BYTES = 8 << 20  # a rank's spans, its steps since it last communicated, the text of a long notebook's cells


class TooLong(ValueError):
    """A message's body is longer than its reader accepts."""


def pack_header(header: bytes, body_bytes: int = 0) -> bytes:
    """Encode the part of a message that precedes its body of `body_bytes`."""
    return _LENGTHS.pack(len(header), body_bytes) + header


def pack(kind: str, body: bytes = b"", **fields: Any) -> bytes:
    """Encode one message: a kind, JSON fields, raw bytes."""
    return pack_header(json.dumps({"kind": kind, **fields}).encode(), len(body)) + body


def send(sock: socket.socket, kind: str, body: bytes = b"", fds: list[int] | None = None, **fields: Any) -> None:
    """Send one message, with open files if there are any."""
    message = pack(kind, body, **fields)
    if fds:
        socket.send_fds(sock, [message[: _LENGTHS.size]], fds)
        message = message[_LENGTHS.size :]
    sock.sendall(message)


def receive(
    sock: socket.socket, max_body_bytes: int = 1 << 40, max_header_bytes: int = _MAX_HEADER_BYTES
) -> tuple[bytes, bytes, list[int]] | None:
    """Wait for the next message and return (header, body, files); None if the other end is closed.

    Raises:
        ValueError: the header is longer than `max_header_bytes`.
        TooLong: the body is longer than `max_body_bytes`.
    """
    lengths, fds, _, _ = socket.recv_fds(sock, _LENGTHS.size, 4)
    if not lengths:
        return None
    try:
        lengths += _exactly(sock, _LENGTHS.size - len(lengths))
        header_bytes, body_bytes = _LENGTHS.unpack(lengths)
        _refuse_too_long(header_bytes, body_bytes, max_header_bytes, max_body_bytes)
        return _exactly(sock, header_bytes), _exactly(sock, body_bytes), list(fds)
    except BaseException:
        for fd in fds:  # malformed messages must not use up this process's file descriptors
            os.close(fd)
        raise


def read_fields(header: bytes) -> dict[str, Any]:
    """Parse the kind and the fields of a message.

    Raises:
        ValueError: the header is not a JSON object.
    """
    try:
        fields = json.loads(header)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError(f"expected named fields, got a {type(fields).__name__}")
    return fields


class Inbox:
    """An assembler of messages from a socket whose sender may never finish them."""

    def __init__(self, max_body_bytes: int) -> None:
        self._buffer = bytearray()
        self._max_body_bytes = max_body_bytes

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Add bytes and return the headers and bodies of the messages that they complete.

        Raises:
            ValueError: a header is longer than the limit.
            TooLong: a body is longer than the limit.
        """
        self._buffer += data
        messages: list[tuple[bytes, bytes]] = []
        start, available = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while available - start >= _LENGTHS.size:
                header_bytes, body_bytes = _LENGTHS.unpack_from(view, start)
                _refuse_too_long(header_bytes, body_bytes, _MAX_HEADER_BYTES, self._max_body_bytes)
                header_start = start + _LENGTHS.size
                body_start = header_start + header_bytes
                if available < body_start + body_bytes:
                    break
                start = body_start + body_bytes
                messages.append((bytes(view[header_start:body_start]), bytes(view[body_start:start])))
        if start:
            del self._buffer[:start]
        return messages


def _refuse_too_long(header_bytes: int, body_bytes: int, max_header_bytes: int, max_body_bytes: int) -> None:
    if header_bytes > max_header_bytes:
        raise ValueError(f"the header has {header_bytes} bytes; the limit is {max_header_bytes}")
    if body_bytes > max_body_bytes:
        raise TooLong(f"the message has {body_bytes} bytes; the limit is {max_body_bytes}")


def _exactly(sock: socket.socket, num_bytes: int) -> bytes:
    parts = bytearray()
    while len(parts) < num_bytes:
        part = sock.recv(min(num_bytes - len(parts), 1 << 20))
        if not part:
            raise ConnectionError("the other end closed in the middle of a message")
        parts += part
    return bytes(parts)
