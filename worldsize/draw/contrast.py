"""What should be against what is: small pictures of a failure, for checks, which know both.

They draw what a student's code gave, whatever that is: a number that is none is told in words, and long lists are cut.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

from PIL import Image

from worldsize.draw.picture import BLACK, GREEN, LEGEND, SKY, VERMILLION, Picture, finish

_MAX_ROWS = 12
_MAX_LABEL_CHARS = 40
_NUM_COLOURS = 32
_WIDTH = 7  # inches, as much as a title needs


class SmallPicture(Picture):
    """A picture of few colours in few bytes: a page may hold many, and the grader keeps them all."""

    def png(self) -> bytes:
        """The picture as the bytes of a PNG file, about 10 kB."""
        file = io.BytesIO()
        Image.open(io.BytesIO(super().png())).convert("RGB").quantize(_NUM_COLOURS).save(file, "png", optimize=True)
        return file.getvalue()


def bars(expected: Mapping[str, float], actual: Mapping[str, float], title: str, unit: str = "") -> SmallPicture:
    """Two bars for each label: what should be and what is; a label that `actual` lacks, or a nan, is told in words.

    Raises:
        ValueError: nothing is expected.
    """
    labels = list(expected)[:_MAX_ROWS]
    if not labels:
        raise ValueError("There is nothing to compare: give {label: number}.")
    wanted = [_number(expected[label]) for label in labels]
    given = [_number(actual[label]) if label in actual else None for label in labels]
    lengths = [abs(value) for value in (*wanted, *given) if value is not None and math.isfinite(value)]
    longest = max(lengths, default=0.0) or 1.0

    picture = SmallPicture(_WIDTH, 1.3 + 0.52 * len(labels))
    axes = picture.subplots()
    rows = ((wanted, -0.2, GREEN, "", "should be"), (given, 0.2, VERMILLION, "//", "is"))
    for values, offset, colour, hatch, name in rows:
        places = [row + offset for row in range(len(labels))]
        widths = [value if value is not None and math.isfinite(value) else 0.0 for value in values]
        style = {"color": colour, "hatch": hatch, "edgecolor": "white", "height": 0.36}
        axes.barh(places, widths, label=name, **style)
        for place, width, value in zip(places, widths, values, strict=True):
            shift = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
            axes.annotate(_told(value), (max(width, 0.0), place), **shift)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    lowest = min(0.0, *(v for v in (*wanted, *given) if v is not None and math.isfinite(v)), 0.0)
    axes.set(xlim=(1.1 * lowest, 1.18 * longest), xlabel=unit)
    axes.set_yticks(range(len(labels)), [_cut(label) for label in labels])
    axes.invert_yaxis()
    picture.legend(ncols=2, handleheight=1.2, **LEGEND)
    finish(axes, title, frame=("bottom",))
    told = [f"{label}: {_told(w)} expected, {_told(g)} got" for label, w, g in zip(labels, wanted, given, strict=True)]
    picture.alt = f"{title}. {'; '.join(told)}{_rest(len(expected))}."
    return picture


def grid(rows: Mapping[str, Sequence[str]], columns: Sequence[str], good: str, title: str) -> SmallPicture:
    """A field for each row and column with a word in it; where it says `good`, all is well, elsewhere not.

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
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.9, "pad": 1.5}
            axes.text(column, row, _cut(word), ha="center", va="center", fontsize=9, bbox=box)
    axes.set(xlim=(-0.5, len(columns) - 0.5))
    axes.set_yticks(range(len(labels)), [_cut(label) for label in labels])
    axes.set_xticks(range(len(columns)), [_cut(column) for column in columns])
    axes.xaxis.tick_top()
    axes.invert_yaxis()
    axes.tick_params(length=0)
    finish(axes, title, frame=())
    told = [f"{label}: {_places(rows[label], columns)}" for label in labels]
    picture.alt = f"{title}. {'; '.join(told)}{_rest(len(rows))}."
    return picture


def _places(words: Sequence[str], columns: Sequence[str]) -> str:
    return ", ".join(f"{word} on {column}" for column, word in zip(columns, words, strict=False))


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond every float
        return math.inf


def _told(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.4g}"


def _cut(label: str) -> str:
    return label if len(label) <= _MAX_LABEL_CHARS else label[:_MAX_LABEL_CHARS] + "..."


def _rest(num_rows: int) -> str:
    return f"; {num_rows - _MAX_ROWS} more are not drawn" if num_rows > _MAX_ROWS else ""
