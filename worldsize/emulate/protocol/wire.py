"""The frames between a rank of an emulated cluster and the conductor: two lengths, a header, a body, all of them bytes.

They come by the ten thousand, so that headers are binary here, and JSON everywhere else (`worldsize.framing`).
"""

from __future__ import annotations

import struct

from worldsize.framing import TooLong

_LENGTHS = struct.Struct("<IQ")  # of the header, of the body
_MAX_HEADER_BYTES = 8 << 20  # the steps of a rank that has not communicated for long


def pack(header: bytes, body_bytes: int = 0) -> bytes:
    """The bytes of a frame before its body, which has this many."""
    return _LENGTHS.pack(len(header), body_bytes) + header


class Inbox:
    """Frames assembled from a socket whose sender may never finish them."""

    def __init__(self, max_body_bytes: int) -> None:
        self._buffer = bytearray()
        self._max_body_bytes = max_body_bytes

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The headers and bodies that are complete after these bytes.

        Raises:
            ValueError: a frame is longer than the limit.
        """
        self._buffer += data
        found: list[tuple[bytes, bytes]] = []
        start, available = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while available - start >= _LENGTHS.size:
                header_bytes, body_bytes = _LENGTHS.unpack_from(view, start)
                self._refuse_too_long(header_bytes, body_bytes)
                header_start = start + _LENGTHS.size
                body_start = header_start + header_bytes
                if available < body_start + body_bytes:
                    break
                start = body_start + body_bytes
                found.append((bytes(view[header_start:body_start]), bytes(view[body_start:start])))
        if start:
            del self._buffer[:start]
        return found

    def _refuse_too_long(self, header_bytes: int, body_bytes: int) -> None:
        if header_bytes > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {header_bytes} bytes; at most {_MAX_HEADER_BYTES} are taken")
        if body_bytes > self._max_body_bytes:
            raise TooLong(f"a message of {body_bytes} bytes; at most {self._max_body_bytes} are taken")
