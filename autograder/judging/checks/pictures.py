"""Pictures next to the words of hidden checks, each in a quarter of its bytes: a feedback page may hold many."""

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
        """The bytes of a PNG file."""
        from PIL import Image

        file = io.BytesIO()
        drawn = Image.open(io.BytesIO(self._picture.png())).convert("RGB")
        drawn.quantize(_NUM_COLOURS).save(file, "png", optimize=True)
        return file.getvalue()


def draw_timeline(run: Timeline, title: str, streams: Sequence[str] | None = None) -> Drawn:
    """When each rank was busy, or what it did on these streams."""
    from worldsize.draw import timeline as drawn

    return InFewColours(drawn(run, title, streams=streams))


def draw_messages(timeline: Timeline, title: str = "What your ranks sent") -> Drawn:
    """Each message's sender and receiver, step by step."""
    from worldsize.draw import messages

    return InFewColours(messages(timeline, title))


def draw_bars(wanted: Mapping[str, float], given: Mapping[str, float], title: str, unit: str) -> Drawn:
    """Bars of what was expected next to what there was."""
    from worldsize.draw.contrast import bars

    return bars(dict(wanted), dict(given), title, unit)
