"""Expected against actual: small pictures of a failure, for checks.

They draw whatever a student's code gave: anything that is not a number is shown in words, and long lists are cut.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from PIL import Image

from worldsize.draw._annotations import label_point, white_box
from worldsize.draw.picture import Picture, finish
from worldsize.palette import BLACK, GREEN, SKY, VERMILLION

_MAX_ROWS = 12
_MAX_LABEL_CHARS = 40
_NUM_COLOURS = 32
_WIDTH = 7  # inches, enough for a title


class SmallPicture(Picture):
    """A picture with few colours and few bytes, because a page may hold many, and the grader keeps all."""

    def png(self) -> bytes:
        """The picture as the bytes of a PNG file, about 10 kB."""
        file = io.BytesIO()
        Image.open(io.BytesIO(super().png())).convert("RGB").quantize(_NUM_COLOURS).save(file, "png", optimize=True)
        return file.getvalue()


class _ContrastRow(NamedTuple):
    """The expected and the actual value of one label; `actual` is None if there is none."""

    label: str
    expected: float
    actual: float | None

    def __str__(self) -> str:
        return f"{self.label}: {_text(self.expected)} expected, {_text(self.actual)} got"


def bars(expected: Mapping[str, float], actual: Mapping[str, float], title: str, unit: str = "") -> SmallPicture:
    """Draw two bars per label, expected and actual; a label that `actual` lacks, or a nan, is shown in words.

    Raises:
        ValueError: nothing is expected.
    """
    if not expected:
        raise ValueError("There is nothing to compare: give {label: number}.")
    rows = [
        _ContrastRow(label, _number(expected[label]), _number(actual[label]) if label in actual else None)
        for label in list(expected)[:_MAX_ROWS]
    ]
    picture = SmallPicture(_WIDTH, 1.3 + 0.52 * len(rows))
    axes = picture.subplots()
    _draw_bars(axes, [row.expected for row in rows], -0.2, color=GREEN, label="expected")
    _draw_bars(axes, [row.actual for row in rows], 0.2, color=VERMILLION, hatch="//", label="yours")
    axes.axvline(0, color=BLACK, linewidth=0.8)
    lengths = [length for row in rows for value in (row.expected, row.actual) if (length := _length(value))]
    longest = max(map(abs, lengths), default=1.0)
    axes.set(xlim=(1.1 * min([0.0, *lengths]), 1.18 * longest), xlabel=unit)
    axes.set_yticks(range(len(rows)), [_cut(row.label) for row in rows])
    axes.invert_yaxis()
    picture.legend_below(ncols=2, handleheight=1.2)
    finish(axes, title, frame=("bottom",))
    picture.alt = f"{title}. {'; '.join(map(str, rows))}{_rest(len(expected))}."
    return picture


def _draw_bars(axes: Axes, values: Sequence[float | None], offset: float, **style: Any) -> None:
    places = [row + offset for row in range(len(values))]
    lengths = [_length(value) for value in values]
    axes.barh(places, lengths, edgecolor="white", height=0.36, **style)
    for place, length, value in zip(places, lengths, values, strict=True):
        label_point(axes, _text(value), (max(length, 0.0), place), (4, 0), va="center")


def grid(rows: Mapping[str, Sequence[str]], columns: Sequence[str], good: str, title: str) -> SmallPicture:
    """Draw a cell with a word for each row and column, as right if the word is `good`, otherwise as wrong.

    Raises:
        ValueError: there are no rows or no columns.
    """
    labels = list(rows)[:_MAX_ROWS]
    if not labels or not columns:
        raise ValueError("There is nothing to compare: give {row: [word, word, ...]} and the columns' names.")
    picture = SmallPicture(max(_WIDTH, 1.8 + 1.25 * len(columns)), 0.9 + 0.42 * len(labels))
    axes = picture.subplots()
    for row, label in enumerate(labels):
        for column, word in enumerate(rows[label][: len(columns)]):
            is_good = word == good
            style = {"height": 0.9, "left": column - 0.48, "hatch": "" if is_good else "//", "edgecolor": "white"}
            axes.barh(row, 0.96, color=SKY if is_good else VERMILLION, **style)
            box = white_box(1.5, alpha=0.9)
            axes.text(column, row, _cut(word), ha="center", va="center", fontsize=9, bbox=box)
    axes.set(xlim=(-0.5, len(columns) - 0.5))
    axes.set_yticks(range(len(labels)), [_cut(label) for label in labels])
    axes.set_xticks(range(len(columns)), [_cut(column) for column in columns])
    axes.xaxis.tick_top()
    axes.invert_yaxis()
    axes.tick_params(length=0)
    finish(axes, title, frame=())
    listed = [f"{label}: {_places(rows[label], columns)}" for label in labels]
    picture.alt = f"{title}. {'; '.join(listed)}{_rest(len(rows))}."
    return picture


def _places(words: Sequence[str], columns: Sequence[str]) -> str:
    return ", ".join(f"{word} on {column}" for column, word in zip(columns, words, strict=False))


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int too large for a float
        return math.inf


def _length(value: float | None) -> float:
    """Return the length of a value's bar, 0 if it cannot be drawn."""
    return value if value is not None and math.isfinite(value) else 0.0


def _text(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.4g}"


def _cut(label: str) -> str:
    return label if len(label) <= _MAX_LABEL_CHARS else label[:_MAX_LABEL_CHARS] + "..."


def _rest(num_rows: int) -> str:
    return f"; {num_rows - _MAX_ROWS} more are not drawn" if num_rows > _MAX_ROWS else ""
