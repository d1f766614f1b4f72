"""Pictures of runs: who was busy when, what fills memory, how speed grows with ranks, how a loss falls.

Colours are Okabe and Ito's; every colour has a second sign beside it: a hatch, label, marker or line style.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from worldsize import units
from worldsize.timeline import Event, Timeline

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
IDLE, INK, FAINT = "#EDEDED", "#333333", "#BBBBBB"

KIND_STYLES = {  # kind: (colour, hatch), in the order of a legend
    "data": (YELLOW, ".."),
    "compute": (SKY, ""),
    "forward": (SKY, ""),
    "backward": (GREEN, "\\\\"),
    "communication": (VERMILLION, "//"),
    "update": (PURPLE, "xx"),
}
OTHER_STYLE = (ORANGE, "++")
PART_STYLES = [(BLUE, ""), (SKY, "//"), (ORANGE, ".."), (GREEN, "\\\\"), (PURPLE, "xx"), (YELLOW, "++")]
LINE_STYLES = [(SKY, "-", ""), (BLACK, "--", ""), (VERMILLION, ":", ""), (BLUE, "-.", ""), (GREEN, "-", "s")]
SCREEN_DPI, FILE_DPI = 96, 168
LEGEND = {"loc": "outside lower center", "frameon": False}


class Picture(Figure):
    """A matplotlib figure that also says in words, as `alt`, what a reader should see in it."""

    def __init__(self, width: float, height: float, alt: str = "") -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        self.alt = alt

    def png(self) -> bytes:
        """The picture as the bytes of a PNG file."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=FILE_DPI, metadata={"Software": None})
        return file.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        encoded = base64.b64encode(self.png()).decode("ascii")
        width = round(self.get_size_inches()[0] * SCREEN_DPI)
        style = f"width: {width}px; max-width: 100%; height: auto; background: white"
        # viewers give an image/png no alt text of ours, so the same picture travels as html too
        html = f'<img style="{style}" alt="{escape(self.alt)}" src="data:image/png;base64,{encoded}">'
        return {"image/png": encoded, "text/html": html, "text/plain": self.alt}


def timeline(run: Timeline, title: str = "") -> Picture:
    """One row for each rank (and stream): what it did when, idle time in grey."""
    if not run.events:
        raise ValueError("The timeline is empty: mark a step's parts with `with ws.span(name, kind=...)`.")
    rows: dict[tuple[int, str], list[Event]] = {}
    for event in sorted(run.events):
        rows.setdefault((event.rank, event.stream), []).append(event)
    start_s = min(event.start_s for event in run.events)
    length_s = max(event.end_s for event in run.events) - start_s
    factor, unit = units.time_scale(length_s)

    picture = Picture(9, 1.35 + 0.5 * len(rows))
    axes = picture.subplots()
    axes.barh(range(len(rows)), length_s / factor, color=IDLE, height=0.72)
    for row, events in enumerate(rows.values()):
        for event in events:
            _draw_event(axes, row, event, start_s, length_s, factor)
    one_stream = len({stream for _, stream in rows}) == 1
    names = [f"rank {rank}" if one_stream else f"rank {rank}, {stream}" for rank, stream in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set(xlim=(0, length_s / factor), xlabel=f"time ({unit})")
    axes.tick_params(axis="y", length=0)

    kinds = sorted({event.kind for event in run.events}, key=[*KIND_STYLES, *_kinds(run)].index)
    _kind_legend(picture, kinds)
    shares = {kind: _share(rows.values(), {kind}, length_s) for kind in kinds}
    idle = 1 - _share(rows.values(), set(kinds), length_s)
    told = f"{idle:.0%} idle"
    if "communication" in shares:
        told = f"{shares['communication']:.0%} communication, {told}"
    _finish(axes, f"{title}: {told}" if title else told, frame=("bottom",))
    parts = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items())
    about = f"Timeline ({title})" if title else "Timeline"
    picture.alt = (
        f"{about} of {len({rank for rank, _ in rows})} ranks over {units.format_time_s(length_s)}; "
        f"share of the ranks' time: {parts}, idle {idle:.0%}."
    )
    return picture


