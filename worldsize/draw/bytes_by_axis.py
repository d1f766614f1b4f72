"""How many bytes each rank sent along each axis of a mesh."""

from __future__ import annotations

from worldsize.draw.memory import stacked_bars
from worldsize.draw.picture import Picture
from worldsize.timeline import Timeline

_ELSEWHERE = "no axis"


def bytes_by_axis(run: Timeline, title: str = "Bytes sent by mesh axis") -> Picture:
    """One stacked bar for each rank: the bytes that it sent along each axis of a device mesh, and in other groups.

    Raises:
        ValueError: nothing was sent, as far as is known: a real run does not say what its collectives send.
    """
    sent = [run.bytes_sent_by_axis(rank) for rank in range(run.num_ranks)]
    axes = sorted({axis for by_axis in sent for axis in by_axis}, key=lambda axis: (not axis, axis))
    if not axes:
        raise ValueError("No rank is known to have sent anything: draw an emulated run that communicates.")
    parts = {
        f"rank {rank}": {axis or _ELSEWHERE: by_axis.get(axis, 0) for axis in axes} for rank, by_axis in enumerate(sent)
    }
    return stacked_bars(parts, "sent", title)
