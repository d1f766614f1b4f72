"""The bytes that each rank sent along each mesh dimension."""

from __future__ import annotations

from worldsize.draw.memory import stacked_bars
from worldsize.draw.picture import Picture
from worldsize.timeline import Timeline

_ELSEWHERE = "no axis"


def bytes_by_axis(run: Timeline, title: str = "Bytes sent by mesh axis") -> Picture:
    """Draw one stacked bar per rank: the bytes that it sent along each mesh dimension, and in other groups.

    Raises:
        ValueError: no bytes are known: a real run does not report what its collectives send.
    """
    sent = [run.bytes_sent_by_axis(rank) for rank in range(run.num_ranks)]
    axes = sorted({axis for by_axis in sent for axis in by_axis}, key=lambda axis: (not axis, axis))
    if not axes:
        raise ValueError("No rank is known to have sent anything: draw an emulated run that communicates.")
    parts = {
        f"rank {rank}": {axis or _ELSEWHERE: by_axis.get(axis, 0) for axis in axes} for rank, by_axis in enumerate(sent)
    }
    return stacked_bars(parts, "sent", title)
