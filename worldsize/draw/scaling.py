"""How speed grows with the number of ranks: speed-up and efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from worldsize.draw._annotations import white_box
from worldsize.draw.picture import Picture, finish
from worldsize.palette import BLACK, BLUE, GREEN, GREY, INK, ORANGE, VERMILLION

StepTimes = Mapping[int, Sequence[float]]
_STYLES = [(VERMILLION, "o"), (GREEN, "s"), (BLUE, "^"), (ORANGE, "D"), (BLACK, "v")]
_MANY_RANKS = 16  # above this, the axis is logarithmic
_LABEL_PT = 18  # room for a label between its point and the axis


@dataclass(frozen=True)
class _Speedups:
    """Speed-up over one rank by number of ranks: that of the median step, and the distances to the quantiles."""

    median: dict[int, float]
    spread: tuple[list[float], list[float]]

    @property
    def has_spread(self) -> bool:
        return any(distance > 0 for side in self.spread for distance in side)


def scaling(step_times_s: StepTimes | Mapping[str, StepTimes], title: str = "Speed-up, measured") -> Picture:
    """Draw the speed-up over one rank with its spread, the ideal line and Amdahl's fit; efficiency on the right axis.

    `step_times_s` maps a number of ranks to the seconds of several steps on the same global batch. Several such series
    are given by name: `{"measured": {1: [...], ...}, "emulated": ..., "predicted": ...}`; the fit is to the first.
    """
    series = {label: _speedups(times_s) for label, times_s in _by_label(step_times_s).items()}
    ranks = sorted({n for speedups in series.values() for n in speedups.median})
    first = next(iter(series))
    serial = _serial_fraction(series[first].median)

    picture = Picture(9, 4.3)
    axes = picture.subplots()
    right = axes.twinx()
    _draw_laws(axes, ranks, serial, of=first if len(series) > 1 else "")
    for (label, speedups), (colour, marker) in zip(series.items(), cycle(_STYLES), strict=False):
        _draw_speedups(axes, label, speedups, colour, marker)
        efficiencies = [100 * speedup / n for n, speedup in speedups.median.items()]
        style = {"color": colour, "marker": marker, "markerfacecolor": "white", "markersize": 6, "linewidth": 1.3}
        right.plot(list(speedups.median), efficiencies, linestyle=(0, (5, 3)), **style)
    _finish(picture, axes, right, ranks, title)
    if len(series) == 1:
        _label_efficiency(axes, right, series[first].median)

    alts = [
        f"{label}, {_describe(speedups)}" if len(series) > 1 else _describe(speedups)
        for label, speedups in series.items()
    ]
    fitted = f" to {first}" if len(series) > 1 else ""
    picture.alt = f"{title}: {'. '.join(alts)}. Amdahl's law fits{fitted} with a serial fraction of {serial:.0%}."
    return picture


def _serial_fraction(speedups: Mapping[int, float]) -> float:
    """Fit the serial fraction, 0 to 1, whose Amdahl curve is nearest to these speed-ups by number of ranks."""
    # 1/S = s + (1 - s)/n, so 1/S - 1/n = s (1 - 1/n): least squares for a line through the origin
    points = [(1 - 1 / n, 1 / speedup - 1 / n) for n, speedup in speedups.items() if n > 1]
    weight = sum(x * x for x, _ in points)
    return min(1.0, max(0.0, sum(x * y for x, y in points) / weight)) if weight else 0.0


def _by_label(step_times_s: StepTimes | Mapping[str, StepTimes]) -> dict[str, StepTimes]:
    has_names = any(isinstance(times_s, Mapping) for times_s in step_times_s.values())
    series: dict[str, Any] = {**step_times_s} if has_names else {"measured": step_times_s}  # type: ignore[dict-item]
    if not series or not all(
        isinstance(times_s, Mapping) and 1 in times_s and all(times_s.values()) for times_s in series.values()
    ):
        raise ValueError(
            "Scaling is relative to one rank: give {1: [seconds, ...], 2: [seconds, ...], ...}, "
            'or several of these by name, as in {"measured": {1: ...}, "predicted": {1: ...}}.'
        )
    if min(time_s for times_s in series.values() for steps in times_s.values() for time_s in steps) <= 0:
        raise ValueError("A step takes more than 0 s: one of the times is not above 0.")
    return series


def _speedups(step_times_s: StepTimes) -> _Speedups:
    one_s = median(step_times_s[1])
    speedups = {n: one_s / median(step_times_s[n]) for n in sorted(step_times_s)}
    slow = [max(0.0, speedup - one_s / _quantile(step_times_s[n], 0.9)) for n, speedup in speedups.items()]
    fast = [max(0.0, one_s / _quantile(step_times_s[n], 0.1) - speedup) for n, speedup in speedups.items()]
    return _Speedups(speedups, (slow, fast))


def _draw_laws(axes: Axes, ranks: Sequence[int], serial: float, of: str) -> None:
    fine = [1 + (ranks[-1] - 1) * i / 100 for i in range(101)]
    axes.plot(fine, fine, color=GREY, linewidth=1.6, label="ideal")
    fit = [1 / (serial + (1 - serial) / n) for n in fine]
    label = f"Amdahl, serial fraction {serial:.0%} (fit{f' to {of}' if of else ''})"
    axes.plot(fine, fit, color=INK, linestyle="-.", linewidth=1.3, label=label)


def _draw_speedups(axes: Axes, label: str, speedups: _Speedups, colour: str, marker: str) -> None:
    ranks, medians = list(speedups.median), list(speedups.median.values())
    style = {"color": colour, "marker": marker, "markersize": 7, "linewidth": 1.8}
    if speedups.has_spread:
        label += ": median, 10th to 90th percentile"
        axes.errorbar(ranks, medians, speedups.spread, label=label, capsize=4, **style)
    else:
        axes.plot(ranks, medians, label=label, **style)


def _label_efficiency(axes: Axes, right: Axes, speedups: Mapping[int, float]) -> None:
    least_px = right.transAxes.transform((0, 0))[1] + _LABEL_PT * axes.figure.dpi / 72
    for n, speedup in speedups.items():
        at = n, 100 * speedup / n
        height_px = right.transData.transform(at)[1]
        is_above = height_px >= axes.transData.transform((n, speedup))[1] or height_px < least_px
        position = {"xytext": (0, 7 if is_above else -7), "textcoords": "offset points", "ha": "center"}
        style = {"va": "bottom" if is_above else "top", "fontsize": 9, "color": INK, "bbox": white_box(0.5)}
        right.annotate(f"{speedup / n:.0%}", at, **position, **style)


def _finish(picture: Picture, axes: Axes, right: Axes, ranks: Sequence[int], title: str) -> None:
    axes.set(xlabel="number of ranks", ylabel="speed-up over one rank (solid)")
    if ranks[-1] > _MANY_RANKS:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(0, None)
    axes.set_xticks(ranks, [str(n) for n in ranks])
    axes.minorticks_off()
    highest = max(float(max(line.get_ydata())) for line in right.lines)  # type: ignore[arg-type]
    right.set(ylabel="efficiency = speed-up / ranks (dashed)", ylim=(0, max(115, 1.12 * highest)))
    right.yaxis.set_major_formatter("{x:.0f}%")
    finish(axes, title, frame=("left", "bottom", "right"))
    finish(right, "", frame=("right",))
    picture.legend_below(*axes.get_legend_handles_labels(), ncols=3, fontsize=9)


def _describe(speedups: _Speedups) -> str:
    more = [(n, speedup) for n, speedup in speedups.median.items() if n > 1]
    listed = [f"{n} ranks {speedup:.2f} times as fast, efficiency {speedup / n:.0%}" for n, speedup in more]
    return "; ".join(listed) or "one rank alone"


def _quantile(values: Sequence[float], fraction: float) -> float:
    return sorted(values)[round(fraction * (len(values) - 1))]
