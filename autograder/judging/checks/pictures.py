"""Pictures for the messages of hidden checks, a quarter of the usual size, because a feedback page may hold many."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from worldsize.check import Drawn

if TYPE_CHECKING:
    from worldsize.timeline import Timeline

_NUM_COLOURS = 32


class InFewColours:
    """A picture in few colours."""

    def __init__(self, picture: Drawn) -> None:
        self._picture, self.alt = picture, picture.alt

    def png(self) -> bytes:
        """Encode the picture as a PNG file."""
        from PIL import Image

        file = io.BytesIO()
        drawn = Image.open(io.BytesIO(self._picture.png())).convert("RGB")
        drawn.quantize(_NUM_COLOURS).save(file, "png", optimize=True)
        return file.getvalue()


def draw_timeline(run: Timeline, title: str, streams: Sequence[str] | None = None) -> Drawn:
    """Draw when each rank was busy, or what it did on these streams."""
    from worldsize.draw import timeline as drawn

    return InFewColours(drawn(run, title, streams=streams))


def draw_messages(timeline: Timeline, title: str = "What your ranks sent") -> Drawn:
    """Draw each message's sender and receiver, step by step."""
    from worldsize.draw import messages

    return InFewColours(messages(timeline, title))


def draw_bars(wanted: Mapping[str, float], given: Mapping[str, float], title: str, unit: str) -> Drawn:
    """Draw bars of the expected next to the actual values."""
    from worldsize.draw.contrast import bars

    return bars(dict(wanted), dict(given), title, unit)
