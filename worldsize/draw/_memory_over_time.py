"""What fills memory as time goes by: stacked areas, the peak marked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from matplotlib.axes import Axes

from worldsize import units
from worldsize.draw.picture import BLACK, INK, LEGEND, PART_STYLES, Picture, finish

Levels = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Stack:
    """The bytes of every part at each moment at which one of them changes."""

    times_s: list[float]
    sizes: dict[str, list[float]]

    @property
    def totals(self) -> list[float]:
        return [sum(column) for column in zip(*self.sizes.values(), strict=True)]

    @property
    def peak(self) -> int:
        """Where the total is largest for the first time."""
        return max(range(len(self.times_s)), key=self.totals.__getitem__)


def memory_over_time(
    parts: Mapping[str, Mapping[str, Levels]],
    capacity_bytes: float | None = None,
    title: str = "Memory over time",
    capacity_label: str = "capacity",
) -> Picture:
    """Stacked areas for each label (a rank, a stage): bytes live by part over time, the peak marked, and what fits.

    Each part is a list of `(time_s, size_bytes)`: so many bytes are live from then on, before it none, until the next
    entry or the end of the picture. A single entry is a part that stays. `live_bytes` makes such a list of what is
    allocated and freed.

    Raises:
        ValueError: no label, a label without an entry, or no bytes at all.
    """
    stacks = {label: _stack(label, levels) for label, levels in parts.items()}
    largest = max([capacity_bytes or 0, *(max(stack.totals, default=0) for stack in stacks.values())])
    moments = [time_s for stack in stacks.values() for time_s in stack.times_s]
    if largest <= 0 or not all(stack.times_s for stack in stacks.values()):
        raise ValueError("There is no memory to draw: give {label: {part: [(time_s, bytes), ...]}}, no label empty.")
    start_s, end_s = min(moments), max(moments)
    names = list(dict.fromkeys(name for stack in stacks.values() for name in stack.sizes))
    styles = dict(zip(names, cycle(PART_STYLES), strict=False))
    scale, time_scale = units.byte_scale(largest), units.time_scale(max(abs(start_s), abs(end_s)))

    picture = Picture(9, 3.6 if len(stacks) == 1 else 1.5 + 1.45 * len(stacks))
    panels = picture.subplots(len(stacks), sharex=True, squeeze=False)[:, 0]
    for axes, (label, stack) in zip(panels, stacks.items(), strict=True):
        _draw_stack(axes, stack, styles, end_s, scale, time_scale[0])
        if capacity_bytes:
            limit = f"{capacity_label}, {units.format_bytes(capacity_bytes)}"
            axes.axhline(capacity_bytes / scale[0], color=BLACK, linestyle="--", linewidth=1.5, label=limit)
        axes.set(ylim=(0, 1.25 * largest / scale[0]), ylabel=f"{label}\n({scale[1]})")
        finish(axes, title if axes is panels[0] else "")
    if end_s > start_s:
        panels[-1].set_xlim(start_s / time_scale[0], end_s / time_scale[0])
    panels[-1].set_xlabel(f"time ({time_scale[1]})")
    shown = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    picture.legend(shown.values(), shown, ncols=min(5, len(shown)), handleheight=1.2, **LEGEND)

    told = "; ".join(_told(label, stack, capacity_bytes) for label, stack in stacks.items())
    picture.alt = f"Stacked areas over {units.format_time_s(end_s - start_s)}, {title}: {told}."
    if capacity_bytes:
        picture.alt += f" A line marks {units.format_bytes(capacity_bytes)}, {capacity_label}."
    return picture


def live_bytes(changes: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Bytes live from each time on, of `(time_s, change_bytes)`: above 0 what is allocated, below 0 what is freed.

    What is allocated and freed at one time counts as one change.
    """
    at_once: dict[float, float] = {}
    for time_s, change_bytes in sorted(changes):
        at_once[time_s] = at_once.get(time_s, 0) + change_bytes
    live, levels = 0.0, []
    for time_s, change_bytes in at_once.items():
        live += change_bytes
        levels.append((time_s, live))
    return levels


def _stack(label: str, levels: Mapping[str, Levels]) -> _Stack:
    times_s = sorted({time_s for changes in levels.values() for time_s, _ in changes})
    sizes: dict[str, list[float]] = {}
    for name, changes in levels.items():
        changes = sorted(changes, key=lambda change: change[0])
        below = next((change for change in changes if change[1] < 0), None)
        if below:
            raise ValueError(
                f"{label}, {name}: {below[1]:g} bytes are live at {below[0]:g} s. "
                "More is freed than was allocated: give every allocation, with the earlier ones."
            )
        starts = [time_s for time_s, _ in changes]
        places = [bisect_right(starts, time_s) for time_s in times_s]
        sizes[name] = [changes[place - 1][1] if place else 0.0 for place in places]
    return _Stack(times_s, sizes)


def _draw_stack(
    axes: Axes,
    stack: _Stack,
    styles: Mapping[str, tuple[str, str]],
    end_s: float,
    scale: tuple[float, str],
    time_factor: float,
) -> None:
    times = [time_s / time_factor for time_s in [*stack.times_s, end_s]]
    floor = [0.0] * len(times)
    for name, sizes in stack.sizes.items():
        colour, hatch = styles[name]
        top = [low + size / scale[0] for low, size in zip(floor, [*sizes, sizes[-1]], strict=True)]
        style = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.6}
        axes.fill_between(times, floor, top, step="post", label=name, **style)
        floor = top
    axes.plot(times, floor, color=INK, linewidth=1.2, drawstyle="steps-post")
    peak, size = stack.peak, stack.totals[stack.peak]
    axes.plot(times[peak], size / scale[0], color=INK, marker="v", markersize=7, clip_on=False, zorder=5)
    is_late = stack.times_s[peak] > (stack.times_s[0] + end_s) / 2
    box = {"facecolor": "white", "linewidth": 0, "pad": 1, "alpha": 0.85}
    place = {"xytext": (-8 if is_late else 8, 5), "textcoords": "offset points", "ha": "right" if is_late else "left"}
    text = f"peak {units.format_bytes(size)}"
    axes.annotate(text, (times[peak], size / scale[0]), **place, va="bottom", fontsize=9, bbox=box)


def _told(label: str, stack: _Stack, capacity_bytes: float | None) -> str:
    peak, size = stack.peak, stack.totals[stack.peak]
    held = ", ".join(f"{name} {units.format_bytes(sizes[peak])}" for name, sizes in stack.sizes.items() if sizes[peak])
    too_much = ", which does not fit" if capacity_bytes and size > capacity_bytes else ""
    when = units.format_time_s(stack.times_s[peak])
    at_the_end = units.format_bytes(stack.totals[-1])
    return f"{label} peaks at {units.format_bytes(size)}{too_much}, at {when} ({held}), and ends with {at_the_end}"