def memory(
    parts: Mapping[str, Mapping[str, float]],
    capacity_bytes: float | None = None,
    title: str = "What fills memory",
    capacity_label: str = "capacity",
) -> Picture:
    """One stacked bar for each label (a rank, a model, a batch size): bytes by part, and what fits."""
    totals = {label: sum(sizes.values()) for label, sizes in parts.items()}
    largest = max([*totals.values(), capacity_bytes or 0], default=0)
    if largest <= 0:
        raise ValueError("There is no memory to draw: give {label: {part: bytes}} with a size above 0.")
    factor, unit = units.byte_scale(largest)
    names = list(dict.fromkeys(name for sizes in parts.values() for name in sizes))

    picture = Picture(9, 1.5 + 0.48 * len(parts))
    axes = picture.subplots()
    left = [0.0] * len(parts)
    for name, (colour, hatch) in zip(names, cycle(PART_STYLES), strict=False):
        widths = [sizes.get(name, 0) / factor for sizes in parts.values()]
        style = {"color": colour, "hatch": hatch, "edgecolor": "white", "height": 0.66}
        axes.barh(list(parts), widths, left=left, label=name, **style)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for row, total in enumerate(totals.values()):
        fits = not capacity_bytes or total <= capacity_bytes
        text = units.format_bytes(total) + ("" if fits else ": does not fit")
        box = {"facecolor": "white", "linewidth": 0, "pad": 1}
        style = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 9, "bbox": box}
        axes.annotate(text, (total / factor, row), **style)
    if capacity_bytes:
        limit = f"{capacity_label}, {units.format_bytes(capacity_bytes)}"
        axes.axvline(capacity_bytes / factor, color=BLACK, linestyle="--", linewidth=1.5, label=limit)
    axes.set(xlim=(0, 1.25 * largest / factor), xlabel=f"memory ({unit})")
    axes.invert_yaxis()
    picture.legend(ncols=len(names) + 1, handleheight=1.2, **LEGEND)
    _finish(axes, title)

    bars = [f"{label} {units.format_bytes(totals[label])} ({_told(sizes)})" for label, sizes in parts.items()]
    picture.alt = f"Stacked bars, {title}: {'; '.join(bars)}."
    if capacity_bytes:
        picture.alt += f" A line marks {units.format_bytes(capacity_bytes)}, {capacity_label}."
    return picture


def scaling(step_times_s: Mapping[int, Sequence[float]], title: str = "Speed-up, measured") -> Picture:
    """Speed-up over one rank with its spread, the ideal line and Amdahl's fit; the efficiency beside it.

    `step_times_s` maps a number of ranks to the seconds of several steps on the same global batch.
    """
    if 1 not in step_times_s or not all(step_times_s.values()):
        raise ValueError("Scaling is told relative to one rank: give {1: [seconds, ...], 2: [seconds, ...], ...}.")
    ranks = sorted(step_times_s)
    one_s = median(step_times_s[1])
    speedups = {n: one_s / median(step_times_s[n]) for n in ranks}
    efficiencies = [100 * speedups[n] / n for n in ranks]
    serial = amdahl_fit(speedups)

    picture = Picture(9, 3.9)
    axes, bars = picture.subplots(1, 2, width_ratios=[1.7, 1])
    fine = [1 + (ranks[-1] - 1) * i / 100 for i in range(101)]
    axes.plot(fine, fine, color=BLACK, linestyle="--", linewidth=1.3, label="ideal")
    fit = [1 / (serial + (1 - serial) / n) for n in fine]
    axes.plot(fine, fit, color=BLUE, linestyle="-.", label=f"Amdahl, serial fraction {serial:.0%} (fit)")
    slow = [max(0.0, speedups[n] - one_s / _quantile(step_times_s[n], 0.9)) for n in ranks]
    fast = [max(0.0, one_s / _quantile(step_times_s[n], 0.1) - speedups[n]) for n in ranks]
    style = {"color": VERMILLION, "marker": "o", "markersize": 8, "capsize": 5}
    label = "measured: median, 10th to 90th percentile"
    axes.errorbar(ranks, list(speedups.values()), yerr=[slow, fast], label=label, **style)
    axes.set(xlabel="number of ranks", ylabel="speed-up over one rank", xticks=ranks, ylim=(0, None))
    axes.legend(loc="upper left", frameon=False, fontsize=9)

    drawn = bars.bar([str(n) for n in ranks], efficiencies, color=GREEN, hatch="\\\\", edgecolor="white")
    bars.bar_label(drawn, [f"{efficiency:.0f}%" for efficiency in efficiencies], padding=2)
    bars.axhline(100, color=BLACK, linestyle="--", linewidth=1.3)
    bars.set(xlabel="number of ranks", ylabel="scaling efficiency (%)", ylim=(0, max(115, 1.1 * max(efficiencies))))
    _finish(axes, title)
    _finish(bars, "Efficiency = speed-up / ranks")
    told = [f"{n} ranks {speedups[n]:.2f} times as fast, efficiency {speedups[n] / n:.0%}" for n in ranks if n > 1]
    picture.alt = f"{title}: {'; '.join(told)}. Amdahl's law fits with a serial fraction of {serial:.0%}."
    return picture


def amdahl_fit(speedups: Mapping[int, float]) -> float:
    """The serial fraction, 0 to 1, whose Amdahl curve is nearest to these speed-ups by number of ranks."""
    # 1/S = s + (1 - s)/n, so 1/S - 1/n = s (1 - 1/n): least squares for a line through the origin
    points = [(1 - 1 / n, 1 / speedup - 1 / n) for n, speedup in speedups.items() if n > 1]
    weight = sum(x * x for x, _ in points)
    return min(1.0, max(0.0, sum(x * y for x, y in points) / weight)) if weight else 0.0


