"""Sorted, disjoint intervals of time in which something was in progress, with overlaps merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from worldsize.event import COMMUNICATION, WAIT, Event

Intervals = list[tuple[float, float]]  # (start, end) in seconds


class _Timed(Protocol):
    """An event, a call, or anything else with a start and an end."""

    @property
    def start_s(self) -> float:
        """When it starts."""
        ...

    @property
    def end_s(self) -> float:
        """When it ends."""
        ...


def under_way(events: Iterable[_Timed]) -> Intervals:
    """Return the intervals in which any of these events is in progress."""
    found: Intervals = []
    for start_s, end_s in sorted((event.start_s, event.end_s) for event in events if event.end_s > event.start_s):
        if found and start_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end_s)
        else:
            found.append((start_s, end_s))
    return found


def working(events: Sequence[Event]) -> Intervals:
    """Return the intervals in which the rank of these events works and does not wait."""
    return without(under_way(e for e in events if e.is_work), under_way(e for e in events if e.kind == WAIT))


def exposed(events: Sequence[Event]) -> Intervals:
    """Return the intervals of exposed communication, in which the rank of these events does not work."""
    communication = under_way(event for event in events if event.kind == COMMUNICATION)
    return without(communication, working(events)) if communication else []


def without(intervals: Intervals, others: Intervals) -> Intervals:
    """Return the parts of `intervals` outside all `others`."""
    left: Intervals = []
    place = 0
    for start_s, end_s in intervals:
        while place < len(others) and others[place][1] <= start_s:
            place += 1
        at = place
        while at < len(others) and others[at][0] < end_s:
            if others[at][0] > start_s:
                left.append((start_s, others[at][0]))
            start_s = max(start_s, others[at][1])
            at += 1
        if start_s < end_s:
            left.append((start_s, end_s))
    return left


def length_s(intervals: Intervals) -> float:
    """Return the total length in seconds."""
    return sum(end_s - start_s for start_s, end_s in intervals)
