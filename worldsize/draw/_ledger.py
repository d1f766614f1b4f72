"""How good the guesses were: predictions against results, as factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from textwrap import fill
from typing import Protocol

from matplotlib.axes import Axes

from worldsize.draw.picture import FAINT, GREEN, IDLE, INK, VERMILLION, Picture, finish

_FURTHEST = 1000.0  # a ratio beyond this is drawn at the edge, its factor told
_BAND = 2.0
_MOST_TOLD = 12


class Entry(Protocol):
    """One quantity with what was predicted of it and what came out; None where nothing is known yet."""

    prediction: float | None
    result: float | None
    unit: str


class Entries(Protocol):
    """What `ledger.show()` gives."""

    @property
    def entries(self) -> Mapping[str, Entry]: ...


def ledger(table: Entries, title: str = "Your predictions") -> Picture:
    """A row for each question in order: prediction over result, on a scale of factors, and how far off in the median.

    `table` is what `ledger.show()` gives. A row without such a ratio says why: nothing predicted, no result yet, or a
    prediction or result that is zero or no number, or of which one is below zero.

    Raises:
        ValueError: the ledger is empty.
    """
    entries = table.entries
    if not entries:
        raise ValueError("The ledger is empty: put in a prediction with `ledger.predict(name, value, unit)` first.")
    ratios = {name: ratio for name, entry in entries.items() if (ratio := _ratio(entry)) is not None}
    furthest = min(_FURTHEST, max(10.0, *map(_factor, ratios.values())) if ratios else 10.0)

    names = {name: fill(name, 36) for name in entries}
    num_lines = sum(1 + text.count("\n") for text in names.values())
    gap_in = 0.14 if len(entries) <= 15 else 0.04  # a whole course stays near one screen
    picture = Picture(9, 1.4 + gap_in * len(entries) + 0.17 * num_lines)
    axes = picture.subplots()
    axes.axvspan(1 / _BAND, _BAND, color=IDLE, zorder=0)
    axes.axvline(1, color=INK, linewidth=1)
    for row, (name, entry) in enumerate(entries.items()):
        axes.axhline(row, color=FAINT, linewidth=0.5, zorder=0.5)
        _draw_row(axes, row, entry, ratios.get(name), furthest)
    axes.set_yticks(range(len(entries)), list(names.values()), fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set(xscale="log", xlim=(0.8 / furthest, 1.25 * furthest), ylim=(len(entries) - 0.5, -0.5))
    ticks = [factor for factor in (2, 10, 100, 1000) if factor <= furthest]
    places = [*(1 / factor for factor in reversed(ticks)), 1, *ticks]
    axes.set_xticks(places, [*(f"÷{factor}" for factor in reversed(ticks)), "1", *(f"×{factor}" for factor in ticks)])
    axes.minorticks_off()
    axes.set_xlabel("prediction / result (shaded: within a factor of two)")
    told = _told(ratios)
    finish(axes, f"{title}\n{told}", frame=("bottom",))
    rows = {name: f"{name}, {_row(entry, ratios.get(name))}" for name, entry in entries.items()}
    listed = f"In order: {'; '.join(rows.values())}"
    if len(rows) > _MOST_TOLD:
        furthest_off = sorted(ratios, key=lambda name: -_factor(ratios[name]))[:3]
        listed = f"Of {len(rows)} the furthest off: {'; '.join(rows[name] for name in furthest_off) or 'none'}"
    left_out = f" {len(entries) - len(ratios)} cannot be compared." if len(ratios) < len(entries) else ""
    picture.alt = f"{title} over their results: {told}.{left_out} {listed}."
    return picture


def _ratio(entry: Entry) -> float | None:
    """Prediction over result; None where that is no number above 0."""
    prediction, result = entry.prediction, entry.result
    if prediction is None or result is None or not (math.isfinite(prediction) and math.isfinite(result)):
        return None
    if prediction == result:
        return 1.0
    ratio = prediction / result if result else 0.0
    return ratio if 0 < ratio < math.inf else None


def _factor(ratio: float) -> float:
    return max(ratio, 1 / ratio)


def _draw_row(axes: Axes, row: int, entry: Entry, ratio: float | None, furthest: float) -> None:
    text = _row(entry, ratio)
    if ratio is None:
        box = {"facecolor": "white", "linewidth": 0, "pad": 1.5}
        axes.text(1, row, text, ha="center", va="center", fontsize=8.5, fontstyle="italic", color=INK, bbox=box)
        return
    at = min(furthest, max(1 / furthest, ratio))
    is_near = _factor(ratio) <= _BAND
    marker = "o" if is_near else "<" if ratio < 1 else ">"
    axes.plot(at, row, color=GREEN if is_near else VERMILLION, marker=marker, markersize=9, markeredgecolor="white")
    # the words stand on the side with more room
    offset, side = (9, "left") if ratio < 1 else (-9, "right")
    box = {"facecolor": "white", "linewidth": 0, "pad": 0.8, "alpha": 0.8}
    place = {"xytext": (offset, 0), "textcoords": "offset points", "ha": side, "va": "center"}
    axes.annotate(text, (at, row), **place, fontsize=8.5, color=INK, bbox=box)


def _row(entry: Entry, ratio: float | None) -> str:
    if entry.prediction is None:
        return "no prediction"
    if entry.result is None:
        return "no result yet"
    amounts = f"{_amount(entry.prediction)} for {_amount(entry.result)} {entry.unit}".rstrip()
    if ratio is None:
        return f"{amounts}: no ratio"
    return amounts if _factor(ratio) <= _FURTHEST else f"{amounts}, a factor of {_amount(_factor(ratio))}"


def _amount(value: float) -> str:
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")


def _told(ratios: Mapping[str, float]) -> str:
    if not ratios:
        return "none can be compared with a result yet"
    factors = [_factor(ratio) for ratio in ratios.values()]
    near = sum(factor <= _BAND for factor in factors)
    return (
        f"{near} of {len(ratios)} within a factor of two, in the median off by a factor of {_amount(median(factors))}"
    )
