"""What a rank's tensors held over its operations: stacked areas by kind, with the peak explained."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from worldsize.draw._annotations import white_box
from worldsize.draw.memory_over_time import memory_over_time
from worldsize.draw.picture import Picture
from worldsize.memory import MemoryUse

_NUM_HOLDINGS = 3  # named in a panel
_MAX_CHARS = 100
_ROOM, _ROOM_OF_SEVERAL = 1.75, 2.45  # the height of a panel over its highest area; several panels are lower
_MOST_ROOM = 4  # a capacity further above the peak is not drawn: it would flatten the areas


def memory_use(uses: Mapping[str, MemoryUse], title: str = "What the tensors hold") -> Picture:
    """Draw stacked areas per label (a rank, a variant): bytes held by kind, with the largest holdings at the peak.

    The records come from `ws.run(..., memory=True).memory`. The GPU's capacity is drawn if it is near the peak.

    Raises:
        ValueError: there are no records, or one is of a rank that held nothing.
    """
    most_bytes = max((use.most_bytes for use in uses.values()), default=0)
    near = [use.capacity_bytes for use in uses.values() if use.capacity_bytes]
    capacity_bytes = min(near) if near and min(near) <= _MOST_ROOM * most_bytes else None
    levels = {label: _levels(use) for label, use in uses.items()}
    picture = memory_over_time(levels, capacity_bytes, title, "the GPU's memory", axis="operations")
    for axes, use in zip(picture.axes, uses.values(), strict=True):
        _name_holdings(axes, use, _ROOM if len(uses) == 1 else _ROOM_OF_SEVERAL)
    explained = " ".join(f"{label}: {use.explain()}" for label, use in uses.items())
    picture.alt = f"{picture.alt} {explained}"
    return picture


def _levels(use: MemoryUse) -> dict[str, list[tuple[float, float]]]:
    """Return the curve of each kind that ever held anything."""
    return {kind: list(zip(use.operations, sizes, strict=True)) for kind, sizes in use.sizes.items() if any(sizes)}


def _name_holdings(axes: Axes, use: MemoryUse, room: float) -> None:
    lines = [_cut(str(holding)) for holding in use.holdings[:_NUM_HOLDINGS]]
    axes.set_ylim(0, axes.get_ylim()[1] / 1.25 * room)
    text = "\n".join(["most at the peak:", *lines])
    axes.text(0.01, 0.98, text, transform=axes.transAxes, va="top", fontsize=7, parse_math=False, bbox=white_box())


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"
