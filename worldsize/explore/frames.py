"""An explorer without a kernel: a frame for each of its positions, or for some, and a script that switches frames.

A build of static pages, such as the course's site, asks for frames by setting WORLDSIZE_FRAMES to the most that an
explorer may have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import product
from math import prod
from typing import Any

from worldsize.controls import Control
from worldsize.draw.picture import in_dark_theme

VARIABLE = "WORLDSIZE_FRAMES"


def most_frames() -> int:
    """Return the most frames that an explorer may have here; 0 if none are wanted."""
    text = os.environ.get(VARIABLE, "0")
    if not text.isdecimal():
        raise ValueError(f"{VARIABLE} is {text!r}, not a number of frames such as 40.")
    return int(text)


def positions(controls: Sequence[Control], most: int) -> list[list[int]]:
    """Choose the positions of each control that get frames: all, or if too many, fewer of the largest control.

    The ends and the start of a slider always have one; a list and a check box keep all their positions.
    """
    kept = [list(range(len(control.options))) for control in controls]
    while prod(map(len, kept)) > most:
        sliders = [index for index, control in enumerate(controls) if control.kind == "slider" and len(kept[index]) > 3]
        if not sliders:
            break
        largest = max(sliders, key=lambda index: len(kept[index]))
        kept[largest] = _thinned(controls[largest], len(kept[largest]) - 1)
    return kept


def html(controls: Sequence[Control], most: int, frame: Callable[[Mapping[str, Any]], str], words: str) -> str:
    """Render the explorer as HTML: its controls, and what `frame` returns for their values."""
    kept = positions(controls, most)
    fields = "".join(map(_field, controls, kept))
    frames = []
    for places in product(*kept):
        chosen = {
            control.name: control.options[position][1] for control, position in zip(controls, places, strict=True)
        }
        is_first = all(position == control.start for control, position in zip(controls, places, strict=True))
        at = ",".join(map(str, places))
        frames.append(f'<div class="frame" data-at="{at}"{"" if is_first else " hidden"}>{frame(chosen)}</div>')
    folder = files("worldsize.explore")
    style, script = (folder.joinpath(f"frames.{kind}").read_text("utf-8") for kind in ("css", "js"))
    style += in_dark_theme(".worldsize-frames img")
    box = f'<div class="worldsize-frames"><div class="controls">{fields}</div>{"".join(frames)}'
    return f'<style>{style}</style>{box}<p class="words">{escape(words)}</p></div><script>{script}</script>'


def _thinned(control: Control, num: int) -> list[int]:
    """Choose about `num` evenly spread positions, with both ends and the start."""
    last = len(control.options) - 1
    spread = {round(index * last / (num - 1)) for index in range(num)}
    others = sorted(spread - {0, last, control.start}, key=lambda position: abs(position - control.start))
    while len(others) > max(0, num - len({0, last, control.start})):
        others.pop(0)  # the position next to the start shows least
    return sorted({0, last, control.start, *others})


def _field(control: Control, kept: Sequence[int]) -> str:
    name, start = escape(control.name), kept.index(control.start)
    texts = [escape(control.options[position][0]) for position in kept]
    if control.kind == "slider":
        spoken = "|".join(texts)
        field = f'<input type="range" min="0" max="{len(kept) - 1}" value="{start}" data-texts="{spoken}"'
        field += f' data-places="{",".join(map(str, kept))}"><output>{texts[start]}</output>'
    else:
        options = "".join(
            f'<option value="{position}"{" selected" if position == control.start else ""}>{text}</option>'
            for position, text in zip(kept, texts, strict=True)
        )
        field = f"<select>{options}</select>"
    return f"<label><span>{name}</span> {field}</label>"
