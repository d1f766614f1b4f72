"""The output of a rank: its last characters are kept, whole lines are shown, never more than a reader can take."""

from __future__ import annotations

import codecs
from collections import deque

KEPT_OUTPUT = 1 << 20  # characters; the last ones of each rank's output are kept
LONGEST_LINE = 1 << 13  # characters; a longer line is shown in pieces, because an endless one would fill memory


class Tail:
    """The end of what one rank prints."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: deque[str] = deque()
        self._num_kept = 0

    def feed(self, data: bytes) -> str:
        """The text of these bytes; a character that is cut in two waits for its other half."""
        self.num_bytes += len(data)
        piece = self._decoder.decode(data)
        self._pieces.append(piece)
        self._num_kept += len(piece)
        while self._num_kept - len(self._pieces[0]) >= KEPT_OUTPUT:
            self._num_kept -= len(self._pieces.popleft())
        return piece

    @property
    def text(self) -> str:
        """The last `KEPT_OUTPUT` characters."""
        return "".join(self._pieces)[-KEPT_OUTPUT:]

    def last(self, num_characters: int) -> str:
        """At most this many of the last characters, from the start of a line where there is one."""
        pieces: list[str] = []
        num_taken = 0
        for piece in reversed(self._pieces):
            if num_taken >= num_characters:
                break
            pieces.append(piece)
            num_taken += len(piece)
        text = "".join(reversed(pieces))
        if len(text) <= num_characters and len(pieces) == len(self._pieces):
            return text
        cut = text[-num_characters:]
        return cut.partition("\n")[2] or cut


class Lines:
    """The lines of a text that comes in pieces."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """The lines that are complete after this text, without their ends; a very long one in pieces."""
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = ""
        return lines

    def end(self) -> list[str]:
        """The last line, if it had no end."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []
