"""The accuracy of predictions: each divided by its result, as a factor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from textwrap import fill
from typing import Protocol

from matplotlib.axes import Axes

from worldsize.draw._annotations import label_point, white_box
from worldsize.draw.picture import Picture, finish
from worldsize.palette import FAINT, GREEN, IDLE, INK, VERMILLION

_FURTHEST = 1000.0  # a ratio beyond this is drawn at the edge, with its factor in words
_BAND = 2.0
_MOST_LISTED = 12  # rows that the alt text lists one by one


class LedgerEntry(Protocol):
    """One quantity: its prediction and its result, None if not known yet."""

    prediction: float | None
    result: float | None
    unit: str


class Entries(Protocol):
    """The table that `Predictions.table()` returns."""

    @property
    def entries(self) -> Mapping[str, LedgerEntry]: ...


@dataclass(frozen=True)
class _LedgerRow:
    """A question's entry, and prediction over result if that is a number above 0."""

    name: str
    entry: LedgerEntry
    ratio: float | None

    @property
    def factor(self) -> float:
        """How far off the prediction is, at least 1."""
        return 1.0 if self.ratio is None else max(self.ratio, 1 / self.ratio)

    @property
    def is_near(self) -> bool:
        return self.factor <= _BAND

    @property
    def text(self) -> str:
        """The prediction and the result, or why they cannot be compared."""
        prediction, result = self.entry.prediction, self.entry.result
        if prediction is None:
            return "no prediction"
        if result is None:
            return "no result yet"
        amounts = f"{_amount(prediction)} for {_amount(result)} {self.entry.unit}".rstrip()
        if self.ratio is None:
            return f"{amounts}: no ratio"
        return amounts if self.factor <= _FURTHEST else f"{amounts}, a factor of {_amount(self.factor)}"

    def __str__(self) -> str:
        return f"{self.name}, {self.text}"


def ledger(table: Entries, title: str = "Your predictions") -> Picture:
    """Draw one row per question, in order: prediction over result on a scale of factors, and the median factor.

    `table` comes from `Predictions.table()`. A row without a ratio says why: no prediction, no result yet, a value
    that is zero or not a number, or values of opposite signs.

    Raises:
        ValueError: the ledger is empty.
    """
    if not table.entries:
        raise ValueError("The ledger is empty: make a prediction with `predictions.ask(name, value, unit)` first.")
    rows = [_LedgerRow(name, entry, _ratio(entry)) for name, entry in table.entries.items()]
    names = [fill(row.name, 36) for row in rows]
    num_lines = sum(1 + text.count("\n") for text in names)
    gap_in = 0.14 if len(rows) <= 15 else 0.04  # a whole course should still nearly fit on one screen
    picture = Picture(9, 1.4 + gap_in * len(rows) + 0.17 * num_lines)
    axes = picture.subplots()
    furthest = min(_FURTHEST, max(10.0, *(row.factor for row in rows)))
    _draw_scale(axes, furthest)
    for index, row in enumerate(rows):
        axes.axhline(index, color=FAINT, linewidth=0.5, zorder=0.5)
        _draw_row(axes, index, row, furthest)
    axes.set_yticks(range(len(rows)), names, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    summary = _summary(rows)
    finish(axes, f"{title}\n{summary}", frame=("bottom",))
    picture.alt = _alt(rows, title, summary)
    return picture


def _ratio(entry: LedgerEntry) -> float | None:
    """Divide prediction by result; None if that is not a number above 0."""
    prediction, result = entry.prediction, entry.result
    if prediction is None or result is None or not (math.isfinite(prediction) and math.isfinite(result)):
        return None
    if prediction == result:
        return 1.0
    ratio = prediction / result if result else 0.0
    return ratio if 0 < ratio < math.inf else None


def _draw_scale(axes: Axes, furthest: float) -> None:
    axes.axvspan(1 / _BAND, _BAND, color=IDLE, zorder=0)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set(xscale="log", xlim=(0.8 / furthest, 1.25 * furthest))
    ticks = [factor for factor in (2, 10, 100, 1000) if factor <= furthest]
    places = [*(1 / factor for factor in reversed(ticks)), 1, *ticks]
    axes.set_xticks(places, [*(f"÷{factor}" for factor in reversed(ticks)), "1", *(f"×{factor}" for factor in ticks)])
    axes.minorticks_off()
    axes.set_xlabel("prediction / result (shaded: within a factor of two)")


def _draw_row(axes: Axes, index: int, row: _LedgerRow, furthest: float) -> None:
    if row.ratio is None:
        style = {"ha": "center", "va": "center", "fontsize": 8.5, "fontstyle": "italic", "color": INK}
        axes.text(1, index, row.text, bbox=white_box(1.5), **style)
        return
    at = min(furthest, max(1 / furthest, row.ratio))
    marker = "o" if row.is_near else "<" if row.ratio < 1 else ">"
    colour = GREEN if row.is_near else VERMILLION
    axes.plot(at, index, color=colour, marker=marker, markersize=9, markeredgecolor="white")
    # the text goes on the side with more room
    offset, side = ((9, 0), "left") if row.ratio < 1 else ((-9, 0), "right")
    style = {"ha": side, "va": "center", "color": INK, "bbox": white_box(0.8, alpha=0.8)}
    label_point(axes, row.text, (at, index), offset, fontsize=8.5, **style)


def _alt(rows: Sequence[_LedgerRow], title: str, summary: str) -> str:
    compared = [row for row in rows if row.ratio is not None]
    listed = f"In order: {'; '.join(map(str, rows))}"
    if len(rows) > _MOST_LISTED:
        furthest_off = sorted(compared, key=lambda row: -row.factor)[:3]
        listed = f"Of {len(rows)} the furthest off: {'; '.join(map(str, furthest_off)) or 'none'}"
    left_out = f" {len(rows) - len(compared)} cannot be compared." if len(compared) < len(rows) else ""
    return f"{title} over their results: {summary}.{left_out} {listed}."


def _summary(rows: Sequence[_LedgerRow]) -> str:
    compared = [row for row in rows if row.ratio is not None]
    if not compared:
        return "none can be compared with a result yet"
    near = sum(row.is_near for row in compared)
    middle = _amount(median(row.factor for row in compared))
    return f"{near} of {len(compared)} within a factor of two; the median is off by a factor of {middle}"


def _amount(value: float) -> str:
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")
