"""What fills memory over time: stacked areas, with the peak marked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Literal, get_args

from matplotlib.axes import Axes

from worldsize import units
from worldsize.draw._annotations import label_point, mark_capacity, white_box
from worldsize.draw.picture import Picture, finish
from worldsize.palette import INK, PART_STYLES

Levels = Sequence[tuple[float, float]]
Axis = Literal["seconds", "operations"]


@dataclass(frozen=True)
class _Stack:
    """The bytes of every part at each moment when one of them changes."""

    times_s: list[float]
    sizes: dict[str, list[float]]

    @property
    def totals(self) -> list[float]:
        return [sum(column) for column in zip(*self.sizes.values(), strict=True)]

    @property
    def peak(self) -> int:
        """The index at which the total first reaches its maximum."""
        return max(range(len(self.times_s)), key=self.totals.__getitem__)


@dataclass(frozen=True)
class _Memory:
    """All stacks on one time axis, and how many bytes fit."""

    stacks: dict[str, _Stack]
    capacity_bytes: float | None
    axis: Axis

    def axis_scale(self) -> tuple[float, str]:
        """The factor and the label of the horizontal axis."""
        if self.axis == "operations":
            return 1, "operations"
        factor, unit = units.time_scale(max(map(abs, self.span_s)))
        return factor, f"time ({unit})"

    def moment(self, at: float) -> str:
        """Describe a point on the horizontal axis."""
        return f"operation {at:g}" if self.axis == "operations" else units.format_time_s(at)

    @property
    def span(self) -> str:
        """Describe the length of the horizontal axis."""
        start, end = self.span_s
        return f"{end - start:g} operations" if self.axis == "operations" else units.format_time_s(end - start)

    @property
    def largest(self) -> float:
        return max([self.capacity_bytes or 0, *(max(stack.totals, default=0) for stack in self.stacks.values())])

    @property
    def span_s(self) -> tuple[float, float]:
        """The first and the last moment at which anything changes."""
        moments = [time_s for stack in self.stacks.values() for time_s in stack.times_s]
        return min(moments), max(moments)

    @property
    def part_names(self) -> list[str]:
        return list(dict.fromkeys(name for stack in self.stacks.values() for name in stack.sizes))


def memory_over_time(
    parts: Mapping[str, Mapping[str, Levels]],
    capacity_bytes: float | None = None,
    title: str = "Memory over time",
    capacity_label: str = "capacity",
    axis: Axis = "seconds",
) -> Picture:
    """Draw stacked areas per label (a rank, a stage): live bytes by part over time, with the peak and the capacity.

    Each part is a list of `(time_s, size_bytes)`: that many bytes are live from that time until the next entry or the
    end of the picture, and none before the first. A single entry is a part that stays. `live_bytes` makes such a list
    from what is allocated and freed. With `axis="operations"` the entries count operations instead of seconds.

    Raises:
        ValueError: there are no labels, a label has no entries, no bytes are given, or the axis is unknown.
    """
    if axis not in get_args(Axis):
        raise ValueError(f"axis is {axis!r}; it must be one of {', '.join(get_args(Axis))}")
    memory = _Memory({label: _stack(label, levels) for label, levels in parts.items()}, capacity_bytes, axis)
    if memory.largest <= 0 or not all(stack.times_s for stack in memory.stacks.values()):
        raise ValueError("There is no memory to draw: give {label: {part: [(time_s, bytes), ...]}}, no label empty.")
    num_panels = len(memory.stacks)
    picture = Picture(9, 3.6 if num_panels == 1 else 1.5 + 1.45 * num_panels)
    _draw(picture, memory, title, capacity_label)
    picture.alt = _alt(memory, title, capacity_label)
    return picture


def live_bytes(changes: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sum up live bytes from `(time_s, change_bytes)`: positive when allocated, negative when freed.

    What is allocated and freed at the same time counts as one change.
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
                "More is freed than was allocated: include every allocation, also those from before the first entry."
            )
        starts = [time_s for time_s, _ in changes]
        places = [bisect_right(starts, time_s) for time_s in times_s]
        sizes[name] = [changes[index - 1][1] if index else 0.0 for index in places]
    return _Stack(times_s, sizes)


def _draw(picture: Picture, memory: _Memory, title: str, capacity_label: str) -> None:
    start_s, end_s = memory.span_s
    byte_factor, byte_unit = units.byte_scale(memory.largest)
    time_factor, time_label = memory.axis_scale()
    styles = dict(zip(memory.part_names, cycle(PART_STYLES), strict=False))
    panels = picture.subplots(len(memory.stacks), sharex=True, squeeze=False)[:, 0]
    for axes, (label, stack) in zip(panels, memory.stacks.items(), strict=True):
        times = [time_s / time_factor for time_s in [*stack.times_s, end_s]]
        _draw_areas(axes, stack, styles, times, byte_factor)
        _mark_peak(axes, stack, times, byte_factor)
        if memory.capacity_bytes:
            mark_capacity(axes.axhline, memory.capacity_bytes, byte_factor, capacity_label)
        axes.set(ylim=(0, 1.25 * memory.largest / byte_factor), ylabel=f"{label}\n({byte_unit})")
        finish(axes, title if axes is panels[0] else "")
    if end_s > start_s:
        panels[-1].set_xlim(start_s / time_factor, end_s / time_factor)
    panels[-1].set_xlabel(time_label)
    shown = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    picture.legend_below(shown.values(), shown, ncols=min(5, len(shown)), handleheight=1.2)


def _draw_areas(
    axes: Axes, stack: _Stack, styles: Mapping[str, tuple[str, str]], times: Sequence[float], byte_factor: float
) -> None:
    floor = [0.0] * len(times)
    for name, sizes in stack.sizes.items():
        colour, hatch = styles[name]
        top = [low + size / byte_factor for low, size in zip(floor, [*sizes, sizes[-1]], strict=True)]
        style = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.6}
        axes.fill_between(times, floor, top, step="post", label=name, **style)
        floor = top
    axes.plot(times, floor, color=INK, linewidth=1.2, drawstyle="steps-post")


def _mark_peak(axes: Axes, stack: _Stack, times: Sequence[float], byte_factor: float) -> None:
    size = stack.totals[stack.peak]
    point = times[stack.peak], size / byte_factor
    axes.plot(*point, color=INK, marker="v", markersize=7, clip_on=False, zorder=5)
    is_late = point[0] > (times[0] + times[-1]) / 2
    offset, side = ((-8, 5), "right") if is_late else ((8, 5), "left")
    text = f"peak {units.format_bytes(size)}"
    label_point(axes, text, point, offset, ha=side, va="bottom", bbox=white_box(alpha=0.85))


def _alt(memory: _Memory, title: str, capacity_label: str) -> str:
    listed = "; ".join(_describe(label, stack, memory) for label, stack in memory.stacks.items())
    alt = f"Stacked areas over {memory.span}, {title}: {listed}."
    if memory.capacity_bytes:
        alt += f" A line marks {units.format_bytes(memory.capacity_bytes)}, {capacity_label}."
    return alt


def _describe(label: str, stack: _Stack, memory: _Memory) -> str:
    peak, size = stack.peak, stack.totals[stack.peak]
    held = ", ".join(f"{name} {units.format_bytes(sizes[peak])}" for name, sizes in stack.sizes.items() if sizes[peak])
    too_much = ", which does not fit" if memory.capacity_bytes and size > memory.capacity_bytes else ""
    when = memory.moment(stack.times_s[peak])
    at_the_end = units.format_bytes(stack.totals[-1])
    return f"{label} peaks at {units.format_bytes(size)}{too_much}, at {when} ({held}), and ends with {at_the_end}"