def curves(
    series: Mapping[str, Sequence[float]],
    y_label: str = "loss",
    x_label: str = "step",
    title: str = "",
    difference_from: str | None = None,
) -> Picture:
    """One line for each label; with `difference_from`, a second panel of how far the others are from it."""
    if not series or not all(len(values) for values in series.values()):
        raise ValueError("There is no curve to draw: give {label: [value, value, ...]}, no list empty.")
    if difference_from is not None and difference_from not in series:
        raise ValueError(f"No curve is called {difference_from!r}: choose one of {', '.join(series)}.")
    picture = Picture(9, 5.0 if difference_from else 3.4)
    panels = picture.subplots(2 if difference_from else 1, sharex=True, squeeze=False)[:, 0]
    # curves that should agree go from thick to thin, so that each can be seen under the next
    widths = [max(1.6, 6.5 - 2.2 * index) if difference_from else 2.0 for index in range(len(series))]
    for (label, values), style, width in zip(series.items(), cycle(_line_styles()), widths, strict=False):
        panels[0].plot(range(1, len(values) + 1), values, label=label, linewidth=width, **style)
    panels[0].set_ylabel(y_label)
    panels[0].legend(frameon=False)
    _finish(panels[0], title)
    panels[-1].set_xlabel(x_label)
    told = [f"{label} from {values[0]:.3g} to {values[-1]:.3g}" for label, values in series.items()]
    picture.alt = f"Line chart{f' ({title})' if title else ''} of {y_label} against {x_label}: {'; '.join(told)}."
    if difference_from:
        gap = _draw_differences(panels[1], series, difference_from)
        picture.alt += f" The largest difference from {difference_from} is {gap:.1e}."
    return picture


def _draw_differences(axes: Axes, series: Mapping[str, Sequence[float]], reference: str) -> float:
    """The largest distance of any curve from the reference, after drawing them all."""
    largest = 0.0
    for (label, values), style in zip(series.items(), cycle(_line_styles()), strict=False):
        if label != reference:
            distances = [abs(a - b) for a, b in zip(values, series[reference], strict=False)]
            axes.plot(range(1, len(distances) + 1), distances, linewidth=1.8, label=label, markevery=4, **style)
            largest = max(largest, *distances)
    axes.set_ylabel(f"distance from\n{reference}")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axes.legend(frameon=False)
    _finish(axes, "")
    return largest


def _draw_event(axes: Axes, row: int, event: Event, start_s: float, length_s: float, factor: float) -> None:
    colour, hatch = KIND_STYLES.get(event.kind, OTHER_STYLE)
    left, width = (event.start_s - start_s) / factor, event.duration_s / factor
    axes.barh(row, width, left=left, height=0.72, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6)
    name = event.name or event.kind
    if event.duration_s > 0.0092 * len(name) * length_s:  # about the width of the text
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.2}
        axes.text(left + width / 2, row, name, ha="center", va="center", fontsize=8, bbox=box)


def _kind_legend(picture: Picture, kinds: Sequence[str]) -> None:
    styles = {**{kind: KIND_STYLES.get(kind, OTHER_STYLE) for kind in kinds}, "idle": (IDLE, "")}
    patches = [Patch(facecolor=c, hatch=h, edgecolor="white", label=kind) for kind, (c, h) in styles.items()]
    patches[-1].set_edgecolor(FAINT)
    picture.legend(handles=patches, ncols=len(patches), handleheight=1.2, **LEGEND)


def _kinds(run: Timeline) -> list[str]:
    return sorted({event.kind for event in run.events})


def _share(rows: Any, kinds: set[str], length_s: float) -> float:
    """Mean over the rows of the fraction of time that events of these kinds cover."""
    covered_s, num_rows = 0.0, 0
    for events in rows:
        num_rows += 1
        until_s = float("-inf")
        for event in sorted(events, key=lambda event: event.start_s):
            if event.kind in kinds:
                covered_s += max(0.0, event.end_s - max(until_s, event.start_s))
                until_s = max(until_s, event.end_s)
    return covered_s / (num_rows * length_s) if length_s else 0.0


def _told(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {units.format_bytes(size)}" for name, size in sizes.items())


def _line_styles() -> list[dict[str, Any]]:
    return [{"color": colour, "linestyle": dashes, "marker": marker} for colour, dashes, marker in LINE_STYLES]


def _quantile(values: Sequence[float], fraction: float) -> float:
    return sorted(values)[round(fraction * (len(values) - 1))]


def _finish(axes: Axes, title: str, frame: tuple[str, ...] = ("left", "bottom")) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in frame)
    axes.tick_params(colors=INK)
