"""The legend of a timeline: each kind with its share, below the picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.patches import Rectangle

from worldsize.draw._block_styles import Style, blocks, style_of
from worldsize.draw._outlined_text import OutlinedText, width_in
from worldsize.draw._timeline_content import TimelineContent
from worldsize.draw._timeline_panel import BUBBLE, UNDERLINE_PX
from worldsize.draw.picture import SCREEN_DPI, Picture
from worldsize.event import COMMUNICATION
from worldsize.palette import INK

_SIZE, _LINE, _BOTTOM = 8.5, 0.24, 0.08  # font size in points; height of a line, and space below all, in inches
_BOX, _TALL, _PAD, _APART = 0.24, 0.14, 0.06, 0.16
_EXPOSED, _BUBBLE = "exposed communication", "bubble (no work)"


class TimelineLegend:
    """The kinds of these runs in lines from `left` to `left + width`, in inches; for a single run, with shares."""

    def __init__(self, runs: Sequence[TimelineContent], left: float, width: float, shows_shares: bool = True) -> None:
        kinds = list(dict.fromkeys(kind for busy in runs for kind in busy.kinds))
        names = [*kinds, *([_EXPOSED] if COMMUNICATION in kinds else []), _BUBBLE]
        shares = runs[0].shares() if len(runs) == 1 and shows_shares else {}
        self.places: list[tuple[float, int, str, str]] = []  # left, line, name, text
        x, line = left, 0
        for name in names:
            text = f"{name} {shares[name]:.0%}" if name in shares else name
            needed = _BOX + _PAD + width_in(text, _SIZE)
            if x + needed > left + width and x > left:
                x, line = left, line + 1
            self.places.append((x, line, name, text))
            x += needed + _APART
        self.height = _BOTTOM + _LINE * (line + 1)

    def draw(self, picture: Picture) -> None:
        """Add the legend to the picture."""
        inches = picture.dpi_scale_trans
        middles = [self.height - _LINE * (line + 0.5) for _, line, _, _ in self.places]
        for (x, _, name, _), y in zip(self.places, middles, strict=True):
            box = np.array([[x, x + _BOX, y + _TALL / 2, y - _TALL / 2]])
            if name == _BUBBLE:
                picture.add_artist(Rectangle((x, y - _TALL / 2), _BOX, _TALL, transform=inches, **BUBBLE))
                continue
            if name == _EXPOSED:
                box[0, 2] = box[0, 3] + UNDERLINE_PX / SCREEN_DPI
            for artist in blocks(Style(INK) if name == _EXPOSED else style_of(name), box, inches):
                picture.add_artist(artist)
        at = [(x + _BOX + _PAD, y) for (x, *_), y in zip(self.places, middles, strict=True)]
        texts = [text for *_, text in self.places]
        picture.add_artist(OutlinedText(picture, texts, at, inches, size=_SIZE, align="left"))
