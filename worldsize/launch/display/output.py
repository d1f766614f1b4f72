"""The output of a rank: keeps its last characters and shows whole lines, up to a limit."""

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
        """Add bytes and return their text; an incomplete character waits for the rest of its bytes."""
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
        """At most the last `num_characters`, from the start of a line if one begins among them."""
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
    """A splitter of a text that comes in pieces into lines."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """Add text and return the lines it completes, without line ends; very long lines come in pieces."""
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = ""
        return lines

    def end(self) -> list[str]:
        """Return the unfinished last line, if there is one."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []
