"""Length-prefixed messages on a stream socket, the one framing that launcher, forkserver, ranks and conductor share."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

_PREFIX = 8
_MAX_HEADER_BYTES = 8 << 20  # a rank's spans, or the text of a long notebook's cells


class TooLong(ValueError):
    """A message that is longer than its reader accepts."""


def pack(kind: str, body: bytes = b"", **fields: Any) -> bytes:
    """The bytes of one message: a kind, JSON fields, raw bytes."""
    return pack_header(kind, len(body), **fields) + body


def pack_header(kind: str, body_bytes: int, **fields: Any) -> bytes:
    """The bytes of one message before its body, which has this many."""
    header = json.dumps({"kind": kind, "size": body_bytes, **fields}).encode()
    return len(header).to_bytes(_PREFIX, "little") + header


def send(sock: socket.socket, kind: str, body: bytes = b"", fds: list[int] | None = None, **fields: Any) -> None:
    """Send one message, with open files if there are any."""
    message = pack(kind, body, **fields)
    if fds:
        socket.send_fds(sock, [message[:_PREFIX]], fds)
        message = message[_PREFIX:]
    sock.sendall(message)


def receive(
    sock: socket.socket, max_bytes: int = 1 << 40, max_header_bytes: int = _MAX_HEADER_BYTES
) -> tuple[dict[str, Any], bytes, list[int]] | None:
    """The next message as (header, body, files), waiting for it; None when the other end is closed.

    Raises:
        TooLong: the message is longer than `max_bytes`.
    """
    prefix, fds, _, _ = socket.recv_fds(sock, _PREFIX, 4)
    if not prefix:
        return None
    try:
        prefix += _exactly(sock, _PREFIX - len(prefix))
        header = json.loads(_exactly(sock, _bounded(int.from_bytes(prefix, "little"), max_header_bytes)))
        return header, _exactly(sock, _bounded(header["size"], max_bytes, TooLong)), list(fds)
    except BaseException:
        for fd in fds:  # a sender of messages that cannot be read must not use up this process's files
            os.close(fd)
        raise


class Inbox:
    """Messages assembled from a non-blocking socket whose sender may never finish them."""

    def __init__(self, max_bytes: int) -> None:
        self._buffer = bytearray()
        self._max_bytes = max_bytes
        self._header: dict[str, Any] | None = None  # of the message whose body is not complete,
        self._body_start = self._end = 0  # and where it stands

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """The messages that are complete after these bytes.

        Raises:
            ValueError: a message is malformed or longer than the limit.
        """
        self._buffer += data
        messages = []
        while (message := self._take()) is not None:
            messages.append(message)
        return messages

    def _take(self) -> tuple[dict[str, Any], bytes] | None:
        if self._header is None:  # a header is read once, in however many pieces its body comes
            self._read_header()
        if self._header is None or len(self._buffer) < self._end:
            return None
        header, body = self._header, bytes(self._buffer[self._body_start : self._end])
        del self._buffer[: self._end]
        self._header = None
        return header, body

    def _read_header(self) -> None:
        if len(self._buffer) < _PREFIX:
            return
        header_end = _PREFIX + _bounded(int.from_bytes(self._buffer[:_PREFIX], "little"), _MAX_HEADER_BYTES)
        if len(self._buffer) < header_end:
            return
        try:
            header = json.loads(self._buffer[_PREFIX:header_end])
        except RecursionError:
            raise ValueError("a header nested too deeply") from None
        if not isinstance(header, dict) or not isinstance(header.get("size"), int):
            raise ValueError("a message without a size")
        self._end = header_end + _bounded(header["size"], self._max_bytes, TooLong)
        self._header, self._body_start = header, header_end


def _bounded(size: int, limit: int, beyond: type[ValueError] = ValueError) -> int:
    if not 0 <= size <= limit:
        raise (beyond if size > limit else ValueError)(f"a message of {size} bytes; at most {limit} are taken")
    return size


def _exactly(sock: socket.socket, num_bytes: int) -> bytes:
    parts = bytearray()
    while len(parts) < num_bytes:
        part = sock.recv(min(num_bytes - len(parts), 1 << 20))
        if not part:
            raise ConnectionError("the other end closed in the middle of a message")
        parts += part
    return bytes(parts)
